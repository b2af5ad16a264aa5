"""Refuses arguments that Metal's kernels do not check, where MLX's CPU kernels accept them.

A kernel of the GPU computes addresses from the shapes and strides that it expects. What it does not check, it reads or
writes behind a buffer, or takes for numbers of another type. The CPU broadcasts and converts instead, so that no other
test on a CPU can fail. docs/decisions/mlx-faults.md names the kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from speculative_decoding.models.layers import adds_rows_in_bounds

Check = Callable[..., None]


class KernelError(AssertionError):
    """A call that is wrong on Metal. `AssertionError`, because no code may catch it."""


def require(condition: bool, problem: str) -> None:
    if not condition:
        raise KernelError(problem)


def require_dtype(name: str, first: mx.array, *others: mx.array | None) -> None:
    """Refuse mixed dtypes: MLX converts whole weights or caches in each call, or fails."""
    dtypes = {each.dtype for each in (first, *others) if each is not None}
    require(len(dtypes) == 1, f"{name}: dtypes {sorted(map(str, dtypes))} (expected one)")


def require_indices(name: str, indices: Any, size: int) -> None:
    """Refuse indices outside of an axis: kernels do not check them."""
    values = np.array(indices)
    inside = (values >= -size) & (values < size)
    require(bool(inside.all()), f"{name}: index {values[~inside][:3]} in an axis of {size}")


def check_rope(x: mx.array, dims: int, *, offset: int | mx.array, **options: Any) -> None:
    is_scalar = not isinstance(offset, mx.array) or offset.ndim == 0
    require(is_scalar or offset.shape == (len(x),), f"rope: offsets {offset.shape} for {len(x)} rows")  # type: ignore[union-attr]


def check_norm(x: mx.array, weight: mx.array | None, *rest: Any, **options: Any) -> None:
    bias = rest[0] if rest and isinstance(rest[0], mx.array) else None
    require_dtype("norm", x, weight, bias)
    for vector in (weight, bias):
        require(vector is None or vector.shape == x.shape[-1:], f"norm: {vector} for rows of {x.shape[-1]}")


def check_attention(q: mx.array, k: mx.array, v: mx.array, *, mask: mx.array | None = None, **options: Any) -> None:
    require_dtype("attention", q, k, v, mask)
    batch, heads, length, _ = q.shape
    require(len(k) == len(v) == batch, f"attention: {len(k)} rows of keys for {batch} rows")
    require(heads % k.shape[1] == 0, f"attention: {heads} query heads for {k.shape[1]} key heads")
    if mask is not None:
        full = (batch, heads, length, k.shape[2])
        fits = mask.ndim == 4 and all(size in (1, whole) for size, whole in zip(mask.shape, full, strict=True))
        require(fits, f"attention: mask {mask.shape} (expected {full}, or 1 for some axes)")


def check_addmm(c: mx.array, a: mx.array, b: mx.array, *rest: Any, **options: Any) -> None:
    require_dtype("addmm", c, a, b)
    rows, inputs = a.shape[-2:]
    if c.ndim < 2 or c.shape[-2] == 1 or rows == 1:
        return
    in_bounds = a.size == rows * inputs and adds_rows_in_bounds(rows, inputs, b.shape[-1])
    require(in_bounds, f"addmm: reads behind an addend {c.shape} of {a.shape} @ {b.shape}")


def check_quantized(x: mx.array, w: mx.array, scales: mx.array, biases: Any = None, *rest: Any, **options: Any) -> None:
    if options.get("mode", "affine") == "affine":
        require_dtype("quantized_matmul", x, scales, biases)
    width = scales.shape[-1] * options.get("group_size", 64)
    require(x.shape[-1] == width, f"quantized_matmul: {x.shape[-1]} columns (expected {width})")


def check_matmul(a: mx.array, b: mx.array, **options: Any) -> None:
    require_dtype("matmul", a, b)


def check_take(a: mx.array, indices: Any, axis: int | None = None, **options: Any) -> None:
    require_indices("take", indices, a.size if axis is None else a.shape[axis])


def check_along_axis(a: mx.array, indices: mx.array, *rest: Any, axis: int | None = None, **options: Any) -> None:
    along = axis if axis is not None else rest[-1]
    require_indices("along axis", indices, a.shape[along])
    if rest and isinstance(rest[0], mx.array):  # `put_along_axis` casts its values
        require_dtype("put_along_axis", a, rest[0])


def check_item(a: mx.array, index: Any) -> None:
    indices = index if isinstance(index, tuple) else (index,)
    if any(each is None or each is Ellipsis for each in indices):
        return  # the package only indexes with arrays from the first axis on
    for axis, each in enumerate(indices):
        if isinstance(each, mx.array) and each.dtype != mx.bool_:
            require_indices("index", each, a.shape[axis])


def check_slice_update(a: mx.array, update: mx.array, start: mx.array, axes: Any, **options: Any) -> None:
    require_dtype("slice_update", a, update)
    for first, axis in zip(np.array(start).tolist(), axes, strict=True):
        last = first + update.shape[axis]
        require(first >= 0 and last <= a.shape[axis], f"slice_update: {first} to {last} in an axis of {a.shape[axis]}")


def check_strided(a: mx.array, shape: Any = None, strides: Any = None, offset: int = 0, **options: Any) -> None:
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    require(last < a.size, f"as_strided: element {last} of {a.size}")


def check_not_empty(a: mx.array, *rest: Any, **options: Any) -> None:
    """Refuse empty arrays: the dispatch of scans, sorts and reductions divides by their size."""
    require(a.size > 0, f"a scan, sort or reduction of an empty array {a.shape}")


CHECKS: dict[str, Check] = {
    "fast.rope": check_rope,
    "fast.rms_norm": check_norm,
    "fast.layer_norm": check_norm,
    "fast.scaled_dot_product_attention": check_attention,
    "addmm": check_addmm,
    "matmul": check_matmul,
    "array.__matmul__": check_matmul,
    "array.__getitem__": check_item,
    "quantized_matmul": check_quantized,
    "take": check_take,
    "take_along_axis": check_along_axis,
    "put_along_axis": check_along_axis,
    "slice_update": check_slice_update,
    "as_strided": check_strided,
} | dict.fromkeys(
    ("cumsum", "cumprod", "sort", "argsort", "argpartition", "topk", "argmax", "softmax", "logsumexp"), check_not_empty
)


def checked(check: Check, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        check(*args, **{name: value for name, value in options.items() if name != "stream"})
        return function(*args, **options)

    return call


def one_shape(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Stand in for `mx.compile`: run a function as it is written, and refuse a second set of shapes.

    MLX would compile kernels for the second set in the middle of decoding. Arrays have no values while MLX traces a
    function, so that indices could not be checked.
    """
    seen: set[str] = set()

    def describe(value: Any) -> Any:
        if isinstance(value, mx.array):
            return tuple(value.shape), str(value.dtype)
        return [describe(each) for each in value] if isinstance(value, list | tuple) else value

    def call(*args: Any) -> Any:
        seen.add(repr(describe(args)))
        require(len(seen) == 1, f"a compiled function got several shapes: {seen}")
        return function(*args)

    return call


@contextmanager
def checked_kernels() -> Iterator[None]:
    """Check each call of these functions within the block. Models must be loaded within it."""
    with pytest.MonkeyPatch.context() as patch:
        for path, check in CHECKS.items():
            *parts, name = path.split(".")
            owner: Any = mx
            for part in parts:
                owner = getattr(owner, part)
            patch.setattr(owner, name, checked(check, getattr(owner, name)))
        patch.setattr(mx, "compile", one_shape)
        yield
