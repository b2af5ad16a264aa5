"""Rescaled weights cannot overflow in float16, and compute the same function."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from speculative_decoding import InputError, checkpoints, load, models
from speculative_decoding.checkpoints.quantized import QuantizedCheckpoint
from speculative_decoding.loading.conversion import convert
from speculative_decoding.loading.draft_head import DraftHeadHandle, write_draft_head
from speculative_decoding.loading.load import Storage
from speculative_decoding.models.base import EncoderDecoder, checked_sources, quantizable
from speculative_decoding.models.draft_head import DraftHead
from speculative_decoding.models.t5 import T5Config
from speculative_decoding.models.t5_float16 import bounds, needed_exponent
from tests.support.metal import pretend_gpu
from tests.support.operations import uncompiled
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


def overflowing(folder: Path, changes: dict[str, Any], *, scale: float = 0.4, factor: float = 2e5) -> Path:
    """Write a model whose residual stream exceeds 65504 in its first feed-forward, as in T5."""
    config = CONFIG | {"num_layers": 2} | changes
    model = tiny_model(scale=scale, num_layers=2, **changes)
    for stack in (model.encoder, model.decoder):
        stack.layers[0].ff.wo.weight *= factor
        stack.layers[1].self_attention.o.weight *= 3e4
    return save_hugging_face(model, folder, config)


def overflowing_with_groups(folder: Path, family: str) -> Path:
    """`overflowing`, with matrices that divide into quantization groups."""
    changes = {"d_model": 64, "d_ff": 64, "d_kv": 32} | FAMILIES[family]
    return overflowing(folder, changes, scale=0.15, factor=5e4)


def with_rescaled(folder: Path, bits: int | None = None) -> tuple[EncoderDecoder, EncoderDecoder]:
    """Return the model of a folder in float32, as it is and rescaled. bits: quantize every layer, also the head."""
    raw, checkpoint = checkpoints.read_config(folder), checkpoints.read(folder)
    if bits is not None:
        model = models.build(raw, checkpoint)
        layers = quantizable(model, checked_sources(model, checkpoint), 32)
        checkpoint = QuantizedCheckpoint(checkpoint, set().union(*layers.values()), bits, 32)
    rescaled, weights = models.for_float16(raw, checkpoint)
    assert rescaled["layer_norm_epsilon"] < 1e-9
    pair = models.build(raw, checkpoint), models.build(rescaled, weights)
    for model, tensors in zip(pair, (checkpoint, weights), strict=True):
        model.load_checkpoint(tensors)
    return pair


@pytest.mark.parametrize(
    ("family", "bits"), [*product(FAMILIES, [None]), ("relu, tied", 4), ("gated gelu", 4), ("relu, own head", 8)]
)
def test_rescaled_logits_are_bit_identical_in_float32(
    family: str, bits: int | None, device: str, tmp_path: Path
) -> None:
    """On a GPU, uncompiled: scales change which operations `mx.compile` fuses, and fused products are not rounded."""
    write = overflowing_with_groups if bits else lambda folder, family: overflowing(folder, FAMILIES[family])
    one, other = with_rescaled(write(tmp_path / "hf", family), bits)
    with nullcontext() if device == "cpu" else uncompiled():
        assert mx.array_equal(logits_of(one), logits_of(other)).item()


def test_a_draft_head_drafts_the_same_for_rescaled_weights(tmp_path: Path) -> None:
    one, other = with_rescaled(overflowing(tmp_path / "hf", {}))
    head = DraftHead.for_target(one, (0, 1))
    write_draft_head(tmp_path / "head", head, one, mx.float32)
    loaded = DraftHead(head.config, other.residual_scale)
    DraftHeadHandle(tmp_path / "head", loaded, checkpoints.read(tmp_path / "head"), 0, other).load_weights()
    states = []
    for target, own in ((one, head), (other, loaded)):
        cache = target.make_cache(target.encode(mx.array([SOURCES[2]])))
        cache.recorded_layers = (0, 1)
        target.states(TOKENS, cache)
        features = own.features(mx.concatenate([*cache.hidden], axis=-1))
        cross = cache.last_cross_attention
        states += [
            features,
            own.step(target.embed(TOKENS), features, cross.cross_keys, cross.cross_values, cache.source_mask)[0],
        ]
    assert mx.array_equal(states[0], states[2]) and mx.array_equal(states[1], states[3])


@pytest.mark.parametrize("family", FAMILIES)
def test_float16_equals_float32_up_to_rounding(family: str, device: str, tmp_path: Path) -> None:
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
    most = {"cpu": 1e-2, "gpu": 3e-2}[device]
    assert mx.abs(logits_of(converted) - exact).max().item() < most * mx.abs(exact).max().item()


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("family", "bits"), [("relu, tied", 4), ("gated gelu", 4), ("relu, own head", 8)])
def test_a_quantized_folder_in_float16_is_more_precise_than_in_bfloat16(family: str, bits: int, tmp_path: Path) -> None:
    source = overflowing_with_groups(tmp_path / "hf", family)
    folder = convert(str(source), tmp_path / "quantized", Storage("bfloat16", bits, 32))
    exact, half, other = (logits_of(load(folder, dtype=dtype).model) for dtype in ("float32", "float16", "bfloat16"))
    assert mx.abs(half - exact).max().item() < mx.abs(other - exact).max().item()


def test_bfloat16_replaces_float16_where_it_is_more_precise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gelu without a gate cannot share the scale with its output matrix, so the scales of `wo` become tiny."""
    source = overflowing_with_groups(tmp_path / "hf", "gelu")
    folder, accepted = (convert(str(source), tmp_path / str(bits), Storage("bfloat16", bits, 32)) for bits in (8, 4))
    with pytest.raises(InputError, match="less precise than bfloat16 for these weights; use bfloat16"):
        load(folder, dtype="float16")
    pretend_gpu(monkeypatch, "applegpu_g13s")
    assert load(folder).model.decoder.norm.weight.dtype == mx.bfloat16
    assert load(accepted).model.decoder.norm.weight.dtype == mx.float16


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("family", FAMILIES)
def test_the_bound_holds_for_any_input(family: str, tmp_path: Path) -> None:
    """Check the residual stream after every layer of the decoder, on random tokens."""
    folder = overflowing(tmp_path / "hf", FAMILIES[family])
    raw, checkpoint = checkpoints.read_config(folder), checkpoints.read(folder)
    stream, _ = bounds(T5Config.from_dict(raw, checkpoint), checkpoint)
    model, _ = load(folder, dtype="float32")
    generator = np.random.default_rng(0)
    cache = model.make_cache(model.encode(mx.array(generator.integers(2, VOCAB, (10, 12)))))
    cache.recorded_layers = (0, 1)
    model.states(mx.array(generator.integers(2, VOCAB, (10, 8))), cache)
    assert 65504 < mx.abs(mx.stack([*cache.hidden])).max().item() <= stream


def test_a_model_without_overflow_is_unchanged(tmp_path: Path) -> None:
    folder = save_hugging_face(tiny_model(), tmp_path / "hf", CONFIG)
    raw, checkpoint = checkpoints.read_config(folder), checkpoints.read(folder)
    assert needed_exponent(T5Config.from_dict(raw, checkpoint), checkpoint) == 0
    assert models.for_float16(raw, checkpoint) == (raw, checkpoint)
