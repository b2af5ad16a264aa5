"""What a decoder remembers between passes: its own keys and values, and those of the memory it reads from.

A cache has a row for each request, each at its own offset; a single request is a cache of one row. It knows nothing of
drafts, nor of what a position means: rows grow together and are rewound one by one, to absolute offsets, by which no
data is moved. With beams a request has as many rows, one below the other, and they share its cross keys and values.

Buffers have few sizes, and a pass attends over all of a buffer, for then few shapes occur and each is compiled once
(`EncoderDecoder.states`). The model's masks hide what stands behind a row's offset (stale, to be overwritten).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import mlx.core as mx
import numpy as np

SOURCE_STEP = 32  # a source takes a multiple of this
LEAST_CAPACITY = 32  # tokens of the output; doubled when they are full


@dataclass
class CrossAttentionCache:
    """What one decoder layer attends over in a pass over whole sequences: the cross keys and values, projected once,
    and those of the pass itself.
    """

    cross_keys: mx.array  # (P, H, S, D)
    cross_values: mx.array  # (P, H, S, D)

    @property
    def prompts(self) -> int:
        """P: as many as there are rows B, or fewer; then so many rows beside each other read one."""
        return self.cross_keys.shape[0]

    @property
    def arrays(self) -> list[mx.array]:
        return [self.cross_keys, self.cross_values]

    def select(self, rows: mx.array) -> Self:
        """Of these rows."""
        return type(self)(*(mx.take(array, rows, axis=0) for array in self.arrays))

    def append(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """New keys and values (B, H, L, D) -> all that there are: here no others."""
        return keys, values

    def reach(self, length: int) -> int:
        """T: over how many positions a pass of `length` more tokens attends."""
        return length


@dataclass
class LayerCache(CrossAttentionCache):
    """One decoder layer with buffers that its own keys and values are written to."""

    keys: mx.array  # (B, H, T, D)
    values: mx.array  # (B, H, T, D)
    at: mx.array | None = None  # where a pass writes: see `DecoderCache.places`

    @classmethod
    def of(cls, cross_keys: mx.array, cross_values: mx.array, beams: int = 1) -> LayerCache:
        prompts, heads, _, width = cross_keys.shape
        shape = prompts * beams, heads, LEAST_CAPACITY, width
        keys, values = (mx.zeros(shape, cross_keys.dtype) for _ in range(2))
        return cls(cross_keys, cross_values, keys, values)

    @property
    def arrays(self) -> list[mx.array]:
        return [self.cross_keys, self.cross_values, self.keys, self.values]

    def append(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write (B, H, L, D); all keys and values, (B, H, T, D)."""
        assert self.at is not None
        self.keys, self.values = written(self.keys, keys, self.at), written(self.values, values, self.at)
        return self.keys, self.values

    def reach(self, length: int) -> int:
        return self.keys.shape[2]


def written(buffer: mx.array, new: mx.array, at: mx.array) -> mx.array:
    """In place, if nobody else holds the buffer when it is evaluated; one operation, however many rows there are.

    at: (1,) for a single row, or the place of every element, (B, H, L, D): with 8 rows a slice for each costs three
    times as much (docs/LOG.md).
    """
    if at.ndim == 1:
        return mx.slice_update(buffer, new, at, axes=[2])
    return mx.put_along_axis(buffer, at, new, axis=2)


def longer(buffer: mx.array, room: int) -> mx.array:
    """(B, H, T, D) -> (B, H, T + room, D)."""
    return mx.pad(buffer, [(0, 0), (0, 0), (0, room), (0, 0)])


def additive(mask: mx.array, dtype: mx.Dtype) -> mx.array:
    """(B, S) bool -> (B, 1, 1, S): 0 where there is a token, -inf on padding.

    A row without any token, as of a slot that is free, is left open: with nothing to attend to it would be NaN.
    """
    hidden = ~mask & mask.any(axis=1, keepdims=True)
    return mx.where(hidden, mx.array(-mx.inf, dtype), mx.array(0, dtype))[:, None, None, :]


