"""BART and its relatives: mBART, Pegasus, M2M-100 and NLLB-200, Marian.

The Transformer of Vaswani et al. 2017 (arXiv 1706.03762): scaled attention, biases everywhere, a vector for each
position added to the embedding. Families differ in where the layer norms stand (behind blocks, as there and in Lewis
et al. 2020, BART, 1910.13461; or in front of them) and in what the positions are; the config says which.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from functools import partial

import mlx.core as mx
import mlx.nn as nn

from .absolute_positions import LearnedPositions, SinusoidalPositions, causal_mask
from .bart_config import LEARNED_OFFSET, LOGITS_BIAS, BartConfig, prefix_of
from .base import EncoderDecoder
from .cache import CrossAttentionCache, additive
from .last_layer import LastLayer
from .layers import Layer, last_layer
from .linear import Linear
from .tensors import HEAD, Sources, embedding_table, named

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


class Stack(nn.Module):
    """What encoder and decoder have in common: positions, layers, and norms where the family has them."""

    def __init__(self, config: BartConfig, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers, family = list(layers), config.family
        if family.embedding_norm:
            self.embedding_norm = nn.LayerNorm(config.d_model)
        if family.norm_first:
            self.norm = nn.LayerNorm(config.d_model)
        if family.learned_positions:
            self.positions = LearnedPositions(config.max_position_embeddings, config.d_model, LEARNED_OFFSET)
        else:
            first = config.pad_token_id + 1 if family.fairseq_sinusoids else 0
            self.positions = SinusoidalPositions(config.d_model, first, includes_longest=family.fairseq_sinusoids)

    def enter(self, embedded: mx.array, table: mx.array, positions: mx.array) -> mx.array:
        """Add position vectors and apply the norm, if any: (B, L, d) -> (B * L, d).

        Args:
            table: `self.positions.table(capacity)`.
            positions: (B, L) or (1, L), all below the capacity.
        """
        x = embedded + mx.take(table, positions, axis=0).astype(embedded.dtype)
        x = x.reshape(-1, x.shape[-1])
        return self.embedding_norm(x) if "embedding_norm" in self else x

    def leave(self, x: mx.array) -> mx.array:
        return self.norm(x) if "norm" in self else x


class BART(EncoderDecoder):
    config: BartConfig

    def __init__(self, config: BartConfig, processes: int = 1) -> None:
        super().__init__()
        self.config, norm = config, partial(nn.LayerNorm, config.d_model)
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        encoder, decoder = (stack.share(processes) for stack in (config.encoder, config.decoder))
        self.encoder = Stack(config, [Layer(encoder, norm) for _ in range(config.encoder_layers)])
        self.decoder = Stack(
            config, [Layer(decoder, norm, has_cross_attention=True) for _ in range(config.decoder_layers)]
        )
        if not config.tie_word_embeddings:
            self.head = Linear(config.d_model, config.vocab_size)
        if config.has_logits_bias:
            self.logits_bias = mx.zeros((1, config.vocab_size))

    @property
    def most_positions(self) -> int | None:
        return self.config.max_position_embeddings if self.config.family.learned_positions else None

    def encoder_states(self, tokens: mx.array, mask: mx.array | None) -> mx.array:
        batch, length = tokens.shape
        table = self.encoder.positions.table(length)
        x = self.encoder.enter(self.embed(tokens), table, mx.arange(length)[None])
        hidden = additive(mx.ones((1, length), mx.bool_) if mask is None else mask, x.dtype)
        for layer in self.encoder.layers:
            x = layer(x, batch, hidden)
        return self.encoder.leave(x).reshape(batch, length, -1)

    def position_table(self, capacity: int) -> mx.array:
        return self.decoder.positions.table(capacity)

    def decoder_hidden(
        self,
        tokens: mx.array,
        offsets: mx.array,
        position_table: mx.array,
        source_mask: mx.array,
        layers: Sequence[CrossAttentionCache],
    ) -> list[mx.array]:
        batch, length = tokens.shape
        positions = offsets[:, None] + mx.arange(length)
        x = self.decoder.enter(self.embed(tokens), position_table, positions)
        mask = causal_mask(positions, layers[0].reach(length), x.dtype)
        hidden = []
        for layer, cache in zip(self.decoder.layers, layers, strict=True):
            x = layer(x, batch, mask, source_mask, cache)
            hidden.append(x)
        return [x.reshape(*tokens.shape, -1) for x in hidden]

    def final_states(self, hidden: mx.array) -> mx.array:
        return self.decoder.leave(hidden)

    def embed(self, tokens: mx.array) -> mx.array:
        scale = self.config.embedding_scale
        return self.embedding(tokens) if scale == 1 else self.embedding(tokens) * scale

    def last_layer(self) -> LastLayer:
        return last_layer(self.decoder.layers[-1], self.config.decoder, self.decoder.get("norm"), 1.0)

    @classmethod
    def parameter_sources(cls, config: BartConfig, names: Set[str]) -> Sources:
        prefix, family = prefix_of(names), config.family
        sources: Sources = {"embedding.weight": (embedding_table(names, prefix),)}
        if not config.tie_word_embeddings:
            sources["head.weight"] = (HEAD,)
        if config.has_logits_bias:
            sources["logits_bias"] = (LOGITS_BIAS,)
        norms = {"embedding_norm": ["layernorm_embedding"]} if family.embedding_norm else {}
        norms |= {"norm": ["layer_norm"]} if family.norm_first else {}
        stacks = ("encoder", config.encoder_layers, ENCODER_LAYER), ("decoder", config.decoder_layers, DECODER_LAYER)
        for stack, depth, layer in stacks:
            ours, theirs, both = f"{stack}.", f"{prefix}{stack}.", ("weight", "bias")
            sources |= named(norms, ours, theirs, both)
            for i in range(depth):
                sources |= named(layer, f"{ours}layers.{i}.", f"{theirs}layers.{i}.", both)
            if family.learned_positions:
                sources |= named({"positions": ["embed_positions"]}, ours, theirs)
        return sources
