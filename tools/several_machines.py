"""Compares the output of a model that is sharded over several processes with its output in a single process.

    python -m tools.several_machines [--processes 2] [--quantize 4]

`batch` decodes a few prompts with the bundled models in every mode of `modes`. The output files must be byte-identical,
except for beam scores. tests/distributed compares logits for other families.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

from speculative_decoding.jobs.command import main as batch_command
from tests.support.paths import ROOT
from tests.support.processes import start

BUNDLED = "t5-web-docs"
SAMPLED = ["--temperature", "0.8", "--seed", "3", "--acceptance"]
RULES = {
    "greedy": [],
    "coupled": [*SAMPLED, "coupled"],
    "rejection": [*SAMPLED, "rejection"],
    "beams": ["--num-beams", "3"],
}
DRAFTERS = {"model": "model", "ngram": "ngram", "auto": "auto", "head": "model", "default": None}
PROMPTS_PER_TASK = 2


def run_all(jobs: Path) -> None:
    """Run all modes in this process."""
    statuses = map(batch_command, json.loads(jobs.read_text()))
    sys.exit(next(filter(None, statuses), 0))


def modes(target: str, draft: str, head: str, prompts: Path, tokens: int) -> dict[str, list[str]]:
    """Return the flags for each mode, keyed by the mode's name."""
    found = {}
    for rule, (drafter, kind), slots in product(RULES, DRAFTERS.items(), ("1", "8")):
        # The default draft length depends on timings, and outputs of rejection sampling depend on it. Beams use no
        # draft.
        if {"rejection": kind is not None, "beams": kind is None}.get(rule, True):
            own = [] if rule == "beams" else ["--draft-model", draft if drafter in ("model", "auto") else head]
            job = [str(prompts), "-m", str(tokens), "--slots", slots]
            chosen = [] if kind is None else ["--drafter", kind, "--num-draft", "4"]
            found[f"{rule}-{drafter}-{slots}"] = ["--model", target, *own, *job, *RULES[rule], *chosen]
    return found


def bundled_modes(folder: Path, bits: int | None) -> dict[str, list[str]]:
    texts = [path.read_text(encoding="utf-8").splitlines() for path in sorted((ROOT / "data").glob("*.txt"))]
    prompts = folder / "prompts.txt"
    target = BUNDLED
    prompts.write_text("".join(f"{line}\n" for lines in texts for line in lines[:PROMPTS_PER_TASK]), encoding="utf-8")
    if bits is not None:
        target = str(folder / "target")
        convert = "convert.py", "--model", f"models/{BUNDLED}", "--output", target, "--quantize", str(bits)
        subprocess.run([sys.executable, *convert], cwd=ROOT, check=True, capture_output=True)
    return modes(target, f"{BUNDLED}-draft", f"{BUNDLED}-head", prompts, 24)


def compare(processes: int, bits: int | None) -> bool:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tried = bundled_modes(folder, bits)
        for count in (1, processes):
            several = ["--parallel", "tensor"] if count > 1 else []
            jobs = [[*flags, "--output", str(folder / f"{mode}-{count}"), *several] for mode, flags in tried.items()]
            (folder / "jobs.json").write_text(json.dumps(jobs))
            started = start(count, folder, run_all, folder / "jobs.json")
            for process in started:
                process.join()
            if any(statuses := [process.exitcode for process in started]):
                last = (folder / "said-0").read_text().splitlines()[-1]
                print(f"{count} processes ended with {statuses}: {last}", flush=True)
                return False
        contents = {mode: [content(folder / f"{mode}-{count}") for count in (1, processes)] for mode in tried}
        different = [mode for mode, (one, several) in contents.items() if one != several]
        equal = f"{len(tried) - len(different)} of {len(tried)} files"
        print(f"{processes} processes: {equal} equal those of one process; different: {different}", flush=True)
        return not different


def content(path: Path) -> str:
    """Return a file's text without scores: these are sums of log-probabilities, whose rounding may differ."""
    return re.sub(r'"score": [^,]*', "", path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--quantize", type=int, help="bits of the bundled model's weights")
    chosen = parser.parse_args()
    sys.exit(0 if compare(chosen.processes, chosen.quantize) else 1)
