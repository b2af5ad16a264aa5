"""Softmax and GELU for CPUs on which MLX computes exponentials one by one.

MLX uses vector instructions only on ARM. On x86-64, its `exp` takes 12 ns per element, and its `erf` takes 26 ns. The
functions below consist of additions, multiplications and shifts. Compilers vectorize loops of such operations, so an
exponential takes 1.5 ns. For measurements, see docs/decisions/exponentials.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import mlx.core as mx

PIECE = 1 << 15  # number of elements to compute together, so that they stay in a cache

LOG2_E = 1.4426950408889634
EXP2 = (  # 2**f for -1 < f <= 0: a Chebyshev interpolation with a relative error of 3e-9
    0.99999999859,
    0.69314704743,
    0.24022435574,
    0.05549103613,
    0.00958005940,
    0.00127571664,
    0.00010938755,
)
ERFC = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)  # Abramowitz and Stegun 1964, 7.1.26
ERFC_SCALE = 0.3275911


def softmax(x: mx.array) -> mx.array:
    """Softmax over the last axis, computed in float32. Faster than MLX's softmax for about 512 elements or more."""
    scores = x.astype(mx.float32)
    weights = exp_of_negative(scores - scores.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True)).astype(x.dtype)


def gelu(x: mx.array) -> mx.array:
    """x * P(N <= x) for a standard normal N (Hendrycks and Gimpel 2016, 1606.08415), with an error of 1e-7 * |x|."""
    pieces = mx.split(x.reshape(-1), [*range(PIECE, x.size, PIECE)])
    return mx.concatenate([compiled(_gelu, piece.shape, x.dtype)(piece) for piece in pieces]).reshape(x.shape)


def exp_of_negative(x: mx.array) -> mx.array:
    """exp(x) for float32 x <= 0, with a relative error of 3e-7 + 6e-8 * |x|; 0 if the result is below 1e-38."""
    return compiled(_exp, x.shape, x.dtype)(x)


@lru_cache(maxsize=128)  # MLX keeps each trace for as long as the compiled function exists
def compiled(
    function: Callable[[mx.array], mx.array], shape: tuple[int, ...], dtype: mx.Dtype
) -> Callable[[mx.array], mx.array]:
    """Compile a function for one shape and type."""
    return mx.compile(partial(function))  # MLX keeps a function object's traces, and drops them with the object


def _exp(x: mx.array) -> mx.array:
    exponent = x * LOG2_E
    whole = mx.stop_gradient(exponent.astype(mx.int32))  # rounds towards 0
    f = exponent - whole.astype(mx.float32)
    f2 = f * f
    low = EXP2[0] + EXP2[1] * f
    high = (EXP2[2] + EXP2[3] * f) + f2 * ((EXP2[4] + EXP2[5] * f) + EXP2[6] * f2)
    bits = mx.maximum(whole + 127, 0) << 23  # the bits of the float 2**whole
    # Comparing floats would prevent vectorization. Where x is -inf (masked), `f` is infinite and the result is 0.
    return mx.where(bits > 0, (low + f2 * high) * bits.view(mx.float32), 0.0)


def _gelu(x: mx.array) -> mx.array:
    y = x.astype(mx.float32)
    size = mx.abs(y)
    t = 1 / (1 + (ERFC_SCALE * 0.5**0.5) * size)
    t2 = t * t
    series = t * ((ERFC[0] + ERFC[1] * t) + t2 * ((ERFC[2] + ERFC[3] * t) + ERFC[4] * t2))
    tail = 0.5 * series * _exp(-0.5 * size * size)  # P(N > |x|)
    return (0.5 * (y + size) - size * tail).astype(x.dtype)
