"""What a decoder remembers between passes: its own keys and values, and the memory it reads from.

A cache belongs to one request. It knows nothing of drafts: it grows, and it rewinds to an absolute offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from .relative_position import BiasWindows


class KVCache:
    """Self-attention keys and values of one layer, (B, H, T, D), in a buffer that grows in steps."""

    step = 64

    def __init__(self) -> None:
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self.offset = 0
        self.size: int | None = None  # fixed: always this many keys, those behind the offset stale

    def keys_after(self, length: int) -> int:
        """How many keys a pass over `length` more tokens attends over."""
        return self.offset + length if self.size is None else self.size

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append (B, H, L, D) at the offset; return all keys and values up to the new offset, or the fixed size."""
        end = self.keys_after(keys.shape[2])
        start, self.offset = self.offset, self.offset + keys.shape[2]
        self.keys = self._grown(self.keys, keys)
        self.values = self._grown(self.values, values)
        self.keys[:, :, start : self.offset] = keys
        self.values[:, :, start : self.offset] = values
        return self.keys[:, :, :end], self.values[:, :, :end]

    def trim_to(self, offset: int) -> None:
        """Rewind: entries from `offset` on are forgotten, to be overwritten. Idempotent; never moves forward."""
        if offset < 0:
            raise ValueError(f"offset must be >= 0, not {offset}")
        self.offset = min(self.offset, offset)

    def _grown(self, buffer: mx.array | None, new: mx.array) -> mx.array:
        capacity = 0 if buffer is None else buffer.shape[2]
        needed = self.offset if self.size is None else self.size
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
    self_attention: KVCache = field(default_factory=KVCache)


@dataclass
class DecoderCache:
    """All layers of one request, and the additive mask of its memory, (B, 1, 1, S), or None without padding."""

    layers: Sequence[LayerCache]
    biases: Sequence[BiasWindows]  # one for each layer, or one for all
    memory_mask: mx.array | None = None

    @property
    def offset(self) -> int:
        """How many tokens the cache holds."""
        return self.layers[0].self_attention.offset

    def keys_after(self, length: int) -> int:
        return self.layers[0].self_attention.keys_after(length)

    def biases_of(self, length: int) -> list[mx.array]:
        """The additive masks, (H, length, keys), of a pass over `length` more tokens."""
        return [windows(self.offset, length, self.keys_after(length)) for windows in self.biases]

    def fix_size(self, size: int) -> None:
        """Attend over `size` keys or a few more in every pass, from the first on; a mask must hide what is behind."""
        for layer in self.layers:
            step = layer.self_attention.step
            layer.self_attention.size = -(-size // step) * step

    def trim_to(self, offset: int) -> None:
        for layer in self.layers:
            layer.self_attention.trim_to(offset)
