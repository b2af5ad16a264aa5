"""T5Gemma 2 (Zhang et al. 2025, 2512.14856), for text: an encoder and a decoder made of Gemma 3, in which one attention
reads the tokens before a token and the memory together. Images are not read; the tower that reads them is not loaded.
"""

from __future__ import annotations

from collections.abc import Set
from functools import partial

import mlx.core as mx
import mlx.nn as nn

from .attention import Keys, attend_together
from .cache import CrossAttentionCache
from .gemma import FEED_FORWARD, Gemma, Masks, Norm, SelfAttention, Stack, attention_names, stack_sources, through
from .gemma_config import GemmaConfig, LayerKind, StackConfig
from .last_layer import LastLayer
from .layers import FeedForward
from .linear import matrix
from .tensors import Sources

TEXT = "model.encoder.text_model"  # as transformers 5 names it in memory; files leave out the last word
TABLES = ("model.encoder.embed_tokens", f"{TEXT}.embed_tokens", "model.decoder.embed_tokens")


class MergedAttention(SelfAttention):
    """One softmax over the tokens before a token, which have positions, and the memory, whose keys have none."""

    def project(self, encoder_output: mx.array) -> tuple[mx.array, mx.array]:
        return self.keys_and_values(encoder_output.flatten(0, 1), encoder_output.shape[0])

    def merged(
        self,
        x: mx.array,
        batch: int,
        offsets: mx.array,
        masks: Masks,
        source_mask: mx.array,
        cache: CrossAttentionCache,
    ) -> mx.array:
        queries, (keys, values) = self.queries(x, batch, offsets), self.keys_and_values(x, batch)
        own = cache.append(self.kind.rope(keys, offsets), values)
        parts = [Keys(*own, masks[self.kind.window]), Keys(cache.cross_keys, cache.cross_values, source_mask)]
        return self.o(attend_together(queries, parts, scale=self.config.scale))


class DecoderLayer(nn.Module):
    def __init__(self, config: StackConfig, kind: LayerKind) -> None:
        super().__init__()
        norm = partial(Norm, config.d_model, config.norm_eps)
        self.self_attention = MergedAttention(config, kind, norm_heads=True)
        self.self_norm, self.self_post_norm = norm(), norm()
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
        read = self.self_attention.merged(self.self_norm(x), batch, offsets, masks, source_mask, cache)
        x = x + self.self_post_norm(read)
        return x + self.ff_post_norm(self.ff(self.ff_norm(x)))


class T5Gemma2(Gemma):
    """One table for sources, outputs and the head; the end of an image has an embedding of its own beside it."""

    def __init__(self, config: GemmaConfig, processes: int = 1) -> None:
        super().__init__(config, processes, norm_heads=True)
        self.end_of_image, own = mx.zeros((config.d_model,)), config.decoder.share(processes)
        self.decoder = Stack(own, [DecoderLayer(own, kind) for kind in own.layers])

    @property
    def image_token(self) -> int:
        return self.config.boi_token_index

    def encoder_states(self, tokens: mx.array, mask: mx.array | None) -> mx.array:
        return self.encoded(self.embed(tokens), mask)

    def embed(self, tokens: mx.array) -> mx.array:
        x = self.embedding(tokens) * self.config.d_model**0.5
        if self.config.eoi_token_index >= self.config.vocab_size:
            return x
        return mx.where((tokens == self.config.eoi_token_index)[..., None], self.end_of_image.astype(x.dtype), x)

    def cross_projections(self, encoder_output: mx.array) -> list[tuple[mx.array, mx.array]]:
        return [layer.self_attention.project(encoder_output) for layer in self.decoder.layers]

    def last_layer(self) -> LastLayer:
        """A head norms no queries, has no norms behind blocks, and reads the memory alone."""
        layer, config = self.decoder.layers[-1], self.config.decoder
        attention, norm = layer.self_attention, layer.self_norm.factor
        q = matrix(attention.q)
        sizes = mx.square(q.astype(mx.float32) * norm).sum(axis=1).reshape(config.num_heads, -1, 1)
        size = mx.sqrt(sizes.mean(axis=1, keepdims=True))  # of each head's queries, if their inputs had a variance of 1
        q = q.reshape(config.num_heads, config.head_dim, -1) * attention.q_norm.factor[:, None] / size * config.scale
        return LastLayer(
            norm,
            q.reshape(-1, config.d_model),
            through(layer.self_post_norm, matrix(attention.o)),
            *self.last_feed_forward(),
        )

    @classmethod
    def parameter_sources(cls, config: GemmaConfig, names: Set[str]) -> Sources:
        table = next((name for name in TABLES if f"{name}.weight" in names), TABLES[0])
        encoder = TEXT if f"{TEXT}.norm.weight" in names else "model.encoder"
        sources: Sources = {
            "embedding.weight": (f"{table}.weight",),
            "end_of_image": (f"{table}.eoi_embedding",),
        }
        if not config.tie_word_embeddings:
            sources["head.weight"] = ("lm_head.out_proj.weight",)
        layer = attention_names("self", "self_attn") | FEED_FORWARD
        layer |= {f"self_attention.{part}_norm": [f"self_attn.{part}_norm"] for part in "qk"}
        sources |= stack_sources("encoder", encoder, len(config.encoder.layers), layer)
        return sources | stack_sources("decoder", "model.decoder", config.decoder_layers, layer)
