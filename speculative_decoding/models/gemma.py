"""Layers that T5Gemma and T5Gemma 2 share with Gemma 2 (Riviere et al. 2024, 2408.00118, section 2).

The layers have norms before and after each block, rotary positions, grouped queries, sliding windows, and soft caps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import mlx.core as mx
import mlx.nn as nn

from .attention import attend, split_heads, split_parts
from .base import EncoderDecoder
from .cache import CrossAttentionCache
from .compiled import stacked
from .gemma_config import GemmaConfig, LayerType, StackConfig
from .layers import DerivedWeight, FeedForward, Linear
from .rope import Window, additive_mask
from .tensors import Sources, named

Masks = Mapping[Window, mx.array]


class Norm(DerivedWeight):
    """RMS norm (Zhang and Sennrich 2019, arXiv 1910.07467) that scales by 1 + weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = mx.zeros((width,))
        self.eps = eps

    def __call__(self, x: mx.array) -> mx.array:
        return mx.fast.rms_norm(x, self.derived, self.eps)

    def derive(self) -> mx.array:
        """Return the scale."""
        return 1 + self.weight


class SelfAttention(nn.Module):
    """Self-attention with grouped queries and rotary positions.

    norm_heads: whether to normalize the queries and keys of each head (Henry et al. 2020, 2010.04245).
    """

    def __init__(self, config: StackConfig, layer_type: LayerType, *, norm_heads: bool) -> None:
        super().__init__()
        self.config = config
        self.layer_type = layer_type
        self.norm_heads = norm_heads
        query_width = config.num_heads * config.head_dim
        self.q = Linear(config.d_model, query_width, bias=False)
        self.kv = Linear(config.d_model, 2 * config.num_kv_heads * config.head_dim, bias=False)
        self.o = Linear(query_width, config.d_model, bias=False)
        if norm_heads:
            self.q_norm = Norm(config.head_dim, config.norm_eps)
            self.k_norm = Norm(config.head_dim, config.norm_eps)

    def queries(self, x: mx.array, batch: int, offsets: mx.array) -> mx.array:
        queries = split_heads(self.q(x), batch, self.config.num_heads)
        return self.layer_type.rope(self.q_norm(queries) if self.norm_heads else queries, offsets)

    def keys_and_values(self, x: mx.array, batch: int) -> tuple[mx.array, mx.array]:
        """Return the keys before rotation, and the values."""
        keys, values = split_parts(self.kv(x), batch, 2, self.config.num_kv_heads)
        return (self.k_norm(keys) if self.norm_heads else keys), values

    def __call__(
        self, x: mx.array, batch: int, offsets: mx.array, masks: Masks, cache: CrossAttentionCache | None = None
    ) -> mx.array:
        queries = self.queries(x, batch, offsets)
        keys, values = self.keys_and_values(x, batch)
        keys = self.layer_type.rope(keys, offsets)
        if cache is not None:
            keys, values = cache.append(stacked([keys, values], axis=0))
        mask = masks[self.layer_type.window]
        scale = self.config.scale
        return self.o(attend(queries, keys, values, mask, scale=scale, soft_cap=self.config.attention_cap))


class EncoderLayer(nn.Module):
    def __init__(self, config: StackConfig, attention: SelfAttention) -> None:
        super().__init__()
        norm = partial(Norm, config.d_model, config.norm_eps)
        self.self_norm = norm()
        self.self_attention = attention
        self.self_post_norm = norm()
        self.ff_norm = norm()
        self.ff = FeedForward(config)
        self.ff_post_norm = norm()

    def __call__(self, x: mx.array, batch: int, offsets: mx.array, masks: Masks) -> mx.array:
        x = x + self.self_post_norm(self.self_attention(self.self_norm(x), batch, offsets, masks))
        return x + self.ff_post_norm(self.ff(self.ff_norm(x)))


