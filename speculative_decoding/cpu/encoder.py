"""Whisper's encoder for CPUs, in NumPy, and the projections of its output to the decoder's cross keys and values.

MLX's CPU backend computes everything but matmuls in one thread, and on x86-64 it computes exponentials without vector
instructions. For a 30-second window, the softmax and the GELU would take longer than the matmuls. In this module, each
thread computes some of the positions or heads, including their matmuls. For measurements, see
docs/decisions/exponentials.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import product
from threading import Lock
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from numpy.typing import NDArray

from .exponentials import ERFC, ERFC_SCALE

Array = NDArray[np.float32]

QUERIES = 512  # number of queries of a head to compute together
GELU_ROWS = 128  # number of rows to compute together, so that the temporary arrays stay in a cache
ONE_AT_A_TIME = Lock()  # the number of BLAS threads can be set only for the whole process
MAX_SCORE = 60.0  # exp of a score beyond +-MAX_SCORE could overflow or underflow float32


def encode_window(whisper: nn.Module, frames: mx.array) -> mx.array:
    """Replaces `Whisper.encode_window`: frames of a window (T, mel bands) -> encoder output (1, S, d_model)."""
    if whisper.config.activation_function != "gelu":  # all published Whisper models use GELU
        return whisper.encode(frames[None])
    stack = whisper.encoder
    with ONE_AT_A_TIME, Threads() as threads:
        x = to_numpy(frames)
        for convolution in whisper.convolutions:
            x = convolve(convolution, x, threads)
        x += to_numpy(stack.positions.table(len(x)))
        for layer in stack.layers:
            add_layer(layer, x, threads)
    return mx.array(norm(stack.norm)(x)[None]).astype(stack.norm.weight.dtype)


def inference_projections(whisper: nn.Module, encoder_output: mx.array) -> list[tuple[mx.array, mx.array]]:
    """Replaces `Whisper.inference_projections`. Computes windows one by one, so results do not depend on the batch."""
    windows = to_numpy(encoder_output)
    projections = []
    with ONE_AT_A_TIME, Threads() as threads:
        for layer in whisper.decoder.layers:
            attention = layer.cross_attention
            heads = attention.config.num_kv_heads
            keys_values = np.empty((2, len(windows), heads, windows.shape[1], attention.config.head_dim), np.float32)
            for i, window in enumerate(windows):
                project_window(attention, window, keys_values[:, i], threads)
            keys, values = (mx.array(each).astype(encoder_output.dtype) for each in keys_values)
            projections.append((keys, values))
    return projections


def project_window(attention: nn.Module, x: Array, keys_values: Array, threads: Threads) -> None:
    """Project encoder output x (S, d_model) to cross keys and values, and write them to `keys_values` (2, H, S, D)."""
    project = linear(attention.kv)
    by_position = keys_values.transpose(2, 0, 1, 3)

    def compute(rows: slice) -> None:
        by_position[rows] = project(x[rows]).reshape(by_position[rows].shape)

    threads.run_rows(compute, len(x))


class Threads:
    """As many threads as NumPy would use for a matmul. In a `with` block, each of NumPy's matmuls uses one thread."""

    def __init__(self) -> None:
        libraries = blas().info()
        self.count = max((library["num_threads"] for library in libraries), default=os.cpu_count() or 1)

    def __enter__(self) -> Threads:
        self._limit = blas().limit(limits=1)
        self._pool = ThreadPoolExecutor(self.count)
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown()
        self._limit.restore_original_limits()

    def run(self, function: Callable[[Any], None], items: Iterable[Any]) -> None:
        """Call a function for each item."""
        for _ in self._pool.map(function, items):
            pass

    def run_rows(self, function: Callable[[slice], None], rows: int) -> None:
        """Call a function in each thread, with that thread's share of the rows."""
        self.run(function, slices(rows, self.count))


@cache
def blas() -> Any:
    """Return a `ThreadpoolController` for the BLAS libraries that NumPy uses."""
    from threadpoolctl import ThreadpoolController  # imported late, because only transcription needs it

    return ThreadpoolController().select(user_api="blas")


