"""`main.py` as a user runs it, each time in a process of its own, in turns: are the defaults faster than no draft?

    python -m tools.default_runs
    python -m tools.default_runs --folders . OTHER --options "--drafter model --num-draft 5" "--drafter none"

decodes the first prompts of each bundled task, and prints for each way, a folder with a main.py (such as a checkout of
another commit) and options for it, the median of the time per token (encoding and decoding as the statistics have it)
and how many times as fast as the last way that is. Believe it on a quiet machine only.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path


def ms_per_token(prompts: bytes, folder: str, options: str) -> float:
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "main.py", *shlex.split(options), "--stats-json", f"{scratch}/stats.json"]
        subprocess.run(command, cwd=folder, input=prompts, check=True, capture_output=True)
        stats = json.loads(Path(scratch, "stats.json").read_text())
    return 1e3 * (stats["encode_seconds"] + stats["decode_seconds"]) / stats["generated_tokens"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folders", nargs="+", default=["."])
    parser.add_argument("--options", nargs="+", default=["", "--regular-decode"], help="of main.py, a way each")
    parser.add_argument("--limit", type=int, default=15, help="prompts of each task (default: 15)")
    parser.add_argument("--repeats", type=int, default=10, help="runs of each way (default: 10)")
    arguments = parser.parse_args()
    ways = [(folder, options) for options, folder in product(arguments.options, arguments.folders)]
    for task in sorted(Path("data").glob("*.txt")):
        prompts = b"\n".join(task.read_bytes().splitlines()[: arguments.limit]) + b"\n"
        times: dict[tuple[str, str], list[float]] = {way: [] for way in ways}
        for repeat in range(arguments.repeats):
            for way in sorted(ways, reverse=repeat % 2 == 1):
                times[way].append(ms_per_token(prompts, *way))
        last = statistics.median(times[ways[-1]])
        for way, taken in times.items():
            found = statistics.median(taken)
            print(f"{task.stem}: {' '.join(way)}: {found:.2f} ms a token, {last / found:.2f}x", flush=True)
