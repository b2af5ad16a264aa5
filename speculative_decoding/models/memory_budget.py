"""How much memory a source and a slot of a batch take, and whether that is there."""

from __future__ import annotations

import os
from contextlib import suppress

import mlx.core as mx
from mlx.utils import tree_flatten

from ..errors import InputError
from ..models.base import LONGEST_TOGETHER, EncoderDecoder
from ..models.draft_head import DraftHead

GB = 1e9
LONGEST_SOURCE = 512  # tokens, where a model does not say what it was trained on
SCORES = 5  # matrices of a layer's attention in float32 that are alive together in the encoder, measured: 3.3 to 4.7


def slots_within(
    max_memory_gb: float,
    slots: int,
    model: EncoderDecoder,
    draft_model: EncoderDecoder | DraftHead | None,
    max_tokens: int,
    num_beams: int = 1,
) -> int:
    """As many of the slots as fit beside the weights, if every source is as long as the model takes and every output
    `max_tokens` long. Raises `InputError` if not even one does.
    """
    models = [model] if draft_model is None else [model, draft_model]
    longest = model.config.max_source_tokens or LONGEST_SOURCE
    row = sum(slot_bytes(each, longest, max_tokens, num_beams) for each in models if isinstance(each, EncoderDecoder))
    weights = sum(array.nbytes for each in models for array in dict(tree_flatten(each.parameters())).values())
    fitting = int((max_memory_gb * GB - weights) // row)
    if fitting < 1:
        raise InputError(
            f"max_memory {max_memory_gb:g} GB is too little: the weights take {weights / GB:.2f} GB, each slot up "
            f"to {row / GB:.3f} GB; allow more, or fewer tokens"
        )
    return min(slots, fitting)


def slot_bytes(model: EncoderDecoder, source_tokens: int, max_tokens: int, num_beams: int = 1) -> int:
    """What the caches of one prompt hold, and the logits of a round: with 16 drafted tokens, or of all beams, with as
    many log-probabilities, sums and numbers in order.
    """
    cache = model.make_cache(model.encode(mx.zeros((1, source_tokens), mx.uint32)), beams=num_beams)
    cache.reserve(max_tokens)
    kept = sum(array.nbytes for array in cache.arrays)
    return kept + (17 if num_beams == 1 else 4 * num_beams) * model.config.vocab_size * 4


def require_encodable(model: EncoderDecoder, source_tokens: int) -> None:
    """Raise `InputError` for a source whose encoding does not fit into the memory. Attention grows with its square."""
    if source_tokens <= LONGEST_TOGETHER:
        return
    needed, there = SCORES * 4 * model.config.encoder.num_heads * source_tokens**2, available_memory()
    if needed > there:
        raise InputError(
            f"prompt of {source_tokens} tokens: to encode so many takes about {needed / GB:.0f} GB of memory, "
            f"and {there / GB:.0f} GB are free; shorten or split it"
        )


def available_memory() -> int:
    """Bytes: what Linux can give now; elsewhere all that the machine has."""
    with suppress(OSError), open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