class Stack(nn.Module):
    """The layers of the encoder or decoder, and the final norm."""

    def __init__(self, config: StackConfig, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = list(layers)
        self.norm = Norm(config.d_model, config.norm_eps)


class Gemma(EncoderDecoder):
    """Base class of both models. `embedding` is the decoder's table, and also serves as the head if they are tied."""

    config: GemmaConfig

    def __init__(self, config: GemmaConfig, ranks: int, *, norm_heads: bool) -> None:
        super().__init__()
        self.config = config
        self.max_source_tokens = config.encoder.max_positions
        encoder = config.encoder.shard(ranks)
        attentions = (SelfAttention(encoder, each, norm_heads=norm_heads) for each in encoder.layers)
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.encoder = Stack(encoder, [EncoderLayer(encoder, attention) for attention in attentions])
        if not config.tie_word_embeddings:
            self.head = Linear(config.d_model, config.vocab_size, bias=False)
        self.logit_cap = config.decoder.logit_cap

    @property
    def encoder_width(self) -> int:
        return self.config.encoder.d_model

    def encode_embedded(self, x: mx.array, mask: mx.array | None) -> mx.array:
        """Source embeddings -> encoder output, both (B, S, d)."""
        batch, length, _ = x.shape
        offsets = mx.array([0])
        masks = encoder_masks(self.config.encoder, length, mask, x.dtype)
        x = x.flatten(0, 1)
        for layer in self.encoder.layers:
            x = layer(x, batch, offsets, masks)
        return self.encoder.norm(x).reshape(batch, length, -1)

    def positions(self, offsets: Sequence[int], length: int, capacity: int) -> mx.array:
        """Return the offsets, (B,), because the kernel of rotary positions adds the rest itself."""
        return mx.array(list(offsets))

    def decoder_hidden(
        self,
        tokens: mx.array,
        positions: mx.array,
        position_table: None,
        source_mask: mx.array,
        layers: Sequence[CrossAttentionCache],
    ) -> list[mx.array]:
        batch, length = tokens.shape
        x = self.embed(tokens.flatten())
        masks = decoder_masks(self.config.decoder, positions, length, layers[0].num_keys(length), x.dtype)
        hidden = []
        for layer, cache in zip(self.decoder.layers, layers, strict=True):
            x = layer(x, batch, positions, masks, source_mask, cache)
            hidden.append(x)
        return [x.reshape(batch, length, -1) for x in hidden]

    def final_states(self, hidden: mx.array) -> mx.array:
        return self.decoder.norm(hidden)


def encoder_masks(config: StackConfig, length: int, mask: mx.array | None, dtype: mx.Dtype) -> Masks:
    """Return the additive mask for each window. mask: (B, S), True for tokens."""
    masks = {}
    for window in config.windows:
        masked = window.masked(mx.array([0]), length, length)
        if mask is not None:
            padding = ~mask[:, None, None, :]
            masked = padding if masked is None else masked | padding
            # Padding attends to all keys, because a softmax over no keys would be NaN.
            masked = masked & mask[:, None, :, None]
        masks[window] = additive_mask(masked, dtype)
    return masks


def decoder_masks(config: StackConfig, offsets: mx.array, length: int, capacity: int, dtype: mx.Dtype) -> Masks:
    return {window: additive_mask(window.masked(offsets, length, capacity), dtype) for window in config.windows}


FEED_FORWARD_NAMES = {
    "ff_norm": ["pre_feedforward_layernorm"],
    "ff_post_norm": ["post_feedforward_layernorm"],
    "ff.wi": ["mlp.gate_proj", "mlp.up_proj"],
    "ff.wo": ["mlp.down_proj"],
}


def attention_names(block: str, tensor: str) -> dict[str, list[str]]:
    """Map the parameters of an attention block and its norms to tensors, as a table for `named`."""
    return {
        f"{block}_norm": [f"pre_{tensor}_layernorm"],
        f"{block}_post_norm": [f"post_{tensor}_layernorm"],
        f"{block}_attention.q": [f"{tensor}.q_proj"],
        f"{block}_attention.kv": [f"{tensor}.k_proj", f"{tensor}.v_proj"],
        f"{block}_attention.o": [f"{tensor}.o_proj"],
    }


def stack_sources(stack: str, prefix: str, depth: int, layer: Mapping[str, Sequence[str]]) -> Sources:
    """Return the sources of a stack whose tensor names start with `prefix`. layer: a table for `named`."""
    sources = named({"norm": ["norm"]}, f"{stack}.", f"{prefix}.")
    for i in range(depth):
        sources |= named(layer, f"{stack}.layers.{i}.", f"{prefix}.layers.{i}.")
    return sources
