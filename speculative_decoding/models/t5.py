"""T5: v1.0, v1.1, FLAN-T5, mT5, umT5, ByT5, MADLAD, CodeT5, Pile-T5.

Raffel et al. 2020 (arXiv 1910.10683), section 2.1. Attention scores are not scaled, positions are encoded as a learned
bias per distance bucket, and layer norms neither subtract the mean nor add a bias. Families differ in the feed-forward
block, in whether the head is tied to the embedding, and in whether layers share a position bias. The config determines
all three.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from typing import Annotated, Any

import mlx.core as mx
import mlx.nn as nn

from ..checkpoints import Checkpoint
from ..sampling.values import Bool, Int, Number, Text
from .architecture import Architecture
from .attention import repeat_for_heads
from .base import EncoderDecoder
from .cache import CrossAttentionCache, padding_mask
from .config import ACTIVATIONS, LayerConfig, RawConfig, checked_fields, require
from .layers import Layer, Linear, ScaledNorm
from .relative_positions import RelativePositionBias
from .tensors import HEAD, Sources, TokenTables, named

# Hugging Face's defaults for omitted config.json fields, where they differ from the defaults of `T5Config`.
SPECIAL_TOKENS: dict[str, Any] = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
FAMILY_DEFAULTS: Mapping[str, dict[str, Any]] = {
    "mt5": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "umt5": {"feed_forward_proj": "gated-gelu"},
}
SHARED = "shared.weight"
SOURCE = "encoder.embed_tokens.weight"
TABLES = TokenTables("decoder.embed_tokens.weight", HEAD, SOURCE, SHARED, (SOURCE, "decoder.embed_tokens.weight", HEAD))
FEED_FORWARDS = [prefix + name for prefix in ("", "gated-") for name in ACTIVATIONS]
MAX_DISTANCE = 1 << 24


@dataclass(frozen=True)
class T5Config:
    """The fields of config.json that the model reads, with their Hugging Face names and valid values.

    The upper limits exceed the sizes of every published T5. Tensor shapes are checked against these sizes before any
    tensor is read (`checked_sources`).
    """

    vocab_size: Annotated[int, Int(2, 1 << 24)]
    d_model: Annotated[int, Int(1, 1 << 18)]
    d_kv: Annotated[int, Int(1, 1 << 14)]
    d_ff: Annotated[int, Int(1, 1 << 22)]
    num_layers: Annotated[int, Int(1, 512)]
    num_heads: Annotated[int, Int(1, 1 << 12)]
    pad_token_id: int
    eos_token_ids: tuple[int, ...]
    decoder_start_token_id: int
    num_decoder_layers: Annotated[int | None, Int(1, 512)] = None
    relative_attention_num_buckets: Annotated[int, Int(4, 1 << 14)] = 32
    relative_attention_max_distance: Annotated[int, Int(2, MAX_DISTANCE)] = 128
    layer_norm_epsilon: Annotated[float, Number(1e-35, 1)] = 1e-6  # smaller values underflow to zero in float32
    feed_forward_proj: Annotated[str, Text(FEED_FORWARDS)] = "relu"
    tie_word_embeddings: Annotated[bool, Bool()] = True
    # Whether decoder outputs are multiplied by d_model^-0.5 before the head. Defaults to `tie_word_embeddings`.
    # transformers 5 writes this field and always sets `tie_word_embeddings` to true.
    scale_decoder_outputs: Annotated[bool | None, Bool()] = None
    # The factors by which the residual stream and attention values are scaled in folders rescaled for float16.
    residual_scale: Annotated[float, Number(1e-30, 1)] = 1.0
    value_scale: Annotated[float, Number(1e-30, 1)] = 1.0
    model_type: Annotated[str, Text()] = "t5"
    n_positions: Annotated[int | None, Int(1, (1 << 31) - 1)] = None
    has_source_embedding: bool = False  # whether sources and outputs have different embeddings

    @classmethod
    def from_dict(cls, raw: RawConfig, checkpoint: Checkpoint | None = None) -> T5Config:
        """Read a parsed config.json. Raises `CheckpointError` for a missing or invalid field; ignores unknown ones.

        checkpoint: A checkpoint returned by `adapted`. Its tensors determine which tables are tied.
        """
        defaults = SPECIAL_TOKENS | FAMILY_DEFAULTS.get(raw.get("model_type", ""), {})
        config = cls(**checked_fields(cls, raw, defaults))
        max_distance = Int(config.relative_attention_num_buckets // 2 + 1, MAX_DISTANCE)
        require("relative_attention_max_distance", max_distance, config.relative_attention_max_distance)
        is_scaled = config.tie_word_embeddings if config.scale_decoder_outputs is None else config.scale_decoder_outputs
        # transformers 5 never scales mT5's outputs.
        config = replace(config, scale_decoder_outputs=is_scaled and config.model_type != "mt5")
        if checkpoint is None:
            return config
        # transformers 5 saves `tie_word_embeddings` as true for every T5, but still uses a head that differs from the
        # embedding.
        return replace(config, tie_word_embeddings=HEAD not in checkpoint, has_source_embedding=SOURCE in checkpoint)

    @property
    def sharded_sizes(self) -> dict[str, int]:
        return {"num_heads": self.num_heads, "d_ff": self.d_ff}

    @property
    def decoder_layers(self) -> int:
        return self.num_layers if self.num_decoder_layers is None else self.num_decoder_layers

    @property
    def encoder(self) -> LayerConfig:
        activation = self.feed_forward_proj.removeprefix("gated-")
        if self.feed_forward_proj == "gated-gelu":  # Hugging Face uses the approximate GELU for this value
            activation = "gelu_new"
        return LayerConfig(
            d_model=self.d_model,
            d_ff=self.d_ff,
            num_heads=self.num_heads,
            num_kv_heads=self.num_heads,
            head_dim=self.d_kv,
            activation=activation,
            is_gated=self.feed_forward_proj.startswith("gated-"),
        )

    decoder = encoder

    @property
    def bias_per_layer(self) -> bool:
        """Whether each layer has its own position bias (umT5); otherwise, all layers share one."""
        return self.model_type == "umt5"


class T5(EncoderDecoder):
    config: T5Config

    def __init__(self, config: T5Config, ranks: int = 1) -> None:
        super().__init__()
        self.config = config
        self.residual_scale, self.value_scale = config.residual_scale, config.value_scale
        self.max_source_tokens = config.n_positions
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.encoder = self._stack(config.num_layers, ranks, is_decoder=False)
        self.decoder = self._stack(config.decoder_layers, ranks, is_decoder=True)
        if config.has_source_embedding:
            self.source_embedding = nn.Embedding(config.vocab_size, config.d_model)
        if not config.tie_word_embeddings:
            self.head = Linear(config.d_model, config.vocab_size, bias=False)

    def _stack(self, depth: int, ranks: int, *, is_decoder: bool) -> nn.Module:
        """Build the layers of the encoder or decoder, their position biases, and the final norm."""
        config = self.config
        sizes = config.encoder.shard(ranks)
        norm = partial(nn.RMSNorm, config.d_model, eps=config.layer_norm_epsilon)
        stack = nn.Module()
        stack.layers = [Layer(sizes, norm, has_cross_attention=is_decoder) for _ in range(depth)]
        stack.norm = norm()
        if is_decoder and config.scale_decoder_outputs:
            stack.norm = ScaledNorm(config.d_model, config.layer_norm_epsilon, config.d_model**-0.5)
        stack.position_biases = RelativePositionBias(
            depth if config.bias_per_layer else 1,
            config.relative_attention_num_buckets,
            sizes.num_heads,
            config.relative_attention_max_distance,
            causal=is_decoder,
        )
        return stack

    def inputs(self, tokens: mx.array, embedding: nn.Module) -> mx.array:
        """Token ids (B, L) -> the residual stream before the first layer, (B * L, d_model)."""
        x = embedding(tokens.flatten())
        return x if self.residual_scale == 1.0 else x * self.residual_scale

    def encode(self, tokens: mx.array, mask: mx.array | None = None) -> mx.array:
        batch, length = tokens.shape
        x = self.inputs(tokens, self.source_embedding if self.config.has_source_embedding else self.embedding)
        biases = self.encoder.position_biases
        masks = biases(biases.windows(length), biases.starts([0], length, length))
        if mask is not None:
            padding = padding_mask(mask, x.dtype)
            masks = [mask + padding for mask in masks]
        for layer, mask in zip(self.encoder.layers, cycle(masks), strict=False):
            x = layer(x, batch, mask)
        return self.encoder.norm(x).reshape(batch, length, -1)

    def position_table(self, capacity: int) -> mx.array:
        return self.decoder.position_biases.windows(capacity)

    def positions(self, offsets: Sequence[int], length: int, capacity: int) -> mx.array:
        """Return the windows of the positions, (B, tables * H, L); see `RelativePositionBias`."""
        return self.decoder.position_biases.starts(offsets, length, capacity)

    def decoder_hidden(
        self,
        tokens: mx.array,
        positions: mx.array,
        position_table: mx.array,
        source_mask: mx.array,
        layers: Sequence[CrossAttentionCache],
    ) -> list[mx.array]:
        batch = len(tokens)
        x = self.inputs(tokens, self.embedding)
        masks = self.decoder.position_biases(position_table, positions)
        source_mask = repeat_for_heads(source_mask, layers[0].cross_keys.shape[1])
        hidden = []
        for layer, mask, cache in zip(self.decoder.layers, cycle(masks), layers, strict=False):
            x = layer(x, batch, mask, source_mask, cache)
            hidden.append(x)
        return [x.reshape(*tokens.shape, -1) for x in hidden]

    def final_states(self, hidden: mx.array) -> mx.array:
        return self.decoder.norm(hidden)

    @classmethod
    def parameter_sources(cls, config: T5Config, names: Set[str]) -> Sources:
        sources: Sources = {"embedding.weight": (SHARED,)}
        if config.has_source_embedding:
            sources["source_embedding.weight"] = (SOURCE,)
        if not config.tie_word_embeddings:
            sources["head.weight"] = (HEAD,)
        for stack, depth in (("encoder", config.num_layers), ("decoder", config.decoder_layers)):
            bias_layers = range(depth if config.bias_per_layer else 1)
            stack_names = {
                "norm": ["final_layer_norm"],
                "position_biases": [f"block.{i}.layer.0.SelfAttention.relative_attention_bias" for i in bias_layers],
            }
            sources |= named(stack_names, f"{stack}.", f"{stack}.")
            names_of_layer = layer_names(config, has_cross_attention=stack == "decoder")
            for i in range(depth):
                sources |= named(names_of_layer, f"{stack}.layers.{i}.", f"{stack}.block.{i}.layer.")
        return sources


def layer_names(config: T5Config, *, has_cross_attention: bool) -> dict[str, list[str]]:
    """Map a layer's parameters to their tensors, as a table for `named`."""
    names = {
        "self_norm": ["0.layer_norm"],
        "self_attention.qkv": ["0.SelfAttention.q", "0.SelfAttention.k", "0.SelfAttention.v"],
        "self_attention.o": ["0.SelfAttention.o"],
    }
    if has_cross_attention:
        names |= {
            "cross_norm": ["1.layer_norm"],
            "cross_attention.q": ["1.EncDecAttention.q"],
            "cross_attention.kv": ["1.EncDecAttention.k", "1.EncDecAttention.v"],
            "cross_attention.o": ["1.EncDecAttention.o"],
        }
    last = 2 if has_cross_attention else 1
    inputs = ("wi_0", "wi_1") if config.encoder.is_gated else ("wi",)
    return names | {
        "ff_norm": [f"{last}.layer_norm"],
        "ff.wi": [f"{last}.DenseReluDense.{name}" for name in inputs],
        "ff.wo": [f"{last}.DenseReluDense.wo"],
    }


def adapted(raw: RawConfig, checkpoint: Checkpoint) -> tuple[RawConfig, Checkpoint]:
    """Return config.json, and a checkpoint that stores each table once, under its name in `parameter_sources`."""
    has_head = HEAD in checkpoint and raw.get("tie_word_embeddings") is False  # no need to compare it with `shared`
    return raw, TABLES.without_duplicates(checkpoint, has_own_head=has_head)


ARCHITECTURE = Architecture(T5, T5Config.from_dict, adapted, lambda _: TABLES)
