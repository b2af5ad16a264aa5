"""What T5Gemma and T5Gemma 2 have in common, which is Gemma 2's (Riviere et al. 2024, 2408.00118, section 2): norms in
front of each block and behind it, rotated positions, grouped queries, windows in some of the layers, soft caps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import mlx.core as mx
import mlx.nn as nn

from .attention import attend, split_heads
from .base import EncoderDecoder
from .cache import CrossAttentionCache
from .gemma_config import GemmaConfig, LayerKind, StackConfig
from .layers import FeedForward
from .linear import DerivedWeight, Linear, matrix
from .rope import Window, additive_mask
from .tensors import Sources, named

Masks = Mapping[Window, mx.array]
FEED_FORWARD = {
    "ff_norm": ["pre_feedforward_layernorm"],
    "ff_post_norm": ["post_feedforward_layernorm"],
    "ff.wi": ["mlp.gate_proj", "mlp.up_proj"],
    "ff.wo": ["mlp.down_proj"],
}


class Norm(DerivedWeight):
    """RMS norm (Zhang and Sennrich 2019, 1910.07467) times 1 + weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = mx.zeros((width,))
        self.eps = eps

    def __call__(self, x: mx.array) -> mx.array:
        return mx.fast.rms_norm(x, self.factor, self.eps)

    @property
    def factor(self) -> mx.array:
        return self.derived

    def derive(self) -> mx.array:
        return 1 + self.weight


class SelfAttention(nn.Module):
    """norm_heads: whether queries and keys are normed, each head by itself (Henry et al. 2020, 2010.04245)."""

    def __init__(self, config: StackConfig, kind: LayerKind, *, norm_heads: bool) -> None:
        super().__init__()
        self.config, self.kind, self.norm_heads = config, kind, norm_heads
        inner, shared = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q, self.kv = Linear(config.d_model, inner), Linear(config.d_model, 2 * shared)
        self.o = Linear(inner, config.d_model)
        if norm_heads:
            self.q_norm, self.k_norm = (Norm(config.head_dim, config.norm_eps) for _ in range(2))

    def queries(self, x: mx.array, batch: int, offsets: mx.array) -> mx.array:
        (queries,) = split_heads(self.q(x), batch, 1, self.config.num_heads)
        return self.kind.rope(self.q_norm(queries) if self.norm_heads else queries, offsets)

    def keys_and_values(self, x: mx.array, batch: int) -> tuple[mx.array, mx.array]:
        """Without positions."""
        keys, values = split_heads(self.kv(x), batch, 2, self.config.num_kv_heads)
        return (self.k_norm(keys) if self.norm_heads else keys), values

    def __call__(
        self, x: mx.array, batch: int, offsets: mx.array, masks: Masks, cache: CrossAttentionCache | None = None
    ) -> mx.array:
        queries, (keys, values) = self.queries(x, batch, offsets), self.keys_and_values(x, batch)
        keys = self.kind.rope(keys, offsets)
        if cache is not None:
            keys, values = cache.append(keys, values)
        mask, config = masks[self.kind.window], self.config
        return self.o(attend(queries, keys, values, mask, scale=config.scale, soft_cap=config.attention_cap))


class EncoderLayer(nn.Module):
    def __init__(self, config: StackConfig, attention: SelfAttention) -> None:
        super().__init__()
        norm = partial(Norm, config.d_model, config.norm_eps)
        self.self_norm, self.self_attention, self.self_post_norm = norm(), attention, norm()
        self.ff_norm, self.ff, self.ff_post_norm = norm(), FeedForward(config), norm()

    def __call__(self, x: mx.array, batch: int, offsets: mx.array, masks: Masks) -> mx.array:
        x = x + self.self_post_norm(self.self_attention(self.self_norm(x), batch, offsets, masks))
        return x + self.ff_post_norm(self.ff(self.ff_norm(x)))


