"""Replays traced operations on inputs that reveal any difference in the order of additions. Computes exact results.

The terms of each sum cancel: every term has a partner of the opposite sign at a random position. The result therefore
consists only of rounding errors, and another order of the same additions produces different bits, in any dtype. In
every other row (or head, for attention), partners differ by 0.1 %, because results that cancel to exactly 0 in two
kernels would not reveal their orders.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .numbers import EPSILON, STORED, Values, decode, encode
from .operations import GROUP_SIZE, Operation
from .runtime import DEFAULT_ORDERS, Fault, Library, Orders, Placement
from .traces import ArrayArgument, Constant, Trace, TracedDispatch

MAX_ROWS = 32
SCORE_SCALE = 32.0  # the scale of queries and keys whose products cancel
MARGIN = 256  # columns that the last threadgroup may compute after the compared ones


@dataclass(frozen=True)
class Reference:
    """The exact result of an operation on the stored inputs, and the maximum error of float32 arithmetic."""

    values: Values
    tolerance: Values


class Inputs:
    """The inputs of one operation for passes of every width. A pass of width M gets M rows.

    Args:
        columns: The number of output columns, which are rows of a weight (N, K): those that `replay` computes plus a
            margin. None means all.
    """

    def __init__(self, operation: Operation, dtype: str, columns: int | None = None, seed: int = 0) -> None:
        self.operation, self.dtype, self.rows, self.columns = operation, dtype, MAX_ROWS, columns
        self.random = np.random.default_rng(seed)
        self.arrays = self._arrays()

    def _arrays(self) -> dict[str, Values]:
        """Create the widest pass's arrays in stored form. Except for `rope`, the first axis is the rows of a pass."""
        kind, sizes = self.operation.kind, self.operation.sizes
        if kind == "quantized":
            return self._quantized(*sizes)
        if kind in ("matmul", "residual", "bias"):
            return self._matmul(*sizes)
        if "attention" in kind:
            return self._attention(*sizes)
        if "rope" in kind:
            batch, heads, d = sizes
            x = self._wide(batch, heads, self.rows, d)
            offsets = 5 + 3 * np.arange(batch) if kind == "rope" else np.array(5)
            return {"x": self._encode(x), "offsets": encode(offsets, "int32")}
        arrays = {"x": self._wide(self.rows, *sizes), "weight": self._wide(*sizes), "bias": self._wide(*sizes)}
        return {name: self._encode(values) for name, values in arrays.items()}

    def _encode(self, values: Values) -> Values:
        return encode(values, self.dtype)

    def _wide(self, *shape: int) -> Values:
        """Return random numbers scaled by powers of two from -4 to 4, so that each addition rounds."""
        return self.random.standard_normal(shape) * 2.0 ** self.random.integers(-4, 5, shape)

    def _partner(self, x: Values, axis: int) -> Values:
        """Return -x, changed by about 0.1 % at odd indices of an axis."""
        shape = [1] * x.ndim
        shape[axis] = -1
        is_odd = (np.arange(x.shape[axis]) % 2).reshape(shape)
        return -x * (1.0 + 2.0**-10 * is_odd * self.random.standard_normal(x.shape))

    def _matmul(self, k: int, n: int) -> dict[str, Values]:
        n = min(n, self.columns or n)
        order = self.random.permutation(k)
        half = self._wide(self.rows, k // 2)
        x = np.concatenate([half, self._partner(half, 0)], axis=1)[:, order]
        weight = self.random.standard_normal((n, k // 2), dtype=np.float32)
        weight = np.concatenate([weight, weight], axis=1)[:, order]
        noise = 2.0**-12 * self.random.standard_normal((self.rows + 1, n))  # as small as rounding errors
        residual, bias = noise[:-1], noise[-1]
        arrays = {"x": x, "weight": weight, "residual": residual, "bias": bias}
        return {name: self._encode(values) for name, values in arrays.items()}

    def _quantized(self, k: int, n: int) -> dict[str, Values]:
        """Create pairs of groups with equal scales and offsets. The second group has the first's codes, shuffled."""
        n = min(n, self.columns or n)
        bits, pairs = self.operation.bits, k // GROUP_SIZE // 2
        codes = self.random.integers(0, 2**bits, (n, pairs, GROUP_SIZE), dtype=np.uint8)
        half = self._wide(self.rows, pairs, GROUP_SIZE)
        shuffles = np.stack([self.random.permutation(GROUP_SIZE) for _ in range(pairs)])
        groups = self.random.permutation(2 * pairs)
        partner_codes = np.take_along_axis(codes, shuffles[None], axis=2)
        partner_x = self._partner(np.take_along_axis(half, shuffles[None], axis=2), 0)
        codes = np.concatenate([codes, partner_codes], axis=1)[:, groups].reshape(n, k)
        x = np.concatenate([half, partner_x], axis=1)[:, groups].reshape(self.rows, k)
        scales = self.random.uniform(0.5, 1.5, (n, pairs)) / 2**bits
        offsets = self.random.standard_normal((n, pairs))
        joined = [np.concatenate([values, values], axis=1)[:, groups] for values in (scales, offsets)]
        per_word = 32 // bits
        words = codes.reshape(n, k // per_word, per_word).astype(np.uint32) << (
            bits * np.arange(per_word, dtype=np.uint32)
        )
        arrays = {"x": x, "scales": joined[0], "offsets": joined[1]}
        packed = np.bitwise_or.reduce(words, axis=2)
        return {"codes": packed, **{name: self._encode(values) for name, values in arrays.items()}}

    def _attention(self, heads: int, key_heads: int, d: int, keys: int) -> dict[str, Values]:
        """Create pairs of keys with opposite values, visible to all queries. The last keys are visible only to some.

        The terms of a score also cancel. They are so large that rounding errors in scores change the weights.
        """
        paired = (keys - self.rows) // 2
        order = np.concatenate([self.random.permutation(2 * paired), np.arange(2 * paired, keys)])
        rest = keys - 2 * paired
        place = self.random.permutation(d)
        queries = SCORE_SCALE * self._wide(self.rows, heads, d // 2)
        queries = np.concatenate([queries, -queries], axis=2)[..., place]
        half, last = (SCORE_SCALE * self._wide(1, key_heads, count, d // 2) for count in (paired, rest))
        k = np.concatenate([half, half, last], axis=2)
        k = np.concatenate([k, k], axis=3)[:, :, order][..., place]
        values = self._wide(1, key_heads, paired, d)
        small = 2.0**-12 * self._wide(1, key_heads, rest, d)
        v = np.concatenate([values, self._partner(values, 1), small], axis=2)[:, :, order]
        if self.operation.kind == "attention":
            mask = np.zeros((self.rows, 1, keys))
        else:  # a bias for each head, the same for both keys of a pair
            bias = self.random.standard_normal((self.rows, heads, paired))
            mask = np.concatenate([bias, bias, np.zeros((self.rows, heads, rest))], axis=2)[:, :, order]
        position = np.arange(keys)[None, None]
        mask = np.where(position <= keys - self.rows - 1 + np.arange(self.rows)[:, None, None], mask, -np.inf)
        arrays = {"queries": queries, "keys": k, "values": v, "mask": mask}
        return {name: self._encode(values) for name, values in arrays.items()}

    def of_pass(self, width: int, first_row: int = 0) -> list[Values]:
        """Return the inputs for a pass over `width` rows, in the trace's order."""
        rows = slice(first_row, first_row + width)
        found = []
        for array in self.operation.inputs(width):
            values = self.arrays[array.name]
            if array.name in ("x", "queries", "residual"):
                values = values[:, :, rows] if "rope" in self.operation.kind else values[rows]
            elif array.name == "mask":  # (rows, H or 1, T) -> (1, H or 1, rows, T)
                values = values[rows].swapaxes(0, 1)[None]
            elif "rope" in self.operation.kind:
                values = values + np.int32(first_row)  # offsets
            found.append(np.ascontiguousarray(values))
        return found

    def reference(self, width: int) -> Reference:
        """Compute the result for the first `width` rows in float64."""
        kind = self.operation.kind
        arrays = dict(zip((a.name for a in self.operation.inputs(width)), self.of_pass(width), strict=True))
        values = {name: decode(a, self.dtype) for name, a in arrays.items() if a.dtype == STORED[self.dtype]}
        if kind in ("matmul", "residual", "bias", "quantized"):
            weight = self._dequantized() if kind == "quantized" else values["weight"]
            exact = values["x"] @ weight.T + values.get("residual", 0.0) + values.get("bias", 0.0)
            terms = np.abs(values["x"]) @ np.abs(weight).T
        elif "attention" in kind:
            exact, terms = self._attended(values, width)
        elif "rope" in kind:
            exact = rotated(values["x"], arrays["offsets"])
            terms = np.abs(values["x"]) + np.abs(exact)
        else:
            x = values["x"]
            epsilon = 1e-5 if kind == "layer_norm" else 1e-6
            if kind == "layer_norm":
                x = x - x.mean(axis=-1, keepdims=True)
            exact = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + epsilon) * values["weight"]
            exact = exact + values.get("bias", 0.0)
            terms = np.abs(exact) + 1.0
        rounding = 4 * EPSILON[self.dtype] * (np.abs(exact) + (terms if self._rounds_terms() else 0.0))
        return Reference(exact, rounding + 2.0**-17 * terms)

    def _rounds_terms(self) -> bool:
        """Whether kernels round terms to the dtype: dequantized weights, attention weights or rotated values."""
        return self.operation.kind not in ("matmul", "residual", "bias")

    def _dequantized(self) -> Values:
        bits = self.operation.bits
        words = self.arrays["codes"]
        shifts = bits * np.arange(32 // bits, dtype=np.uint32)
        codes = ((words[:, :, None] >> shifts) & (2**bits - 1)).reshape(len(words), -1, GROUP_SIZE).astype(np.float64)
        scales, offsets = (decode(self.arrays[name], self.dtype)[:, :, None] for name in ("scales", "offsets"))
        return (codes * scales + offsets).reshape(len(words), -1)

    def _attended(self, values: dict[str, Values], width: int) -> tuple[Values, Values]:
        heads, key_heads = self.operation.sizes[:2]
        queries = values["queries"].swapaxes(0, 1)  # (H, M, D)
        keys, v = (np.repeat(values[name][0], heads // key_heads, axis=0) for name in ("keys", "values"))
        scores = queries @ keys.swapaxes(1, 2)
        if "mask" in values:
            scores = scores + values["mask"][0]
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        # The absolute rounding error of a score is the relative error of its weight
        rounded = 2.0**-20 * np.abs(queries) @ np.abs(keys).swapaxes(1, 2)
        return (weights @ v)[None], 4 * (weights @ np.abs(v) + (weights * rounded) @ np.abs(v) / EPSILON[self.dtype])[
            None
        ]


def rotated(x: Values, offsets: Values) -> Values:
    """Rotary embedding with base 10,000: x (B, H, M, D), offsets (B,) or ()."""
    batch, _, width, d = x.shape
    positions = np.broadcast_to(offsets, (batch,))[:, None] + np.arange(width)
    angles = positions[:, None, :, None] * 10000.0 ** (-np.arange(d // 2) / (d // 2))
    left, right = x[..., : d // 2], x[..., d // 2 :]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([left * cos - right * sin, left * sin + right * cos], axis=-1)


@dataclass(frozen=True)
class Result:
    """The stored output of a replay, (rows, ...), and the accesses that guard pages caught."""

    output: Values
    faults: list[Fault]


def replay(
    library: Library,
    trace: Trace,
    operation: Operation,
    dtype: str,
    inputs: list[Values],
    width: int,
    *,
    columns: int | None = None,
    orders: Orders = DEFAULT_ORDERS,
    placement: Placement = Placement.UNGUARDED,
) -> Result:
    """Run the dispatches of a trace. Outputs are filled with 0xff (NaN) in advance.

    Args:
        columns: For a matmul, compute and return only this many columns of the result.
    """
    shape = operation.output(width)
    count = int(np.prod(shape))
    arrays = {f"input{number}": array.reshape(-1).view(np.uint8) for number, array in enumerate(inputs)}
    arrays["output"] = np.full(count * np.dtype(STORED[dtype]).itemsize, 0xFF, np.uint8)
    faults = []
    for number, dispatch in enumerate(trace.dispatches):
        arguments: dict[int, Values | bytes] = {}
        for index, argument in dispatch.arguments.items():
            if isinstance(argument, Constant):
                arguments[index] = argument.value
                continue
            arguments[index] = array_of(arrays, argument)
        kernel = library.kernel(dispatch.kernel, dispatch.constants)
        faults += kernel.run(
            arguments,
            dispatch.grid,
            dispatch.group,
            threadgroup_memory=dispatch.threadgroup_memory,
            grid_is_threads=dispatch.grid_is_threads,
            groups_to_run=first_groups(dispatch, columns / shape[-1]) if columns and number == 0 else (0, 0, 0),
            orders=orders,
            placement=placement,
        )
    stored = arrays["output"].view(STORED[dtype])
    strides = [stride * stored.itemsize for stride in trace.strides]
    values = np.lib.stride_tricks.as_strided(stored, shape, strides)
    return Result(np.ascontiguousarray(values[..., :columns] if columns else values), faults)


def first_groups(dispatch: TracedDispatch, share: float) -> tuple[int, int, int]:
    """Return the number of threadgroups for a share of the columns, which lie along the grid's longest axis."""
    counts = [
        -(-grid // group) if dispatch.grid_is_threads else grid
        for grid, group in zip(dispatch.grid, dispatch.group, strict=True)
    ]
    longest = counts.index(max(counts))
    x, y, z = (math.ceil(count * share) if axis == longest else 0 for axis, count in enumerate(counts))
    return x, y, z


def array_of(arrays: dict[str, Values], argument: ArrayArgument) -> Values:
    """Return an argument's bytes. A temporary array is created when it first occurs."""
    if argument.name not in arrays:
        arrays[argument.name] = np.full(argument.nbytes, 0xFF, np.uint8)
    return arrays[argument.name][argument.offset :]
