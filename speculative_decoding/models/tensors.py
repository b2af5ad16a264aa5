"""Tensors of a checkpoint by their names, as all families have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import mlx.core as mx

from ..checkpoints import Checkpoint

TABLES = ("shared.weight", "decoder.embed_tokens.weight", "encoder.embed_tokens.weight")  # under any, the embedding
HEAD = "lm_head.weight"
Sources = dict[str, tuple[str, ...]]  # see `EncoderDecoder.parameter_sources`


def named(table: Mapping[str, Sequence[str]], ours: str, theirs: str, kinds: Sequence[str] = ("weight",)) -> Sources:
    """Where a part of a model comes from. table: its parameters and their tensors, all without the prefixes `ours` and
    `theirs`, and without the kind behind them.
    """
    return {
        f"{ours}{path}.{kind}": tuple(f"{theirs}{name}.{kind}" for name in names)
        for path, names in table.items()
        for kind in kinds
    }


def embedding_table(names: Set[str], prefix: str = "") -> str:
    """The name under which this checkpoint keeps the embedding. prefix: of all names in it."""
    return prefix + next((name for name in TABLES if prefix + name in names), TABLES[0])


def is_same_table(checkpoint: Checkpoint, first: str, second: str) -> bool:
    """Whether both tensors are there and equal. Torch files keep a tied head twice, and flags are not always right."""
    there = first in checkpoint and second in checkpoint
    same = there and checkpoint.info(first).shape == checkpoint.info(second).shape
    return bool(same and mx.array_equal(checkpoint[first], checkpoint[second]).item())
