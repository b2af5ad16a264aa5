"""The configuration of T5Gemma and T5Gemma 2, and parsing of the config.json sections that both use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from ..checkpoints import ID_FIELDS, Checkpoint
from ..errors import CheckpointError
from ..sampling.options import short_repr
from ..sampling.values import Bool, Int, Number, Text
from .config import ACTIVATIONS, SHARDED, LayerConfig, RawConfig, checked_fields, checked_ids, require
from .rope import Rope, Window

SLIDING = "sliding_attention"
FULL = "full_attention"
MAX_POSITIONS = (1 << 31) - 1
HEAD = "lm_head.out_proj.weight"


@dataclass(frozen=True)
class StackFields:
    """The fields of config.json for one stack, with their Hugging Face names and valid values."""

    vocab_size: Annotated[int, Int(2, 1 << 24)]
    hidden_size: Annotated[int, Int(1, 1 << 18)]
    intermediate_size: Annotated[int, Int(1, 1 << 22)]
    num_hidden_layers: Annotated[int, Int(1, 512)]
    num_attention_heads: Annotated[int, Int(1, 1 << 12)]
    num_key_value_heads: Annotated[int, Int(1, 1 << 12)] = 4
    head_dim: Annotated[int, Int(2, 1 << 14)] = 256
    hidden_activation: Annotated[str, Text([*ACTIVATIONS])] = "gelu_pytorch_tanh"
    max_position_embeddings: Annotated[int, Int(1, MAX_POSITIONS)] = 8192
    rms_norm_eps: Annotated[float, Number(1e-35, 1)] = 1e-6  # smaller values underflow to zero in float32
    query_pre_attn_scalar: Annotated[float, Number(1e-6, 1e6)] = 256
    sliding_window: Annotated[int, Int(1, MAX_POSITIONS)] = 4096
    attention_bias: Annotated[bool, Bool()] = False


class Defaults(NamedTuple):
    """Those defaults of a family that differ from `StackFields`. soft_caps: None means no cap."""

    fields: RawConfig
    soft_caps: Mapping[str, float | None]


@dataclass(frozen=True)
class LayerType:
    """The rotary positions and window of a layer's self-attention."""

    rope: Rope
    window: Window


@dataclass(frozen=True, kw_only=True)
class StackConfig(LayerConfig):
    """The configuration of the encoder or the decoder. `layers` lists the type of each layer."""

    vocab_size: int
    norm_eps: float
    logit_cap: float | None
    max_positions: int
    layers: Sequence[LayerType]

    @property
    def windows(self) -> Sequence[Window]:
        """The distinct windows of the layers."""
        return [*dict.fromkeys(each.window for each in self.layers)]


@dataclass(frozen=True)
class GemmaConfig:
    encoder: StackConfig
    decoder: StackConfig
    tie_word_embeddings: bool
    pad_token_id: int
    eos_token_ids: tuple[int, ...]
    decoder_start_token_id: int
    boi_token_index: int = MAX_POSITIONS  # T5Gemma 2: the tokens at the start and end of an image
    eoi_token_index: int = MAX_POSITIONS

    @property
    def sharded_sizes(self) -> dict[str, int]:
        sizes = dict[str, int]()
        for name, stack in (("encoder", self.encoder), ("decoder", self.decoder)):
            sizes |= {f"{name}.{size}": getattr(stack, size) for size in SHARDED}
        return sizes

    @property
    def vocab_size(self) -> int:
        return self.decoder.vocab_size

    @property
    def d_model(self) -> int:
        return self.decoder.d_model

    @property
    def decoder_layers(self) -> int:
        return len(self.decoder.layers)


def joined_config(
    raw: RawConfig,
    checkpoint: Checkpoint | None,
    decoder_section: Section,
    encoder: StackConfig,
    decoder: StackConfig,
) -> GemmaConfig:
    """Combine both stacks' configurations. Special tokens may be specified in `raw` or in the decoder's section.

    checkpoint: A checkpoint without duplicate tables. A head that it contains is not tied.
    """
    if encoder.vocab_size != decoder.vocab_size:
        raise CheckpointError("config.json: 'encoder' and 'decoder' must have the same vocab_size")
    is_tied = raw.get("tie_word_embeddings", True)
    require("tie_word_embeddings", Bool(), is_tied)
    is_tied = is_tied and (checkpoint is None or HEAD not in checkpoint)
    ids = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
    for source in (decoder_section.raw, raw):
        ids |= {name: source[name] for name in (*ids, *ID_FIELDS) if source.get(name) is not None}
    ids.setdefault("decoder_start_token_id", ids["bos_token_id"])
    return GemmaConfig(encoder, decoder, is_tied, **checked_ids(ids, encoder.vocab_size))


def nested(raw: RawConfig, name: str) -> RawConfig:
    """Return the JSON object in the field `name`. Raises `CheckpointError` if there is none."""
    found = raw.get(name)
    if not isinstance(found, dict):
        raise CheckpointError(f"config.json: {name!r} must be an object, not {short_repr(found)}")
    return found


