"""Writes a draft model that is never correct, to measure the cost of useless drafts.

It has the shape and tokenizer of the bundled draft, and random weights.

    python -m tools.useless_draft DIR
    python -m benchmarks FILE --draft-model DIR --drafter model --num-draft auto
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from benchmarks.models import exported, random_model


def make(folder: Path, like: Path) -> None:
    """Write the folder, which must not exist yet."""
    exported(random_model(json.loads((like / "config.json").read_text())), folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(like / name, folder / name)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--like", type=Path, default=Path("models/t5-web-docs-draft"), help="folder of the draft model to imitate"
    )
    options = parser.parse_args()
    make(options.folder, options.like)
