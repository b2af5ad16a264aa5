"""Models of published shapes with random weights: what a token costs depends on the shape alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from speculative_decoding.models import build
from speculative_decoding.models.base import EncoderDecoder

COMMON = {"model_type": "t5", "vocab_size": 32128, "d_kv": 64, "eos_token_id": []}  # nothing ends an output
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "t5-small": COMMON | {"d_model": 512, "d_ff": 2048, "num_layers": 6, "num_heads": 8},
    "t5-base": COMMON | {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12},
    "t5-large": COMMON | {"d_model": 1024, "d_ff": 4096, "num_layers": 24, "num_heads": 16},
}  # Raffel et al. 2020, section 3.1.1 and appendix; v1.0


def random_model(shape: Mapping[str, Any], dtype: mx.Dtype = mx.float32, seed: int = 0) -> EncoderDecoder:
    """Every matrix is normal with variance 1 / columns, every scale 1, so that activations stay in range."""
    model = build(shape)
    parameters: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    for (path, old), key in zip(parameters.items(), mx.random.split(mx.random.key(seed), len(parameters)), strict=True):
        new = mx.ones(old.shape) if old.ndim == 1 else mx.random.normal(old.shape, key=key) * old.shape[-1] ** -0.5
        new = new.astype(dtype)
        mx.eval(new)  # one at a time: no second copy of a large model
        model.load_weights([(path, new)], strict=False)
    return model
