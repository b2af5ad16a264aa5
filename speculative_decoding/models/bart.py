"""BART and its relatives: mBART, Pegasus, M2M-100 and NLLB-200, Marian.

The Transformer of Vaswani et al. 2017 (arXiv 1706.03762): scaled attention, biases everywhere, a vector for each
position added to the embedding. Families differ in where the layer norms stand (behind blocks, as there and in Lewis
et al. 2020, BART, 1910.13461; or in front of them) and in what the positions are; the config says which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from functools import partial

import mlx.core as mx
import mlx.nn as nn

from .absolute_positions import LearnedPositions, SinusoidalPositions, causal
from .attention import attend, split_heads
from .bart_config import LEARNED_OFFSET, BartConfig
from .bart_tensors import parameter_sources
from .base import EncoderDecoder
from .cache import LayerMemory, additive
from .config import ACTIVATIONS
from .last_layer import LastLayer
from .linear import Linear, matrix

LinearWithBias = partial(Linear, bias=True)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, head_width: int) -> None:
        super().__init__()
        self.heads, self.inner, self.scale = heads, heads * head_width, head_width**-0.5
        self.o = LinearWithBias(self.inner, width)


class SelfAttention(Attention):
    def __init__(self, width: int, heads: int, head_width: int) -> None:
        super().__init__(width, heads, head_width)
        self.qkv = LinearWithBias(width, 3 * self.inner)

    def __call__(self, x: mx.array, batch: int, mask: mx.array, memory: LayerMemory | None = None) -> mx.array:
        queries, keys, values = split_heads(self.qkv(x), batch, 3, self.heads)
        if memory is not None:
            keys, values = memory.append(keys, values)
        return self.o(attend(queries, keys, values, mask, scale=self.scale))


class CrossAttention(Attention):
    def __init__(self, width: int, heads: int, head_width: int) -> None:
        super().__init__(width, heads, head_width)
        self.q, self.kv = LinearWithBias(width, self.inner), LinearWithBias(width, 2 * self.inner)

    def project(self, memory: mx.array) -> tuple[mx.array, mx.array]:
        keys, values = split_heads(self.kv(memory.flatten(0, 1)), memory.shape[0], 2, self.heads)
        return keys, values

    def __call__(self, x: mx.array, memory_mask: mx.array, memory: LayerMemory) -> mx.array:
        (queries,) = split_heads(self.q(x), memory.prompts, 1, self.heads)
        return self.o(attend(queries, memory.cross_keys, memory.cross_values, memory_mask, scale=self.scale))


class FeedForward(nn.Module):
    def __init__(self, width: int, units: int, activation: str) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.wi, self.wo = LinearWithBias(width, units), LinearWithBias(units, width)

    def __call__(self, x: mx.array) -> mx.array:
        return self.wo(self.activation(self.wi(x)))


class Layer(nn.Module):
    def __init__(self, config: BartConfig, heads: int, head_width: int, units: int) -> None:
        super().__init__()
        width = config.d_model
        self.norm_first = config.family.norm_first
        self.self_norm, self.self_attention = nn.LayerNorm(width), SelfAttention(width, heads, head_width)
        self.ff_norm, self.ff = nn.LayerNorm(width), FeedForward(width, units, config.activation_name)

    def add(self, x: mx.array, norm: nn.LayerNorm, block: Callable[[mx.array], mx.array]) -> mx.array:
        return x + block(norm(x)) if self.norm_first else norm(x + block(x))


class EncoderLayer(Layer):
    def __call__(self, x: mx.array, batch: int, mask: mx.array) -> mx.array:
        x = self.add(x, self.self_norm, lambda x: self.self_attention(x, batch, mask))
        return self.add(x, self.ff_norm, self.ff)


class DecoderLayer(Layer):
    def __init__(self, config: BartConfig, heads: int, head_width: int, units: int) -> None:
        super().__init__(config, heads, head_width, units)
        width = config.d_model
        self.cross_norm, self.cross_attention = nn.LayerNorm(width), CrossAttention(width, heads, head_width)

    def __call__(self, x: mx.array, batch: int, mask: mx.array, memory_mask: mx.array, memory: LayerMemory) -> mx.array:
        x = self.add(x, self.self_norm, lambda x: self.self_attention(x, batch, mask, memory))
        x = self.add(x, self.cross_norm, lambda x: self.cross_attention(x, memory_mask, memory))
        return self.add(x, self.ff_norm, self.ff)


class Stack(nn.Module):
    """What encoder and decoder have in common: positions, layers, and norms where the family has them."""

    def __init__(self, config: BartConfig, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers, family = layers, config.family
        if family.embedding_norm:
            self.embedding_norm = nn.LayerNorm(config.d_model)
        if family.norm_first:
            self.norm = nn.LayerNorm(config.d_model)
        if family.learned_positions:
            self.positions = LearnedPositions(config.max_position_embeddings, config.d_model, LEARNED_OFFSET)
        else:
            first = config.pad_token_id + 1 if family.spread else 0
            self.positions = SinusoidalPositions(config.d_model, first, spread=family.spread)

    def enter(self, embedded: mx.array, places: mx.array, capacity: int) -> mx.array:
        """(B, L, d) -> (B * L, d), with positions and norm. places: (B, L), or (1, L), all below `capacity`."""
        x = embedded + self.positions(places, capacity).astype(embedded.dtype)
        x = x.reshape(-1, x.shape[-1])
        return self.embedding_norm(x) if "embedding_norm" in self else x

    def leave(self, x: mx.array) -> mx.array:
        return self.norm(x) if "norm" in self else x


class BART(EncoderDecoder):
    config: BartConfig

    def __init__(self, config: BartConfig, processes: int = 1) -> None:
        super().__init__()
        self.config, own, width = config, config.share(processes), config.d_model
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        encoder = own.encoder_attention_heads, width // config.encoder_attention_heads, own.encoder_ffn_dim
        decoder = own.decoder_attention_heads, width // config.decoder_attention_heads, own.decoder_ffn_dim
        self.encoder = Stack(config, [EncoderLayer(config, *encoder) for _ in range(config.encoder_layers)])
        self.decoder = Stack(config, [DecoderLayer(config, *decoder) for _ in range(config.decoder_layers)])
        if not config.tie_word_embeddings:
            self.head = Linear(config.d_model, config.vocab_size)
        if config.has_logits_bias:
            self.logits_bias = mx.zeros((1, config.vocab_size))

    @property
    def most_positions(self) -> int | None:
        return self.config.max_position_embeddings if self.config.family.learned_positions else None

    def encoder_states(self, tokens: mx.array, mask: mx.array | None) -> mx.array:
        batch, length = tokens.shape
        x = self.encoder.enter(self.embed(tokens), mx.arange(length)[None], length)
        hidden = additive(mx.ones((1, length), mx.bool_) if mask is None else mask, x.dtype)
        for layer in self.encoder.layers:
            x = layer(x, batch, hidden)
        return self.encoder.leave(x).reshape(batch, length, -1)

    def decoder_hidden(
        self, tokens: mx.array, offsets: mx.array, memory_mask: mx.array, layers: Sequence[LayerMemory]
    ) -> list[mx.array]:
        batch, length = tokens.shape
        capacity, places = layers[0].reach(length), offsets[:, None] + mx.arange(length)
        x = self.decoder.enter(self.embed(tokens), places, capacity)
        mask = causal(places, capacity, x.dtype)
        hidden = []
        for layer, memory in zip(self.decoder.layers, layers, strict=True):
            x = layer(x, batch, mask, memory_mask, memory)
            hidden.append(x)
        return [x.reshape(*tokens.shape, -1) for x in hidden]

    def final_states(self, hidden: mx.array) -> mx.array:
        return self.decoder.leave(hidden)

    def embed(self, tokens: mx.array) -> mx.array:
        scale = self.config.embedding_scale
        return self.embedding(tokens) if scale == 1 else self.embedding(tokens) * scale

    def last_layer(self) -> LastLayer:
        layer = self.decoder.layers[-1]
        cross, norms = layer.cross_attention, [layer.self_norm, layer.cross_norm, layer.ff_norm]
        if layer.norm_first:
            norms = [*norms[1:], self.decoder.norm]
        return LastLayer(
            norms[0].weight,
            matrix(cross.q) * cross.scale,
            matrix(cross.o),
            norms[1].weight,
            [matrix(layer.ff.wi)],
            matrix(layer.ff.wo),
            norms[2].weight,
            self.config.activation_name,
            1.0,
        )

    @classmethod
    def parameter_sources(cls, config: BartConfig, names: Set[str]) -> dict[str, tuple[str, ...]]:
        return parameter_sources(config, names)
