"""T5Gemma (Zhang et al. 2025, 2504.06225): an encoder and a decoder made of Gemma 2, of equal or unequal widths, with
an attention over the memory, without positions, between self-attention and feed-forward.
"""

from __future__ import annotations

from collections.abc import Set
from functools import partial

import mlx.core as mx
import mlx.nn as nn

from .cache import CrossAttentionCache
from .gemma import FEED_FORWARD, Gemma, Masks, Norm, SelfAttention, Stack, attention_names, stack_sources, through
from .gemma_config import GemmaConfig, LayerKind, StackConfig
from .last_layer import LastLayer
from .layers import CrossAttention, FeedForward
from .linear import matrix
from .tensors import Sources


class DecoderLayer(nn.Module):
    def __init__(self, config: StackConfig, kind: LayerKind, encoder_width: int) -> None:
        super().__init__()
        norm = partial(Norm, config.d_model, config.norm_eps)
        self.self_attention = SelfAttention(config, kind, norm_heads=False)
        self.cross_attention = CrossAttention(config, encoder_width)
        self.self_norm, self.self_post_norm, self.cross_norm, self.cross_post_norm = (norm() for _ in range(4))
        self.ff_norm, self.ff, self.ff_post_norm = norm(), FeedForward(config), norm()

    def __call__(
        self,
        x: mx.array,
        batch: int,
        offsets: mx.array,
        masks: Masks,
        source_mask: mx.array,
        cache: CrossAttentionCache,
    ) -> mx.array:
        x = x + self.self_post_norm(self.self_attention(self.self_norm(x), batch, offsets, masks, cache))
        x = x + self.cross_post_norm(self.cross_attention(self.cross_norm(x), source_mask, cache))
        return x + self.ff_post_norm(self.ff(self.ff_norm(x)))


class T5Gemma(Gemma):
    def __init__(self, config: GemmaConfig, processes: int = 1) -> None:
        super().__init__(config, processes, norm_heads=False)
        decoder, width = config.decoder.share(processes), config.encoder.d_model
        self.source_table = nn.Embedding(config.vocab_size, width)
        self.decoder = Stack(decoder, [DecoderLayer(decoder, kind, width) for kind in decoder.layers])

    def encoder_states(self, tokens: mx.array, mask: mx.array | None) -> mx.array:
        return self.encoded(self.source_table(tokens) * self.encoder_width**0.5, mask)

    def embed(self, tokens: mx.array) -> mx.array:
        return self.embedding(tokens) * self.config.d_model**0.5

    def last_layer(self) -> LastLayer:
        """A head has no norms behind blocks and no soft cap."""
        layer, config = self.decoder.layers[-1], self.config.decoder
        return LastLayer(
            layer.cross_norm.factor,
            matrix(layer.cross_attention.q) * config.scale,
            through(layer.cross_post_norm, matrix(layer.cross_attention.o)),
            *self.last_feed_forward(),
        )

    @classmethod
    def parameter_sources(cls, config: GemmaConfig, names: Set[str]) -> Sources:
        sources: Sources = {
            "embedding.weight": ("model.decoder.embed_tokens.weight",),
            "source_table.weight": ("model.encoder.embed_tokens.weight",),
        }
        if not config.tie_word_embeddings:
            sources["head.weight"] = ("lm_head.out_proj.weight",)
        layer = attention_names("self", "self_attn") | FEED_FORWARD
        sources |= stack_sources("encoder", "model.encoder", len(config.encoder.layers), layer)
        layer |= attention_names("cross", "cross_attn")
        return sources | stack_sources("decoder", "model.decoder", config.decoder_layers, layer)
