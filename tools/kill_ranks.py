"""Kills random ranks of a multi-process job and resumes it. The output must equal that of a single process.

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


def lines_of(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def main(count: int, processes: int, prompts: int, seed: int) -> None:
    rng = random.Random(seed)
    texts = [path.read_text(encoding="utf-8").splitlines() for path in sorted((ROOT / "data").glob("*.txt"))]
    lines = [line for lines in zip(*texts, strict=True) for line in lines]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "prompts.txt").write_text("".join(f"{lines[i % len(lines)]}\n" for i in range(prompts)))
        command = ["main.py", "--input", str(folder / "prompts.txt"), "-m", "8", "--output"]
        subprocess.run([sys.executable, *command, str(folder / "one")], cwd=ROOT, check=True, stderr=subprocess.DEVNULL)
        expected = (folder / "one").read_bytes()
        output = folder / "several"
        kills = 0
        while True:
            started = start(processes, folder, [*command, str(output), "--resume"])
            if kills < count:
                lines_before_kill = lines_of(output) + rng.randrange(2 * prompts // count)
                while lines_of(output) < lines_before_kill and started[0].poll() is None:
                    time.sleep(0.02)
                time.sleep(rng.uniform(0, 1.0))
                victim = rng.randrange(processes)
                is_running = started[victim].poll() is None
                started[victim].kill()
                kills += is_running
            statuses = [process.wait() for process in started]
            content = output.read_bytes() if output.exists() else b""
            last_line = (folder / f"said-{int(kills > 0 and statuses[0] < 0)}").read_text().splitlines()[-1:]
            print(f"{kills} kills, {lines_of(output)} lines, exit statuses {statuses}: {last_line}", flush=True)
            assert expected.startswith(content[: content.rfind(b"\n") + 1]), "a line differs"
            if not any(statuses):
                if kills == count:
                    break
                output.unlink()  # finished before all kills: start again
                (folder / "several.job").unlink()
        assert content == expected, "the output differs"
        print(f"{prompts} prompts over {processes} processes, killed {count} times: byte-identical to one process")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for flag, default in (("count", 20), ("processes", 4), ("prompts", 1500), ("seed", 1)):
        parser.add_argument(f"--{flag}", type=int, default=default)
    main(**vars(parser.parse_args()))
