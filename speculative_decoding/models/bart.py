"""BART, mBART, Pegasus, M2M-100, NLLB-200, Marian and the Transformers of OpenNMT.

The Transformer of Vaswani et al. 2017 (arXiv 1706.03762), with scaled attention, biases in every layer, and position
vectors that are added to the embedding. Families differ in position vectors and in the placement of layer norms. The
norms follow each block in that paper and in BART (Lewis et al. 2020, 1910.13461); in some families, they precede it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Annotated

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ..checkpoints import Checkpoint
from ..errors import CheckpointError
from ..sampling.values import Bool, Int, Text
from .absolute_positions import LearnedPositions, SinusoidalPositions, causal_mask
from .architecture import Architecture
from .attention import repeat_for_heads, split_heads
from .base import EncoderDecoder
from .cache import CrossAttentionCache, padding_mask
from .config import ACTIVATIONS, LayerConfig, RawConfig, checked_fields
from .layers import Layer, Linear
from .tensors import HEAD, LOGITS_BIAS, Sources, TokenTables, named

OPENNMT = "opennmt"  # any Transformer from a CTranslate2 file; see checkpoints/ctranslate2_layout.py
RMS_EPSILON = 1e-6  # of CTranslate2
LEARNED_OFFSET = 2  # unused rows at the start of a learned position table


@dataclass(frozen=True)
class Family:
    """A family's properties, which config.json specifies only for `OPENNMT`.

    norm_first: whether norms precede blocks, with a final norm in each stack; otherwise, they follow blocks.
    embedding_norm: whether a norm follows the embedding.
    learned_positions: whether positions are learned; otherwise they are sinusoidal.
    defaults: Hugging Face's defaults for fields that config.json omits.
    fairseq_sinusoids: whether sinusoids include the longest wavelength and encode position 0 as pad id + 1, or as 1 in
        `OPENNMT`.
    """

    norm_first: bool
    embedding_norm: bool
    learned_positions: bool
    defaults: RawConfig
    fairseq_sinusoids: bool = False


BART_IDS = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
M2M_DEFAULTS = BART_IDS | {"activation_function": "relu", "scale_embedding": True}
PEGASUS_IDS = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
MARIAN_IDS = {"pad_token_id": 58100, "eos_token_id": 0, "decoder_start_token_id": 58100}
FAMILIES: Mapping[str, Family] = {
    "bart": Family(norm_first=False, embedding_norm=True, learned_positions=True, defaults=BART_IDS),
    "mbart": Family(
        norm_first=True,
        embedding_norm=True,
        learned_positions=True,
        defaults={"pad_token_id": 1, "eos_token_id": 2},  # no default start token, which is a language token or EOS
    ),
    "pegasus": Family(norm_first=True, embedding_norm=False, learned_positions=False, defaults=PEGASUS_IDS),
    "m2m_100": Family(
        norm_first=True, embedding_norm=False, learned_positions=False, defaults=M2M_DEFAULTS, fairseq_sinusoids=True
    ),
    "marian": Family(norm_first=False, embedding_norm=False, learned_positions=False, defaults=MARIAN_IDS),
    OPENNMT: Family(norm_first=True, embedding_norm=False, learned_positions=True, defaults={}, fairseq_sinusoids=True),
}


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """The fields of config.json that BART's families and Whisper share; see `BartConfig`."""

    model_type: Annotated[str, Text()]
    vocab_size: Annotated[int, Int(2, 1 << 24)]
    d_model: Annotated[int, Int(4, 1 << 18)]
    encoder_layers: Annotated[int, Int(1, 512)]
    decoder_layers: Annotated[int, Int(1, 512)]
    encoder_attention_heads: Annotated[int, Int(1, 1 << 12)]
    decoder_attention_heads: Annotated[int, Int(1, 1 << 12)]
    encoder_ffn_dim: Annotated[int, Int(1, 1 << 22)]
    decoder_ffn_dim: Annotated[int, Int(1, 1 << 22)]
    pad_token_id: int
    eos_token_ids: tuple[int, ...]
    decoder_start_token_id: int
    activation_function: Annotated[str, Text([*ACTIVATIONS])] = "gelu"

    @property
    def norm_first(self) -> bool:
        """Whether norms precede blocks."""
        return True

    @property
    def is_gated(self) -> bool:
        """Whether the feed-forward blocks are gated; see `LayerConfig`."""
        return False

    def check_heads(self) -> None:
        """Raise `CheckpointError` if the width is not divisible by the number of heads."""
        for name, heads in (
            ("encoder_attention_heads", self.encoder_attention_heads),
            ("decoder_attention_heads", self.decoder_attention_heads),
        ):
            if self.d_model % heads:
                raise CheckpointError(f"config.json: {name!r} must divide 'd_model', {self.d_model}; {heads} does not")

    @property
    def sharded_sizes(self) -> dict[str, int]:
        return {
            "encoder_attention_heads": self.encoder_attention_heads,
            "encoder_ffn_dim": self.encoder_ffn_dim,
            "decoder_attention_heads": self.decoder_attention_heads,
            "decoder_ffn_dim": self.decoder_ffn_dim,
        }

    @property
    def encoder(self) -> LayerConfig:
        return self._layer_config(self.encoder_attention_heads, self.encoder_ffn_dim)

    @property
    def decoder(self) -> LayerConfig:
        return self._layer_config(self.decoder_attention_heads, self.decoder_ffn_dim)

    def _layer_config(self, heads: int, d_ff: int) -> LayerConfig:
        return LayerConfig(
            d_model=self.d_model,
            d_ff=d_ff,
            num_heads=heads,
            num_kv_heads=heads,
            head_dim=self.d_model // heads,
            activation=self.activation_function,
            scale=(self.d_model // heads) ** -0.5,
            is_gated=self.is_gated,
            has_bias=True,
            norm_first=self.norm_first,
        )


@dataclass(frozen=True, kw_only=True)
class BartConfig(TransformerConfig):
    """The fields of config.json that the model reads, with their Hugging Face names and valid values.

    has_logits_bias: whether the checkpoint contains a `final_logits_bias` with non-zero values.
    has_source_embedding: whether sources and outputs have different embeddings.
    """

    max_position_embeddings: Annotated[int, Int(1, 1 << 24)] = 1024
    scale_embedding: Annotated[bool, Bool()] = False
    tie_word_embeddings: Annotated[bool, Bool()] = True
    share_encoder_decoder_embeddings: Annotated[bool, Bool()] = True
    has_logits_bias: bool = False
    has_source_embedding: bool = False

    @classmethod
    def from_dict(cls, raw: RawConfig, checkpoint: Checkpoint | None = None) -> BartConfig:
        """Read a parsed config.json. Raises `CheckpointError` for a missing or invalid field; ignores unknown ones."""
        config = cls(**checked_fields(cls, raw, FAMILIES[raw["model_type"]].defaults))
        config._check()
        return config if checkpoint is None else config.resolved(checkpoint)

    def _check(self) -> None:
        """Raise `CheckpointError` for an unsupported combination of fields."""
        self.check_heads()
        if self.d_model % 2:
            raise CheckpointError(f"config.json: 'd_model' must be even, not {self.d_model}")
        if not self.share_encoder_decoder_embeddings:
            raise CheckpointError(
                "config.json: 'share_encoder_decoder_embeddings' must be true, not false: separate source and target "
                "vocabularies are not supported; use a model with a shared vocabulary"
            )

    def resolved(self, checkpoint: Checkpoint) -> BartConfig:
        """Return the config with fields set according to the tensors of a checkpoint that `adapted` returned.

        An all-zero logits bias is ignored.
        """
        is_tied = self.tie_word_embeddings and HEAD not in checkpoint
        has_bias = LOGITS_BIAS in checkpoint
        if has_bias and checkpoint.info(LOGITS_BIAS).shape == (1, self.vocab_size):
            has_bias = bool(mx.any(checkpoint[LOGITS_BIAS]).item())
        has_source = token_tables(checkpoint.keys()).source in checkpoint
        return replace(self, tie_word_embeddings=is_tied, has_logits_bias=has_bias, has_source_embedding=has_source)

    @property
    def family(self) -> Family:
        return FAMILIES[self.model_type]

    @property
    def norm_first(self) -> bool:
        return self.family.norm_first

    @property
    def has_rms_norms(self) -> bool:
        """Whether norms are RMS norms, which have no biases."""
        return False

    def norm(self) -> nn.Module:
        """Return a new norm."""
        return nn.RMSNorm(self.d_model, eps=RMS_EPSILON) if self.has_rms_norms else nn.LayerNorm(self.d_model)

    @property
    def first_position(self) -> int:
        """The number that encodes position 0 in sinusoids."""
        return self.pad_token_id + 1 if self.family.fairseq_sinusoids else 0

    @property
    def embedding_scale(self) -> float:
        return self.d_model**0.5 if self.scale_embedding else 1.0


@dataclass(frozen=True, kw_only=True)
class OpenNmtConfig(BartConfig):
    """The config.json of a model from a CTranslate2 file. Its variants have the names in the first BART configurations.

    alignment_layer, alignment_heads: the layer, and the number of its heads (0 means all), whose attention weights
        determine the source tokens that replace unknown tokens.
    """

    normalize_before: Annotated[bool, Bool()] = True
    normalize_embedding: Annotated[bool, Bool()] = False
    static_position_embeddings: Annotated[bool, Bool()] = False
    is_gated_act: Annotated[bool, Bool()] = False
    rms_norm: Annotated[bool, Bool()] = False
    replace_unknowns: Annotated[bool, Bool()] = False
    alignment_layer: Annotated[int, Int(-512, 511)] = -1
    alignment_heads: Annotated[int, Int(0, 1 << 12)] = 1

    def _check(self) -> None:
        super()._check()
        if not -self.decoder_layers <= self.alignment_layer < self.decoder_layers:
            raise CheckpointError(
                f"config.json: 'alignment_layer' of {self.alignment_layer} is not one of {self.decoder_layers} layers"
            )
        if self.alignment_heads > self.decoder_attention_heads:
            raise CheckpointError(
                f"config.json: 'alignment_heads' of {self.alignment_heads} is larger than the number of heads, "
                f"{self.decoder_attention_heads}"
            )

    @property
    def family(self) -> Family:
        return replace(
            FAMILIES[OPENNMT],
            norm_first=self.normalize_before,
            embedding_norm=self.normalize_embedding,
            learned_positions=not self.static_position_embeddings,
        )

    @property
    def is_gated(self) -> bool:
        return self.is_gated_act

    @property
    def has_rms_norms(self) -> bool:
        return self.rms_norm

    @property
    def first_position(self) -> int:
        return 1


def read_config(raw: RawConfig, checkpoint: Checkpoint | None = None) -> BartConfig:
    """Read a parsed config.json. See `BartConfig.from_dict`."""
    return (OpenNmtConfig if raw["model_type"] == OPENNMT else BartConfig).from_dict(raw, checkpoint)


class Stack(nn.Module):
    """The layers of the encoder or decoder, with positions and the family's norms."""

    def __init__(
        self,
        norm: Callable[[], nn.Module],
        layers: Sequence[nn.Module],
        positions: nn.Module,
        *,
        norm_first: bool,
        embedding_norm: bool,
    ) -> None:
        super().__init__()
        self.layers = list(layers)
        if embedding_norm:
            self.embedding_norm = norm()
        if norm_first:
            self.norm = norm()
        self.positions = positions

    def encode(self, embedded: mx.array, mask: mx.array | None) -> mx.array:
        """Embeddings (B, S, d) and a bool mask (B, S) -> the encoder output, (B, S, d)."""
        batch, length = embedded.shape[:2]
        x = self.inputs(embedded, self.positions.table(length), mx.arange(length)[None])
        padding = None if mask is None else padding_mask(mask, x.dtype)
        for layer in self.layers:
            x = layer(x, batch, padding)
        return self.outputs(x).reshape(batch, length, -1)

    def decode(
        self,
        embedded: mx.array,
        positions: mx.array,
        position_table: mx.array,
        source_mask: mx.array,
        layers: Sequence[CrossAttentionCache],
    ) -> list[mx.array]:
        """Embeddings (B, L, d) -> the hidden states after each layer; see `EncoderDecoder.decoder_hidden`."""
        batch, length = embedded.shape[:2]
        x = self.inputs(embedded, position_table, positions)
        heads = layers[0].cross_keys.shape[1]
        mask = repeat_for_heads(causal_mask(positions, layers[0].num_keys(length), x.dtype), heads)
        source_mask = repeat_for_heads(source_mask, heads)
        hidden = []
        for layer, cache in zip(self.layers, layers, strict=True):
            x = layer(x, batch, mask, source_mask, cache)
            hidden.append(x)
        return [x.reshape(batch, length, -1) for x in hidden]

    def cross_attention_scores(
        self,
        embedded: mx.array,
        position_table: mx.array,
        projections: Sequence[tuple[mx.array, mx.array]],
        heads: Sequence[tuple[int, int]],
        scale: float,
    ) -> tuple[mx.array, mx.array]:
        """Run the decoder on a complete output.

        Args:
            embedded: (1, L, d).
            position_table: `self.positions.table(L)`.
            projections: Each layer's cross keys and values.
            heads: (layer, head) pairs.
            scale: Multiplies attention scores.

        Returns:
            The cross-attention scores before the softmax, (heads, L, S), and the output of the last layer, (L, d).
        """
        length = embedded.shape[1]
        positions = mx.arange(length)[None]
        x = self.inputs(embedded, position_table, positions)
        mask = causal_mask(positions, length, x.dtype)
        source_mask = mx.zeros((1, 1, 1, projections[0][0].shape[2]), x.dtype)
        scores: dict[int, mx.array] = {}
        read = {layer for layer, _ in heads}
        for i, (layer, (keys, values)) in enumerate(zip(self.layers, projections, strict=True)):
            cache = CrossAttentionCache(keys, values)
            if i in read:
                attended = layer.residual(x, layer.self_norm, layer.self_attention, 1, mask, cache)
                inputs = layer.cross_norm(attended) if layer.norm_first else attended
                queries = split_heads(layer.cross_attention.q(inputs), 1, keys.shape[1])
                scores[i] = (queries * scale) @ keys.swapaxes(-1, -2)  # (1, H, L, S)
            x = layer(x, 1, mask, source_mask, cache)
        return mx.stack([scores[layer][0, head] for layer, head in heads]), x

    def inputs(self, embedded: mx.array, table: mx.array, positions: mx.array) -> mx.array:
        """Embeddings (B, L, d) -> the input of the first layer, (B * L, d).

        Args:
            table: `self.positions.table(capacity)`.
            positions: (B, L) or (1, L), all below the capacity.
        """
        x = embedded + mx.take(table, positions, axis=0).astype(embedded.dtype)
        x = x.reshape(-1, x.shape[-1])
        return self.embedding_norm(x) if "embedding_norm" in self else x

    def outputs(self, x: mx.array) -> mx.array:
        """Apply the final norm, which some families lack, to the last layer's output."""
        return self.norm(x) if "norm" in self else x


class BART(EncoderDecoder):
    config: BartConfig

    def __init__(self, config: BartConfig, ranks: int = 1) -> None:
        super().__init__()
        self.config = config
        self.max_source_tokens = config.max_position_embeddings
        self.replaces_unknowns = isinstance(config, OpenNmtConfig) and config.replace_unknowns
        if config.family.learned_positions:
            self.max_positions = config.max_position_embeddings
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        encoder = config.encoder.shard(ranks)
        decoder = config.decoder.shard(ranks)
        self.encoder = self._stack([Layer(encoder, config.norm) for _ in range(config.encoder_layers)])
        self.decoder = self._stack(
            [Layer(decoder, config.norm, has_cross_attention=True) for _ in range(config.decoder_layers)]
        )
        if config.has_source_embedding:
            self.source_embedding = nn.Embedding(config.vocab_size, config.d_model)
        if not config.tie_word_embeddings:
            self.head = Linear(config.d_model, config.vocab_size, bias=False)
        if config.has_logits_bias:
            self.logits_bias = mx.zeros((1, config.vocab_size))

    def _stack(self, layers: Sequence[nn.Module]) -> Stack:
        config = self.config
        family = config.family
        positions: nn.Module
        if family.learned_positions:
            positions = LearnedPositions(config.max_position_embeddings, config.d_model, LEARNED_OFFSET)
        else:
            positions = SinusoidalPositions(
                config.d_model, config.first_position, includes_longest=family.fairseq_sinusoids
            )
        return Stack(config.norm, layers, positions, norm_first=family.norm_first, embedding_norm=family.embedding_norm)

    def encode(self, tokens: mx.array, mask: mx.array | None = None) -> mx.array:
        embedded = self.embed(tokens)
        if self.config.has_source_embedding:
            embedded = self.source_embedding(tokens) * self.config.embedding_scale
        return self.encoder.encode(embedded, mask)

    def aligned_position(
        self,
        tokens: Sequence[int],
        projections: Sequence[tuple[mx.array, mx.array]],
        positions: Sequence[int],
    ) -> int:
        """Return the source position with the highest attention weight for the next token.

        Averages the weights of the first `alignment_heads` heads of a layer, as CTranslate2 does.
        """
        config = self.config
        assert isinstance(config, OpenNmtConfig)
        layer = config.alignment_layer % config.decoder_layers
        heads = [(layer, head) for head in range(config.alignment_heads or config.decoder_attention_heads)]
        embedded, table = self.embed(mx.array([[*tokens]])), self.position_table(len(tokens))
        scores, _ = self.decoder.cross_attention_scores(embedded, table, projections, heads, config.decoder.scale)
        weights = mx.softmax(scores[:, -1].astype(mx.float32), axis=-1).mean(axis=0)
        return positions[int(np.argmax(np.array(weights)[[*positions]]))]

    def position_table(self, capacity: int) -> mx.array:
        return self.decoder.positions.table(capacity)

    def decoder_hidden(
        self,
        tokens: mx.array,
        positions: mx.array,
        position_table: mx.array,
        source_mask: mx.array,
        layers: Sequence[CrossAttentionCache],
    ) -> list[mx.array]:
        return self.decoder.decode(self.embed(tokens), positions, position_table, source_mask, layers)

    def final_states(self, hidden: mx.array) -> mx.array:
        return self.decoder.outputs(hidden)

    def embed(self, tokens: mx.array) -> mx.array:
        scale = self.config.embedding_scale
        return self.embedding(tokens) if scale == 1 else self.embedding(tokens) * scale

    @classmethod
    def parameter_sources(cls, config: BartConfig, names: Set[str]) -> Sources:
        prefix = prefix_of(names)
        family = config.family
        tables = token_tables(names)
        sources: Sources = {"embedding.weight": (tables.embedding,)}
        if config.has_source_embedding and tables.source is not None:
            sources["source_embedding.weight"] = (tables.source,)
        if not config.tie_word_embeddings:
            sources["head.weight"] = (HEAD,)
        if config.has_logits_bias:
            sources["logits_bias"] = (LOGITS_BIAS,)
        norms = {"embedding_norm": ["layernorm_embedding"]} if family.embedding_norm else {}
        norms |= {"norm": ["layer_norm"]} if family.norm_first else {}
        stacks = (
            ("encoder", config.encoder_layers, ENCODER_LAYER),
            ("decoder", config.decoder_layers, DECODER_LAYER),
        )
        gated = {"ff.wi": ["fc1", "fc1_linear"]} if config.is_gated else {}
        for stack, depth, layer in stacks:
            ours = f"{stack}."
            theirs = f"{prefix}{stack}."
            sources |= named(norms, ours, theirs, ("weight", "bias"))
            for i in range(depth):
                sources |= named(layer | gated, f"{ours}layers.{i}.", f"{theirs}layers.{i}.", ("weight", "bias"))
            if family.learned_positions:
                sources |= named({"positions": ["embed_positions"]}, ours, theirs)
        if config.has_rms_norms:
            sources = {path: tensors for path, tensors in sources.items() if not path.endswith("norm.bias")}
        return sources


ENCODER_LAYER = {
    "self_attention.qkv": [f"self_attn.{part}_proj" for part in "qkv"],
    "self_attention.o": ["self_attn.out_proj"],
    "self_norm": ["self_attn_layer_norm"],
    "ff.wi": ["fc1"],
    "ff.wo": ["fc2"],
    "ff_norm": ["final_layer_norm"],
}
DECODER_LAYER = ENCODER_LAYER | {
    "cross_attention.q": ["encoder_attn.q_proj"],
    "cross_attention.kv": [f"encoder_attn.{part}_proj" for part in "kv"],
    "cross_attention.o": ["encoder_attn.out_proj"],
    "cross_norm": ["encoder_attn_layer_norm"],
}


def prefix_of(names: Set[str]) -> str:
    """Return the prefix of all tensor names, which is empty in files without a head, such as facebook/bart-base."""
    return "" if "decoder.layers.0.fc1.weight" in names else "model."


def token_tables(names: Set[str]) -> TokenTables:
    """Return the names of the tables in a checkpoint with these tensor names."""
    prefix = prefix_of(names)
    shared, source, decoder = (
        f"{prefix}{name}.weight" for name in ("shared", "encoder.embed_tokens", "decoder.embed_tokens")
    )
    return TokenTables(decoder, HEAD, source, shared, stand_ins=(HEAD, decoder, source))


def adapted(raw: RawConfig, checkpoint: Checkpoint) -> tuple[RawConfig, Checkpoint]:
    """Return config.json, and a checkpoint that stores each table once, under its name in `parameter_sources`."""
    is_tied = raw.get("tie_word_embeddings") is not False
    return raw, token_tables(checkpoint.keys()).without_duplicates(checkpoint, is_tied=is_tied)


def fits_float16(raw: RawConfig) -> bool:
    """Return whether norms follow blocks, as in BART and Marian. Such norms keep the residual stream bounded."""
    norm_first = FAMILIES[raw["model_type"]].norm_first
    return not (raw.get("normalize_before", norm_first) if raw["model_type"] == OPENNMT else norm_first)


ARCHITECTURE = Architecture(BART, read_config, adapted, token_tables, fits_float16)
