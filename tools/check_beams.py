"""Compares beam search with outputs recorded by `python tools/goldens/make_beam_goldens.py COUNT FILE`.

    python -m tools.check_beams [--golden FILE] [--num-beams N ...] [--slots N]

Prints both scores of each output that differs.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from speculative_decoding import load
from tests.support.beam_goldens import FILE, decoded, expected, options_of, records


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--golden", type=Path, default=FILE)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--num-beams", type=int, nargs="+", default=[2, 4, 8])
    chosen = parser.parse_args()
    session = load("models/t5-web-docs", dtype="float32")
    known = [*records(chosen.golden)]
    counts: Counter[str] = Counter()
    largest_gap = 0.0
    for setting in (each for each in known[0][1]["found"] if int(each.split()[0]) in chosen.num_beams):
        prompts = [record["prompt"] for _, record in known]
        options = {**options_of(setting), "max_tokens": known[0][0], "slots": chosen.slots}
        for (_, record), found in zip(known, decoded(session, prompts, **options), strict=True):
            tokens, scores = expected(record, setting)
            ours = [each.tokens for each in found]
            counts["all"] += 1
            counts["best equal"] += ours[0] == tokens[0]
            counts["all sequences equal"] += ours == tokens
            gaps = [abs((each.score or 0.0) - score) for each, score in zip(found, scores, strict=True)]
            largest_gap = max(largest_gap, *gaps)
            if ours != tokens:
                place = next(i for i, pair in enumerate(zip(ours, tokens, strict=True)) if pair[0] != pair[1])
                counts["differ within noise"] += max(gaps) < 1e-5  # rounding may swap such scores
                print(f"{setting}, {record['prompt']!r}: sequence {place}: score {found[place].score:.6f}, "
                      f"Hugging Face {scores[place]:.6f}", flush=True)  # fmt: skip
        print(setting, dict(counts), f"largest score difference {largest_gap:.2e}", flush=True)
    return 0 if counts["best equal"] == counts["all"] else 1


if __name__ == "__main__":
    sys.exit(main())
