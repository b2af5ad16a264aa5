"""Draft head folders, which contain weights.npz, a config.json that describes the target, and a manifest."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from .. import checkpoints
from ..checkpoints import Checkpoint
from ..errors import CheckpointError, InputError
from ..models.base import EncoderDecoder
from ..models.config import ACTIVATIONS, require
from ..models.draft_head import DraftHead, DraftHeadConfig
from ..sampling.values import Bool, Int, ListOf, Number, Text, Value
from . import manifest
from .load import WEIGHTS, ModelHandle, locate, open_model
from .tokenizer_base import fingerprint

KIND = "draft_head"
VERSION = 2  # increase this when a head's fields or computation change
CONFIG = "config.json"
ATTENTION_OUTPUT = "o.weight"  # stored as if the target's `value_scale` were 1


@dataclass(frozen=True)
class DraftHeadHandle:
    """A draft head of `target` whose weights are not loaded yet. nbytes: the size of the weights in bytes."""

    folder: Path
    model: DraftHead
    checkpoint: Checkpoint
    nbytes: int
    target: EncoderDecoder

    def load_weights(self) -> None:
        """Load the weights in the target's dtype. The target's weights must be loaded first.

        Raises `CheckpointError` if a weight is NaN or infinite.
        """
        dtype = self.target.embed(mx.array([[0]])).dtype
        factors = {ATTENTION_OUTPUT: 1 / self.target.value_scale}
        weights = [(name, (self.checkpoint[name] * factors.get(name, 1.0)).astype(dtype)) for name in self.checkpoint]
        if not all(mx.isfinite(array).all() for _, array in weights):
            raise CheckpointError(f"{self.checkpoint}: contains NaN or infinity; train the head again")
        self.model.load_weights(weights)
        self.model.finalize()


def open_draft(
    path_or_name: str | os.PathLike[str], target: ModelHandle, *, dtype: str | None = None
) -> ModelHandle | DraftHeadHandle:
    """Open a draft model or a draft head for this target. Raises `InputError` for a head trained for another target."""
    folder = locate(path_or_name)
    raw = checkpoints.read_config(folder) if (folder / CONFIG).is_file() else {}
    if raw.get("kind") != KIND:
        return open_draft_model(folder, dtype, target)
    if raw.get("version") != VERSION:
        raise CheckpointError(f"{folder / CONFIG}: written for another version of this package; train the head again")
    manifest.check_sizes(folder)
    facts = target_facts(target.model)
    require_same_target(raw, facts, folder)
    head = DraftHead(config_of(raw, folder, facts), target.model.residual_scale, target.model.source_softmax)
    checkpoint = checkpoints.read(folder)
    expected: Mapping[str, mx.array] = dict(tree_flatten(head.parameters()))
    for name, array in expected.items():
        found = checkpoint.info(name).shape if name in checkpoint else None
        if found != array.shape:
            raise CheckpointError(f"{checkpoint}: tensor {name!r} has shape {found}, not {array.shape}")
    if unknown := set(checkpoint) - set(expected):
        raise CheckpointError(f"{checkpoint}: tensor {min(unknown)!r} does not belong to a draft head")
    nbytes = sum(checkpoint.info(name).nbytes for name in checkpoint)
    return DraftHeadHandle(folder, head, checkpoint, nbytes, target.model)


def open_draft_model(folder: Path, dtype: str | None, target: ModelHandle) -> ModelHandle:
    """Open a draft model. A CTranslate2 folder without a tokenizer may use the target's, if the vocabulary is equal."""
    try:
        return open_model(folder, dtype=dtype, beside=target.nbytes)
    except InputError as error:
        from .ctranslate2_tokenizer import WAY_OUT

        if error.way_out is not WAY_OUT:
            raise
        try:
            tokenizer = target.named_tokenizer or target.folder
            return open_model(folder, dtype=dtype, beside=target.nbytes, tokenizer=tokenizer)
        except InputError:
            way_out = "copy the tokenizer's files from the original model into this folder"
            raise InputError(error.problem, "draft", way_out) from error


