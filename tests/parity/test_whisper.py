"""Whisper: planted faults, cross-attention scores, positions, storage and folders. test_t5.py checks the goldens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from speculative_decoding import load
from speculative_decoding.loading.conversion import convert
from speculative_decoding.loading.load import Storage
from speculative_decoding.models.layers import FeedForward
from speculative_decoding.models.whisper import Whisper
from tests.parity.test_t5 import load_golden
from tests.support.paths import GOLDENS
from tests.support.tiny import (
    WHISPER,
    audio_frames,
    head_drafter,
    run,
    save_whisper,
    tiny_whisper,
    tokens_of,
)

NAMES = ("whisper", "whisper-en", "whisper-v3", "whisper-distilled")


def opened(name: str) -> tuple[Whisper, dict[str, Any]]:
    model, golden = load_golden(GOLDENS / name)
    assert isinstance(model, Whisper)
    return model, golden


def error_of(model: Whisper, golden: dict[str, Any]) -> float:
    encoder_output = model.encode(mx.array(golden["input_ids"]))
    logits = model.logits(model.teacher_forced(mx.array(golden["decoder_input_ids"]), encoder_output))
    return float(np.abs(np.array(logits) - golden["logits"]).max())


# Planted faults, which the goldens must catch.


def reversed_frames(model: Whisper) -> None:
    for convolution in model.convolutions:
        convolution.weight = convolution.weight[..., ::-1]


def one_frame_late(model: Whisper) -> None:
    model.convolutions[1].weight = mx.roll(model.convolutions[1].weight, 1, axis=2)


def biased_keys(model: Whisper) -> None:
    bias = model.decoder.layers[0].self_attention.qkv.bias
    model.decoder.layers[0].self_attention.qkv.bias = bias + (mx.arange(len(bias)) % 7 == 0)


def offset_positions(model: Whisper) -> None:
    model.decoder.positions.offset = 2


def no_encoder_positions(model: Whisper) -> None:
    model.encoder.positions.weight = mx.zeros_like(model.encoder.positions.weight)


def no_final_norm(model: Whisper) -> None:
    model.encoder.pop("norm")


def approximate_activation(model: Whisper) -> None:
    for layer in model.decoder.layers:
        assert isinstance(layer.ff, FeedForward)
        layer.ff.activation = nn.gelu_approx


def unscaled_attention(model: Whisper) -> None:
    for layer in model.decoder.layers:
        layer.cross_attention.config = replace(layer.cross_attention.config, scale=1.0)


FAULTS: list[Callable[[Whisper], None]] = [
    reversed_frames, one_frame_late, biased_keys, offset_positions, no_encoder_positions, no_final_norm,
    approximate_activation, unscaled_attention,
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_goldens_catch_planted_faults(fault: Callable[[Whisper], None]) -> None:
    model, golden = opened("whisper")
    assert error_of(model, golden) < 1e-4
    fault(model)
    assert error_of(model, golden) > 5e-4


@pytest.mark.parametrize("name", NAMES)
def test_cross_attention_scores_match_hugging_face(name: str) -> None:
    model, golden = opened(name)
    layers, rows, count = golden["cross_attentions"].shape[:3]
    heads = [(layer, head) for layer in reversed(range(layers)) for head in range(count)]
    for row in range(rows):
        encoder_output = model.encode(mx.array(golden["input_ids"][row : row + 1]))
        tokens = mx.array(golden["decoder_input_ids"][row : row + 1])
        scores, states = model.cross_attention_weights(tokens, encoder_output, heads)
        found = mx.softmax(scores, axis=-1)
        assert mx.allclose(states, model.teacher_forced(tokens, encoder_output), atol=1e-5)
        expected = np.stack([golden["cross_attentions"][layer, row, head] for layer, head in heads])
        assert np.abs(np.array(found) - expected).max() < 5e-5
    assert golden["cross_attentions"].max() > 0.2


@pytest.mark.parametrize("storage", [Storage("bfloat16"), Storage("float16"), Storage("bfloat16", 4, 32),
                                     Storage("float32", 8, 32), Storage("float16", 8, 32)], ids=str)  # fmt: skip
def test_converted_weights_approximate_the_model(storage: Storage, tmp_path: Path) -> None:
    config = WHISPER | {"d_model": 64, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    model = tiny_whisper(scale=0.12, **{name: value for name, value in config.items() if name != "model_type"})
    folder = save_whisper(model, tmp_path / "hf", config)
    expected, found = (
        load(path, dtype="float32").model for path in (folder, convert(str(folder), tmp_path / "out", storage))
    )
    logits = []
    for each in (expected, found):
        tokens = mx.array([[41, 5, 9, 33]])
        logits.append(np.array(each.decode(tokens, each.make_cache(each.encode_rows([audio_frames()])[0]))))
    scale = {4: 0.8, 8: 0.1, None: 0.04}[storage.quantize]
    difference = np.abs(logits[0] - logits[1]).max() / logits[0].std()
    assert 0 < difference < scale
    assert expected.audio == found.audio and expected.audio.languages == {"en": 42, "de": 43}
    if storage.quantize:
        assert "scales" in found.decoder.layers[1].ff.wo and "scales" in found.encoder.layers[0].self_attention.qkv
        baseline = tokens_of(run(found, audio_frames(), max_tokens=12))
        assert tokens_of(run(found, audio_frames(), head_drafter(found), max_tokens=12)) == baseline
