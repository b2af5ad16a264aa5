"""Architectures by the `model_type` of their config.json. A new one is a file here and a line below."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..checkpoints import Checkpoint
from ..errors import CheckpointError, InputError
from ..sampling.options import short
from . import t5_float16
from .bart import BART
from .bart_config import FAMILIES, BartConfig
from .base import EncoderDecoder
from .config import RawConfig
from .gemma_config import t5gemma2_config, t5gemma_config
from .t5 import T5
from .t5_config import T5Config
from .t5gemma import T5Gemma
from .t5gemma2 import T5Gemma2


class Architecture(NamedTuple):
    """config: of a parsed config.json, and of the checkpoint where that settles what config.json leaves open."""

    model: Callable[[Any, int], EncoderDecoder]
    config: Callable[[RawConfig, Checkpoint | None], Any]
    for_float16: Callable[[RawConfig, Checkpoint], tuple[RawConfig, Checkpoint]]


def unchanged(raw: RawConfig, checkpoint: Checkpoint) -> tuple[RawConfig, Checkpoint]:
    """For models with norms behind blocks, in which nothing adds up from layer to layer."""
    return raw, checkpoint


def no_float16(raw: RawConfig, checkpoint: Checkpoint) -> tuple[RawConfig, Checkpoint]:
    """For models whose stream grows from layer to layer; Gemma's too, by the large norms behind its blocks (LOG.md)."""
    raise InputError(f"{checkpoint}: a {raw['model_type']} model may overflow in float16; choose bfloat16")


ARCHITECTURES = {
    **dict.fromkeys(("t5", "mt5", "umt5"), Architecture(T5, T5Config.from_dict, t5_float16.for_float16)),
    **{
        name: Architecture(BART, BartConfig.from_dict, no_float16 if each.norm_first else unchanged)
        for name, each in FAMILIES.items()
    },
    "t5gemma": Architecture(T5Gemma, lambda raw, _: t5gemma_config(raw), no_float16),
    "t5gemma2": Architecture(T5Gemma2, lambda raw, _: t5gemma2_config(raw), no_float16),
}
REFUSED = {
    "longt5": "its encoder's local attention is not supported; take a T5 or FLAN-T5, which read long sources too"
}


def build(raw: RawConfig, checkpoint: Checkpoint | None = None, processes: int = 1) -> EncoderDecoder:
    """A model of the architecture that a parsed config.json describes; its parameters are still to be loaded.

    checkpoint: settles what some files' config.json leaves open. processes: how many share it; then it is what one of
    them has, see sharding.py.
    """
    found = find(raw)
    return found.model(found.config(raw, checkpoint), processes)


def for_float16(raw: RawConfig, checkpoint: Checkpoint) -> tuple[RawConfig, Checkpoint]:
    """config.json and weights of the same function, so scaled that they cannot overflow in float16."""
    return find(raw).for_float16(raw, checkpoint)


def find(raw: RawConfig) -> Architecture:
    model_type = raw.get("model_type")
    if not isinstance(model_type, str) or model_type not in ARCHITECTURES:
        if isinstance(model_type, str) and model_type in REFUSED:
            raise CheckpointError(f"config.json: model_type {model_type!r}: {REFUSED[model_type]}")
        known = ", ".join(ARCHITECTURES)
        raise CheckpointError(f"config.json: unknown model_type {short(model_type)}; known are {known}")
    return ARCHITECTURES[model_type]


__all__ = ["EncoderDecoder", "build", "for_float16"]
