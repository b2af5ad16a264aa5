"""Names of checkpoint tensors that several architectures share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from ..checkpoints import Checkpoint
from ..checkpoints.base import QUANTIZED_PARTS, CheckpointView, part_name
from ..errors import CheckpointError

HEAD = "lm_head.weight"
LOGITS_BIAS = "final_logits_bias"
Sources = dict[str, tuple[str, ...]]  # see `EncoderDecoder.parameter_sources`


def named(table: Mapping[str, Sequence[str]], ours: str, theirs: str, suffixes: Sequence[str] = ("weight",)) -> Sources:
    """Return the sources of the parameters in one part of a model.

    Args:
        table: Maps our parameter names to tensor names, without prefixes and suffixes.
        ours: Prefix of our parameter names.
        theirs: Prefix of the checkpoint's tensor names.
        suffixes: Suffixes that both names share.
    """
    return {
        f"{ours}{path}.{suffix}": tuple(f"{theirs}{name}.{suffix}" for name in names)
        for path, names in table.items()
        for suffix in suffixes
    }


@dataclass(frozen=True)
class TokenTables:
    """The names of a family's tables with one row per token. Files store equal tables only once.

    Any table may be missing. A missing table equals `shared`, or the first table in `stand_ins` that exists if `shared`
    is also missing. This is the rule in transformers 5.24 (`PreTrainedModel.tie_weights`), which compares the tables
    regardless of config.json.

    decoder: The embedding of the decoder's tokens.
    head: The output head.
    source: The embedding of source tokens, if it can be equal to the decoder's.
    shared: The table that the others equal by default.
    stand_ins: Tables to use for a missing `shared`, in order of preference.
    """

    decoder: str
    head: str
    source: str | None = None
    shared: str | None = None
    stand_ins: Sequence[str] = ()

    @property
    def names(self) -> list[str]:
        return [name for name in (self.shared, self.source, self.decoder, self.head) if name is not None]

    @property
    def embedding(self) -> str:
        """The name of the decoder's embedding in checkpoints without duplicates."""
        return self.decoder if self.shared in (None, self.source) else self.shared

    def without_duplicates(
        self, checkpoint: Checkpoint, *, is_tied: bool = True, has_own_head: bool = False
    ) -> CheckpointView:
        """Return a view of the checkpoint with `embedding`, and with `source` and `head` only if they differ from it.

        is_tied: whether any table may stand in for a missing one. If false, only `shared` may, and not for a missing
            head.
        has_own_head: whether to keep the head without comparing it.
        """
        candidates = [self.shared, *(self.stand_ins if is_tied else ())]
        fallback = next((name for name in candidates if name in checkpoint), None)
        found = {name: name if name in checkpoint else fallback for name in self.names}
        tables = {self.embedding: found[self.decoder]}
        embedding = tables[self.embedding]
        if self.source is not None:
            source = found[self.source]
            if source is None and embedding is not None:
                raise CheckpointError(f"{checkpoint}: tensor {self.source!r} is missing")
            if source != embedding and not are_same(checkpoint, source, embedding):
                tables[self.source] = source
        if has_own_head or not is_tied:
            tables[self.head] = self.head
        elif (head := found[self.head]) != embedding and not are_same(checkpoint, head, embedding):
            tables[self.head] = head
        names = {name: name for name in checkpoint}
        for name, part in product(self.names, QUANTIZED_PARTS):
            names.pop(part_name(name, part), None)
        for (name, theirs), part in product(tables.items(), QUANTIZED_PARTS):
            if theirs is not None and part_name(theirs, part) in checkpoint:
                names[part_name(name, part)] = part_name(theirs, part)
        return CheckpointView(checkpoint, names)


def are_same(checkpoint: Checkpoint, first: str | None, second: str | None) -> bool:
    """Return whether both tensors exist, have the same quantized parts, and are equal."""
    if first is None or second is None:
        return first is second
    pairs = [(part_name(first, part), part_name(second, part)) for part in QUANTIZED_PARTS]
    stored = [pair for pair in pairs if pair[0] in checkpoint or pair[1] in checkpoint]
    return all(ours in checkpoint and theirs in checkpoint for ours, theirs in stored) and all(
        checkpoint.is_same(ours, theirs) for ours, theirs in stored
    )
