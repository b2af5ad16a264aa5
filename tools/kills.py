"""Kills programs at various points and resumes them. Results must equal those of an uninterrupted run.

    python -m tools.kills [--kills 60] [--only KIND ...] [--at-end]

Half of the kills interrupt a write, sync, rename or removal: a profile hook in the program counts these calls and sends
SIGKILL before the n-th call. The other kills occur at fixed times. Both kinds are spread evenly over the course of a
run. For `full-disk`, the n-th write fails instead, and the program must exit with a one-line error. With `--at-end`,
kills interrupt only a run's last writes, which complete its result. `conversion-over-another` replaces a complete
folder, so a complete folder must exist at all times. `console` interrupts texts with Ctrl-C, every second text several
times, and the next text must be complete. The last line is a summary.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from io import BytesIO, IOBase, StringIO
from pathlib import Path
from typing import Any

from speculative_decoding.cli import programs
from speculative_decoding.loading import manifest
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.training import command as train
from speculative_decoding.training import trainer
from tests.support.processes import write_hosts

JOB = "batch letters.txt --model target --output made -m 16 --slots 4 --resume"
TRAIN = (
    "train --model target --prompts letters.txt --output made --steps 60 --max-tokens 16 --held-out 8 --dtype float32 "
    "--sampled-share 0.5 --resume --force"
)
TRANSCRIBE = "transcribe talks --model speech --output-dir made --output-format txt,srt,vtt,json --slots 3 -m 8"
DOCUMENT = "document letters.txt --model target --output made --unit line --slots 4 -m 16 --force"
PAGES = {f"{number % 3}/{number}.txt" for number in range(8)}
FOLDER = DOCUMENT.replace("letters.txt", "pages")
CONVERT = f"convert --model {BUNDLED / 't5-web-docs-draft'} --output made --dtype float32 --force"
KINDS = {
    "greedy": JOB,
    "coupled": f"{JOB} --temperature 1 --acceptance coupled",
    "beams": f"{JOB} --num-beams 3",
    "several-processes": JOB,
    "training": TRAIN,
    "conversion": CONVERT,
    "conversion-over-another": CONVERT,
    "documents": DOCUMENT,
    "folder-of-documents": FOLDER,
    "recordings": TRANSCRIBE,
    "full-disk-job": JOB,
    "full-disk-training": TRAIN,
    "full-disk-conversion": CONVERT,
    "full-disk-documents": DOCUMENT,
    "full-disk-recordings": TRANSCRIBE,
    "console": "--drafter auto",
}
LEDGER = ".transcribe.jsonl"
WINDOWS = ".transcribe."  # name prefix of the logs of unfinished recordings
PROMPT = "translate English to German: The method returns the value of the property."  # of the console
POSIX_WRITES = ("fsync", "mkdir", "rename", "replace", "rmdir", "sendfile", "truncate", "unlink")
FORK = multiprocessing.get_context("fork")  # a fork needs no imports. This process must not use the device


def command(arguments: list[str], log: Path, stop_at: int, is_full: bool) -> None:
    """Run a command in this process. Its write number `stop_at` kills it or fails with a full disk (0: none does)."""
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(log.parents[1])
    trainer.REPORT_STEPS, trainer.SAVE_SECONDS = 4, 0.0
    train.plot_curves = lambda *_: None
    writes = 0

    def hook(frame: Any, event: str, function: Any) -> None:
        nonlocal writes
        if event != "c_call":
            return
        name, owner = function.__name__, getattr(function, "__self__", None)
        is_posix = name in POSIX_WRITES and getattr(owner, "__name__", "") == "posix"
        is_file = isinstance(owner, IOBase) and not isinstance(owner, BytesIO | StringIO) and owner is not sys.stderr
        if is_posix or (name in ("write", "truncate") and is_file):
            writes += 1
            if writes == stop_at:
                if is_full:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.kill(os.getpid(), signal.SIGKILL)

    threading.setprofile(hook)
    sys.setprofile(hook)
    status = programs.main(arguments)
    sys.setprofile(None)
    print(writes, file=sys.stderr)
    sys.exit(status)


@dataclass
class Run:
    """The outcome of a run: exit status, output of rank 0, and duration."""

    status: int
    said: list[str]
    seconds: float


def run(
    kind: str, folder: Path, rng: random.Random, write: int = 0, moment: float | None = None, more: str = ""
) -> Run:
    """Run a program with the options `more`. Kill rank 0 at a write, or a random rank after `moment` seconds."""
    processes = []
    hosts = write_hosts(2, folder)
    ranks = 2 if kind == "several-processes" else 1
    begin = time.perf_counter()
    for rank in range(ranks):
        if ranks > 1:
            os.environ |= {"MLX_HOSTFILE": str(hosts), "MLX_RANK": str(rank)}
        log, is_full = folder / "logs" / f"{rank}", kind.startswith("full-disk")
        arguments = f"{KINDS[kind]} {more}".split(), log, 0 if rank else write, is_full
        processes.append(FORK.Process(target=command, args=arguments))
        processes[-1].start()
    if moment is not None:
        processes[0].join(moment)
        if processes[0].is_alive():
            rng.choice(processes).kill()
    for process in processes:
        process.join()
    for name in ("MLX_HOSTFILE", "MLX_RANK"):
        os.environ.pop(name, None)
    status = next((each.exitcode for each in processes if each.exitcode), 0)
    said = (folder / "logs" / "0").read_text().splitlines()
    return Run(status or 0, said, time.perf_counter() - begin)


def content(folder: Path) -> dict[str, bytes]:
    """Return a result's files, except for the manifest and the ledger, which contain times."""
    made = folder / "made"
    if made.is_file():
        return {"": made.read_bytes()}
    files = [path for path in made.rglob("*") if path.is_file() and path.name not in (manifest.MANIFEST, LEDGER)]
    return {str(path.relative_to(made)): path.read_bytes() for path in files}


