"""T5 and its relatives: v1.0, v1.1, FLAN, mT5, umT5, ByT5, MADLAD, CodeT5, Pile-T5.

Raffel et al. 2020 (arXiv 1910.10683), section 2.1. Attention is not scaled, positions enter as a bias that is
learned per distance bucket, and layer norms have no mean and no bias. Families differ in the feed-forward
layer, in whether the head is its own table, and in where the position biases live; the config says which.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from functools import partial

import mlx.core as mx
import mlx.nn as nn

from .attention import attend, split_heads
from .base import EncoderDecoder
from .cache import LayerMemory, additive
from .config import ACTIVATIONS
from .last_layer import LastLayer
from .linear import Linear, matrix
from .positions import RelativePositionBias
from .t5_config import T5Config
from .t5_tensors import parameter_sources


class SelfAttention(nn.Module):
    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.heads = config.num_heads
        self.qkv = Linear(config.d_model, 3 * config.inner_width)
        self.o = Linear(config.inner_width, config.d_model)

    def __call__(self, x: mx.array, batch: int, bias: mx.array, memory: LayerMemory | None = None) -> mx.array:
        queries, keys, values = split_heads(self.qkv(x), batch, 3, self.heads)
        if memory is not None:
            keys, values = memory.append(keys, values)
        return self.o(attend(queries, keys, values, bias))


class CrossAttention(nn.Module):
    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.heads = config.num_heads
        self.q = Linear(config.d_model, config.inner_width)
        self.kv = Linear(config.d_model, 2 * config.inner_width)
        self.o = Linear(config.inner_width, config.d_model)

    def project(self, memory: mx.array) -> tuple[mx.array, mx.array]:
        keys, values = split_heads(self.kv(memory.flatten(0, 1)), memory.shape[0], 2, self.heads)
        return keys, values

    def __call__(self, x: mx.array, memory_mask: mx.array, memory: LayerMemory) -> mx.array:
        (queries,) = split_heads(self.q(x), memory.prompts, 1, self.heads)
        return self.o(attend(queries, memory.cross_keys, memory.cross_values, memory_mask))


class FeedForward(nn.Module):
    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.is_gated = config.is_gated
        self.activation = ACTIVATIONS[config.activation_name]
        self.wi = Linear(config.d_model, config.d_ff * (2 if config.is_gated else 1))
        self.wo = Linear(config.d_ff, config.d_model)

    def __call__(self, x: mx.array) -> mx.array:
        x = self.wi(x)
        if self.is_gated:
            gate, x = mx.split(x, 2, axis=-1)
            return self.wo(self.activation(gate) * x)
        return self.wo(self.activation(x))


class EncoderLayer(nn.Module):
    def __init__(self, config: T5Config) -> None:
        super().__init__()
        norm = partial(nn.RMSNorm, config.d_model, eps=config.layer_norm_epsilon)
        self.self_norm, self.self_attention = norm(), SelfAttention(config)
        self.ff_norm, self.ff = norm(), FeedForward(config)

    def __call__(self, x: mx.array, batch: int, bias: mx.array) -> mx.array:
        x = x + self.self_attention(self.self_norm(x), batch, bias)
        return x + self.ff(self.ff_norm(x))


class DecoderLayer(nn.Module):
    def __init__(self, config: T5Config) -> None:
        super().__init__()
        norm = partial(nn.RMSNorm, config.d_model, eps=config.layer_norm_epsilon)
        self.self_norm, self.self_attention = norm(), SelfAttention(config)
        self.cross_norm, self.cross_attention = norm(), CrossAttention(config)
        self.ff_norm, self.ff = norm(), FeedForward(config)

    def __call__(self, x: mx.array, batch: int, bias: mx.array, memory_mask: mx.array, memory: LayerMemory) -> mx.array:
        x = x + self.self_attention(self.self_norm(x), batch, bias, memory)
        x = x + self.cross_attention(self.cross_norm(x), memory_mask, memory)
        return x + self.ff(self.ff_norm(x))


class Stack(nn.Module):
    """What encoder and decoder have in common: layers, position biases, and a norm at the end."""

    def __init__(self, config: T5Config, layers: list[nn.Module], *, causal: bool) -> None:
        super().__init__()
        self.layers = layers
        self.norm = nn.RMSNorm(config.d_model, eps=config.layer_norm_epsilon)
        self.position_biases = RelativePositionBias(
            len(layers) if config.bias_per_layer else 1,
            config.relative_attention_num_buckets,
            config.num_heads,
            config.relative_attention_max_distance,
            causal=causal,
        )

    def biases(self, offsets: mx.array, length: int, capacity: int) -> list[mx.array]:
        """The additive mask of each layer's self-attention; where they share one, it comes for each too."""
        biases = self.position_biases(offsets, length, capacity)
        return biases if len(biases) == len(self.layers) else biases * len(self.layers)


class T5(EncoderDecoder):
    config: T5Config

    def __init__(self, config: T5Config, processes: int = 1) -> None:
        super().__init__()
        self.config, own = config, config.share(processes)
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.encoder = Stack(own, [EncoderLayer(own) for _ in range(config.num_layers)], causal=False)
        self.decoder = Stack(own, [DecoderLayer(own) for _ in range(config.decoder_layers)], causal=True)
        if not config.tie_word_embeddings:
            self.head = Linear(config.d_model, config.vocab_size)

    def encoder_states(self, tokens: mx.array, mask: mx.array | None) -> mx.array:
        batch, length = tokens.shape
        x = self.embedding(tokens.flatten())
        hidden = None if mask is None else additive(mask, x.dtype)
        biases = self.encoder.biases(mx.array([0]), length, length)
        for layer, bias in zip(self.encoder.layers, biases, strict=True):
            x = layer(x, batch, bias if hidden is None else bias + hidden)
        return self.encoder.norm(x).reshape(batch, length, -1)

    def decoder_hidden(
        self, tokens: mx.array, offsets: mx.array, memory_mask: mx.array, layers: Sequence[LayerMemory]
    ) -> list[mx.array]:
        batch, length = tokens.shape
        x = self.embedding(tokens.flatten())
        biases = self.decoder.biases(offsets, length, layers[0].reach(length))
        hidden = []
        for layer, bias, memory in zip(self.decoder.layers, biases, layers, strict=True):
            x = layer(x, batch, bias, memory_mask, memory)
            hidden.append(x)
        return [x.reshape(*tokens.shape, -1) for x in hidden]

    def final_states(self, hidden: mx.array) -> mx.array:
        return self.decoder.norm(hidden) * self.logit_scale if self.logit_scale != 1 else self.decoder.norm(hidden)

    @property
    def logit_scale(self) -> float:
        return self.config.d_model**-0.5 if self.config.head_is_scaled else 1.0

    def embed(self, tokens: mx.array) -> mx.array:
        return self.embedding(tokens)

    def last_layer(self) -> LastLayer:
        layer = self.decoder.layers[-1]
        cross, ff = layer.cross_attention, layer.ff
        wi = [*mx.split(matrix(ff.wi), 2)] if ff.is_gated else [matrix(ff.wi)]
        return LastLayer(
            layer.cross_norm.weight,
            matrix(cross.q),
            matrix(cross.o),
            layer.ff_norm.weight,
            wi,
            matrix(ff.wo),
            self.decoder.norm.weight,
            self.config.activation_name,
            self.logit_scale,
        )

    @classmethod
    def parameter_sources(cls, config: T5Config, names: Set[str]) -> dict[str, tuple[str, ...]]:
        return parameter_sources(config, names)
