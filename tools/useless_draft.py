"""A draft model that is never right, to measure what speculation costs where it cannot help: the bundled draft's shape
and tokenizer, with random weights.

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
    """Write the folder, which must not exist."""
    exported(random_model(json.loads((like / "config.json").read_text())), folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(like / name, folder / name)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--like", type=Path, default=Path("models/t5-web-docs-draft"), help="a draft model's folder")
    options = parser.parse_args()
    make(options.folder, options.like)