def stage(folder: Path, expected: dict[str, bytes]) -> str:
    """Check an unfinished result, and return the stage that it reached."""
    made, work = folder / "made", folder / "made.training"
    if (journal := folder / "made.journal").exists():
        assert not made.exists() or made.read_bytes() == expected[""], "a document differs"
        return f"{25 * (4 * len(journal.read_text().splitlines()) // 202)} %"
    if made.is_file():
        written = made.read_bytes()
        assert expected[""].startswith(written[: written.rfind(b"\n") + 1]), "a record differs"
        return f"{25 * (4 * len(written) // (len(expected['']) + 1))} %"
    if expected.keys() == PAGES:
        finished = {name: text for name, text in content(folder).items() if not Path(name).name.startswith(".")}
        assert finished.items() <= expected.items(), "a document differs"
        return f"{len(finished)} documents"
    if (made / LEDGER).exists():
        found = content(folder)
        logs = [name for name in found if name.startswith(WINDOWS)]
        whole = {name: text for name, text in found.items() if ".partial-" not in name and name not in logs}
        assert whole.items() <= expected.items(), "a transcript differs"
        windows = sum(found[name].count(b"\n") - 1 for name in logs)
        return f"{'half a recording' if windows else 'whole recordings'}, {len(whole) // 4 * 4} transcripts"
    if made.exists():
        if not any(made.iterdir()):
            return "nothing written"
        manifest.verify(made)
        return "result written"
    for name in ("checkpoint.npz", "features", "outputs.jsonl"):
        if (work / name).exists():
            return name
    return "nothing written"


