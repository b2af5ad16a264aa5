"""Published models with the T5 architecture: their config.json and tensor shapes, without data."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import pytest

from speculative_decoding.checkpoints import Checkpoint, CheckpointError, TensorInfo
from speculative_decoding.loading.suggested_drafts import suggested_draft
from speculative_decoding.models import build
from speculative_decoding.models.base import checked_sources

T5 = {"model_type": "t5", "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1, "n_positions": 512}
GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
CODE = T5 | {"bos_token_id": 1, "eos_token_id": 2, "feed_forward_proj": "relu", "d_kv": 64, "vocab_size": 32100}
# (config.json, published number of parameters in millions)
RELATIVES: dict[str, tuple[dict[str, Any], int]] = {
    "flan-ul2": (
        T5
        | GATED
        | {"feed_forward_proj": "gated-silu", "vocab_size": 32128, "num_layers": 32, "num_decoder_layers": 32}
        | {"d_model": 4096, "d_kv": 256, "d_ff": 16384, "num_heads": 16},
        20_000,
    ),
    "aya-101": (
        T5
        | GATED
        | {"vocab_size": 250112, "num_layers": 24, "num_decoder_layers": 24}
        | {"d_model": 4096, "d_kv": 64, "d_ff": 10240, "num_heads": 64},
        13_000,
    ),
    "codet5p-220m": (CODE | {"d_model": 768, "d_ff": 3072, "num_heads": 12, "num_layers": 12}, 220),
    "codet5p-770m": (CODE | {"d_model": 1024, "d_ff": 4096, "num_heads": 16, "num_layers": 24}, 770),
}


class Shapes(Checkpoint):
    """A checkpoint without data: reading a tensor fails."""

    def __getitem__(self, name: str) -> mx.array:
        raise AssertionError(f"{name} was read")

    def __iter__(self) -> Any:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)


def published(config: dict[str, Any]) -> Shapes:
    """Return the tensors that a T5 checkpoint on the Hub has."""
    width, hidden, heads = config["d_model"], config["d_ff"], config["num_heads"]
    inner, gated = heads * config["d_kv"], config["feed_forward_proj"].startswith("gated-")
    shapes: dict[str, tuple[int, ...]] = {"shared.weight": (config["vocab_size"], width)}
    if not config.get("tie_word_embeddings", True):
        shapes["lm_head.weight"] = (config["vocab_size"], width)
    for side, attentions in (("encoder", ["SelfAttention"]), ("decoder", ["SelfAttention", "EncDecAttention"])):
        shapes[f"{side}.final_layer_norm.weight"] = (width,)
        shapes[f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = (32, heads)
        for block in (f"{side}.block.{index}" for index in range(config["num_layers"])):
            for layer, attention in enumerate(attentions):
                at = f"{block}.layer.{layer}.{attention}"
                shapes |= {f"{at}.{part}.weight": (inner, width) for part in "qkv"} | {f"{at}.o.weight": (width, inner)}
            at = f"{block}.layer.{len(attentions)}.DenseReluDense"
            shapes |= {f"{at}.{part}.weight": (hidden, width) for part in (("wi_0", "wi_1") if gated else ("wi",))}
            shapes |= {f"{at}.wo.weight": (width, hidden)}
            shapes |= {f"{block}.layer.{layer}.layer_norm.weight": (width,) for layer in range(len(attentions) + 1)}
    return Shapes("published", {name: TensorInfo(shape, mx.bfloat16) for name, shape in shapes.items()})


@pytest.mark.parametrize("name", RELATIVES)
def test_published_config_and_tensors_load(name: str) -> None:
    config, millions = RELATIVES[name]
    checkpoint = published(config)
    sources = checked_sources(build(config, checkpoint), checkpoint)
    assert {tensor for tensors in sources.values() for tensor in tensors} == checkpoint.keys()
    parameters = sum(math.prod(checkpoint.info(tensor).shape) for tensor in checkpoint)
    assert parameters == pytest.approx(millions * 1e6, rel=0.05)


@pytest.mark.parametrize("name", RELATIVES)
def test_tensor_with_a_wrong_shape_is_refused(name: str) -> None:
    config, _ = RELATIVES[name]
    with pytest.raises(CheckpointError, match=r"'encoder.block.0.layer.0.SelfAttention.q.weight' has shape"):
        checked_sources(build(config | {"d_kv": 2 * config["d_kv"]}), published(config))


def test_suggested_drafts_have_the_same_vocabulary() -> None:
    assert suggested_draft("google/flan-ul2") == "google/flan-t5-small"
    assert suggested_draft("Salesforce/codet5p-770m") == "Salesforce/codet5p-220m"
