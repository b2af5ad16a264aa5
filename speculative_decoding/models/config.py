"""What the configurations of all families have in common: what they say, and checks of single fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, get_type_hints

import mlx.core as mx
import mlx.nn as nn

from ..checkpoints import ID_FIELDS
from ..errors import CheckpointError
from ..sampling.options import short
from ..sampling.values import Value, Whole

RawConfig = Mapping[str, Any]  # a parsed config.json

MOST_ENDS = 64
ACTIVATIONS: Mapping[str, Callable[[mx.array], mx.array]] = {
    "relu": nn.relu,
    "gelu": nn.gelu,
    "gelu_new": nn.gelu_approx,
    "gelu_pytorch_tanh": nn.gelu_approx,
    "silu": nn.silu,
    "swish": nn.silu,
}


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


def require(name: str, wanted: Value, found: object, file: str = "config.json") -> None:
    try:
        wanted.accept(found)
    except (ValueError, TypeError):
        message = f"{file}: {name!r} must be {wanted.wanted}, not {short(found)}"
        raise CheckpointError(message) from None


def stated(raw: RawConfig, defaults: RawConfig) -> RawConfig:
    """What it says, and what holds where it says nothing, or null."""
    return {**defaults, **{name: value for name, value in raw.items() if value is not None}}


def checked_fields(config: type, given: RawConfig, path: str = "") -> dict[str, Any]:
    """Of config.json, or the part of it at `path`, the fields of a configuration that are annotated with what they may
    be. Unknown keys are ignored; a missing or impossible one is named. given: see `stated`.
    """
    hints = get_type_hints(config, include_extras=True)
    wanted = {name: hint.__metadata__[0] for name, hint in hints.items() if hasattr(hint, "__metadata__")}
    for name, value in wanted.items():
        if name in given or not hasattr(config, name):
            require(path + name, value, given.get(name))
    return {name: given[name] for name in wanted if name in given}


def checked_ids(known: RawConfig, vocab_size: int) -> dict[str, Any]:
    """Special tokens, all within the vocabulary, by the names of a configuration's fields; the end may be several."""
    start, pad, end = (known.get(name) for name in ID_FIELDS)
    ends = end if isinstance(end, list) else [end]
    if len(ends) > MOST_ENDS:
        raise CheckpointError(f"config.json: 'eos_token_id' must have at most {MOST_ENDS} ids, not {len(ends)}")
    for name, ids in zip(ID_FIELDS, ([start], [pad], ends), strict=True):
        for each in ids:
            require(name, Whole(0, vocab_size - 1), each)
    return {"decoder_start_token_id": start, "pad_token_id": pad, "eos_token_ids": tuple(ends)}
