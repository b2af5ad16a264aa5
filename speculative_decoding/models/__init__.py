"""Architectures by the `model_type` of their config.json. A new one is a file here and a line below."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..checkpoints import Checkpoint
from ..errors import CheckpointError
from .base import EncoderDecoder
from .t5 import T5, T5Config

ARCHITECTURES = {"t5": (T5, T5Config), "mt5": (T5, T5Config), "umt5": (T5, T5Config)}


def build(config: Mapping[str, Any], checkpoint: Checkpoint | None = None) -> EncoderDecoder:
    """A model of the architecture that a parsed config.json describes; its parameters are still to be loaded.

    checkpoint: settles what some files' config.json leaves open.
    """
    model_type = config.get("model_type")
    if model_type not in ARCHITECTURES:
        raise CheckpointError(f"config.json: unknown model_type {model_type!r}; known are {', '.join(ARCHITECTURES)}")
    architecture, parse = ARCHITECTURES[model_type]
    parsed = parse.from_dict(config)
    return architecture(parsed if checkpoint is None else parsed.settled(checkpoint))


__all__ = ["EncoderDecoder", "build"]