@dataclass
class DecoderCache:
    """All layers of one request, or of a batch of them.

    source_mask: additive, (P, 1, 1, S); -inf behind each source.
    beams: how many rows each request has; B = P * beams.
    offsets: how many tokens each row holds.
    kept_layers: of which layers the states of the last pass are kept, (B, L, d_model) each, in `hidden`; for a draft
        that reads them. They cost nothing.
    full_cross_attention: the last layer's cross keys and values with all heads, kept for a draft where the layers hold
        only this rank's heads.
    """

    layers: Sequence[LayerCache]
    source_mask: mx.array
    full_cross_attention: Sequence[CrossAttentionCache] = ()
    kept_layers: tuple[int, ...] = ()
    hidden: Sequence[mx.array] = ()
    beams: int = 1
    offsets: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.offsets = [0] * (self.source_mask.shape[0] * self.beams)

    @property
    def offset(self) -> int:
        """How many tokens the cache holds; with rows at different offsets, those of the furthest."""
        return max(self.offsets)

    @property
    def rows(self) -> int:
        return len(self.offsets)

    @property
    def source_capacity(self) -> int:
        """S: the longest source that fits without growing."""
        return self.source_mask.shape[3]

    @property
    def capacity(self) -> int:
        """T: how many tokens of the output fit without growing, and over how many a pass attends."""
        return self.layers[0].keys.shape[2]

    @property
    def arrays(self) -> list[mx.array]:
        return [array for layer in self._cross_attention for array in layer.arrays]

    @property
    def last_cross_attention(self) -> CrossAttentionCache:
        """What a draft reads: of the last layer, with all heads."""
        return self._cross_attention[-1]

    @property
    def _cross_attention(self) -> Sequence[CrossAttentionCache]:
        return [*self.layers, *self.full_cross_attention]

    def reserve(self, size: int) -> None:
        """Room for `size` tokens. Passes that are to have one shape get it all beforehand."""
        capacity = self.capacity
        while capacity < size:
            capacity *= 2
        if room := capacity - self.capacity:
            for layer in self.layers:
                layer.keys, layer.values = longer(layer.keys, room), longer(layer.values, room)

    def places(self, length: int) -> mx.array:
        """Where `length` more tokens of each row are to be written: see `written`."""
        if self.rows == 1:
            return mx.array(self.offsets)
        batch, heads, _, width = self.layers[0].keys.shape
        places = np.add.outer(self.offsets, np.arange(length)).astype(np.int32)
        return mx.broadcast_to(mx.array(places.reshape(batch, 1, length, 1)), (batch, heads, length, width))

    def advance(self, length: int) -> None:
        """Every row has grown by `length`; those with fewer tokens are to be rewound."""
        self.offsets = [offset + length for offset in self.offsets]

    def trim_to(self, offset: int | Sequence[int]) -> None:
        """Rewind all rows to one offset, or each to its own; never moves forward."""
        wanted = [offset] * self.rows if isinstance(offset, int) else list(offset)
        if len(wanted) != self.rows:
            raise ValueError(f"{len(wanted)} offsets for {self.rows} rows")
        if min(wanted) < 0:
            raise ValueError(f"offset must be >= 0, not {min(wanted)}")
        self.offsets = [min(pair) for pair in zip(self.offsets, wanted, strict=True)]

    def zero_after(self, row: int, offset: int | None = None) -> None:
        """Zeros in place of what that row forgot, or is to: it need not be finite, and a mask hides only what is."""
        for layer in self.layers:
            for buffer in (layer.keys, layer.values):
                buffer[row, :, self.offsets[row] if offset is None else offset :] = 0

    def select(self, requests: Sequence[int]) -> None:
        """Keep these requests, in this order; the others' memory is given back."""
        index = mx.array(list(requests))
        self.full_cross_attention = [layer.select(index) for layer in self.full_cross_attention]
        self.source_mask = mx.take(self.source_mask, index, axis=0)
        for layer in self.layers:
            layer.cross_keys, layer.cross_values = (mx.take(each, index, axis=0) for each in layer.arrays[:2])
        self._move([row for request in requests for row in self.rows_of(request)])

    def reorder(self, rows: Sequence[int]) -> None:
        """Row i from now on is what was row `rows[i]`, of the same request; cross keys and values stay."""
        if list(rows) != list(range(self.rows)):
            self._move(rows)

    def _move(self, rows: Sequence[int]) -> None:
        index = mx.array(list(rows))
        for layer in self.layers:
            layer.keys, layer.values = (mx.take(each, index, axis=0) for each in (layer.keys, layer.values))
        self.offsets = [self.offsets[row] for row in rows]

    def rows_of(self, request: int) -> range:
        return range(request * self.beams, (request + 1) * self.beams)

    def assign(self, rows: Sequence[int], fresh: DecoderCache) -> None:
        """Give these places to new requests: number `rows[i]` becomes number i of `fresh`, which has decoded nothing
        yet.

        Others are neither moved nor copied, unless a source is longer than any before: then the memory grows.
        """
        count, there = fresh.rows // fresh.beams, self.rows // self.beams
        if len(set(rows)) != len(rows) or len(rows) != count or not all(0 <= row < there for row in rows):
            raise ValueError(f"cannot assign {count} requests to rows {list(rows)} of {there}")
        if fresh.offset != 0:
            raise ValueError("only a cache that has decoded nothing can be assigned")
        length = fresh.source_capacity
        if (room := length - self.source_capacity) > 0:
            self.source_mask = mx.pad(self.source_mask, [*[(0, 0)] * 3, (0, room)], constant_values=-mx.inf)
            for layer in self._cross_attention:
                layer.cross_keys, layer.cross_values = longer(layer.cross_keys, room), longer(layer.cross_values, room)
        for i, row in enumerate(rows):
            for layer, new in zip(self._cross_attention, fresh._cross_attention, strict=True):
                layer.cross_keys[row, :, :length], layer.cross_keys[row, :, length:] = new.cross_keys[i], 0
                layer.cross_values[row, :, :length], layer.cross_values[row, :, length:] = new.cross_values[i], 0
            self.source_mask[row, :, :, length:] = -mx.inf
            self.source_mask[row, :, :, :length] = fresh.source_mask[i]
            for each in self.rows_of(row):
                self.offsets[each] = 0
