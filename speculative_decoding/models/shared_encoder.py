"""A draft model whose encoder is the target's own: its weights are kept once, and a source is encoded once.

So it is with distilbart and bart-large-cnn, and with a draft whose decoder alone was distilled (Shleifer and Rush 2020,
2010.13002, "shrink and fine-tune").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from .base import EncoderDecoder

OTHERS = ("decoder.", "head.")  # parameters that no encoder reads


def share_encoder(target: EncoderDecoder, draft: EncoderDecoder) -> bool:
    """Give the draft the target's arrays if all that its encoder computes with is equal, bit for bit; whether it is."""
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
    """Whether they hold the same arrays."""
    ours, theirs = encoder_parameters(target), encoder_parameters(draft)
    same = ours.keys() == theirs.keys() and all(array is theirs[name] for name, array in ours.items())
    return same and same_shape(target, draft)


def encoder_parameters(model: EncoderDecoder) -> Mapping[str, mx.array]:
    """All that an encoder may read, by path."""
    parameters: list[tuple[str, mx.array]] = tree_flatten(model.parameters())  # type: ignore[assignment]
    return {path: array for path, array in parameters if not path.startswith(OTHERS)}


def same_shape(target: EncoderDecoder, draft: EncoderDecoder) -> bool:
    """Whether the configurations differ in nothing but the decoder."""

    def facts(model: EncoderDecoder) -> dict[str, Any]:
        return {name: value for name, value in asdict(model.config).items() if "decoder" not in name}  # type: ignore[call-overload]

    return type(target) is type(draft) and facts(target) == facts(draft)
