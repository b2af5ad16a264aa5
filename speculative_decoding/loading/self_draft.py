"""Opens a target's own quantized copy as its draft model, which reads no files (docs/decisions/self-draft.md)."""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from ..checkpoints.base import QUANTIZED_PARTS, part_name
from ..checkpoints.quantized import QuantizedCheckpoint
from ..errors import InputError
from ..models import memory_budget
from ..models.base import EncoderDecoder, checked_sources, is_read_by_pass, quantizable
from ..models.shared_encoder import share_all_but
from .load import ModelHandle
from .names import shown_name


@dataclass(frozen=True)
class SelfDraft:
    """A draft model that is a copy of `target` with a quantized decoder and head, made when weights are loaded.

    nbytes: the size of the quantized weights in bytes; everything else is shared.
    layers: the layers to quantize; see `share_all_but`.
    """

    target: ModelHandle
    model: EncoderDecoder
    nbytes: int
    layers: Collection[str]
    bits: int
    group_size: int

    @property
    def folder(self) -> Path:
        return self.target.folder

    def load_weights(self) -> None:
        """Quantize the target's weights, which must be loaded first. Reads no file."""
        share_all_but(self.model, self.target.model, self.layers, self.bits, self.group_size)


def open_self_draft(target: ModelHandle, bits: int, group_size: int) -> SelfDraft:
    """Prepare a quantized copy of a target without reading weights. Raises `InputError` if it is not possible."""
    model, checkpoint = target.model, target.checkpoint
    name = shown_name(target.folder)
    if any(tensor.endswith(".scales") for tensor in checkpoint):
        raise InputError(f"{name} is quantized already", "draft", "name the original model, or choose another draft")
    sources = checked_sources(model, checkpoint)
    layers = {
        layer: names
        for layer, names in quantizable(model, sources, group_size).items()
        if is_read_by_pass(layer, has_head="head.weight" in sources)
    }
    if not layers:
        problem = f"no layer of {name}'s decoder has rows that divide into groups of {group_size}"
        raise InputError(problem, "draft", "choose another draft")
    tensors = set().union(*layers.values())
    quantized = QuantizedCheckpoint(checkpoint, tensors, bits, group_size)
    nbytes = sum(quantized.info(part_name(tensor, part)).nbytes for tensor in tensors for part in QUANTIZED_PARTS)
    if nbytes + target.nbytes > memory_budget.physical_memory():
        raise memory_budget.too_large(
            f"{name} in {bits} bits", nbytes, target.nbytes, lambda limit: "decode without this draft"
        )
    return SelfDraft(target, copy.copy(model), nbytes, layers.keys(), bits, group_size)
