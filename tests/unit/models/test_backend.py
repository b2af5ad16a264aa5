"""Which version of an operation computes: MLX's, or the CPU's."""

from __future__ import annotations

import re

import mlx.core as mx
import mlx.nn as nn
import pytest

from speculative_decoding.models import backend
from speculative_decoding.models.attention import precise_softmax, window_softmax
from speculative_decoding.models.config import gelu
from tests.support.metal import pretend_gpu
from tests.support.paths import ROOT
from tests.support.subpackages import needs_subpackage
from tests.support.tiny import audio_frames, tiny_whisper

PACKAGE = ROOT / "speculative_decoding"


def test_mlx_computes_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """It also computes without the folder cpu/: tests/robustness/test_subpackages.py runs the tests of such copies."""
    pretend_gpu(monkeypatch)
    x = mx.random.normal((2, 600), key=mx.random.key(5))
    assert mx.array_equal(window_softmax(x), precise_softmax(x)).item()
    assert mx.array_equal(gelu(x), nn.gelu(x)).item()
    model, frames = tiny_whisper(), audio_frames().frames
    encoder_output = model.encode_window(frames)
    assert mx.array_equal(encoder_output, model.encode(frames[None])).item()
    for found, expected in zip(
        model.inference_projections(encoder_output), model.cross_projections(encoder_output), strict=True
    ):
        assert all(mx.array_equal(*pair).item() for pair in zip(found, expected, strict=True))


@needs_subpackage("training")  # it has two of the operations
def test_operations_and_replacements_have_the_same_names() -> None:
    replacements = backend.replacements()
    if replacements is None:
        pytest.skip("there are replacements on Linux only, unless the folder was left out")
    text = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    marked = re.findall(r"@replaced_on_cpu\n +def (\w+)|@replaced_on_cpu\ndef (\w+)", text)
    assert sorted(method or function for method, function in marked) == sorted(replacements.__all__)
