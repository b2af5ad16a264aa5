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

from .base import EncoderDecoder
from .cache import CrossAttentionCache, additive
from .last_layer import LastLayer
from .layers import Layer, last_layer
from .linear import Linear
from .relative_positions import RelativePositionBias
from .t5_config import T5Config
from .tensors import HEAD, Sources, embedding_table, named


class Stack(nn.Module):
    """What encoder and decoder have in common: layers, position biases, and a norm at the end."""

    def __init__(self, config: T5Config, layers: Sequence[Layer], *, causal: bool) -> None:
        super().__init__()
        self.layers = list(layers)
        self.norm = nn.RMSNorm(config.d_model, eps=config.layer_norm_epsilon)
        self.position_biases = RelativePositionBias(
            len(layers) if config.bias_per_layer else 1,
            config.relative_attention_num_buckets,
            layers[0].self_attention.config.num_heads,
            config.relative_attention_max_distance,
            causal=causal,
        )

    def biases(self, windows: mx.array, offsets: mx.array, length: int) -> list[mx.array]:
        """The additive mask of each layer's self-attention. Layers may share one."""
        biases = self.position_biases(windows, offsets, length)
        return biases if len(biases) == len(self.layers) else biases * len(self.layers)


class T5(EncoderDecoder):
    config: T5Config

    def __init__(self, config: T5Config, processes: int = 1) -> None:
        super().__init__()
        self.config, own = config, config.encoder.share(processes)
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        norm = partial(nn.RMSNorm, config.d_model, eps=config.layer_norm_epsilon)
        encoder = [Layer(own, norm) for _ in range(config.num_layers)]
        decoder = [Layer(own, norm, has_cross_attention=True) for _ in range(config.decoder_layers)]
        self.encoder, self.decoder = Stack(config, encoder, causal=False), Stack(config, decoder, causal=True)
        if not config.tie_word_embeddings:
            self.head = Linear(config.d_model, config.vocab_size)

    def encoder_states(self, tokens: mx.array, mask: mx.array | None) -> mx.array:
        batch, length = tokens.shape
        x = self.embedding(tokens.flatten())
        hidden = None if mask is None else additive(mask, x.dtype)
        windows = self.encoder.position_biases.windows(length)
        biases = self.encoder.biases(windows, mx.array([0]), length)
        for layer, bias in zip(self.encoder.layers, biases, strict=True):
            x = layer(x, batch, bias if hidden is None else bias + hidden)
        return self.encoder.norm(x).reshape(batch, length, -1)

    def position_table(self, capacity: int) -> mx.array:
        return self.decoder.position_biases.windows(capacity)

    def decoder_hidden(
        self,
        tokens: mx.array,
        offsets: mx.array,
        position_table: mx.array,
        source_mask: mx.array,
        layers: Sequence[CrossAttentionCache],
    ) -> list[mx.array]:
        batch, length = tokens.shape
        x = self.embedding(tokens.flatten())
        biases = self.decoder.biases(position_table, offsets, length)
        hidden = []
        for layer, bias, cache in zip(self.decoder.layers, biases, layers, strict=True):
            x = layer(x, batch, bias, source_mask, cache)
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
        return last_layer(self.decoder.layers[-1], self.config.decoder, self.decoder.norm, self.logit_scale)

    @classmethod
    def parameter_sources(cls, config: T5Config, names: Set[str]) -> Sources:
        sources: Sources = {"embedding.weight": (embedding_table(names),)}
        if not config.tie_word_embeddings:
            sources["head.weight"] = (HEAD,)
        for stack, depth in (("encoder", config.num_layers), ("decoder", config.decoder_layers)):
            biases = range(depth if config.bias_per_layer else 1)
            own = {
                "norm": ["final_layer_norm"],
                "position_biases": [f"block.{i}.layer.0.SelfAttention.relative_attention_bias" for i in biases],
            }
            sources |= named(own, f"{stack}.", f"{stack}.")
            for i in range(depth):
                layer = layer_names(config, has_cross_attention=stack == "decoder")
                sources |= named(layer, f"{stack}.layers.{i}.", f"{stack}.block.{i}.layer.")
        return sources


def layer_names(config: T5Config, *, has_cross_attention: bool) -> dict[str, list[str]]:
    """For `named`: of a layer."""
    names = {
        "self_norm": ["0.layer_norm"],
        "self_attention.qkv": [f"0.SelfAttention.{part}" for part in "qkv"],
        "self_attention.o": ["0.SelfAttention.o"],
    }
    if has_cross_attention:
        names |= {
            "cross_norm": ["1.layer_norm"],
            "cross_attention.q": ["1.EncDecAttention.q"],
            "cross_attention.kv": [f"1.EncDecAttention.{part}" for part in "kv"],
            "cross_attention.o": ["1.EncDecAttention.o"],
        }
    last = 2 if has_cross_attention else 1
    return names | {
        "ff_norm": [f"{last}.layer_norm"],
        "ff.wi": [f"{last}.DenseReluDense.{part}" for part in (("wi_0", "wi_1") if config.is_gated else ("wi",))],
        "ff.wo": [f"{last}.DenseReluDense.wo"],
    }
