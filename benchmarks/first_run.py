"""Measures the first run on a device while other programs are running: `python -m benchmarks.first_run`.

The benchmark alternates `main.py PROMPT` without a stored calibration and with `--num-draft 4 --no-strict`, which needs
no measurements. Kernels are compiled in advance. Each first run is followed by a second run, which must not measure
again before its first token. The exit status is 1 if the second run does so, or if the median ratio of the first run's
time to that of a run without measurements exceeds the bound.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from speculative_decoding.cli.common import run, say
from speculative_decoding.cli.main import EXAMPLE
from speculative_decoding.cli.parser import Parser, argument_type
from speculative_decoding.errors import InputError
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.sampling.values import Int

from .options import COUNT

ROOT = BUNDLED.parent
BOUND = 1.3
UNMEASURED = ("--num-draft", "4", "--no-strict")
NOTE = "note: measuring"


@contextmanager
def other_programs(count: int) -> Iterator[None]:
    """Run this number of busy processes."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for each in programs:
            each.kill()
            each.wait()


def timed(caches: Path, *options: str) -> tuple[float, bool]:
    """Run main.py. Returns the elapsed seconds, and whether the program reported that it was measuring the device."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(caches)}
    environment.pop("SPECULATIVE_DECODING_CALIBRATION", None)
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, str(ROOT / "main.py"), *options, EXAMPLE], env=environment, capture_output=True, text=True
    )
    seconds = time.perf_counter() - started
    if done.returncode:
        raise InputError(f"main.py: {done.stderr}")
    return seconds, NOTE in done.stderr


def measure(pairs: int, busy: int) -> int:
    runs = []  # for each repeat, the seconds of a first, a second and an unmeasured run
    repeated = 0
    with tempfile.TemporaryDirectory() as folder:
        caches = Path(folder)
        for options in ((), UNMEASURED):
            timed(caches, *options)  # compiles kernels
        with other_programs(busy):
            for i in range(pairs):
                shutil.rmtree(caches / "speculative-decoding" / "calibration")
                unmeasured = timed(caches, *UNMEASURED)[0] if i % 2 else 0.0
                first, has_measured = timed(caches)
                second, measures_again = timed(caches)
                unmeasured = unmeasured or timed(caches, *UNMEASURED)[0]
                assert has_measured, "the first run did not measure"
                repeated += measures_again
                runs.append((first, second, unmeasured))
                say("first {:.2f} s, second {:.2f} s, unmeasured {:.2f} s".format(*runs[-1]))
    ratios = [first / unmeasured for first, _, unmeasured in runs]
    median = statistics.median(ratios)
    medians = " | ".join(f"{statistics.median(each):.2f} s" for each in zip(*runs, strict=True))
    print("| other programs | first run | second run | unmeasured run | first / unmeasured |\n|---|---|---|---|---|")
    print(f"| {busy} | {medians} | {median:.2f} ({min(ratios):.2f} to {max(ratios):.2f}), bound {BOUND} |")
    print(f"\nsecond runs that measured before their first token: {repeated}")
    return int(median > BOUND or repeated > 0)


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m benchmarks.first_run", description=__doc__)
    parser.add_argument("--pairs", type=COUNT, default=9, metavar="N", help="pairs of runs (default: 9)")
    cores = os.cpu_count() or 1
    parser.add_argument(
        "--busy",
        type=argument_type(Int(0)),
        default=cores,
        metavar="N",
        help="number of other busy programs (default: one per core)",
    )
    chosen = parser.parse_args(argv)
    return run("benchmarks.first_run", lambda: measure(chosen.pairs, chosen.busy))


if __name__ == "__main__":
    sys.exit(main())