def remove_result(folder: Path) -> None:
    for path in folder.glob("made*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def interrupt(kind: str, folder: Path, kills: int, at_end: bool) -> Counter[str]:
    """Repeatedly interrupt a program and resume it. Returns the number of interruptions in each stage."""
    rng = random.Random(kind)
    whole = run(kind, folder, rng)
    assert whole.status == 0, whole.said
    expected, writes = content(folder), int(whole.said[-1])
    remove_result(folder)
    is_full, is_over = kind.startswith("full-disk"), kind == "conversion-over-another"
    if is_over:
        assert run(kind, folder, rng, more="--dtype bfloat16").status == 0
        (folder / "made").rename(folder / "old")
    at_writes = kills if is_full else kills // 2
    plan: list[tuple[int, float | None]] = [(1 + i * writes // at_writes, None) for i in range(at_writes)]
    plan += [(0, whole.seconds * i / (kills - at_writes)) for i in range(kills - at_writes)]
    if at_end:
        plan = [(writes - i, None) for i in range(kills)]
    rng.shuffle(plan)
    stages = Counter[str]()
    while plan:
        write, moment = plan.pop()
        is_new = not [*folder.glob("made*")]
        if is_over and is_new:
            shutil.copytree(folder / "old", folder / "made")
        found = run(kind, folder, rng, write, moment)
        if found.status:
            of_survivor = (1, 2) if kind == "several-processes" else ()  # 2: the other rank was lost while joining
            assert found.status == 2 if is_full else found.status in (-signal.SIGKILL, *of_survivor), found
            errors = [line for line in found.said if "error" in line or "Traceback" in line]
            assert not is_full or (len(errors) == 1 and "No space left" in errors[0]), found.said
            stages[where := stage(folder, expected)] += 1
            assert not is_over or where == "result written", "the previous folder is gone"
            continue
        assert content(folder) == expected, f"{kind}: the result differs"
        remove_result(folder)
        if not is_new:  # a resumed run finished before the kill, so kill a new run
            plan.append((write, moment))
    assert run(kind, folder, rng).status == 0 and content(folder) == expected, f"{kind}: the result differs"
    assert not [*folder.glob(".made*")], "temporary files are left"
    remove_result(folder)
    return stages


def interrupt_console(texts: int) -> Counter[str]:
    """Interrupt texts in another process's console. Returns the numbers of interrupted and of complete texts."""
    receiver, sender = FORK.Pipe(duplex=False)
    process = FORK.Process(target=console, args=(texts, sender))
    process.start()
    sender.close()
    stages: Counter[str] = receiver.recv()
    process.join()
    return stages


def console(texts: int, sender: Any) -> None:
    """Send Ctrl-C to this process at a random moment during each text."""
    from speculative_decoding.cli.console import answer
    from speculative_decoding.cli.console_commands import ConsoleState, console_parser
    from speculative_decoding.cli.run_config import run_config_from

    config = run_config_from(console_parser("console").parse_args(KINDS["console"].split()))
    state = ConsoleState(config)
    state.open(config)

    def text() -> str:
        with contextlib.redirect_stdout(StringIO()) as out, contextlib.redirect_stderr(StringIO()):
            answer(state, PROMPT)
        return out.getvalue()

    expected = text()
    started = time.perf_counter()
    text()
    seconds = time.perf_counter() - started
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    stages = Counter[str]()
    for number in range(texts):
        shown = ""
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.001, seconds), 0.0005 if number % 2 else 0)
        try:
            try:
                shown = text()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:  # Ctrl-C came after the text; the console's loop would catch it
            signal.setitimer(signal.ITIMER_REAL, 0)
        stages["text complete" if shown == expected else "text interrupted"] += 1
        assert text() == expected, "the text after an interrupted one differs"
    sender.send(stages)


def prepare(folder: Path) -> None:
    """Write a small target, prompts, a small speech model, and recordings."""
    from tests.support.speech import noise, wav
    from tests.support.tiny import WHISPER, save_whisper, small_target, tiny_whisper

    small_target(folder)
    save_whisper(tiny_whisper(), folder / "speech", WHISPER)
    for number in range(8):
        path = folder / "talks" / str(number % 3) / f"{number // 2}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(wav(noise(number, 0.5 + number / 2)))  # a window is 0.6 seconds long
    letters = random.Random(1)
    lines = ("".join(letters.choices("abcdefgh", k=letters.randrange(1, 9))) for _ in range(200))
    text = "\n".join(lines)
    (folder / "letters.txt").write_text(text)
    for number, name in enumerate(sorted(PAGES)):
        (folder / "pages" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "pages" / name).write_text(text[number * 100 : number * 100 + 100])
    (folder / "logs").mkdir()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=60, help="for each kind (default: 60)")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=[*KINDS], help="the kinds (default: all)")
    parser.add_argument("--at-end", action="store_true", help="interrupt the last writes of a run")
    chosen = parser.parse_args()
    counts = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        preparation = FORK.Process(target=prepare, args=[folder])
        preparation.start()
        preparation.join()
        for kind in chosen.only:
            is_console = kind == "console"
            stages = (
                interrupt_console(chosen.kills) if is_console else interrupt(kind, folder, chosen.kills, chosen.at_end)
            )
            counts[kind] = stages.total()
            print(f"{kind}: interrupted {dict(sorted(stages.items()))}", file=sys.stderr, flush=True)
    print(f"{sum(counts.values())} interruptions {counts}: all results are equal")


if __name__ == "__main__":
    main()
