"""Draft models that share parts of the target: its encoder, or everything but a quantized decoder.

Some draft models have an encoder that is identical to the target's, and share it to save memory and an encoder pass.
Examples are distilbart with bart-large-cnn, distil-large-v3 with whisper-large-v3, and other draft models in which only
the decoder was distilled (Shleifer and Rush 2020, 2010.13002, "shrink and fine-tune").

A quantized copy of the target also shares its embedding and its cross keys and values (docs/decisions/self-draft.md).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from ..checkpoints.base import QUANTIZED_PARTS
from .base import EncoderDecoder
from .layers import Linear

DECODER_PREFIXES = ("decoder.", "head.")

# What a draft model reads from the target instead of computing it; an empty string means nothing.
ENCODER_OUTPUT, CROSS_ATTENTION = "encoder", "cross attention"


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


def share_all_but(draft: EncoderDecoder, target: EncoderDecoder, layers: Collection[str], bits: int, size: int) -> None:
    """Make the draft a copy of the target in which some layers are quantized. The rest is shared, not copied.

    Args:
        draft: A shallow copy of the target, whose contents are replaced.
        target: The target, with weights that are not quantized.
        layers: Paths of layers of the decoder, and "head" or, if the head is tied to it, "embedding". Then the draft
            gets a quantized head of its own, and still embeds its tokens with the target's table.
        bits: Bits per weight.
        size: Columns per group of quantized weights.
    """
    dict.update(draft, target)
    draft.decoder = type(target)(target.config).decoder  # new modules, which hold the target's arrays
    draft.decoder.update(target.decoder.parameters())
    if "embedding" in layers:
        draft.head = Linear(1, 1, bias=False)
        draft.head.weight = target.embedding.weight
    chosen = {"head" if layer == "embedding" else layer for layer in layers}
    nn.quantize(draft, size, bits, class_predicate=lambda path, module: path in chosen)
    mx.eval(draft.parameters())
    draft.finalize()


def shared_part(target: EncoderDecoder, draft: EncoderDecoder) -> str:
    """Return what the draft may read from the target, because both models hold the same arrays.

    The cross keys and values are the target's if all of the draft's arrays are, apart from quantized weights.
    """
    ours, theirs = parameters_of(target), parameters_of(draft)
    own = {path for path, array in theirs.items() if ours.get(path) is not array}
    encoder = encoder_parameters(draft).keys()
    if not same_shape(target, draft) or encoder != encoder_parameters(target).keys() or encoder & own:
        return ""
    layers = [path.removesuffix("scales") for path in theirs if path.endswith(".scales")]
    is_copy = own <= {f"{layer}{part}" for layer in layers for part in QUANTIZED_PARTS}
    return CROSS_ATTENTION if is_copy else ENCODER_OUTPUT


def encoder_parameters(model: EncoderDecoder) -> Mapping[str, mx.array]:
    """Return the parameters that an encoder may use, keyed by path."""
    # Only the decoder of a speech model reads token ids.
    prefixes = DECODER_PREFIXES if model.audio is None else (*DECODER_PREFIXES, "embedding.")
    return {path: array for path, array in parameters_of(model).items() if not path.startswith(prefixes)}


def parameters_of(model: EncoderDecoder) -> Mapping[str, mx.array]:
    parameters: Any = tree_flatten(model.parameters())
    return dict(parameters)


def same_shape(target: EncoderDecoder, draft: EncoderDecoder) -> bool:
    """Return whether the models' configurations are equal, apart from the decoder."""

    def facts(model: EncoderDecoder) -> dict[str, Any]:
        return {name: value for name, value in asdict(model.config).items() if "decoder" not in name}  # type: ignore[call-overload]

    return type(target) is type(draft) and facts(target) == facts(draft)