class Section:
    """One stack's section of config.json, at `path`."""

    def __init__(self, path: str, raw: RawConfig, defaults: Defaults) -> None:
        self.path = path
        self.raw = raw
        self.fields = StackFields(**checked_fields(StackFields, raw, defaults.fields, path))
        self.soft_caps = {name: raw.get(name, default) for name, default in defaults.soft_caps.items()}
        for name, cap in self.soft_caps.items():
            if cap is not None:
                require(path + name, Number(1e-3, 1e9), cap)
        fields = self.fields
        self.require(not fields.attention_bias, "attention_bias", "false")
        self.require(fields.head_dim % 2 == 0, "head_dim", "even")
        expected = f"a divisor of {fields.num_attention_heads}"
        self.require(fields.num_attention_heads % fields.num_key_value_heads == 0, "num_key_value_heads", expected)

    def require(self, holds: bool, name: str, expected: str, found: object = None) -> None:
        """Raise a `CheckpointError` that names the field `name` unless `holds` is true."""
        if not holds:
            found = getattr(self.fields, name) if found is None else found
            raise CheckpointError(f"config.json: {self.path + name!r} must be {expected}, not {short_repr(found)}")

    def stack(
        self,
        windows: Mapping[str, Window],
        *,
        full_attention_every: int,
        rope_per_type: bool = False,
        caps_scores: bool = True,
    ) -> StackConfig:
        """Return the stack's configuration.

        Args:
            windows: The window for each type of layer.
            full_attention_every: The default `sliding_window_pattern` n: every n-th layer has full attention.
            rope_per_type: Whether each type of layer has separate rotary settings.
            caps_scores: Whether `attn_logit_softcapping` applies.
        """
        fields = self.fields
        types = {name: LayerType(self.rope(name, per_type=rope_per_type), window) for name, window in windows.items()}
        return StackConfig(
            vocab_size=fields.vocab_size,
            d_model=fields.hidden_size,
            d_ff=fields.intermediate_size,
            num_heads=fields.num_attention_heads,
            num_kv_heads=fields.num_key_value_heads,
            head_dim=fields.head_dim,
            activation=fields.hidden_activation,
            norm_eps=fields.rms_norm_eps,
            scale=fields.query_pre_attn_scalar**-0.5,
            is_gated=True,
            attention_cap=self.soft_caps["attn_logit_softcapping"] if caps_scores else None,
            logit_cap=self.soft_caps["final_logit_softcapping"],
            max_positions=fields.max_position_embeddings,
            layers=tuple(types[name] for name in self.layer_types(full_attention_every)),
        )

    def layer_types(self, full_attention_every: int) -> Sequence[str]:
        types = self.raw.get("layer_types")
        count = self.fields.num_hidden_layers
        if types is None:
            every = self.raw.get("sliding_window_pattern", full_attention_every)
            require(self.path + "sliding_window_pattern", Int(1, MAX_POSITIONS), every)
            return [FULL if (i + 1) % every == 0 else SLIDING for i in range(count)]
        is_valid = isinstance(types, list) and len(types) == count and all(each in (SLIDING, FULL) for each in types)
        self.require(is_valid, "layer_types", f"{count} of {SLIDING}, {FULL}", types)
        return list(types)

    def rope(self, layer_type: str, *, per_type: bool) -> Rope:
        """Return one layer type's rotary settings.

        transformers 5 writes `rope_parameters`, for each type of layer or for all layers; transformers 4 writes
        `rope_theta` and other fields.
        """
        name = "rope_parameters"
        parameters = self.raw.get(name)
        if parameters is None:
            is_local = layer_type == SLIDING and per_type
            theta = self.raw.get("rope_local_base_freq" if is_local else "rope_theta")
            scaling = None if is_local else self.raw.get("rope_scaling")
            name = "rope_scaling"
            parameters = {} if scaling is None else scaling
            self.require(isinstance(parameters, dict), name, "an object", parameters)
            parameters = {**parameters, "rope_theta": theta}
        self.require(isinstance(parameters, dict), name, "an object", parameters)
        if per_type and name == "rope_parameters":
            parameters = parameters.get(layer_type) or {}
            self.require(isinstance(parameters, dict), name, "an object for each type of layer", parameters)
        theta = parameters.get("rope_theta")
        if theta is None:
            theta = 1e6 if per_type and layer_type == FULL else 1e4
        require(f"{self.path}rope_theta", Number(1, 1e12), theta)
        rope_type = parameters.get("rope_type", parameters.get("type", "default"))
        require(f"{self.path}rope_type", Text(["default", "linear"]), rope_type)
        factor = parameters.get("factor", 1.0) if rope_type == "linear" else 1.0
        require(f"{self.path}rope factor", Number(1e-6, 1e6), factor)
        return Rope(float(theta), float(factor))
