"""Compares the speed of main.py's defaults with baseline decoding, in fresh processes that take turns.

    python -m tools.default_runs
    python -m tools.default_runs --folders . OTHER --options "--drafter model --num-draft 5" "--drafter none"

Decodes the first prompts of each bundled task. A mode is a folder with a main.py (such as a checkout of another commit)
and options for it. Prints, for each mode, the median time per token (encoder and decoder) and the speedup over the last
mode. Use a quiet machine.
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
    parser.add_argument("--options", nargs="+", default=["", "--baseline"], help="options of main.py, one mode each")
    parser.add_argument("--limit", type=int, default=15, help="prompts per task (default: 15)")
    parser.add_argument("--repeats", type=int, default=10, help="runs per mode (default: 10)")
    arguments = parser.parse_args()
    modes = [(folder, options) for options, folder in product(arguments.options, arguments.folders)]
    for task in sorted(Path("data").glob("*.txt")):
        prompts = b"\n".join(task.read_bytes().splitlines()[: arguments.limit]) + b"\n"
        times: dict[tuple[str, str], list[float]] = {mode: [] for mode in modes}
        for repeat in range(arguments.repeats):
            for mode in sorted(modes, reverse=repeat % 2 == 1):
                times[mode].append(ms_per_token(prompts, *mode))
        last = statistics.median(times[modes[-1]])
        for mode, values in times.items():
            median = statistics.median(values)
            print(f"{task.stem}: {' '.join(mode)}: {median:.2f} ms per token, {last / median:.2f}x", flush=True)
