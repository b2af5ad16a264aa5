"""Writes a sparse checkpoint with T5-11B's shapes: a legacy `pytorch_model.bin` with 45 GB of zeros.

    python -m tools.sparse_t5_11b DIR [--share 20]
    python convert.py --model DIR --quantize 4 --output OUT

A conversion reads every byte, as it would for the real checkpoint. `--share 20` divides the number of heads, the
feed-forward width and the vocabulary by 20.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from mlx.utils import tree_flatten

from speculative_decoding.models import build
from tests.support.checkpoint_files import write_sparse_legacy
from tests.support.tiny import TOKENIZER

T5_11B = {
    "model_type": "t5",
    "vocab_size": 32128,
    "d_model": 1024,
    "d_kv": 128,
    "d_ff": 65536,
    "num_layers": 24,
    "num_decoder_layers": 24,
    "num_heads": 128,
}


def make(folder: Path, share: int = 1) -> int:
    """Write the folder. Returns its checkpoint's apparent size in bytes."""
    config = T5_11B | {name: T5_11B[name] // share // 64 * 64 for name in ("vocab_size", "d_ff")}  # type: ignore
    config["num_heads"] = T5_11B["num_heads"] // share  # type: ignore
    model = build(config)  # the arrays are lazy; only their shapes are used
    expected = dict(tree_flatten(model.parameters()))
    shapes: dict[str, tuple[int, ...]] = {}
    for path, names in model.parameter_sources(model.config, set()).items():
        rows, *columns = expected[path].shape
        shapes |= {name: (rows // len(names), *columns) for name in names}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    return write_sparse_legacy(folder / "pytorch_model.bin", shapes)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--share", type=int, default=1)
    options = parser.parse_args()
    print(f"{options.folder}: {make(options.folder, options.share) / 1e9:.1f} GB, sparse")
