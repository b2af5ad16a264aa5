"""Multi-head attention. Between layers, a batch is flattened to a matrix of shape (B * L, d_model) for matmuls."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from .backend import replaced_on_cpu
from .device import gpu_generation, on_gpu

MAX_SINGLE_QUERIES = 32  # queries that a GPU multiplies one by one; see `adds_rows_in_bounds`

Softmax = Callable[[mx.array], mx.array]


def split_heads(x: mx.array, batch: int, heads: int) -> mx.array:
    """(B * L, H * D) -> (B, H, L, D)."""
    length = x.shape[0] // batch
    if length == 1:  # a transpose would add a graph node
        return x.reshape(batch, heads, 1, -1)
    return x.reshape(batch, length, heads, -1).swapaxes(1, 2)


def split_parts(x: mx.array, batch: int, parts: int, heads: int) -> mx.array:
    """(B * L, parts * H * D) -> (parts, B, H, L, D)."""
    length = x.shape[0] // batch
    if batch == length == 1:
        return x.reshape(parts, 1, heads, 1, -1)
    if length == 1:
        return x.reshape(batch, parts, heads, 1, -1).swapaxes(0, 1)
    return x.reshape(batch, length, parts, heads, -1).transpose(2, 0, 3, 1, 4)


def precise_softmax(scores: mx.array) -> mx.array:
    """Softmax over the last axis, computed in float32."""
    return mx.softmax(scores, axis=-1, precise=True)


@replaced_on_cpu
def window_softmax(scores: mx.array) -> mx.array:
    """`precise_softmax` over a window of audio.

    On a CPU, the rounding of the result depends on the number of keys. That is harmless for audio windows, which all
    have the same number of keys. For text, a row's result would depend on its batch's padding.
    """
    return precise_softmax(scores)


def attend(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    mask: mx.array | None,
    *,
    scale: float = 1.0,
    soft_cap: float | None = None,
    softmax: Softmax = precise_softmax,
) -> mx.array:
    """Queries (B, H, L, D), keys and values (B, H or fewer, T, D), optional additive mask -> (B * L, H * D).

    With fewer key heads than query heads, adjacent query heads share a key head (Ainslie et al. 2023, 2305.13245).

    Args:
        soft_cap: Scaled scores s become soft_cap * tanh(s / soft_cap) before the mask is added.
        softmax: Converts scores to weights. Fused kernels do not use it.
    """
    batch, heads, length, width = queries.shape
    mask = None if mask is None else mask.astype(queries.dtype)
    if soft_cap is None and has_fused_kernel(queries, keys):
        return joined_heads(mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale, mask=mask))
    shared = heads // keys.shape[1]  # query heads per key head
    if shared > 1:  # stack the query heads that share a key head
        queries = queries.reshape(batch, -1, shared * length, width)
    if scale != 1.0 and soft_cap is None:
        queries = queries * scale
    weights = softmax(masked_scores(queries, keys, mask, shared, soft_cap, scale))
    if batch == len(values) == shared == 1 < length and multiplies_transposes(queries.dtype):
        # These products, (1, H, D, L), are the transpose of the joined heads, so nothing is copied.
        return (values.swapaxes(-1, -2) @ weights.swapaxes(-1, -2)).reshape(heads * values.shape[3], length).T
    out = matmul_rows(weights, values)
    return joined_heads(out.reshape(batch, heads, length, width) if shared > 1 else out)


def multiplies_transposes(dtype: mx.Dtype) -> bool:
    """Return whether this GPU multiplies the transpose of a few rows without a copy, and with the same bits.

    For rows in 16 bits, M3 and later have a separate kernel, which reads no transposes (`gemv_wide` in
    mlx/backend/metal/matmul.cpp at commit 846d176).
    """
    generation = gpu_generation()
    return generation is not None and (dtype == mx.float32 or generation < 15)


def has_fused_kernel(queries: mx.array, keys: mx.array) -> bool:
    """Return whether MLX computes attention over these arrays in one kernel. For their shapes, see `attend`.

    For other shapes, MLX's fallback takes more operations than `attend`. Follows `has_fused_kernel` and `use_fallback`
    in mlx/backend/metal/scaled_dot_product_attention.cpp at commit 846d176.
    """
    heads, length, width = queries.shape[1:]
    if length > 8:
        return on_gpu() and width in (64, 72, 80, 96, 128)
    queries_per_key_head = length * heads // keys.shape[1]
    return on_gpu() and width in (64, 96, 128, 256) and queries_per_key_head <= 32


def repeat_for_heads(mask: mx.array, heads: int) -> mx.array:
    """Mask (B, 1, L or 1, T) -> (B, H, L or 1, T), so that the fused kernels do not copy it in each layer."""
    if not on_gpu() or mask.shape[0] == 1:
        return mask
    rows, _, length, keys = mask.shape
    return mx.contiguous(mx.broadcast_to(mask, (rows, heads, length, keys)))


def masked_scores(
    queries: mx.array,
    keys: mx.array,
    mask: mx.array | None,
    shared: int,
    soft_cap: float | None = None,
    scale: float = 1.0,
) -> mx.array:
    """(B, H, shared * L, D) -> scores (B, H, shared * L, T), masked and, if there is a soft cap, scaled and capped.

    If there are fewer key rows than query rows, adjacent query rows share a key row.
    """
    keys = keys.swapaxes(-1, -2)
    is_plain = soft_cap is None and shared == 1 and len(keys) == len(queries)
    if mask is not None and is_plain:
        if not on_gpu() or mask.shape[2] == 1:
            return mx.addmm(mask, queries, keys)  # in nearly every pass, this is the only operation
        if queries.shape[2] <= MAX_SINGLE_QUERIES:  # separate products do not read past the mask
            return mx.addmm(mask[:, :, :, None], queries[:, :, :, None], keys[:, :, None]).squeeze(3)
    scores = matmul_rows(queries, keys)
    shape = scores.shape
    if mask is not None and len(mask) not in (1, len(scores)):  # several rows share one mask
        mask = mx.repeat(mask, len(scores) // len(mask), axis=0)
    if mask is not None and shared > 1 and mask.shape[2] > 1:
        # Separate the stacked query heads, so that the whole mask is added to each head.
        scores, mask = scores.reshape(*shape[:2], shared, *mask.shape[2:]), mask[:, :, None]
    if soft_cap is not None:
        scores = capped(scores, soft_cap, scale)
    return scores if mask is None else (scores + mask).reshape(shape)  # MLX fuses the cap and the sum


def matmul_rows(x: mx.array, matrices: mx.array) -> mx.array:
    """(B * N, H, L, D) @ (B, H, D, E) -> (B * N, H, L, E) as one matmul: N adjacent rows share a matrix."""
    prompts = matrices.shape[0]
    rows, heads, length, width = x.shape
    if prompts == rows:
        return x @ matrices
    x = x.reshape(prompts, -1, heads, length, width).swapaxes(1, 2).reshape(prompts, heads, -1, width)
    x = (x @ matrices).reshape(prompts, heads, -1, length, matrices.shape[-1])
    return x.swapaxes(1, 2).reshape(rows, heads, length, -1)


def capped(x: mx.array, soft_cap: float, scale: float = 1.0) -> mx.array:
    """Return soft_cap * tanh(scale * x / soft_cap)."""
    return soft_cap * mx.tanh(x / (soft_cap / scale))


def capped_logits(logits: mx.array, soft_cap: float) -> mx.array:
    """Return `capped`, on a GPU in one kernel. On a CPU, a compiled tanh would round differently."""
    return (compiled_cap if on_gpu() else capped)(logits, soft_cap)


compiled_cap = mx.compile(capped, shapeless=True)


def joined_heads(x: mx.array) -> mx.array:
    """(B, H, L, D) -> (B * L, H * D)."""
    batch, heads, length, width = x.shape
    if length > 1:
        x = x.transpose(0, 2, 1, 3)
    return x.reshape(batch * length, heads * width)
