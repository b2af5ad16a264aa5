"""Are the defaults faster than no draft? `main.py` as a user runs it, with and without `--regular-decode`, in turns.

    python -m tests.default_runs

decodes the first prompts of each bundled task, each time in a process of its own, and prints the medians of the time
per token (encoding and decoding as the statistics have it) and their ratio. Believe it on a quiet machine only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

WAYS = {"default": [], "regular": ["--regular-decode"]}


def ms_per_token(prompts: bytes, options: list[str]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "main.py", *options, "--stats-json", f"{folder}/stats.json"]
        subprocess.run(command, input=prompts, check=True, capture_output=True)
        stats = json.loads(Path(folder, "stats.json").read_text())
    return 1e3 * (stats["encode_seconds"] + stats["decode_seconds"]) / stats["generated_tokens"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=15, help="prompts of each task (default: 15)")
    parser.add_argument("--repeats", type=int, default=10, help="runs of each way (default: 10)")
    arguments = parser.parse_args()
    for task in sorted(Path("data").glob("*.txt")):
        prompts = b"\n".join(task.read_bytes().splitlines()[: arguments.limit]) + b"\n"
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for repeat in range(arguments.repeats):
            for way in sorted(WAYS, reverse=repeat % 2 == 1):
                times[way].append(ms_per_token(prompts, WAYS[way]))
        default, regular = (statistics.median(times[way]) for way in WAYS)
        print(
            f"{task.stem}: default {default:.2f} ms a token, regular {regular:.2f}: {regular / default:.2f}x",
            flush=True,
        )
