"""Rescaled weights cannot overflow in float16, and compute the same function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from speculative_decoding import checkpoints, load, models
from speculative_decoding.loading.conversion import convert
from speculative_decoding.loading.load import Storage
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.t5 import T5Config
from speculative_decoding.models.t5_float16 import bounds, needed_exponent
from tests.support.tiny import CONFIG, SOURCES, VOCAB, save_hugging_face, tiny_model

FAMILIES: dict[str, dict[str, Any]] = {
    "relu, tied": {"tie_word_embeddings": True},
    "relu, own head": {},
    "gated gelu": {"feed_forward_proj": "gated-gelu"},
    "gelu": {"feed_forward_proj": "gelu"},
    "a bias per layer": {"model_type": "umt5", "feed_forward_proj": "gated-gelu"},
}
TOKENS = mx.array([[0, 5, 9, 2, 7]])


def logits_of(model: EncoderDecoder) -> mx.array:
    cache = model.make_cache(model.encode(mx.array([SOURCES[2]])))
    return model.decode(TOKENS, cache).astype(mx.float32)


def overflowing(folder: Path, changes: dict[str, Any]) -> Path:
    """Write a model whose residual stream exceeds 65504 in its first feed-forward, as in T5."""
    config = CONFIG | changes
    model = tiny_model(scale=0.4, **changes)
    for stack in (model.encoder, model.decoder):
        stack.layers[0].ff.wo.weight *= 2e5
        stack.layers[1].self_attention.o.weight *= 3e4
    return save_hugging_face(model, folder, config)


@pytest.mark.parametrize("family", FAMILIES)
def test_rescaled_logits_are_bit_identical_in_float32(family: str, tmp_path: Path) -> None:
    folder = overflowing(tmp_path / "hf", FAMILIES[family])
    raw, checkpoint = checkpoints.read_config(folder), checkpoints.read(folder)
    rescaled, weights = models.for_float16(raw, checkpoint)
    assert rescaled["layer_norm_epsilon"] < 1e-9
    one, other = models.build(raw, checkpoint), models.build(rescaled, weights)
    one.load_checkpoint(checkpoint)
    other.load_checkpoint(weights)
    assert mx.array_equal(logits_of(one), logits_of(other))


@pytest.mark.parametrize("family", FAMILIES)
def test_float16_equals_float32_up_to_rounding(family: str, tmp_path: Path) -> None:
    folder = overflowing(tmp_path / "hf", FAMILIES[family])
    exact = logits_of(load(folder, dtype="float32").model)

    plain, _ = load(folder, dtype="float32")
    plain.set_dtype(mx.float16)
    assert not mx.isfinite(logits_of(plain)).all().item()  # without rescaling it overflows

    converted, _ = load(convert(str(folder), tmp_path / "out", Storage("float16")), dtype="float16")
    in_memory, _ = load(folder, dtype="float16")
    assert converted.embedding.weight.dtype == mx.float16
    assert mx.array_equal(logits_of(converted), logits_of(in_memory))
    # float16 has 11 significant bits, so a model with small logits loses up to 3 % of its largest logit.
    assert mx.abs(logits_of(converted) - exact).max().item() < 1e-2 * mx.abs(exact).max().item()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_bound_holds_for_any_input(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the inputs of every norm on random tokens."""
    folder = overflowing(tmp_path / "hf", FAMILIES[family])
    raw, checkpoint = checkpoints.read_config(folder), checkpoints.read(folder)
    stream, _ = bounds(T5Config.from_dict(raw, checkpoint), checkpoint)
    seen: list[float] = []
    norm = mx.fast.rms_norm
    monkeypatch.setattr(mx, "compile", lambda function: function)  # the trace of a compiled pass has no values
    monkeypatch.setattr(mx.fast, "rms_norm", lambda x, *rest: (seen.append(mx.abs(x).max().item()), norm(x, *rest))[1])
    model, _ = load(folder, dtype="float32")
    generator = np.random.default_rng(0)
    for _ in range(10):
        source = mx.array(generator.integers(2, VOCAB, (1, 12)))
        model.decode(mx.array(generator.integers(2, VOCAB, (1, 8))), model.make_cache(model.encode(source)))
    assert 65504 < max(seen) <= stream


def test_a_model_without_overflow_is_unchanged(tmp_path: Path) -> None:
    folder = save_hugging_face(tiny_model(), tmp_path / "hf", CONFIG)
    raw, checkpoint = checkpoints.read_config(folder), checkpoints.read(folder)
    assert needed_exponent(T5Config.from_dict(raw, checkpoint), checkpoint) == 0
    assert models.for_float16(raw, checkpoint) == (raw, checkpoint)
