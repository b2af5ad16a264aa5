"""T5Gemma 2 (Zhang et al. 2025, arXiv 2512.14856), text only: an encoder and a decoder with Gemma 3's layers.

In the decoder, one attention block covers the previous tokens and the encoder output. Image input is not supported, and
the vision tower is not loaded.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace
from functools import partial, reduce
from itertools import accumulate
from typing import NamedTuple

import mlx.core as mx
import mlx.nn as nn

from ..checkpoints import Checkpoint
from ..checkpoints.base import CheckpointView
from ..errors import CheckpointError
from ..sampling.values import Int
from .architecture import Architecture
from .attention import joined_heads, masked_scores, matmul_rows, precise_softmax
from .base import Buffers
from .cache import CrossAttentionCache
from .compiled import stacked
from .config import RawConfig, require
from .gemma import FEED_FORWARD_NAMES, Gemma, Masks, Norm, SelfAttention, Stack, attention_names, stack_sources
from .gemma_config import (
    FULL,
    HEAD,
    MAX_POSITIONS,
    SLIDING,
    Defaults,
    GemmaConfig,
    LayerType,
    Section,
    StackConfig,
    joined_config,
    nested,
)
from .layers import FeedForward
from .rope import Window
from .tensors import Sources, TokenTables

DEFAULTS = Defaults(
    {"max_position_embeddings": 1 << 17}, {"attn_logit_softcapping": None, "final_logit_softcapping": None}
)
IMAGE_TOKENS = {"boi_token_index": 255_999, "eoi_token_index": 256_000}
TEXT_MODEL = "model.encoder.text_model"  # the encoder's name in transformers 5; files omit ".text_model"
ENCODERS = (TEXT_MODEL, "model.encoder")
ENCODER_TABLES = [f"{encoder}.embed_tokens" for encoder in ENCODERS]
DECODER_TABLE = "model.decoder.embed_tokens"
SHARED, EMBEDDING = f"{ENCODER_TABLES[0]}.weight", f"{DECODER_TABLE}.weight"
TABLES = TokenTables(EMBEDDING, HEAD, source=SHARED, shared=SHARED, stand_ins=(HEAD, EMBEDDING))


def t5gemma2_config(raw: RawConfig, checkpoint: Checkpoint | None = None) -> GemmaConfig:
    """Read a parsed config.json. Raises `CheckpointError` for a missing or invalid field; ignores unknown ones.

    The encoder's sliding window includes the query's own position. Soft caps on attention scores are ignored, as in
    transformers 5.23.
    """
    raw_encoder = nested(raw, "encoder")
    encoder = Section("encoder.text_config.", nested(raw_encoder, "text_config"), DEFAULTS)
    decoder = Section("decoder.", nested(raw, "decoder"), DEFAULTS)
    width = encoder.fields.sliding_window
    encoder_windows = {SLIDING: Window((width + 1) // 2 - 1, width // 2), FULL: Window()}
    decoder_windows = {SLIDING: Window(decoder.fields.sliding_window - 1, 0), FULL: Window(None, 0)}
    encoder_stack, decoder_stack = (
        section.stack(windows, full_attention_every=6, rope_per_type=True, caps_scores=False)
        for section, windows in ((encoder, encoder_windows), (decoder, decoder_windows))
    )
    if encoder_stack.d_model != decoder_stack.d_model:
        raise CheckpointError("config.json: 'encoder' and 'decoder' must have the same hidden_size")
    image_tokens = {name: raw_encoder.get(name, default) for name, default in IMAGE_TOKENS.items()}
    for name, token in image_tokens.items():
        require(f"encoder.{name}", Int(0, MAX_POSITIONS), token)
    return replace(joined_config(raw, checkpoint, decoder, encoder_stack, decoder_stack), **image_tokens)


class MergedAttention(SelfAttention):
    """Attention over the previous tokens and the encoder output in one softmax. Cross keys are not rotated."""

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
        queries = self.queries(x, batch, offsets)
        new_keys, new_values = self.keys_and_values(x, batch)
        keys, values = cache.append(stacked([self.layer_type.rope(new_keys, offsets), new_values], axis=0))
        parts = [
            Keys(keys, values, masks[self.layer_type.window]),
            Keys(cache.cross_keys, cache.cross_values, source_mask),
        ]
        return self.o(attend_together(queries, parts, self.config.scale))


class Keys(NamedTuple):
    """Keys and values (B, H or fewer, T, D), and their additive mask (B, H or 1, L or 1, T)."""

    keys: mx.array
    values: mx.array
    mask: mx.array


def attend_together(queries: mx.array, parts: Sequence[Keys], scale: float) -> mx.array:
    """Attend over several parts like `attend` over one, with a single softmax over the keys of all parts.

    Only the scores are concatenated; keys and values are not copied.
    """
    batch, heads, length, width = queries.shape
    shared = heads // parts[0].keys.shape[1]  # query heads per key head
    queries = queries.reshape(batch, -1, shared * length, width) * scale
    scores = [masked_scores(queries, part.keys, part.mask, shared) for part in parts]
    weights = precise_softmax(mx.concatenate(scores, axis=-1))
    ends = list(accumulate(part.keys.shape[2] for part in parts))[:-1]
    outputs = [
        matmul_rows(part_weights, part.values)
        for part_weights, part in zip(mx.split(weights, ends, axis=-1), parts, strict=True)
    ]
    return joined_heads(reduce(mx.add, outputs).reshape(batch, heads, length, width))


class DecoderLayer(nn.Module):
    def __init__(self, config: StackConfig, layer_type: LayerType) -> None:
        super().__init__()
        norm = partial(Norm, config.d_model, config.norm_eps)
        self.self_attention = MergedAttention(config, layer_type, norm_heads=True)
        self.self_norm = norm()
        self.self_post_norm = norm()
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
        attended = self.self_attention.merged(self.self_norm(x), batch, offsets, masks, source_mask, cache)
        x = x + self.self_post_norm(attended)
        return x + self.ff_post_norm(self.ff(self.ff_norm(x)))


class T5Gemma2(Gemma):
    """T5Gemma 2. A single table embeds sources and outputs; the end-of-image token has a separate embedding."""

    def __init__(self, config: GemmaConfig, ranks: int = 1) -> None:
        super().__init__(config, ranks, norm_heads=True)
        self.end_of_image = mx.zeros((config.d_model,))
        self.image_token = config.boi_token_index
        decoder = config.decoder.shard(ranks)
        self.decoder = Stack(decoder, [DecoderLayer(decoder, each) for each in decoder.layers])

    def encode(self, tokens: mx.array, mask: mx.array | None = None) -> mx.array:
        return self.encode_embedded(self.embed(tokens), mask)

    def embed(self, tokens: mx.array) -> mx.array:
        x = self.embedding(tokens) * self.config.d_model**0.5
        if self.config.eoi_token_index >= self.config.vocab_size:
            return x
        is_end_of_image = (tokens == self.config.eoi_token_index)[..., None]
        return mx.where(is_end_of_image, self.end_of_image.astype(x.dtype), x)

    def attention_outputs(self, queries: mx.array, own: Buffers, source: Buffers) -> list[mx.array]:
        return [attend_together(queries, [Keys(*own), Keys(*source)], self.config.decoder.scale)]

    def cross_projections(self, encoder_output: mx.array) -> list[tuple[mx.array, mx.array]]:
        return [layer.self_attention.project(encoder_output) for layer in self.decoder.layers]

    @classmethod
    def parameter_sources(cls, config: GemmaConfig, names: Set[str]) -> Sources:
        encoder = encoder_prefix(names)
        sources: Sources = {
            "embedding.weight": (f"{encoder}.embed_tokens.weight",),
            "end_of_image": (f"{encoder}.embed_tokens.eoi_embedding",),
        }
        if not config.tie_word_embeddings:
            sources["head.weight"] = (TABLES.head,)
        layer = attention_names("self", "self_attn") | FEED_FORWARD_NAMES
        layer |= {
            "self_attention.q_norm": ["self_attn.q_norm"],
            "self_attention.k_norm": ["self_attn.k_norm"],
        }
        sources |= stack_sources("encoder", encoder, len(config.encoder.layers), layer)
        return sources | stack_sources("decoder", "model.decoder", config.decoder_layers, layer)


def encoder_prefix(names: Set[str]) -> str:
    return next((prefix for prefix in ENCODERS if f"{prefix}.norm.weight" in names), "model.encoder")


def token_tables(names: Set[str]) -> TokenTables:
    """Return the names of the tables in a checkpoint returned by `adapted`. `shared` is the encoder's table."""
    return TokenTables(EMBEDDING, HEAD, shared=f"{encoder_prefix(names)}.embed_tokens.weight")


