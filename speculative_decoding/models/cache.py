"""A decoder's KV cache: self-attention keys and values, and the source's cross keys and values.

A cache has one row per output, and each row has its own offset. All rows grow together, but each can be rolled back
separately to an absolute offset, without moving data. With beams, a request occupies several adjacent rows that share
its cross keys and values. The cache is independent of drafts and of the model's position encoding.

Buffers come in only a few sizes, and a pass attends over a whole buffer. Passes therefore have few different shapes,
each of which is compiled once. Entries past a row's offset are stale, and the model masks them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from .device import on_gpu

SOURCE_STEP = 32  # source capacities are multiples of this number
MIN_CAPACITY = 32  # output tokens; doubled when full


@dataclass
class CrossAttentionCache:
    """One decoder layer's cross keys and values. A pass over complete outputs needs no other cache.

    Shapes: P prompts, H heads of width D, S source tokens. P divides the number of rows B; B / P adjacent rows attend
    over the same prompt.
    """

    cross_keys: mx.array  # (P, H, S, D)
    cross_values: mx.array  # (P, H, S, D)

    @property
    def arrays(self) -> list[mx.array]:
        return [self.cross_keys, self.cross_values]

    def select_prompts(self, prompts: mx.array) -> None:
        """Keep only the cross keys and values of these prompts."""
        self.cross_keys = mx.take(self.cross_keys, prompts, axis=0)
        self.cross_values = mx.take(self.cross_values, prompts, axis=0)

    def assign_prompt(self, slot: int, fresh: CrossAttentionCache, index: int) -> None:
        """Replace one prompt with one from `fresh`. Other prompts are copied only if the source capacity grows."""
        length = fresh.cross_keys.shape[2]
        if (extra := length - self.cross_keys.shape[2]) > 0:
            self.cross_keys = grow(self.cross_keys, extra)
            self.cross_values = grow(self.cross_values, extra)
        for buffer, new in ((self.cross_keys, fresh.cross_keys), (self.cross_values, fresh.cross_values)):
            buffer[slot, :, :length] = new[index]
            buffer[slot, :, length:] = 0

    def append(self, keys_values: mx.array) -> mx.array:
        """Return the new keys and values (2, B, H, L, D) unchanged, because this class does not store earlier ones."""
        return keys_values

    def num_keys(self, length: int) -> int:
        """Return the number of keys T for self-attention over `length` new tokens."""
        return length


@dataclass
class LayerCache(CrossAttentionCache):
    """One decoder layer's cross keys and values, and a buffer for its self-attention keys and values.

    write_index: The positions that a pass writes to; see `DecoderCache.write_index`.
    """

    keys_values: mx.array  # (2, B, H, T, D): keys, then values
    write_index: mx.array | None = None

    @property
    def arrays(self) -> list[mx.array]:
        return [self.cross_keys, self.cross_values, self.keys_values]

    def append(self, keys_values: mx.array) -> mx.array:
        """Write keys and values (2, B, H, L, D) with one operation, and return the buffer (2, B, H, T, D).

        MLX updates the buffer in place if there are no other references to it during the evaluation.
        """
        index = self.write_index
        assert index is not None
        if index.ndim == 1:
            self.keys_values = mx.slice_update(self.keys_values, keys_values, index, axes=[3])
        else:
            self.keys_values = mx.put_along_axis(self.keys_values, index, keys_values, axis=3)
        return self.keys_values

    def num_keys(self, length: int) -> int:
        return self.keys_values.shape[3]


def capacity_for(size: int) -> int:
    """Return the capacity of a cache after it has grown to hold this many output tokens."""
    capacity = MIN_CAPACITY
    while capacity < size:
        capacity *= 2
    return capacity


def source_capacity_for(length: int) -> int:
    """Return the capacity for a source of this length."""
    return -(-length // SOURCE_STEP) * SOURCE_STEP


def grow(buffer: mx.array, extra: int) -> mx.array:
    """(..., T, D) -> (..., T + extra, D)."""
    return mx.pad(buffer, [*[(0, 0)] * (buffer.ndim - 2), (0, extra), (0, 0)])


def padding_mask(mask: mx.array, dtype: mx.Dtype) -> mx.array:
    """Bool mask (B, S) -> additive mask (B, 1, 1, S): 0 on tokens, -inf on padding.

    Rows without tokens, such as free slots, are not masked, because a softmax over no keys would be NaN.
    """
    hidden = ~mask & mask.any(axis=1, keepdims=True)
    return mx.where(hidden, mx.array(-mx.inf, dtype), mx.array(0, dtype))[:, None, None, :]


@dataclass
class DecoderCache:
    """All layers' caches for one request or a batch of requests.

    Methods that return a value must not change the cache; wrappers rely on this to detect changes.

    Attributes:
        source_mask: Additive, (P, 1, 1, S): -inf after the end of each source.
        offsets: The number of tokens in each row.
        beams: Rows per request; B = P * beams.
        recorded_layers: The layers whose hidden states every pass records in `hidden` for a draft head.
        hidden: The last pass's hidden states, (B, L, d_model) for each recorded layer.
    """

    layers: Sequence[LayerCache]
    source_mask: mx.array
    offsets: list[int]
    beams: int = 1
    recorded_layers: tuple[int, ...] = ()
    hidden: Sequence[mx.array] = ()

    @classmethod
    def empty(
        cls, projections: Sequence[tuple[mx.array, mx.array]], source_mask: mx.array, beams: int = 1
    ) -> DecoderCache:
        """Return a cache without tokens, given each layer's cross keys and values, both (P, H, S, D)."""
        rows = len(source_mask) * beams
        layers = []
        for keys, values in projections:
            _, heads, _, width = keys.shape
            layers.append(LayerCache(keys, values, mx.zeros((2, rows, heads, MIN_CAPACITY, width), keys.dtype)))
        return cls(layers, source_mask, [0] * rows, beams)

    @classmethod
    def beside(cls, other: DecoderCache) -> DecoderCache:
        """Return a cache without tokens for the same rows, which shares the other cache's cross keys and values."""
        return cls.empty([(layer.cross_keys, layer.cross_values) for layer in other.layers], other.source_mask)

    def follow_sources(self, other: DecoderCache) -> None:
        """Share the cross keys and values that the other cache holds now. It has the same rows."""
        self.source_mask = other.source_mask
        for layer, others in zip(self.layers, other.layers, strict=True):
            layer.cross_keys, layer.cross_values = others.cross_keys, others.cross_values

    @property
    def max_offset(self) -> int:
        """The number of tokens in the longest row."""
        return max(self.offsets)

    @property
    def rows(self) -> int:
        return len(self.offsets)

    @property
    def source_capacity(self) -> int:
        """S, the length of the longest source that fits without growing the buffers."""
        return self.source_mask.shape[3]

    @property
    def capacity(self) -> int:
        """T, the length of the longest output that fits without growing the buffers. Passes attend over T positions."""
        return self.layers[0].keys_values.shape[3]

    @property
    def arrays(self) -> list[mx.array]:
        return [array for layer in self.layers for array in layer.arrays]

    @property
    def last_cross_attention(self) -> CrossAttentionCache:
        """The last layer's cross keys and values, which a draft head reads."""
        return self.layers[-1]

    def rows_of(self, request: int) -> range:
        """Return the rows of a request's beams."""
        return range(request * self.beams, (request + 1) * self.beams)

    def write_index(self, length: int) -> mx.array:
        """Return the positions at which a pass writes `length` new tokens per row.

        Returns:
            The position of each element, (2, B, H, length, D). For a single row on a CPU, only the first position,
            (1,): there, writing a slice takes half the time of writing each element, but on a GPU it needs two kernels.
            With 8 rows, writing one slice per row would take three times as long (docs/decisions/host-time.md).
        """
        if self.rows == 1 and not on_gpu():
            return mx.array(self.offsets)
        _, batch, heads, _, width = self.layers[0].keys_values.shape
        positions = np.add.outer(np.array(self.offsets, np.int32), np.arange(length, dtype=np.int32))
        return mx.broadcast_to(mx.array(positions[:, None, :, None]), (2, batch, heads, length, width))

    def reserve(self, size: int) -> None:
        """Grow to a capacity of at least `size` tokens. Reserving in advance keeps the shape of passes constant."""
        extra = max(self.capacity, capacity_for(size)) - self.capacity
        if extra:
            for layer in self.layers:
                layer.keys_values = grow(layer.keys_values, extra)

    def advance(self, length: int) -> None:
        """Add `length` to the offset of every row."""
        self.offsets = [offset + length for offset in self.offsets]

    def trim_to(self, offset: int | Sequence[int]) -> None:
        """Roll back all rows to one offset, or each row to its own. Offsets never increase."""
        offsets = [offset] * self.rows if isinstance(offset, int) else list(offset)
        if len(offsets) != self.rows:
            raise ValueError(f"{len(offsets)} offsets for {self.rows} rows")
        if min(offsets) < 0:
            raise ValueError(f"offset must be >= 0, not {min(offsets)}")
        self.offsets = [min(pair) for pair in zip(self.offsets, offsets, strict=True)]

    def zero_after(self, row: int, offset: int | None = None) -> None:
        """Zero a row's buffers after an offset (default: the row's own).

        Masks work only on finite values, so NaN and infinity must be overwritten.
        """
        start = self.offsets[row] if offset is None else offset
        for layer in self.layers:
            layer.keys_values[:, row, :, start:] = 0

    def select(self, requests: Sequence[int]) -> None:
        """Keep only these requests, in this order, and free all other requests' buffers."""
        index = mx.array(list(requests))
        self.source_mask = mx.take(self.source_mask, index, axis=0)
        for layer in self.layers:
            layer.select_prompts(index)
        self._take_rows([row for request in requests for row in self.rows_of(request)])

    def reorder(self, rows: Sequence[int]) -> None:
        """Move row `rows[i]` to row i of the same request. Cross keys and values do not move."""
        if list(rows) != list(range(self.rows)):
            self._take_rows(rows)

    def _take_rows(self, rows: Sequence[int]) -> None:
        index = mx.array(list(rows))
        for layer in self.layers:
            layer.keys_values = mx.take(layer.keys_values, index, axis=1)
        self.offsets = [self.offsets[row] for row in rows]

    def assign(self, slots: Sequence[int], fresh: DecoderCache) -> None:
        """Replace the requests in these slots with those of `fresh`, including the tokens that they have decoded.

        Other requests are neither moved nor copied, unless a new source exceeds the source capacity and makes it grow.
        """
        count = fresh.rows // fresh.beams
        size = self.rows // self.beams
        if len(set(slots)) != len(slots) or len(slots) != count or not all(0 <= slot < size for slot in slots):
            raise ValueError(f"cannot assign {count} requests to slots {list(slots)} of {size}")
        self.reserve(fresh.max_offset)
        length = fresh.source_capacity
        if (extra := length - self.source_capacity) > 0:
            self.source_mask = mx.pad(self.source_mask, [*[(0, 0)] * 3, (0, extra)], constant_values=-mx.inf)
        for i, slot in enumerate(slots):
            for layer, fresh_layer in zip(self.layers, fresh.layers, strict=True):
                layer.assign_prompt(slot, fresh_layer, i)
            self.source_mask[slot, :, :, length:] = -mx.inf
            self.source_mask[slot, :, :, :length] = fresh.source_mask[i]
            rows, own = self.rows_of(slot), fresh.rows_of(i)
            if fresh.max_offset:
                for layer, fresh_layer in zip(self.layers, fresh.layers, strict=True):
                    decoded = fresh_layer.keys_values[:, own.start : own.stop, :, : fresh.max_offset]
                    layer.keys_values[:, rows.start : rows.stop, :, : fresh.max_offset] = decoded
            self.offsets[rows.start : rows.stop] = fresh.offsets[own.start : own.stop]
