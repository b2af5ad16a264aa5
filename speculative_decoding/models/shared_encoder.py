"""Shares the target's encoder with a draft model whose encoder is identical, which saves memory and an encoder pass.

Examples are distilbart with bart-large-cnn, distil-large-v3 with whisper-large-v3, and other draft models in which only
the decoder was distilled (Shleifer and Rush 2020, 2010.13002, "shrink and fine-tune").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from .base import EncoderDecoder

DECODER_PREFIXES = ("decoder.", "head.")


def share_encoder(target: EncoderDecoder, draft: EncoderDecoder) -> bool:
    """Make the draft use the target's encoder arrays if the draft's own are bit-identical. Returns whether they are."""
    ours, theirs = encoder_parameters(target), encoder_parameters(draft)
    if not same_shape(target, draft) or ours.keys() != theirs.keys():
        return False
    for name, array in ours.items():
        other = theirs[name]
        if array.dtype != other.dtype or not mx.array_equal(array, other).item():
            return False
    draft.load_weights(list(ours.items()), strict=False)
    draft.finalize()
    return True


def shares_encoder(target: EncoderDecoder, draft: EncoderDecoder) -> bool:
    """Return whether both models hold the same encoder arrays."""
    ours, theirs = encoder_parameters(target), encoder_parameters(draft)
    same = ours.keys() == theirs.keys() and all(array is theirs[name] for name, array in ours.items())
    return same and same_shape(target, draft)


def encoder_parameters(model: EncoderDecoder) -> Mapping[str, mx.array]:
    """Return the parameters that an encoder may use, keyed by path."""
    parameters: list[tuple[str, mx.array]] = tree_flatten(model.parameters())  # type: ignore[assignment]
    # Only the decoder of a speech model reads token ids.
    prefixes = DECODER_PREFIXES if model.audio is None else (*DECODER_PREFIXES, "embedding.")
    return {path: array for path, array in parameters if not path.startswith(prefixes)}


def same_shape(target: EncoderDecoder, draft: EncoderDecoder) -> bool:
    """Return whether the models' configurations are equal, apart from the decoder."""

    def facts(model: EncoderDecoder) -> dict[str, Any]:
        return {name: value for name, value in asdict(model.config).items() if "decoder" not in name}  # type: ignore[call-overload]

    return type(target) is type(draft) and facts(target) == facts(draft)
