"""Interrupts programs at random moments: `python -m tools.random_interruptions [ROUNDS]`.

The tests interrupt at fixed moments; this tool searches for others. It kills and resumes a job and a training run, and
interrupts texts of a console. Results must equal those of uninterrupted programs. It is not a test, because its
coverage depends on chance and on the load of the machine.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from speculative_decoding.cli import train as train_command
from speculative_decoding.jobs import output
from speculative_decoding.training import trainer
from tests.support.job_engine import at_random, engine, run_job, sample_input

PROMPT = "translate English to German: The method returns the value of the property."


def fork(child: Callable[[], object]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        child()
        os._exit(0)
    except BaseException:
        import traceback

        traceback.print_exc()
    os._exit(1)


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def jobs_killed(folder: Path, kills: int) -> int:
    """Kill and resume one job. Returns the number of times that the output was ahead of its journal."""
    output.COMMIT_SECONDS = 0.03
    content = sample_input(700)
    path = folder / "results.jsonl"
    reference = folder / "reference.jsonl"
    run_job(reference, content)
    killed = 0
    ahead = 0
    while killed < kills:
        pid = fork(lambda: run_job(path, content, engine(at_random(), seconds=0.002), resume=True))
        time.sleep(random.uniform(0, 0.3))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        killed += os.WIFSIGNALED(status)
        assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
        journal = output.journal_path(path)
        if path.exists() and journal.exists():
            ahead += size_of(path) > json.loads(journal.read_text())["size"]
        if not os.WIFSIGNALED(status):  # finished before the kill: start again
            assert path.read_bytes() == reference.read_bytes()
            path.unlink()
    run_job(path, content, resume=True)
    assert path.read_bytes() == reference.read_bytes()
    return ahead


STEPS = 120


def train(folder: Path, output: str) -> int:
    trainer.REPORT_STEPS = 2
    trainer.SAVE_SECONDS = 0.0
    train_command.plot_curves = lambda *_: None
    flags = {"model": "target", "prompts": "prompts.txt", "output": output}
    words = [word for name, value in flags.items() for word in (f"--{name}", str(folder / value))]
    more = f"--steps {STEPS} --max-tokens 24 --held-out 8 --dtype float32 --sampled-share 0.5 --resume --force"
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        return train_command.main([*words, *more.split()])


def trainings_killed(folder: Path, kills: int) -> Counter[str]:
    """Kill and resume one training run. Returns the number of interruptions in each stage."""

    def prepare() -> None:
        from tests.integration.test_training import small_target

        small_target(folder)

    rng = random.Random(1)
    lines = ["".join(rng.choices("abcdefgh", k=rng.randrange(1, 9))) for _ in range(160)]
    (folder / "prompts.txt").write_text("\n".join(lines))
    assert os.waitpid(fork(prepare), 0)[1] == 0
    started = time.perf_counter()
    assert os.waitpid(fork(lambda: os._exit(train(folder, "reference"))), 0)[1] == 0
    seconds = time.perf_counter() - started
    stages = Counter[str]()
    output = folder / "head"
    work = folder / "head.training"
    while True:
        pid = fork(lambda: os._exit(train(folder, "head")))
        if is_last := sum(stages.values()) == kills:
            assert os.waitpid(pid, 0)[1] == 0
        else:
            time.sleep(random.uniform(0, seconds))
            os.kill(pid, signal.SIGKILL)
            status = os.waitpid(pid, 0)[1]
            assert os.WIFSIGNALED(status) or status == 0
            stages.update([stage_of(work)] if os.WIFSIGNALED(status) else [])
        if is_last or not os.WIFSIGNALED(status):  # finished before the kill: start again
            reference = (folder / "reference" / "weights.npz").read_bytes()
            assert (output / "weights.npz").read_bytes() == reference
            shutil.rmtree(output)
            shutil.rmtree(work)
        if is_last:
            return stages


def stage_of(work: Path) -> str:
    if not (work / "features" / "done.json").exists():
        return "outputs" if (work / "outputs.jsonl").exists() else "start"
    checkpoint = work / "checkpoint.npz"
    if not checkpoint.exists():
        return "features"
    if checkpoint.with_suffix(".partial").exists():
        return "saving"
    return "finishing" if np.load(checkpoint)["step"].item() == STEPS else "steps"


def texts_stopped(rounds: int) -> int:
    """Interrupt texts of a console with one or two signals. Returns the number of incomplete texts."""
    from speculative_decoding.cli.console import answer as answer_line
    from speculative_decoding.cli.console_commands import ConsoleState
    from speculative_decoding.cli.flags import main_parser
    from speculative_decoding.cli.run_config import run_config_from

    config = run_config_from(main_parser().parse_args(["--interactive", "--drafter", "auto"]))
    state = ConsoleState(config)
    state.open(config)

    def answer() -> tuple[str, str]:
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            answer_line(state, PROMPT)
        return out.getvalue(), err.getvalue()

    expected, _ = answer()
    started = time.perf_counter()
    answer()
    seconds = time.perf_counter() - started
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    stopped = 0
    for number in range(rounds):
        shown: Any = ("", "")
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.001, seconds), 0.0005 if number % 2 else 0)
        try:
            try:
                shown = answer()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:  # after the text, where the console's loop would catch it
            signal.setitimer(signal.ITIMER_REAL, 0)
        stopped += shown[0] != expected
        assert answer()[0] == expected
    return stopped


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    with (
        tempfile.TemporaryDirectory() as name
    ):  # run this first, because a process that has used the device must not fork
        ahead = jobs_killed(Path(name), count)
        print(f"{count} kills: identical records; the output was ahead of its journal {ahead} times")
        folder = Path(name) / "training"
        folder.mkdir()
        print(
            f"{count} kills: identical weights; interrupted stages: {dict(trainings_killed(folder, count))}", flush=True
        )
    print(f"{count} signals: identical texts afterwards; {texts_stopped(count)} texts were interrupted")