class Stack(nn.Module):
    """Layers, and a norm at the end."""

    def __init__(self, config: StackConfig, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers, self.norm = list(layers), Norm(config.d_model, config.norm_eps)


class Gemma(EncoderDecoder):
    """The decoder's table is the head's too, but where the head has its own."""

    config: GemmaConfig

    def __init__(self, config: GemmaConfig, processes: int, *, norm_heads: bool) -> None:
        super().__init__()
        self.config = config
        encoder = config.encoder.share(processes)
        attentions = (SelfAttention(encoder, kind, norm_heads=norm_heads) for kind in encoder.layers)
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.encoder = Stack(encoder, [EncoderLayer(encoder, attention) for attention in attentions])
        if not config.tie_word_embeddings:
            self.head = Linear(config.d_model, config.vocab_size)

    @property
    def encoder_width(self) -> int:
        return self.config.encoder.d_model

    @property
    def logit_cap(self) -> float | None:
        return self.config.decoder.logit_cap

    def encoded(self, x: mx.array, mask: mx.array | None) -> mx.array:
        """Embedded tokens -> encoder output, both (B, S, d)."""
        batch, length, _ = x.shape
        start, masks = mx.array([0]), encoder_masks(self.config.encoder, length, mask, x.dtype)
        x = x.flatten(0, 1)
        for layer in self.encoder.layers:
            x = layer(x, batch, start, masks)
        return self.encoder.norm(x).reshape(batch, length, -1)

    def decoder_hidden(
        self,
        tokens: mx.array,
        offsets: mx.array,
        position_table: None,
        source_mask: mx.array,
        layers: Sequence[CrossAttentionCache],
    ) -> list[mx.array]:
        batch, length = tokens.shape
        x = self.embed(tokens.flatten())
        masks = decoder_masks(self.config.decoder, offsets, length, layers[0].reach(length), x.dtype)
        hidden = []
        for layer, cache in zip(self.decoder.layers, layers, strict=True):
            x = layer(x, batch, offsets, masks, source_mask, cache)
            hidden.append(x)
        return [x.reshape(batch, length, -1) for x in hidden]

    def last_feed_forward(self) -> tuple[mx.array, list[mx.array], mx.array, mx.array, str, float]:
        """Of `LastLayer` what stands behind the attention."""
        layer, wi = self.decoder.layers[-1], mx.split(matrix(self.decoder.layers[-1].ff.wi), 2)
        wo, norm = through(layer.ff_post_norm, matrix(layer.ff.wo)), self.decoder.norm.factor
        return layer.ff_norm.factor, [*wi], wo, norm, self.config.decoder.activation, 1.0

    def final_states(self, hidden: mx.array) -> mx.array:
        return self.decoder.norm(hidden)


def encoder_masks(config: StackConfig, length: int, mask: mx.array | None, dtype: mx.Dtype) -> Masks:
    """mask: (B, S), True = a token."""
    masks = {}
    for window in config.windows:
        hidden = window.masked(mx.array([0]), length, length)
        if mask is not None:
            padding = ~mask[:, None, None, :]
            hidden = padding if hidden is None else hidden | padding
            hidden = hidden & mask[:, None, :, None]  # padding sees all: with nothing to attend to it would be NaN
        masks[window] = additive_mask(hidden, dtype)
    return masks


def decoder_masks(config: StackConfig, offsets: mx.array, length: int, reach: int, dtype: mx.Dtype) -> Masks:
    return {window: additive_mask(window.masked(offsets, length, reach), dtype) for window in config.windows}


def through(norm: Norm, matrix: mx.array) -> mx.array:
    """(d, inputs), rescaled to what the norm behind it would make of it, if its inputs had a variance of 1."""
    size = mx.sqrt(mx.square(matrix.astype(mx.float32)).sum(axis=1).mean())
    return norm.factor[:, None] * matrix / mx.maximum(size, 1e-6)


def attention_names(block: str, tensor: str) -> dict[str, list[str]]:
    """For `named`: of an attention with its norms."""
    return {
        f"{block}_norm": [f"pre_{tensor}_layernorm"],
        f"{block}_post_norm": [f"post_{tensor}_layernorm"],
        f"{block}_attention.q": [f"{tensor}.q_proj"],
        f"{block}_attention.kv": [f"{tensor}.k_proj", f"{tensor}.v_proj"],
        f"{block}_attention.o": [f"{tensor}.o_proj"],
    }


def stack_sources(stack: str, prefix: str, depth: int, layer: Mapping[str, Sequence[str]]) -> Sources:
    """Of a whole stack; prefix: of its tensors."""
    sources = named({"norm": ["norm"]}, f"{stack}.", f"{prefix}.")
    for i in range(depth):
        sources |= named(layer, f"{stack}.layers.{i}.", f"{prefix}.layers.{i}.")
    return sources
