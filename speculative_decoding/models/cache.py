"""What a decoder remembers between passes: its own keys and values, and the memory it reads from.

A cache has a row for each request, each at its own offset; a single request is a cache of one row. It knows nothing of
drafts: rows grow together and are rewound one by one, to absolute offsets, by which no data is moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from .relative_position import BiasWindows

SOURCE_STEP = 32  # a memory that a longer source replaces grows to a multiple of this


class KVCache:
    """Self-attention keys and values of one layer, (B, H, T, D), in a buffer that grows in steps.

    What stands behind a row's offset is stale: finite, to be hidden by the mask, and to be overwritten.
    """

    step = 64

    def __init__(self, rows: int = 1) -> None:
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self.offsets = [0] * rows
        self.size: int | None = None  # fixed: always this many keys, those behind the offset stale

    @property
    def offset(self) -> int:
        """Where all rows stand; with rows at different offsets, the furthest."""
        return max(self.offsets)

    @property
    def is_ragged(self) -> bool:
        return any(offset != self.offsets[0] for offset in self.offsets)

    def keys_after(self, length: int) -> int:
        """How many keys a pass over `length` more tokens attends over."""
        return self.offset + length if self.size is None else self.size

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append (B, H, L, D), each row at its offset; return all keys and values up to the furthest new offset, or the
        fixed size. Every row moves on by L; those with fewer tokens are to be rewound.
        """
        length = keys.shape[2]
        end = self.keys_after(length)
        if self.offset + length > end:
            raise ValueError(f"{self.offset + length} tokens do not fit the fixed size of {end}")
        self.keys = self._grown(self.keys, keys, end)
        self.values = self._grown(self.values, values, end)
        if self.is_ragged:
            # One scatter for all rows, in place; with 8 rows a slice for each costs three times as much (docs/LOG.md).
            at = mx.array((np.array(self.offsets)[:, None] + np.arange(length)).astype(np.int32))[:, None, :, None]
            at = mx.broadcast_to(at, keys.shape)
            self.keys = mx.put_along_axis(self.keys, at, keys, axis=2)
            self.values = mx.put_along_axis(self.values, at, values, axis=2)
        else:
            start = self.offset
            self.keys[:, :, start : start + length] = keys
            self.values[:, :, start : start + length] = values
        self.offsets = [offset + length for offset in self.offsets]
        return self.keys[:, :, :end], self.values[:, :, :end]

    def trim_to(self, offset: int | Sequence[int]) -> None:
        """Rewind all rows, or each to its own offset: what stands from there on is forgotten, to be overwritten.

        Idempotent; never moves forward.
        """
        wanted = [offset] * len(self.offsets) if isinstance(offset, int) else list(offset)
        if len(wanted) != len(self.offsets):
            raise ValueError(f"{len(wanted)} offsets for {len(self.offsets)} rows")
        if min(wanted) < 0:
            raise ValueError(f"offset must be >= 0, not {min(wanted)}")
        self.offsets = [min(pair) for pair in zip(self.offsets, wanted, strict=True)]

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order."""
        self.offsets = [self.offsets[row] for row in rows]
        if self.keys is not None and self.values is not None:
            index = mx.array(list(rows))
            self.keys, self.values = mx.take(self.keys, index, axis=0), mx.take(self.values, index, axis=0)

    def _grown(self, buffer: mx.array | None, new: mx.array, needed: int) -> mx.array:
        capacity = 0 if buffer is None else buffer.shape[2]
        if buffer is not None and needed <= capacity:
            return buffer
        batch, heads, _, width = new.shape
        room = -(-(needed - capacity) // self.step) * self.step
        space = mx.zeros((batch, heads, room, width), new.dtype)
        return space if buffer is None else mx.concatenate([buffer, space], axis=2)


@dataclass
class LayerCache:
    """One decoder layer: its growing self-attention cache and the cross keys and values, projected once."""

    cross_keys: mx.array  # (B, H, S, D)
    cross_values: mx.array  # (B, H, S, D)
    self_attention: KVCache


@dataclass
class DecoderCache:
    """All layers of one request, or of a batch of them."""

    layers: Sequence[LayerCache]
    biases: Sequence[BiasWindows]  # one for each layer, or one for all
    memory_mask: mx.array | None = None  # additive, (B, 1, 1, S); None without padding

    @property
    def offsets(self) -> list[int]:
        """How many tokens each row holds."""
        return list(self.layers[0].self_attention.offsets)

    @property
    def offset(self) -> int:
        """How many tokens the cache holds; with rows at different offsets, those of the furthest."""
        return self.layers[0].self_attention.offset

    @property
    def rows(self) -> int:
        return len(self.layers[0].self_attention.offsets)

    @property
    def source_capacity(self) -> int:
        """S: the longest source that fits without growing."""
        return self.layers[0].cross_keys.shape[2]

    def keys_after(self, length: int) -> int:
        return self.layers[0].self_attention.keys_after(length)

    def biases_of(self, length: int) -> list[mx.array]:
        """The additive masks of a pass over `length` more tokens: (H, length, keys), or (B, H, length, keys) where rows
        stand at different offsets.
        """
        keys = self.keys_after(length)
        if not self.layers[0].self_attention.is_ragged:
            return [windows(self.offset, length, keys) for windows in self.biases]
        return [mx.stack([windows(offset, length, keys) for offset in self.offsets]) for windows in self.biases]

    def fix_size(self, size: int) -> None:
        """Attend over `size` keys or a few more in every pass, from the first on; a mask must hide what is behind."""
        for layer in self.layers:
            step = layer.self_attention.step
            layer.self_attention.size = -(-size // step) * step

    def trim_to(self, offset: int | Sequence[int]) -> None:
        """Rewind all rows to one offset, or each to its own. No data is moved."""
        for layer in self.layers:
            layer.self_attention.trim_to(offset)

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order; the others' memory is given back."""
        index = mx.array(list(rows))
        for layer in self.layers:
            layer.cross_keys = mx.take(layer.cross_keys, index, axis=0)
            layer.cross_values = mx.take(layer.cross_values, index, axis=0)
            layer.self_attention.select(rows)
        if self.memory_mask is not None:
            self.memory_mask = mx.take(self.memory_mask, index, axis=0)

    def assign(self, rows: Sequence[int], fresh: DecoderCache) -> None:
        """Give these rows to new requests: row `rows[i]` becomes row i of `fresh`, which has decoded nothing yet.

        Other rows are neither moved nor copied, unless a source is longer than any before: then the memory grows.
        """
        if len(set(rows)) != len(rows) or len(rows) != fresh.rows or not all(0 <= row < self.rows for row in rows):
            raise ValueError(f"cannot assign {fresh.rows} requests to rows {list(rows)} of {self.rows}")
        if fresh.offset != 0:
            raise ValueError("only a cache that has decoded nothing can be assigned")
        self._grow_source(fresh.source_capacity)
        length = fresh.source_capacity
        for layer, new in zip(self.layers, fresh.layers, strict=True):
            for i, row in enumerate(rows):
                layer.cross_keys[row, :, :length] = new.cross_keys[i]
                layer.cross_values[row, :, :length] = new.cross_values[i]
                layer.self_attention.offsets[row] = 0
        if length == self.source_capacity and self.memory_mask is None and fresh.memory_mask is None:
            return
        mask = self._mask_or_open()
        for i, row in enumerate(rows):
            mask[row, :, :, length:] = -mx.inf
            mask[row, :, :, :length] = 0 if fresh.memory_mask is None else fresh.memory_mask[i]
        self.memory_mask = mask

    def _grow_source(self, length: int) -> None:
        room = -(-length // SOURCE_STEP) * SOURCE_STEP - self.source_capacity
        if length <= self.source_capacity:
            return
        mask = self._mask_or_open()
        self.memory_mask = mx.pad(mask, [(0, 0), (0, 0), (0, 0), (0, room)], constant_values=-mx.inf)
        for layer in self.layers:
            layer.cross_keys = mx.pad(layer.cross_keys, [(0, 0), (0, 0), (0, room), (0, 0)])
            layer.cross_values = mx.pad(layer.cross_values, [(0, 0), (0, 0), (0, room), (0, 0)])

    def _mask_or_open(self) -> mx.array:
        if self.memory_mask is not None:
            return self.memory_mask
        return mx.zeros((self.rows, 1, 1, self.source_capacity), self.layers[0].cross_keys.dtype)
