"""Names of checkpoint tensors that several architectures share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import mlx.core as mx

from ..checkpoints import Checkpoint

EMBEDDING_TABLES = ("shared.weight", "decoder.embed_tokens.weight", "encoder.embed_tokens.weight")
HEAD = "lm_head.weight"
Sources = dict[str, tuple[str, ...]]  # see `EncoderDecoder.parameter_sources`


def named(table: Mapping[str, Sequence[str]], ours: str, theirs: str, kinds: Sequence[str] = ("weight",)) -> Sources:
    """Return the sources of one part of a model.

    Args:
        table: Maps our parameter names to tensor names, both without prefix and suffix.
        ours: Prefix of our parameter names.
        theirs: Prefix of the tensor names.
        kinds: Suffixes of both.
    """
    return {
        f"{ours}{path}.{kind}": tuple(f"{theirs}{name}.{kind}" for name in names)
        for path, names in table.items()
        for kind in kinds
    }


def embedding_table(names: Set[str], prefix: str = "") -> str:
    """Return the name of the embedding in a checkpoint with these tensor names, all of which start with `prefix`."""
    return prefix + next((name for name in EMBEDDING_TABLES if prefix + name in names), EMBEDDING_TABLES[0])


def is_same_table(checkpoint: Checkpoint, first: str, second: str) -> bool:
    """Return whether both tensors exist and are equal. PyTorch files store tied heads twice; tie flags can be wrong."""
    if first not in checkpoint or second not in checkpoint:
        return False
    if checkpoint.info(first).shape != checkpoint.info(second).shape:
        return False
    return bool(mx.array_equal(checkpoint[first], checkpoint[second]).item())
