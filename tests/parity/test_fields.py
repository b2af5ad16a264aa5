"""Every field of config.json that decides how a model computes: another value gives other logits than the goldens'."""

from __future__ import annotations

import copy
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from speculative_decoding import checkpoints, models
from tests.parity.test_t5 import NOISE
from tests.support.operations import uncompiled
from tests.support.paths import GOLDENS

OF_GEMMA: dict[str, Any] = {
    "attn_logit_softcapping": 3.0,
    "hidden_activation": "gelu",
    "query_pre_attn_scalar": 9,
    "sliding_window": 7,
    "layer_types": ["full_attention", "sliding_attention"],
}
# By model: each field, and another valid value with the same shapes of tensors.
OTHERS: dict[str, dict[str, Any]] = {
    "t5": {"feed_forward_proj": "gelu", "relative_attention_max_distance": 20},
    "umt5": {"feed_forward_proj": "gated-silu", "relative_attention_max_distance": 8},
    "bart": {"scale_embedding": True, "activation_function": "relu", "encoder_attention_heads": 4},
    "mbart": {"scale_embedding": False, "activation_function": "relu", "decoder_attention_heads": 4},
    "pegasus": {"scale_embedding": False, "activation_function": "gelu"},
    "m2m_100": {"scale_embedding": False, "activation_function": "gelu"},
    "marian": {"scale_embedding": False, "activation_function": "relu"},
    "whisper": {"activation_function": "relu", "encoder_attention_heads": 4, "decoder_attention_heads": 2},
    "t5gemma": {f"{stack}.{name}": value for stack in ("encoder", "decoder") for name, value in OF_GEMMA.items()}
    | {"decoder.final_logit_softcapping": 9.0, "encoder.rope_theta": 50.0, "decoder.rope_theta": 50.0},
    "t5gemma2": {
        f"{stack}.{name}": value
        for stack in ("encoder.text_config", "decoder")
        for name, value in (OF_GEMMA | {"rope_parameters.full_attention.factor": 2.0}).items()
        if name != "attn_logit_softcapping"
    }
    | {"decoder.rope_parameters.sliding_attention.rope_theta": 10.0, "encoder.eoi_token_index": 9},
}


def error_of(name: str, raw: dict[str, Any]) -> float:
    """Return the largest difference from Hugging Face's logits, in cached passes over 5 tokens."""
    golden = np.load(GOLDENS / name / "golden.npz")
    raw, checkpoint = models.find(raw).adapt(raw, checkpoints.read(GOLDENS / name))
    model = models.build(raw, checkpoint)
    model.load_checkpoint(checkpoint)
    source = golden["input_features"].astype(np.float32) if "input_features" in golden else golden["input_ids"]
    mask = mx.array(golden["attention_mask"]).astype(mx.bool_)
    tokens = mx.array(golden["decoder_input_ids"])
    with uncompiled():
        cache = model.make_cache(model.encode(mx.array(source), mask), mask)
        pieces = [model.decode(tokens[:, i : i + 5], cache) for i in range(0, tokens.shape[1], 5)]
        return float(np.abs(np.array(mx.concatenate(pieces, axis=1)) - golden["logits"]).max())


@pytest.mark.parametrize("name", OTHERS)
def test_passes_over_several_tokens_match_hugging_face(name: str) -> None:
    assert error_of(name, checkpoints.read_config(GOLDENS / name)) < NOISE


@pytest.mark.parametrize(("name", "field"), [(name, field) for name, fields in OTHERS.items() for field in fields])
def test_no_field_is_ignored(name: str, field: str) -> None:
    raw = copy.deepcopy(checkpoints.read_config(GOLDENS / name))
    holder: Any = raw
    *path, last = field.split(".")
    for each in path:
        holder = holder[each]
    assert holder.get(last) != OTHERS[name][field]
    holder[last] = OTHERS[name][field]
    assert error_of(name, raw) > 10 * NOISE
