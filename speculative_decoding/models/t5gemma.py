"""T5Gemma (Zhang et al. 2025, arXiv 2504.06225): an encoder and a decoder with Gemma 2's layers.

The encoder and the decoder may have different widths. Decoder layers have cross-attention, without position encoding,
before the feed-forward block.
"""

from __future__ import annotations

from collections.abc import Set
from functools import partial

import mlx.core as mx
import mlx.nn as nn

from ..checkpoints import Checkpoint
from .architecture import Architecture
from .cache import CrossAttentionCache
from .config import RawConfig
from .gemma import FEED_FORWARD_NAMES, Gemma, Masks, Norm, SelfAttention, Stack, attention_names, stack_sources
from .gemma_config import (
    FULL,
    HEAD,
    SLIDING,
    Defaults,
    GemmaConfig,
    LayerType,
    Section,
    StackConfig,
    joined_config,
    nested,
)
from .layers import CrossAttention, FeedForward
from .rope import Window
from .tensors import Sources, TokenTables

DEFAULTS = Defaults({}, {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0})


EMBEDDING = "model.decoder.embed_tokens.weight"
TABLES = TokenTables(EMBEDDING, HEAD, stand_ins=(EMBEDDING, HEAD))


def t5gemma_config(raw: RawConfig, checkpoint: Checkpoint | None = None) -> GemmaConfig:
    """Read a parsed config.json. Raises `CheckpointError` for a missing or invalid field; ignores unknown ones."""
    encoder = Section("encoder.", nested(raw, "encoder"), DEFAULTS)
    decoder = Section("decoder.", nested(raw, "decoder"), DEFAULTS)
    width = encoder.fields.sliding_window
    encoder_windows = {SLIDING: Window(width, width), FULL: Window()}
    decoder_windows = {SLIDING: Window(decoder.fields.sliding_window - 1, 0), FULL: Window(None, 0)}
    return joined_config(
        raw,
        checkpoint,
        decoder,
        encoder.stack(encoder_windows, full_attention_every=2),
        decoder.stack(decoder_windows, full_attention_every=2),
    )


class DecoderLayer(nn.Module):
    def __init__(self, config: StackConfig, layer_type: LayerType, encoder_width: int) -> None:
        super().__init__()
        norm = partial(Norm, config.d_model, config.norm_eps)
        self.self_attention = SelfAttention(config, layer_type, norm_heads=False)
        self.cross_attention = CrossAttention(config, encoder_width)
        self.self_norm = norm()
        self.self_post_norm = norm()
        self.cross_norm = norm()
        self.cross_post_norm = norm()
        self.ff_norm = norm()
        self.ff = FeedForward(config)
        self.ff_post_norm = norm()

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
    def __init__(self, config: GemmaConfig, ranks: int = 1) -> None:
        super().__init__(config, ranks, norm_heads=False)
        decoder = config.decoder.shard(ranks)
        encoder_width = config.encoder.d_model
        self.source_embedding = nn.Embedding(config.vocab_size, encoder_width)
        self.decoder = Stack(decoder, [DecoderLayer(decoder, each, encoder_width) for each in decoder.layers])

    def encode(self, tokens: mx.array, mask: mx.array | None = None) -> mx.array:
        return self.encode_embedded(self.source_embedding(tokens) * self.encoder_width**0.5, mask)

    def embed(self, tokens: mx.array) -> mx.array:
        return self.embedding(tokens) * self.config.d_model**0.5

    @classmethod
    def parameter_sources(cls, config: GemmaConfig, names: Set[str]) -> Sources:
        sources: Sources = {
            "embedding.weight": (TABLES.embedding,),
            "source_embedding.weight": ("model.encoder.embed_tokens.weight",),
        }
        if not config.tie_word_embeddings:
            sources["head.weight"] = (TABLES.head,)
        encoder_layer = attention_names("self", "self_attn") | FEED_FORWARD_NAMES
        decoder_layer = encoder_layer | attention_names("cross", "cross_attn")
        sources |= stack_sources("encoder", "model.encoder", len(config.encoder.layers), encoder_layer)
        return sources | stack_sources("decoder", "model.decoder", config.decoder_layers, decoder_layer)


def adapted(raw: RawConfig, checkpoint: Checkpoint) -> tuple[RawConfig, Checkpoint]:
    """Return config.json, and a checkpoint that stores each table once, under its name in `parameter_sources`."""
    is_tied = raw.get("tie_word_embeddings") is not False
    return raw, TABLES.without_duplicates(checkpoint, is_tied=is_tied)


ARCHITECTURE = Architecture(T5Gemma, t5gemma_config, adapted, lambda _: TABLES)
