"""A job over several processes, of which one is killed at a random moment, again and again, and resumed each time: the
output is that of one process, byte for byte.

    python -m tools.kill_ranks [--count 20] [--processes 4] [--prompts 1500] [--seed 1]
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support.processes import ROOT, start

MOST_SECONDS = 1.0  # from a line to the kill


def lines_of(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def main(count: int, processes: int, prompts: int, seed: int) -> None:
    choose = random.Random(seed)
    texts = [path.read_text(encoding="utf-8").splitlines() for path in sorted((ROOT / "data").glob("*.txt"))]
    lines = [line for lines in zip(*texts, strict=True) for line in lines]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "prompts.txt").write_text("".join(f"{lines[i % len(lines)]}\n" for i in range(prompts)))
        command = ["main.py", "--input", str(folder / "prompts.txt"), "-m", "8", "--output"]
        subprocess.run([sys.executable, *command, str(folder / "one")], cwd=ROOT, check=True, stderr=subprocess.DEVNULL)
        one, output, kills = (folder / "one").read_bytes(), folder / "several", 0
        while True:
            started = start(processes, folder, [*command, str(output), "--resume"])
            if kills < count:
                wanted = lines_of(output) + choose.randrange(2 * prompts // count)
                while lines_of(output) < wanted and started[0].poll() is None:
                    time.sleep(0.02)
                time.sleep(choose.uniform(0, MOST_SECONDS))
                victim = choose.randrange(processes)
                is_running = started[victim].poll() is None
                started[victim].kill()
                kills += is_running
            statuses = [process.wait() for process in started]
            there = output.read_bytes() if output.exists() else b""
            says = (folder / f"said-{int(kills > 0 and statuses[0] < 0)}").read_text().splitlines()[-1:]
            print(f"{kills} kills, {lines_of(output)} lines, exit statuses {statuses}: {says}", flush=True)
            assert one.startswith(there[: there.rfind(b"\n") + 1]), "a line differs"
            if not any(statuses):
                if kills == count:
                    break
                output.unlink()  # done early: once more from the beginning
                (folder / "several.job").unlink()
        assert there == one, "the output differs"
        print(
            f"{prompts} prompts over {processes} processes, killed {count} times: equal to one process, byte for byte"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for flag, usual in (("count", 20), ("processes", 4), ("prompts", 1500), ("seed", 1)):
        parser.add_argument(f"--{flag}", type=int, default=usual)
    main(**vars(parser.parse_args()))
