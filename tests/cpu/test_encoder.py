"""Whisper's encoder in NumPy. The oracle is the same encoder in MLX, which the goldens check (test_t5.py)."""

from __future__ import annotations

import math
import sys
from concurrent.futures import ThreadPoolExecutor

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_map

from speculative_decoding.cpu import encoder as cpu_encoder
from speculative_decoding.cpu.encoder import GELU_ROWS, QUERIES, blas, gelu
from speculative_decoding.models.device import on_gpu
from speculative_decoding.models.whisper import Whisper
from tests.support.tiny import audio_frames, tiny_whisper

pytestmark = pytest.mark.skipif(
    on_gpu() or not sys.platform.startswith("linux"), reason="GPUs and Macs encode with MLX"
)


class Libraries:
    """Libraries with these numbers of threads. `limits` has each limit that was set, and None where one was removed."""

    def __init__(self, threads: list[int]) -> None:
        self._threads = threads
        self.limits: list[int | None] = []

    def info(self) -> list[dict[str, int]]:
        return [{"num_threads": count} for count in self._threads]

    def limit(self, *, limits: int) -> Libraries:
        self.limits.append(limits)
        return self

    def restore_original_limits(self) -> None:
        self.limits.append(None)


@pytest.fixture
def libraries(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Libraries:
    """Pretend that NumPy uses libraries with these numbers of threads."""
    found = Libraries(getattr(request, "param", [2]))
    monkeypatch.setattr(cpu_encoder, "blas", lambda: found)
    return found


def random_whisper(dtype: mx.Dtype = mx.float32, width: int = 16, positions: int = 30) -> Whisper:
    """Make a Whisper whose biases and norms are random as well."""
    model = tiny_whisper(
        d_model=width, encoder_ffn_dim=2 * width, max_source_positions=positions, vocab_size=positions + 51
    )
    keys = iter(mx.random.split(mx.random.key(1), 200))
    model.update(tree_map(lambda x: x + 0.3 * mx.random.normal(x.shape, key=next(keys)), model.parameters()))
    model.set_dtype(dtype)
    model.finalize()
    assert isinstance(model, Whisper)
    return model


def largest_error(model: Whisper, positions: int) -> float:
    frames = audio_frames(3, positions).frames
    found, expected = model.encode_window(frames), model.encode(frames[None])
    assert found.dtype == expected.dtype and found.shape == expected.shape
    return float(mx.abs(found - expected).max().item())


@pytest.mark.parametrize("libraries", [[2, 3], [50], []], ids=str, indirect=True)
def test_any_number_of_threads_and_positions_gives_the_output_of_mlx(libraries: Libraries) -> None:
    model = random_whisper(positions=2 * QUERIES + 5)
    for positions in (1, 2, 29, QUERIES, QUERIES + 1, 2 * QUERIES + 5):
        assert largest_error(model, positions) < 2e-5
    assert libraries.limits == 6 * [1, None]


@pytest.mark.parametrize(("dtype", "precision"), [(mx.bfloat16, 2**-8), (mx.float16, 2**-11)])
def test_of_16_bits_only_weights_and_output_are_rounded(dtype: mx.Dtype, precision: float) -> None:
    model = random_whisper(dtype)
    frames = audio_frames().frames
    found = model.encode_window(frames)
    model.set_dtype(mx.float32)
    model.finalize()
    assert found.dtype == dtype
    assert mx.allclose(found.astype(mx.float32), model.encode(frames[None]), rtol=precision, atol=2e-5).item()


def test_an_encoder_with_another_activation_is_that_of_mlx() -> None:
    model = tiny_whisper(activation_function="relu")
    frames = audio_frames().frames
    assert mx.array_equal(model.encode_window(frames), model.encode(frames[None])).item()
    assert not mx.array_equal(model.encode(frames[None]), tiny_whisper().encode(frames[None])).item()


def test_quantized_layers() -> None:
    model = random_whisper(width=64)
    nn.quantize(model.encoder, 32, 4)
    model.finalize()
    assert largest_error(model, 30) < 2e-5


@pytest.mark.parametrize("sign", [1, -1])
def test_scores_near_150_neither_overflow_nor_vanish(sign: int) -> None:
    model = random_whisper()
    qkv = model.encoder.layers[0].self_attention.qkv
    qkv.bias = mx.concatenate([mx.full(16, 7.3), mx.full(16, sign * 7.3), mx.zeros(16)])  # queries, keys, values
    assert largest_error(model, 30) < 1e-4


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("libraries", [[1], [3]], ids=str, indirect=True)
@pytest.mark.usefixtures("libraries")
def test_keys_and_values_of_the_decoder_are_those_of_mlx_and_of_single_windows(dtype: mx.Dtype) -> None:
    model = random_whisper(dtype, width=64)
    if dtype == mx.float32:  # in 16 bits, dequantized weights are rounded, too
        nn.quantize(model.decoder.layers[1].cross_attention, 32, 8)
    windows = mx.random.normal((3, 29, 64), key=mx.random.key(0)).astype(dtype)
    found, alone = model.inference_projections(windows), model.inference_projections(windows[1:2])
    model.set_dtype(mx.float32)  # the weights keep their values
    model.finalize()
    expected = model.cross_projections(windows.astype(mx.float32))
    assert len(found) == len(expected) == 2
    for layer in range(2):
        for own, mlx, single in zip(found[layer], expected[layer], alone[layer], strict=True):
            assert own.dtype == dtype and own.shape == mlx.shape
            rounding = 2**-8 if dtype == mx.bfloat16 else 0.0
            assert mx.allclose(own.astype(mx.float32), mlx, rtol=rounding, atol=2e-5).item()
            assert mx.array_equal(own[1:2], single).item()


def test_windows_of_several_threads_are_encoded_in_turn(libraries: Libraries) -> None:
    """Otherwise, the last thread to finish could restore the limit of another one."""
    model = random_whisper(positions=500)
    frames = audio_frames(positions=500).frames
    mx.eval(model.parameters(), frames)

    def encode(_: int) -> None:
        with mx.stream(mx.new_stream(mx.cpu)):
            mx.eval(model.encode_window(frames))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(encode, range(8)))
    assert libraries.limits == 8 * [1, None]


def test_an_error_restores_the_number_of_threads() -> None:
    model = random_whisper()
    model.encoder.layers[1].ff.wo.bias = mx.zeros(3)
    before = blas().info()
    with pytest.raises(ValueError, match="broadcast"):
        model.encode_window(audio_frames().frames)
    assert blas().info() == before


def test_gelu_equals_its_definition() -> None:
    x = np.random.default_rng(0).normal(0, 4, (2 * GELU_ROWS + 3, 5)).astype(np.float32)
    x[0] = [0, -1e-30, 40, -40, -3e38]
    exact = [0.5 * float(value) * math.erfc(-value / math.sqrt(2)) for value in x.reshape(-1)]
    found = gelu(x.copy())
    np.testing.assert_allclose(found.reshape(-1), exact, rtol=1e-6, atol=2e-6)
    assert np.isnan(gelu(np.full((1, 3), math.nan, np.float32))).all()
