"""Interruptions at moments that the clock chooses, many of them: `python -m tools.random_interruptions [ROUNDS]`.

The tests interrupt at moments that they count. This looks for what nobody thought of counting: it kills a job and a
training again and again and resumes them, and stops texts of a console; whatever comes next must be what it would have
been. A command and no test, because how much it meets depends on chance and on what else the machine does.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from speculative_decoding.cli import train as train_command
from speculative_decoding.jobs import output
from speculative_decoding.training import trainer
from tests.support.job_engine import at_random, engine, fork, run_job, sample_input

PROMPT = "translate English to German: The method returns the value of the property."


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def jobs_killed(folder: Path, kills: int) -> int:
    """One job, killed so many times and resumed each time; how often there was something behind the checkpoint."""
    output.COMMIT_SECONDS = 0.03
    content, path, whole = sample_input(700), folder / "results.jsonl", folder / "whole.jsonl"
    run_job(whole, content)
    killed = ahead = 0
    while killed < kills:
        pid = fork(lambda: run_job(path, content, engine(at_random(), seconds=0.002), resume=True))
        time.sleep(random.uniform(0, 0.3))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        killed += os.WIFSIGNALED(status)
        assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
        checkpoint = output.journal_path(path)
        if path.exists() and checkpoint.exists():
            ahead += size_of(path) > json.loads(checkpoint.read_text())["size"]
        if not os.WIFSIGNALED(status):  # finished: begin another
            assert path.read_bytes() == whole.read_bytes()
            path.unlink()
    run_job(path, content, resume=True)
    assert path.read_bytes() == whole.read_bytes()
    return ahead


STEPS = 120


def train(folder: Path, output: str) -> int:
    trainer.REPORT_STEPS, trainer.SAVE_SECONDS = 2, 0.0
    train_command.plot_curves = lambda *_: None
    flags = {"model": "target", "prompts": "prompts.txt", "output": output}
    words = [word for name, value in flags.items() for word in (f"--{name}", str(folder / value))]
    more = f"--steps {STEPS} --max-tokens 24 --held-out 8 --dtype float32 --sampled-share 0.5 --resume --force"
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        return train_command.main([*words, *more.split()])


def trainings_killed(folder: Path, kills: int) -> Counter[str]:
    """One training, killed so many times and resumed each time; what it was doing, as its folder shows."""

    def prepare() -> None:
        from tests.integration.test_training import small_target

        small_target(folder)

    dice = random.Random(1)
    lines = ["".join(dice.choices("abcdefgh", k=dice.randrange(1, 9))) for _ in range(160)]
    (folder / "prompts.txt").write_text("\n".join(lines))
    assert os.waitpid(fork(prepare), 0)[1] == 0
    started = time.perf_counter()
    assert os.waitpid(fork(lambda: os._exit(train(folder, "whole"))), 0)[1] == 0
    seconds, found = time.perf_counter() - started, Counter[str]()
    output, work = folder / "head", folder / "head.training"
    while True:
        pid = fork(lambda: os._exit(train(folder, "head")))
        if is_last := sum(found.values()) == kills:
            assert os.waitpid(pid, 0)[1] == 0
        else:
            time.sleep(random.uniform(0, seconds))
            os.kill(pid, signal.SIGKILL)
            status = os.waitpid(pid, 0)[1]
            assert os.WIFSIGNALED(status) or status == 0
            found.update([doing(work)] if os.WIFSIGNALED(status) else [])
        if is_last or not os.WIFSIGNALED(status):  # finished: begin another
            whole = (folder / "whole" / "weights.npz").read_bytes()
            assert (output / "weights.npz").read_bytes() == whole
            shutil.rmtree(output)
            shutil.rmtree(work)
        if is_last:
            return found


def doing(work: Path) -> str:
    if not (work / "features" / "done.json").exists():
        return "outputs" if (work / "outputs.jsonl").exists() else "beginning"
    checkpoint = work / "checkpoint.npz"
    if not checkpoint.exists():
        return "features"
    if checkpoint.with_suffix(".partial").exists():
        return "saving"
    return "finishing" if np.load(checkpoint)["step"].item() == STEPS else "steps"


def texts_stopped(rounds: int) -> int:
    """The first signal asks, a second stops at once; how many texts were stopped."""
    from speculative_decoding.cli.console import answer as answer_line
    from speculative_decoding.cli.console_commands import ConsoleState
    from speculative_decoding.cli.drafting import plan_of
    from speculative_decoding.cli.flags import main_parser

    plan = plan_of(main_parser().parse_args(["--interactive", "--drafter", "auto"]))
    state = ConsoleState(plan)
    state.open(plan)

    def answer() -> tuple[str, str]:
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            answer_line(state, PROMPT)
        return out.getvalue(), err.getvalue()

    expected, _ = answer()
    started = time.perf_counter()
    answer()
    whole = time.perf_counter() - started
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    stopped = 0
    for number in range(rounds):
        said: Any = "", ""
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.001, whole), 0.0005 if number % 2 else 0)
        try:
            try:
                said = answer()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:  # behind a text, where the console's loop catches it
            signal.setitimer(signal.ITIMER_REAL, 0)
        stopped += said[0] != expected
        assert answer()[0] == expected
    return stopped


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    with tempfile.TemporaryDirectory() as name:  # first: a process with devices may not fork
        print(f"{count} kills: the same records; {jobs_killed(Path(name), count)} times behind the checkpoint")
        (folder := Path(name) / "training").mkdir()
        print(f"{count} kills: the same weights of a draft; {dict(trainings_killed(folder, count))}", flush=True)
    print(f"{count} signals: the same texts; {texts_stopped(count)} were stopped")
