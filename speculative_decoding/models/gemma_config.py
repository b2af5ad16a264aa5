"""What T5Gemma's and T5Gemma 2's config.json says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

from ..checkpoints import ID_FIELDS
from ..errors import CheckpointError
from ..sampling.options import short
from ..sampling.values import Number, Switch, Text, Whole
from .config import ACTIVATIONS, LayerConfig, RawConfig, checked_fields, checked_ids, require, with_defaults
from .rope import Rope, Window

SLIDING, FULL = "sliding_attention", "full_attention"
MOST_POSITIONS = (1 << 31) - 1
SOFT_CAP, THETA, FACTOR = Number(1e-3, 1e9), Number(1, 1e12), Number(1e-6, 1e6)
IMAGE_TOKENS = {"boi": 255_999, "eoi": 256_000}


@dataclass(frozen=True)
class StackFields:
    """Of config.json for one stack, under their Hugging Face names, with what each may be."""

    vocab_size: Annotated[int, Whole(2, 1 << 24)]
    hidden_size: Annotated[int, Whole(1, 1 << 18)]
    intermediate_size: Annotated[int, Whole(1, 1 << 22)]
    num_hidden_layers: Annotated[int, Whole(1, 512)]
    num_attention_heads: Annotated[int, Whole(1, 1 << 12)]
    num_key_value_heads: Annotated[int, Whole(1, 1 << 12)] = 4
    head_dim: Annotated[int, Whole(2, 1 << 14)] = 256
    hidden_activation: Annotated[str, Text([*ACTIVATIONS])] = "gelu_pytorch_tanh"
    max_position_embeddings: Annotated[int, Whole(1, MOST_POSITIONS)] = 8192
    rms_norm_eps: Annotated[float, Number(1e-35, 1)] = 1e-6  # smaller ones are zero in float32
    query_pre_attn_scalar: Annotated[float, Number(1e-6, 1e6)] = 256
    sliding_window: Annotated[int, Whole(1, MOST_POSITIONS)] = 4096
    attention_bias: Annotated[bool, Switch("true or false")] = False


class Defaults(NamedTuple):
    """What a family adds to those of `StackFields`. soft_caps: numbers, or null: none."""

    fields: RawConfig
    soft_caps: Mapping[str, float | None]


T5GEMMA = Defaults({}, {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0})
T5GEMMA_2 = Defaults({"max_position_embeddings": 1 << 17}, dict.fromkeys(T5GEMMA.soft_caps))


@dataclass(frozen=True)
class LayerKind:
    rope: Rope
    window: Window


@dataclass(frozen=True, kw_only=True)
class StackConfig(LayerConfig):
    """An encoder, or a decoder. layers: which kind each is."""

    vocab_size: int
    norm_eps: float
    logit_cap: float | None
    max_positions: int
    layers: Sequence[LayerKind]

    @property
    def windows(self) -> Sequence[Window]:
        """Each once."""
        return [*dict.fromkeys(kind.window for kind in self.layers)]


@dataclass(frozen=True)
class GemmaConfig:
    encoder: StackConfig
    decoder: StackConfig
    tie_word_embeddings: bool
    pad_token_id: int
    eos_token_ids: tuple[int, ...]
    decoder_start_token_id: int
    boi_token_index: int = MOST_POSITIONS  # of T5Gemma 2: the beginning of an image, and its end
    eoi_token_index: int = MOST_POSITIONS

    @property
    def divided(self) -> dict[str, int]:
        stacks = {"encoder": self.encoder, "decoder": self.decoder}
        return {f"{name}.{size}": count for name, stack in stacks.items() for size, count in stack.divided.items()}

    @property
    def vocab_size(self) -> int:
        return self.decoder.vocab_size

    @property
    def d_model(self) -> int:
        return self.decoder.d_model

    @property
    def decoder_layers(self) -> int:
        return len(self.decoder.layers)

    @property
    def max_source_tokens(self) -> int:
        return self.encoder.max_positions


def t5gemma_config(raw: RawConfig) -> GemmaConfig:
    """From a parsed config.json. Unknown keys are ignored; a missing or impossible one is named."""
    encoder, decoder = (Section(f"{name}.", section(raw, name), T5GEMMA) for name in ("encoder", "decoder"))
    own, theirs = encoder.fields.sliding_window, decoder.fields.sliding_window
    return joined(
        raw,
        decoder,
        encoder.stack({SLIDING: Window(own, own), FULL: Window()}, every=2),
        decoder.stack({SLIDING: Window(theirs - 1, 0), FULL: Window(None, 0)}, every=2),
    )


def t5gemma2_config(raw: RawConfig) -> GemmaConfig:
    """Likewise. The encoder's window is of so many positions, the query's own among them; soft caps on scores are not
    heeded, as they are not in transformers 5.23.
    """
    outer = section(raw, "encoder")
    encoder = Section("encoder.text_config.", section(outer, "text_config"), T5GEMMA_2)
    decoder = Section("decoder.", section(raw, "decoder"), T5GEMMA_2)
    own, theirs = encoder.fields.sliding_window, decoder.fields.sliding_window
    stacks = (
        encoder.stack({SLIDING: Window((own + 1) // 2 - 1, own // 2), FULL: Window()}, every=6, caps_scores=False),
        decoder.stack({SLIDING: Window(theirs - 1, 0), FULL: Window(None, 0)}, every=6, caps_scores=False),
    )
    if stacks[0].d_model != stacks[1].d_model:
        raise CheckpointError("config.json: 'encoder' and 'decoder' must have the same hidden_size")
    image = {f"{end}_token_index": outer.get(f"{end}_token_index", usual) for end, usual in IMAGE_TOKENS.items()}
    for name, token in image.items():
        require(f"encoder.{name}", Whole(0, MOST_POSITIONS), token)
    return replace(joined(raw, decoder, *stacks), **image)


def joined(raw: RawConfig, decoder: Section, encoder: StackConfig, decoder_stack: StackConfig) -> GemmaConfig:
    if encoder.vocab_size != decoder_stack.vocab_size:
        raise CheckpointError("config.json: 'encoder' and 'decoder' must have the same vocab_size")
    tied = raw.get("tie_word_embeddings", True)
    require("tie_word_embeddings", Switch("true or false"), tied)
    known = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
    for layer in (decoder.raw, raw):
        known |= {name: layer[name] for name in (*known, *ID_FIELDS) if layer.get(name) is not None}
    known.setdefault("decoder_start_token_id", known["bos_token_id"])
    return GemmaConfig(encoder, decoder_stack, tied, **checked_ids(known, encoder.vocab_size))


def section(raw: RawConfig, name: str) -> RawConfig:
    found = raw.get(name)
    if not isinstance(found, dict):
        raise CheckpointError(f"config.json: {name!r} must be an object, not {short(found)}")
    return found


class Section:
    """The part of config.json for one stack; path: where it stands there."""

    def __init__(self, path: str, raw: RawConfig, defaults: Defaults) -> None:
        self.path, self.raw = path, raw
        self.fields = StackFields(**checked_fields(StackFields, with_defaults(raw, defaults.fields), path))
        self.caps = {name: raw.get(name, usual) for name, usual in defaults.soft_caps.items()}
        for name, cap in self.caps.items():
            if cap is not None:
                require(path + name, SOFT_CAP, cap)
        known = self.fields
        self.require_that(not known.attention_bias, "attention_bias", "false")
        self.require_that(known.head_dim % 2 == 0, "head_dim", "even")
        wanted = f"a divisor of {known.num_attention_heads}"
        self.require_that(known.num_attention_heads % known.num_key_value_heads == 0, "num_key_value_heads", wanted)

    def require_that(self, holds: bool, name: str, wanted: str, found: object = None) -> None:
        if not holds:
            found = getattr(self.fields, name) if found is None else found
            raise CheckpointError(f"config.json: {self.path + name!r} must be {wanted}, not {short(found)}")

    def stack(self, windows: Mapping[str, Window], *, every: int, caps_scores: bool = True) -> StackConfig:
        """windows: of each type of layer. every: which layers see all, where config.json does not say it."""
        known = self.fields
        kinds = {kind: LayerKind(self.rope(kind, per_kind=every == 6), windows[kind]) for kind in windows}
        return StackConfig(
            vocab_size=known.vocab_size,
            d_model=known.hidden_size,
            d_ff=known.intermediate_size,
            num_heads=known.num_attention_heads,
            num_kv_heads=known.num_key_value_heads,
            head_dim=known.head_dim,
            activation=known.hidden_activation,
            norm_eps=known.rms_norm_eps,
            scale=known.query_pre_attn_scalar**-0.5,
            is_gated=True,
            attention_cap=self.caps["attn_logit_softcapping"] if caps_scores else None,
            logit_cap=self.caps["final_logit_softcapping"],
            max_positions=known.max_position_embeddings,
            layers=tuple(kinds[kind] for kind in self.layer_types(every)),
        )

    def layer_types(self, every: int) -> Sequence[str]:
        found, count = self.raw.get("layer_types"), self.fields.num_hidden_layers
        if found is None:
            every = self.raw.get("sliding_window_pattern", every)
            require(self.path + "sliding_window_pattern", Whole(1, MOST_POSITIONS), every)
            return [FULL if (i + 1) % every == 0 else SLIDING for i in range(count)]
        right = isinstance(found, list) and len(found) == count and all(kind in (SLIDING, FULL) for kind in found)
        self.require_that(right, "layer_types", f"{count} of {SLIDING}, {FULL}", found)
        return list(found)

    def rope(self, kind: str, *, per_kind: bool) -> Rope:
        """transformers 5 has `rope_parameters`, for each type of layer or for all; 4 has `rope_theta` and others."""
        parameters = self.raw.get("rope_parameters")
        name = "rope_parameters"
        if parameters is None:
            local = kind == SLIDING and per_kind
            theta = self.raw.get("rope_local_base_freq" if local else "rope_theta")
            scaling = None if local else self.raw.get("rope_scaling")
            name, parameters = "rope_scaling", {} if scaling is None else scaling
            self.require_that(isinstance(parameters, dict), name, "an object", parameters)
            parameters = {**parameters, "rope_theta": theta}
        self.require_that(isinstance(parameters, dict), name, "an object", parameters)
        if per_kind and name == "rope_parameters":
            parameters = parameters.get(kind) or {}
            self.require_that(isinstance(parameters, dict), name, "objects for types of layers", parameters)
        theta = parameters.get("rope_theta")
        theta = (1e6 if per_kind and kind == FULL else 1e4) if theta is None else theta
        require(f"{self.path}rope_theta", THETA, theta)
        rope_type = parameters.get("rope_type", parameters.get("type", "default"))
        require(f"{self.path}rope_type", Text(["default", "linear"]), rope_type)
        factor = parameters.get("factor", 1.0) if rope_type == "linear" else 1.0
        require(f"{self.path}rope factor", FACTOR, factor)
        return Rope(float(theta), float(factor))