def config_of(raw: Mapping[str, Any], folder: Path, facts: Mapping[str, Any]) -> DraftHeadConfig:
    """Parse a head's config.json. Raises a `CheckpointError` that names a missing, invalid or unsuitable field.

    facts: the target's `target_facts`.
    """
    values: dict[str, Value] = {
        **{name: Int(facts[name], facts[name]) for name in ("d_model", "heads", "head_width")},
        "d_ff": Int(1, 1 << 22),
        "layers": ListOf(Int(0, facts["decoder_layers"] - 1)),
        "activation": Text([*ACTIVATIONS]),
        "is_gated": Bool(),
        "frequent": ListOf(Int(0, facts["vocab_size"] - 1)),
        "acceptance": ListOf(Number(0, 1)),
    }
    known = {name: require(name, value, raw.get(name), str(folder / CONFIG)) for name, value in values.items()}
    if not known["layers"]:
        raise CheckpointError(f"{folder / CONFIG}: 'layers' must not be empty")
    return DraftHeadConfig(**known, by_source=ids_by_source(raw.get("by_source"), folder, facts["vocab_size"]))


def ids_by_source(raw: Any, folder: Path, vocab_size: int) -> Mapping[int, Sequence[int]]:
    """Parse the mapping from each source id to the ids that it adds to the draft vocabulary."""
    try:
        found = {int(each): tuple(others) for each, others in raw.items()}
        if all(type(token) is int and 0 <= token < vocab_size for token in chain(found, *found.values())):
            return found
    except (AttributeError, TypeError, ValueError):
        pass
    raise CheckpointError(f"{folder / CONFIG}: 'by_source' must map ids of the target to lists of its ids")


def target_facts(target: EncoderDecoder) -> dict[str, Any]:
    """Return the properties in which a head's target must match the target for which the head was trained."""
    return {
        "vocabulary": None if target.pieces is None else fingerprint(target.pieces),
        "adapter": target.adapter,
        "vocab_size": target.config.vocab_size,
        "d_model": target.config.d_model,
        "decoder_layers": target.config.decoder_layers,
        "heads": target.config.decoder.num_heads,
        "head_width": target.config.decoder.head_dim,
    }


def require_same_target(raw: Mapping[str, Any], facts: Mapping[str, Any], folder: Path) -> None:
    """Raise `InputError` unless the head was trained for the target with these `target_facts`."""
    theirs = raw.get("target")
    if not isinstance(theirs, dict):
        raise CheckpointError(f"{folder / CONFIG}: does not say which target the head belongs to")
    for name, ours in facts.items():
        if theirs.get(name) != ours and (name != "vocabulary" or None not in (ours, theirs.get(name))):
            if name == "vocabulary":
                reason = "its vocabulary has other pieces"
            elif name == "adapter":
                trained = "without the adapter" if theirs.get(name) is None else "with an adapter"
                trained = "with another adapter" if None not in (ours, theirs.get(name)) else trained
                reason = f"it was trained for the model {trained}"
            else:
                reason = f"its {name} is {theirs.get(name)}, the target's is {ours}"
            raise InputError(
                f"draft head {folder}: belongs to another target: {reason}; name that target, or train one for this"
            )


def write_draft_head(
    output: Path,
    head: DraftHead,
    target: EncoderDecoder,
    dtype: mx.Dtype,
    *,
    also: Callable[[Path], None] = lambda folder: None,
    **facts: Any,
) -> None:
    """Write a head's folder, completely or not at all.

    also: called with the folder to write additional files to it.
    facts: additional manifest entries.
    """
    from ..checkpoints.npz import write_npz
    from ..runs.places import atomic_directory

    content = {"kind": KIND, "version": VERSION, **asdict(head.config), "target": target_facts(target)}
    with atomic_directory(output) as partial:
        parameters: list[tuple[str, mx.array]] = tree_flatten(head.parameters())  # type: ignore[assignment]
        factors = {ATTENTION_OUTPUT: target.value_scale}
        write_npz(
            partial / WEIGHTS, [(name, (array * factors.get(name, 1.0)).astype(dtype)) for name, array in parameters]
        )
        (partial / CONFIG).write_text(json.dumps(content) + "\n", encoding="utf-8")
        also(partial)
        manifest.write(partial, **facts)
