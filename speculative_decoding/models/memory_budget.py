"""Estimates how much memory weights, prompts and batch slots need, and limits how much MLX retains."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import mlx.core as mx
from mlx.utils import tree_flatten

from ..errors import InputError, Message, note
from .base import MAX_BATCHED_SOURCE, EncoderDecoder
from .device import gpu_info
from .draft_head import DraftHead

GB = 1e9
CACHE_LIMIT = 1 << 30  # bytes


def slots_within(
    max_memory_gb: float,
    slots: int,
    model: EncoderDecoder,
    draft_model: EncoderDecoder | DraftHead | None,
    max_tokens: int,
    num_beams: int = 1,
) -> int:
    """Return the number of slots, at most `slots`, that fit into memory together with the weights.

    Assumes sources of maximum length, and outputs of `max_tokens` tokens. Raises `InputError` if not even one slot
    fits.
    """
    models = [model] if draft_model is None else [model, draft_model]
    longest = model.max_source_tokens or 512  # tokens
    slot = slot_bytes(model, longest, max_tokens, num_beams)
    if isinstance(draft_model, EncoderDecoder):
        from .shared_encoder import CROSS_ATTENTION, shared_part

        shares = shared_part(model, draft_model) == CROSS_ATTENTION
        slot += slot_bytes(draft_model, 1 if shares else longest, max_tokens, num_beams)
    arrays = {id(array): array for each in models for array in dict(tree_flatten(each.parameters())).values()}
    weights = sum(array.nbytes for array in arrays.values())  # shared arrays count once
    fitting = int((max_memory_gb * GB - weights) // slot)
    if fitting < 1:
        raise InputError(
            f"{max_memory_gb:g} GB is too little: the weights take {weights / GB:.2f} GB, each slot up to "
            f"{slot / GB:.3f} GB",
            "max_memory_gb",
            "allow more, or fewer tokens",
        )
    return min(slots, fitting)


def slot_bytes(model: EncoderDecoder, source_tokens: int, max_tokens: int, num_beams: int = 1) -> int:
    """Return the total size in bytes of one prompt's caches and of its logits in a round.

    Without beams, a round computes the logits of 17 positions (16 draft tokens and the next token). With beams, it
    computes logits, logprobs, their sums and sorted indices for each beam.
    """
    dtype = model.embed(mx.zeros((1, 1), mx.uint32)).dtype
    cache = model.make_cache(mx.zeros((1, source_tokens, model.encoder_width), dtype), beams=num_beams)
    cache.reserve(max_tokens)
    kept = sum(array.nbytes for array in cache.arrays)
    return kept + (17 if num_beams == 1 else 4 * num_beams) * model.config.vocab_size * 4


def require_encodable(model: EncoderDecoder, source_tokens: int) -> None:
    """Raise `InputError` for a source too long for memory: attention memory grows quadratically with the length."""
    if source_tokens <= MAX_BATCHED_SOURCE:
        return
    matrices = 5  # float32 attention matrices of one layer that exist simultaneously (measured: 3.3 to 4.7)
    needed = matrices * 4 * model.config.encoder.num_heads * source_tokens**2
    available = available_memory()
    if needed > available:
        raise InputError(
            f"encoding {source_tokens} tokens takes about {needed / GB:.0f} GB of memory, and {available / GB:.0f} "
            "GB are free",
            "prompt",
            "shorten or split it",
        )


def require_reservable(model: EncoderDecoder, slots: int, max_tokens: int, num_beams: int) -> None:
    """Raise `InputError` if KV caches for complete outputs do not fit into memory."""
    if max_tokens <= MAX_BATCHED_SOURCE:
        return
    needed = slots * slot_bytes(model, 1, max_tokens, num_beams)
    available = available_memory()
    if needed > available:
        raise InputError(
            f"for {max_tokens} tokens, strict passes reserve about {needed / GB:.0f} GB for the KV cache on this "
            f"device, and {available / GB:.0f} GB are free",
            "max_tokens",
            Message("choose fewer, or passes without {strict}"),
        )


def too_large(subject: str, weights: int, beside: int, way_out: Callable[[int], str]) -> InputError:
    """Return the error for weights that exceed physical memory.

    Args:
        subject: The subject of the error message.
        weights: The size of the weights in bytes.
        beside: The size in bytes of a target that is loaded alongside them.
        way_out: Returns advice on how to use at most the given number of bytes.
    """
    physical = physical_memory()
    target = f" beside the target's {beside / GB:.2f} GB" if beside else ""
    return InputError(
        f"{subject}: the weights exceed this computer's memory (got {weights / GB:.2f} GB{target}, expected at "
        f"most {physical / GB:.2f} GB); {way_out(min(physical, available_memory()) - beside)}"
    )


def note_slow(subject: str, weights: int, available: int) -> None:
    """Print a note that the weights fit into physical memory, but exceed the part of it that is `available`."""
    note(
        f"{subject}: the weights take {weights / GB:.2f} GB and {available / GB:.2f} GB are available, so decoding "
        "may be slow; free memory, or use a smaller precision"
    )


def fits(weights: int, available: int) -> bool:
    """Return whether weights fit. Reserves 10 % for caches and, during loading, for a copy of the largest weight."""
    return 1.1 * weights <= available


@contextmanager
def memory_limits() -> Iterator[None]:
    """Until the context exits, keep weights in physical memory, and limit MLX's freed buffers to 1 GB.

    By default, macOS may page out weights that have not been used for a while. MLX retains freed buffers for later
    arrays; with sources of many different lengths, these buffers would fill most of the memory. The command line and
    the server use these limits. They have no effect without Metal, and the wired limit requires macOS 15.
    """
    info = gpu_info()
    if not info or not mx.metal.is_available():
        yield
        return
    wired = mx.set_wired_limit(info["max_recommended_working_set_size"])
    cached = mx.set_cache_limit(CACHE_LIMIT)
    try:
        yield
    finally:
        mx.synchronize()  # the wired limit must not change while MLX evaluates arrays
        mx.set_cache_limit(cached)
        mx.set_wired_limit(wired)


def physical_memory() -> int:
    """Return the size of the device's memory in bytes."""
    info = gpu_info()
    return int(
        info.get("memory_size")  # Metal
        or info.get("total_memory")  # CUDA
        or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    )


def available_memory() -> int:
    """Return the number of bytes that can still be allocated without slowing down the device.

    This is the recommended working set minus MLX's arrays with Metal, the free memory with CUDA, the available memory
    on a Linux CPU, and the physical memory elsewhere.
    """
    info = gpu_info()
    if "max_recommended_working_set_size" in info:
        return max(0, int(info["max_recommended_working_set_size"]) - mx.get_active_memory())
    if "free_memory" in info:
        return int(info["free_memory"])
    with suppress(OSError), open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return physical_memory()
