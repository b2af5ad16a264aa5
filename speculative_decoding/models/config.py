"""The interface that all model configurations implement, and validation of config.json fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import mlx.core as mx
import mlx.nn as nn

from ..checkpoints import ID_FIELDS
from ..errors import CheckpointError
from ..sampling.options import short_repr
from ..sampling.values import Int, Value, annotations_of
from .backend import replaced_on_cpu

RawConfig = Mapping[str, Any]  # a parsed config.json

MAX_EOS_TOKENS = 64
SHARDED = ("num_heads", "num_kv_heads", "d_ff")  # layer sizes that are split across ranks


@replaced_on_cpu
def gelu(x: mx.array) -> mx.array:
    """x * P(N <= x) for a standard normal N (Hendrycks and Gimpel 2016, 1606.08415)."""
    return nn.gelu(x)


ACTIVATIONS: Mapping[str, Callable[[mx.array], mx.array]] = {
    "relu": nn.relu,
    "gelu": gelu,
    "gelu_new": nn.gelu_approx,
    "gelu_pytorch_tanh": nn.gelu_approx,
    "quick_gelu": nn.gelu_fast_approx,
    "silu": nn.silu,
    "swish": nn.silu,
}


@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """A Transformer layer's sizes and variants.

    scale: multiplies attention scores.
    attention_cap: the soft cap on attention scores; see `attend`.
    is_gated: whether the activations of the first half of the feed-forward units gate the second half (Shazeer 2020,
        arXiv 2002.05202).
    norm_first: whether a norm precedes each block; otherwise, it follows the residual sum.
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

    def shard(self, ranks: int) -> Self:
        """Return the sizes on one rank. If there are fewer key-value heads than ranks, ranks share heads."""
        sizes: dict[str, Any] = {name: max(getattr(self, name) // ranks, 1) for name in SHARDED}
        return replace(self, **sizes)


class EncoderDecoderConfig(Protocol):
    """The configuration fields that every architecture provides to the rest of the package."""

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
    def encoder(self) -> LayerConfig: ...

    @property
    def decoder(self) -> LayerConfig: ...

    @property
    def sharded_sizes(self) -> Mapping[str, int]:
        """The sizes that are split across ranks."""


def require(name: str, value: Value, found: object, file: str = "config.json") -> Any:
    """Validate a field of the file, and return its value. Raises `CheckpointError` if `value` does not accept it."""
    try:
        return value.accept(found)
    except (ValueError, TypeError):
        message = f"{file}: {name!r} must be {value.expected}, not {short_repr(found)}"
        raise CheckpointError(message) from None


def checked_fields(config: type, raw: RawConfig, defaults: RawConfig, path: str = "") -> dict[str, Any]:
    """Validate and return a configuration class's fields, including special token ids if it declares `eos_token_ids`.

    Unknown keys are ignored.

    Args:
        config: A dataclass. The fields to read from `raw` are annotated with a `Value`.
        raw: The fields of config.json.
        defaults: Values for missing and null fields. They override the defaults of the class.
        path: The path of `raw` in config.json.

    Raises:
        CheckpointError: A field is missing or invalid.
    """
    raw = {**defaults, **{name: value for name, value in raw.items() if value is not None}}
    hints = annotations_of(config)
    values = {name: hint.__metadata__[0] for name, hint in hints.items() if hasattr(hint, "__metadata__")}
    for name, value in values.items():
        if name in raw or not hasattr(config, name):
            require(path + name, value, raw.get(name))
    fields = {name: raw[name] for name in values if name in raw}
    return fields | checked_ids(raw, raw["vocab_size"]) if "eos_token_ids" in hints else fields


def checked_ids(raw: RawConfig, vocab_size: int) -> dict[str, Any]:
    """Validate and return the special token ids, keyed by field name. `eos_token_id` may be a list.

    Raises:
        CheckpointError: An id is outside the vocabulary.
    """
    start, pad, end = (raw.get(name) for name in ID_FIELDS)
    ends = end if isinstance(end, list) else [end]
    if len(ends) > MAX_EOS_TOKENS:
        raise CheckpointError(f"config.json: 'eos_token_id' must have at most {MAX_EOS_TOKENS} ids, not {len(ends)}")
    for name, ids in zip(ID_FIELDS, ([start], [pad], ends), strict=True):
        for each in ids:
            require(name, Int(0, vocab_size - 1), each)
    return {"decoder_start_token_id": start, "pad_token_id": pad, "eos_token_ids": tuple(ends)}
