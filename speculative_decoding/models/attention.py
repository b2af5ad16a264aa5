"""Attention over heads. Within a stack the rows of a batch stand one below the other, (B * L, d_model), as matrix
products want them.
"""

from __future__ import annotations

import mlx.core as mx


def split_heads(x: mx.array, batch: int, parts: int, heads: int) -> list[mx.array]:
    """(B * L, parts * H * D) -> parts times (B, H, L, D)."""
    length = x.shape[0] // batch
    if length == 1:  # nothing to transpose, and no node for it
        together = x.reshape(batch, parts * heads, 1, -1)
    else:
        together = x.reshape(batch, length, parts * heads, -1).transpose(0, 2, 1, 3)
    return [*mx.split(together, parts, axis=1)] if parts > 1 else [together]


def attend(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    mask: mx.array,
    *,
    scale: float = 1.0,
    soft_cap: float | None = None,
) -> mx.array:
    """Queries (B, H, L, D), keys and values (B, H or fewer, T, D), an additive mask -> (B * L, H * D).

    Where there are fewer keys than queries, neighbouring queries share one (Ainslie et al. 2023, "GQA", 2305.13245).
    soft_cap: scaled scores s become soft_cap * tanh(s / soft_cap) before the mask.
    """
    if soft_cap is None and mx.default_device() != mx.Device(mx.cpu):
        return joined_heads(mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale, mask=mask))
    batch, heads, length, width = queries.shape
    shared = heads // keys.shape[1]
    if shared > 1:  # queries of one key stand below each other; a mask is the same for all heads
        queries = queries.reshape(batch, -1, shared * length, width)
        mask = mx.tile(mask, (1, 1, shared, 1)) if mask.shape[2] > 1 else mask
    if scale != 1.0:
        queries = queries * scale
    scores = queries @ keys.swapaxes(-1, -2)
    if soft_cap is not None:
        scores = soft_cap * mx.tanh(scores / soft_cap)
    out = mx.softmax(scores + mask, axis=-1, precise=True) @ values
    return joined_heads(out.reshape(batch, heads, length, width) if shared > 1 else out)


def joined_heads(x: mx.array) -> mx.array:
    """(B, H, L, D) -> (B * L, H * D)."""
    batch, heads, length, width = x.shape
    if length > 1:
        x = x.transpose(0, 2, 1, 3)
    return x.reshape(batch * length, heads * width)