def convolve(convolution: nn.Module, x: Array, threads: Threads) -> Array:
    """GELU of a convolution: (T, inputs) -> (T / stride, outputs)."""
    weight, bias = to_numpy(convolution.derived), to_numpy(convolution.bias)
    inputs = x.shape[1]
    padded = np.pad(x, [(1, 1), (0, 0)]).reshape(-1)
    windows = np.lib.stride_tricks.sliding_window_view(padded, len(weight))[:: convolution.stride * inputs]
    y = np.empty((len(x) // convolution.stride, len(bias)), np.float32)

    def compute(rows: slice) -> None:
        y[rows] = gelu(windows[rows] @ weight + bias)

    threads.run_rows(compute, len(y))
    return y


def add_layer(layer: nn.Module, x: Array, threads: Threads) -> None:
    """Add a layer's residuals to x (S, d_model)."""
    length, width = x.shape
    projected, attended = np.empty((length, 3 * width), np.float32), np.empty_like(x)
    queries, keys, values = np.split(projected, 3, axis=1)
    config = layer.self_attention.config
    self_norm, ff_norm = norm(layer.self_norm), norm(layer.ff_norm)
    qkv, o = linear(layer.self_attention.qkv), linear(layer.self_attention.o)
    wi, wo = linear(layer.ff.wi), linear(layer.ff.wo)
    ones = np.ones((length, 1), np.float32)  # a matmul with this vector is a fast way to compute sums

    def project(rows: slice) -> None:
        projected[rows] = qkv(self_norm(x[rows]))
        queries[rows] *= np.float32(config.scale)

    def attend(rows_and_head: tuple[slice, slice]) -> None:
        rows, head = rows_and_head
        weights = queries[rows, head] @ keys[:, head].T
        largest = weights.max(axis=1, keepdims=True)
        if np.abs(largest).max() > MAX_SCORE:
            weights -= largest
        np.exp(weights, out=weights)
        attended[rows, head] = weights @ values[:, head] / (weights @ ones)

    def add(rows: slice) -> None:
        x[rows] += o(attended[rows])
        x[rows] += wo(gelu(wi(ff_norm(x[rows]))))

    threads.run_rows(project, length)
    threads.run(attend, product(slices(length, -(-length // QUERIES)), slices(width, config.num_heads)))
    threads.run_rows(add, length)


def linear(layer: nn.Module) -> Callable[[Array], Array]:
    """Return a linear layer, which may be quantized, as a function of x (L, inputs)."""
    matrix = layer.weight
    if "scales" in layer:
        matrix = mx.dequantize(matrix, layer.scales, layer.get("biases"), layer.group_size, layer.bits, layer.mode)
    weight, bias = to_numpy(matrix).T, to_numpy(layer.bias)

    def apply(x: Array) -> Array:
        y = x @ weight
        y += bias
        return y

    return apply


def norm(layer: nn.Module) -> Callable[[Array], Array]:
    """Return an `nn.LayerNorm` as a function of x (L, d_model)."""
    weight, bias = to_numpy(layer.weight), to_numpy(layer.bias)

    def apply(x: Array) -> Array:
        centered = x - x.mean(axis=1, keepdims=True)
        variance = np.square(centered).mean(axis=1, keepdims=True)
        centered /= np.sqrt(variance + np.float32(layer.eps))
        centered *= weight
        centered += bias
        return centered

    return apply


def gelu(x: Array) -> Array:
    """`exponentials.gelu`, computed in place."""
    for block in np.split(x, range(GELU_ROWS, len(x), GELU_ROWS)):
        size = np.minimum(np.abs(block), 8)  # P(N > 8) is 6e-16, and denormal numbers would be slow
        t = 1 / (1 + np.float32(ERFC_SCALE * 0.5**0.5) * size)
        tail = np.zeros_like(t)
        for coefficient in reversed(ERFC):
            tail += np.float32(coefficient)
            tail *= t
        tail *= size
        np.square(size, out=size)
        size *= np.float32(-0.5)
        tail *= np.exp(size, out=size)
        tail *= np.float32(0.5)  # |x| * P(N > |x|)
        np.maximum(block, 0, out=block)
        block -= tail
    return x


def slices(length: int, count: int) -> list[slice]:
    """Split a length into at most `count` slices, none of them empty."""
    count = min(count, length)
    return [slice(i * length // count, (i + 1) * length // count) for i in range(count)]


def to_numpy(x: mx.array) -> Array:
    """Return a view of a float32 array, or a float32 copy of any other array."""
    return np.asarray(x.astype(mx.float32))