def adapted(raw: RawConfig, checkpoint: Checkpoint) -> tuple[RawConfig, Checkpoint]:
    """Return config.json, and a checkpoint that stores each table once, under its name in `parameter_sources`.

    Raises `CheckpointError` if the encoder's and the decoder's tables differ.
    """
    embedding = f"{encoder_prefix(checkpoint.keys())}.embed_tokens"
    names = dict[str, str]()
    for name in checkpoint:  # the encoder's name depends on the transformers version
        table, _, tensor = name.rpartition(".")
        if table in (*ENCODER_TABLES, DECODER_TABLE) and tensor == "eoi_embedding":
            names[f"{embedding}.{tensor}"] = name
        else:
            names[f"{ENCODER_TABLES[0]}.{tensor}" if table in ENCODER_TABLES else name] = name
    is_tied = raw.get("tie_word_embeddings") is not False
    tables = TABLES.without_duplicates(CheckpointView(checkpoint, names), is_tied=is_tied)
    if TABLES.source in tables:
        raise CheckpointError(f"{checkpoint}: encoder and decoder have different tables, which is not supported")
    return raw, CheckpointView(tables, {name.replace(DECODER_TABLE, embedding): name for name in tables})


ARCHITECTURE = Architecture(T5Gemma2, t5gemma2_config, adapted, token_tables)
