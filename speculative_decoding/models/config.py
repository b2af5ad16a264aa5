"""What the configurations of all families have in common: what they say, names, and checks of single fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, get_type_hints

import mlx.core as mx
import mlx.nn as nn

from ..checkpoints import ID_FIELDS, Checkpoint
from ..errors import CheckpointError
from ..sampling.options import short
from ..sampling.values import Value, Whole

RawConfig = Mapping[str, Any]  # a parsed config.json

MOST_ENDS = 64
TABLES = ("shared.weight", "decoder.embed_tokens.weight", "encoder.embed_tokens.weight")  # under any, the embedding
HEAD = "lm_head.weight"
ACTIVATIONS: Mapping[str, Callable[[mx.array], mx.array]] = {
    "relu": nn.relu,
    "gelu": nn.gelu,
    "gelu_new": nn.gelu_approx,
    "gelu_pytorch_tanh": nn.gelu_approx,
    "silu": nn.silu,
    "swish": nn.silu,
}
Sources = dict[str, tuple[str, ...]]  # see `EncoderDecoder.parameter_sources`


@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """scale: of the products of queries and keys. attention_cap: see `attend`. is_gated: the feed-forward's second half
    of units is multiplied by the activations of the first (Shazeer 2020, 2002.05202). norm_first: norms stand in front
    of blocks, else behind them.
    """

    d_model: int
    d_ff: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    activation: str
    scale: float = 1.0
    attention_cap: float | None = None
    is_gated: bool = False
    has_bias: bool = False
    norm_first: bool = True

    @property
    def divided(self) -> dict[str, int]:
        """The sizes of which several processes have a share each."""
        return {"num_heads": self.num_heads, "num_kv_heads": self.num_kv_heads, "d_ff": self.d_ff}

    def share(self, processes: int) -> Self:
        """As one of them has it; of fewer heads of keys than processes, several have the same."""
        sizes: dict[str, Any] = {name: max(size // processes, 1) for name, size in self.divided.items()}
        return replace(self, **sizes)


class EncoderDecoderConfig(Protocol):
    """What every part of the package may ask of a model, whatever its architecture."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def d_model(self) -> int: ...

    @property
    def decoder_layers(self) -> int: ...

    @property
    def decoder_start_token_id(self) -> int: ...

    @property
    def pad_token_id(self) -> int: ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...

    @property
    def max_source_tokens(self) -> int | None:
        """The longest source that the model was trained on, where its configuration says so."""

    @property
    def encoder(self) -> LayerConfig: ...

    @property
    def decoder(self) -> LayerConfig: ...

    @property
    def divided(self) -> Mapping[str, int]:
        """The sizes of which several processes have a share each."""


class EndIds:
    """The ends of a sequence, one or several."""

    eos_token_id: int | tuple[int, ...]

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self.eos_token_id if isinstance(self.eos_token_id, tuple) else (self.eos_token_id,)


def require(name: str, wanted: Value, found: object, file: str = "config.json") -> None:
    try:
        wanted.accept(found)
    except (ValueError, TypeError):
        message = f"{file}: {name!r} must be {wanted.wanted}, not {short(found)}"
        raise CheckpointError(message) from None


def checked_fields(config: type, raw: RawConfig, defaults: RawConfig, path: str = "") -> dict[str, Any]:
    """What config.json, or the part of it at `path`, says of a configuration's fields: each is annotated with what it
    may be. Unknown keys are ignored; a missing or impossible one is named. defaults: before those of the class.
    """
    hints = get_type_hints(config, include_extras=True)
    wanted = {name: hint.__metadata__[0] for name, hint in hints.items() if hasattr(hint, "__metadata__")}
    ids = [name for name in ID_FIELDS if name in hints]
    known = {**defaults, **{name: raw[name] for name in (*wanted, *ids) if raw.get(name) is not None}}
    for name, value in wanted.items():
        if name in known or not hasattr(config, name):
            require(path + name, value, known.get(name))
    return known | checked_ids({name: known.get(name) for name in ids}, known["vocab_size"])


def checked_ids(ids: Mapping[str, Any], vocab_size: int) -> dict[str, int | tuple[int, ...]]:
    """Special tokens by the names of their fields, all within the vocabulary; only the end may be several."""
    known_id, found = Whole(0, vocab_size - 1), dict[str, int | tuple[int, ...]]()
    for name, value in ids.items():
        if name == "eos_token_id" and isinstance(value, list):
            if len(value) > MOST_ENDS:
                raise CheckpointError(f"config.json: {name!r} must have at most {MOST_ENDS} ids, not {len(value)}")
            value = tuple(value)
        for each in value if isinstance(value, tuple) else (value,):
            require(name, known_id, each)
        found[name] = value
    return found


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
