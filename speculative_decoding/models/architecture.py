"""What a module of an architecture exports: one `ARCHITECTURE`, which `models/__init__.py` finds by `model_type`."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any, NamedTuple

from ..checkpoints import Checkpoint
from .base import EncoderDecoder
from .config import RawConfig
from .tensors import TokenTables


class Architecture(NamedTuple):
    """Constructors of an architecture.

    model: builds the model from the config and the number of tensor-parallel ranks.
    config: parses config.json; some fields also depend on the tensors of the checkpoint.
    adapt: returns config.json, and a checkpoint with every tensor that the model reads, under its Hugging Face name.
        Tables that equal another one are left out. Everything else takes checkpoints that it returned.
    tables: returns the names of the tables with a row per token, for the names in a checkpoint that `adapt` returned.
    fits_float16: whether a model with this config.json cannot overflow in float16. If the residual stream grows from
        layer to layer, it can.
    """

    model: Callable[[Any, int], EncoderDecoder]
    config: Callable[[RawConfig, Checkpoint | None], Any]
    adapt: Callable[[RawConfig, Checkpoint], tuple[RawConfig, Checkpoint]]
    tables: Callable[[Set[str]], TokenTables]
    fits_float16: Callable[[RawConfig], bool] = lambda _: False
