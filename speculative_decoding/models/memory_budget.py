"""Estimates the memory that a prompt and a batch slot need, and checks that it is available."""

from __future__ import annotations

import os
from contextlib import suppress

import mlx.core as mx
from mlx.utils import tree_flatten

from ..errors import InputError
from .base import MAX_BATCHED_SOURCE, EncoderDecoder
from .draft_head import DraftHead

GB = 1e9


def slots_within(
    max_memory_gb: float,
    slots: int,
    model: EncoderDecoder,
    draft_model: EncoderDecoder | DraftHead | None,
    max_tokens: int,
    num_beams: int = 1,
) -> int:
    """Limit the slots to the memory that the weights leave, for the longest sources and outputs of `max_tokens` tokens.

    Raises `InputError` if not even one slot fits.
    """
    models = [model] if draft_model is None else [model, draft_model]
    longest = model.config.max_source_tokens or 512  # tokens
    slot = sum(slot_bytes(each, longest, max_tokens, num_beams) for each in models if isinstance(each, EncoderDecoder))
    weights = sum(array.nbytes for each in models for array in dict(tree_flatten(each.parameters())).values())
    fitting = int((max_memory_gb * GB - weights) // slot)
    if fitting < 1:
        raise InputError(
            f"max_memory {max_memory_gb:g} GB is too little: the weights take {weights / GB:.2f} GB, each slot up "
            f"to {slot / GB:.3f} GB; allow more, or fewer tokens"
        )
    return min(slots, fitting)


def slot_bytes(model: EncoderDecoder, source_tokens: int, max_tokens: int, num_beams: int = 1) -> int:
    """Return the size of one prompt's caches and of a round's logits in bytes.

    A round has the logits of 17 positions (16 draft tokens). With beams, it has logits, logprobs, their sums and sorted
    indices for each beam.
    """
    cache = model.make_cache(model.encode(mx.zeros((1, source_tokens), mx.uint32)), beams=num_beams)
    cache.reserve(max_tokens)
    kept = sum(array.nbytes for array in cache.arrays)
    return kept + (17 if num_beams == 1 else 4 * num_beams) * model.config.vocab_size * 4


def require_encodable(model: EncoderDecoder, source_tokens: int) -> None:
    """Raise `InputError` for a source that does not fit into memory; attention grows with the square of its length."""
    if source_tokens <= MAX_BATCHED_SOURCE:
        return
    matrices = 5  # float32 attention matrices of one layer that exist at the same time (measured: 3.3 to 4.7)
    needed = matrices * 4 * model.config.encoder.num_heads * source_tokens**2
    available = available_memory()
    if needed > available:
        raise InputError(
            f"prompt of {source_tokens} tokens: encoding it takes about {needed / GB:.0f} GB of memory, "
            f"and {available / GB:.0f} GB are free; shorten or split it"
        )


def available_memory() -> int:
    """Return the available memory on Linux, and the total memory on other systems, in bytes."""
    with suppress(OSError), open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
