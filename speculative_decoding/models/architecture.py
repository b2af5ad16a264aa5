"""The type of `ARCHITECTURE`, the constant that each architecture's module exports for `models/__init__.py`."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any, NamedTuple

from ..checkpoints import Checkpoint
from .base import EncoderDecoder
from .config import RawConfig
from .tensors import TokenTables


class Architecture(NamedTuple):
    """The functions that define an architecture.

    model: builds the model from the config and the number of tensor-parallel ranks.
    config: parses config.json; some fields also depend on the checkpoint's tensors.
    adapt: returns config.json, and a checkpoint that contains every tensor that the model reads, under its Hugging Face
        name. Duplicate tables are left out. All other functions take checkpoints that `adapt` returned.
    tables: returns the names of the tables with one row per token, given a checkpoint's tensor names.
    fits_float16: returns whether a model with this config.json cannot overflow in float16. A model may overflow if its
        residual stream grows from layer to layer.
    """

    model: Callable[[Any, int], EncoderDecoder]
    config: Callable[[RawConfig, Checkpoint | None], Any]
    adapt: Callable[[RawConfig, Checkpoint], tuple[RawConfig, Checkpoint]]
    tables: Callable[[Set[str]], TokenTables]
    fits_float16: Callable[[RawConfig], bool] = lambda _: False
