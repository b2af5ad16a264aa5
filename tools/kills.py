"""Kills programs over their whole run and resumes them. The results must equal those of an undisturbed run.

    python -m tools.kills [--kills 60] [--only KIND ...] [--at-end]

Half of the kills hit a write, sync, rename or removal: a profile hook in the program counts them and sends SIGKILL
before the n-th. The others hit a moment. Both are spread evenly over an undisturbed run. For `full-disk`, the n-th
write fails instead, which must end the program with one line. `--at-end` hits the last writes instead, with which the
program finishes its result. The last line summarizes all kinds.
"""

from __future__ import annotations

import argparse
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
from speculative_decoding.jobs import output
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
CONVERT = f"convert --model {BUNDLED / 't5-web-docs-draft'} --output made --dtype float32 --force"
KINDS = {
    "greedy": JOB,
    "coupled": f"{JOB} --temperature 1 --acceptance coupled",
    "beams": f"{JOB} --num-beams 3",
    "several-processes": JOB,
    "training": TRAIN,
    "conversion": CONVERT,
    "full-disk-job": JOB,
    "full-disk-training": TRAIN,
    "full-disk-conversion": CONVERT,
}
POSIX_WRITES = ("fsync", "mkdir", "rename", "replace", "rmdir", "sendfile", "truncate", "unlink")
FORK = multiprocessing.get_context("fork")  # a fork needs no imports; this process must not use the device itself


def command(arguments: list[str], log: Path, stop_at: int, is_full: bool) -> None:
    """Run a command in this process, which is killed, or finds the disk full, at its n-th write (0: never)."""
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(log.parents[1])
    output.COMMIT_SECONDS = 0.03
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
    """How a run ended: an exit status, what rank 0 said, and its duration."""

    status: int
    said: list[str]
    seconds: float


def run(kind: str, folder: Path, rng: random.Random, write: int = 0, moment: float | None = None) -> Run:
    """Run a program, and kill rank 0 at a write, or a random rank after `moment` seconds."""
    processes = []
    hosts = write_hosts(2, folder)
    ranks = 2 if kind == "several-processes" else 1
    begin = time.perf_counter()
    for rank in range(ranks):
        if ranks > 1:
            os.environ |= {"MLX_HOSTFILE": str(hosts), "MLX_RANK": str(rank)}
        log, is_full = folder / "logs" / f"{rank}", kind.startswith("full-disk")
        arguments = KINDS[kind].split(), log, 0 if rank else write, is_full
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
    """The files of a result, without the manifest, which contains times."""
    made = folder / "made"
    if made.is_file():
        return {"": made.read_bytes()}
    return {path.name: path.read_bytes() for path in sorted(made.iterdir()) if path.name != manifest.MANIFEST}


def stage(folder: Path, expected: dict[str, bytes]) -> str:
    """Check the unfinished result, and say how far it is."""
    made, work = folder / "made", folder / "made.training"
    if made.is_file():
        written = made.read_bytes()
        assert expected[""].startswith(written[: written.rfind(b"\n") + 1]), "a record differs"
        return f"{25 * (4 * len(written) // (len(expected['']) + 1))} %"
    if made.exists():
        manifest.verify(made)
        return "result written"
    for name in ("checkpoint.partial", "checkpoint.npz", "features", "outputs.jsonl"):
        if (work / name).exists():
            return name
    return "nothing written"


def remove_result(folder: Path) -> None:
    for path in folder.glob("made*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def interrupt(kind: str, folder: Path, kills: int, at_end: bool) -> Counter[str]:
    """Interrupt a program and resume it. Returns how often each stage was interrupted."""
    rng = random.Random(kind)
    whole = run(kind, folder, rng)
    assert whole.status == 0, whole.said
    expected, writes = content(folder), int(whole.said[-1])
    remove_result(folder)
    is_full = kind.startswith("full-disk")
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
        found = run(kind, folder, rng, write, moment)
        if found.status:
            of_survivor = (1, 2) if kind == "several-processes" else ()  # 2: the other rank was lost while joining
            assert found.status == 2 if is_full else found.status in (-signal.SIGKILL, *of_survivor), found
            errors = [line for line in found.said if "error" in line or "Traceback" in line]
            assert not is_full or (len(errors) == 1 and "No space left" in errors[0]), found.said
            stages[stage(folder, expected)] += 1
            continue
        assert content(folder) == expected, f"{kind}: the result differs"
        remove_result(folder)
        if not is_new:  # a resumed run that finished before the kill: kill a new one
            plan.append((write, moment))
    assert run(kind, folder, rng).status == 0 and content(folder) == expected, f"{kind}: the result differs"
    assert not [*folder.glob(".made*")], "temporary files are left"
    remove_result(folder)
    return stages


def prepare(folder: Path) -> None:
    """Write a small target and the prompts."""
    from tests.support.tiny import small_target

    small_target(folder)
    letters = random.Random(1)
    lines = ("".join(letters.choices("abcdefgh", k=letters.randrange(1, 9))) for _ in range(200))
    (folder / "letters.txt").write_text("\n".join(lines))
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
            stages = interrupt(kind, folder, chosen.kills, chosen.at_end)
            counts[kind] = stages.total()
            print(f"{kind}: interrupted {dict(sorted(stages.items()))}", file=sys.stderr, flush=True)
    print(f"{sum(counts.values())} interruptions {counts}: all results are byte-identical")


if __name__ == "__main__":
    main()
