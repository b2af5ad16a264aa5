"""T5 and its relatives: v1.0, v1.1, FLAN, mT5, umT5, ByT5, MADLAD, CodeT5, Pile-T5.

Raffel et al. 2020 (arXiv 1910.10683), section 2.1. Attention is not scaled, positions enter as a bias that is
learned per distance bucket, and layer norms have no mean and no bias. Families differ in the feed-forward
layer, in whether the head is its own table, and in where the position biases live; the config says which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..checkpoints.base import Checkpoint
from ..errors import CheckpointError
from .base import EncoderDecoder, Head
from .cache import SOURCE_STEP, DecoderCache, LayerCache
from .linear import Linear
from .relative_position import BiasWindows, bias_matrix

ACTIVATIONS: Mapping[str, Callable[[mx.array], mx.array]] = {
    "relu": nn.relu,
    "gelu": nn.gelu,
    "gelu_new": nn.gelu_approx,  # the tanh form
    "silu": nn.silu,
}

TABLES = ("shared.weight", "decoder.embed_tokens.weight", "encoder.embed_tokens.weight")
HEAD = "lm_head.weight"
# What Hugging Face assumes for a family where its config.json is silent; for T5 itself the defaults below.
FAMILY_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "mt5": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "umt5": {"feed_forward_proj": "gated-gelu"},
}


@dataclass(frozen=True)
class T5Config:
    """The fields of config.json that matter here, under their Hugging Face names."""

    vocab_size: int
    d_model: int
    d_kv: int
    d_ff: int
    num_layers: int
    num_heads: int
    num_decoder_layers: int | None = None
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    layer_norm_epsilon: float = 1e-6
    feed_forward_proj: str = "relu"
    tie_word_embeddings: bool = True
    scale_decoder_outputs: bool | None = None  # transformers 5 writes this, and forces the flag above to true
    model_type: str = "t5"
    pad_token_id: int = 0
    eos_token_id: int | tuple[int, ...] = 1
    decoder_start_token_id: int = 0
    n_positions: int | None = None

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], checkpoint: Checkpoint | None = None) -> T5Config:
        """From a parsed config.json. Unknown keys are ignored; a missing or impossible one is named."""
        given = {f.name: raw[f.name] for f in fields(cls) if raw.get(f.name) is not None}
        known: dict[str, Any] = {**FAMILY_DEFAULTS.get(raw.get("model_type", ""), {}), **given}
        for name in ("vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_heads"):
            if type(known.get(name)) is not int or known[name] < 1:
                raise CheckpointError(f"config.json: {name!r} must be a positive integer, not {raw.get(name)!r}")
        if isinstance(eos := known.get("eos_token_id"), list):
            known["eos_token_id"] = tuple(eos)
        config = cls(**known)
        if config.activation_name not in ACTIVATIONS:
            raise CheckpointError(f"config.json: unknown feed_forward_proj {config.feed_forward_proj!r}")
        return config if checkpoint is None else config.settled(checkpoint)

    def settled(self, checkpoint: Checkpoint) -> T5Config:
        """The config with `tie_word_embeddings` true if, and only if, the head is the embedding.

        transformers 5 saves the flag as true for every T5, and torch files keep the head also where it is tied. So
        where the flag says tied and there is a head, the weights decide: it is an own head if it differs.
        """
        if not self.tie_word_embeddings or HEAD not in checkpoint:
            return self
        table = embedding_table(checkpoint.keys())
        same = table in checkpoint and checkpoint.info(table).shape == checkpoint.info(HEAD).shape
        tied = same and mx.array_equal(checkpoint[table], checkpoint[HEAD]).item()
        return replace(self, tie_word_embeddings=bool(tied))

    @property
    def is_gated(self) -> bool:
        return self.feed_forward_proj.startswith("gated-")

    @property
    def activation_name(self) -> str:
        name = self.feed_forward_proj.removeprefix("gated-")
        return "gelu_new" if self.feed_forward_proj == "gated-gelu" else name

    @property
    def head_is_scaled(self) -> bool:
        """Whether decoder outputs are multiplied by d_model^-0.5 before the head: with tied tables only."""
        return self.tie_word_embeddings if self.scale_decoder_outputs is None else self.scale_decoder_outputs

    @property
    def decoder_layers(self) -> int:
        return self.num_layers if self.num_decoder_layers is None else self.num_decoder_layers

    @property
    def inner_width(self) -> int:
        return self.num_heads * self.d_kv

    @property
    def bias_per_layer(self) -> bool:
        """umT5 has a position bias in every layer; all others share the first layer's."""
        return self.model_type == "umt5"

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self.eos_token_id if isinstance(self.eos_token_id, tuple) else (self.eos_token_id,)

    @property
    def max_source_tokens(self) -> int | None:
        return self.n_positions


# Within a stack the rows of a batch stand one below the other, (B * L, d_model), as matrix products want them.


def split_heads(x: mx.array, batch: int, parts: int, heads: int) -> list[mx.array]:
    """(B * L, parts * H * D) -> parts times (B, H, L, D)."""
    length = x.shape[0] // batch
    if length == 1:  # nothing to transpose, and no node for it
        together = x.reshape(batch, parts * heads, 1, -1)
    else:
        together = x.reshape(batch, length, parts * heads, -1).transpose(0, 2, 1, 3)
    return [*mx.split(together, parts, axis=1)] if parts > 1 else [together]


def attend(queries: mx.array, keys: mx.array, values: mx.array, mask: mx.array) -> mx.array:
    """(B, H, L, D) -> (B * L, H * D). T5 folded the scale into its weights, so it is 1 here."""
    if mx.default_device() == mx.Device(mx.cpu):  # has no kernel for it, and would multiply by that 1
        out = mx.softmax(queries @ keys.swapaxes(-1, -2) + mask, axis=-1, precise=True) @ values
    else:
        out = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=1.0, mask=mask)
    batch, heads, length, width = out.shape
    if length > 1:
        out = out.transpose(0, 2, 1, 3)
    return out.reshape(batch * length, heads * width)


class SelfAttention(nn.Module):
    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.heads = config.num_heads
        self.qkv = Linear(config.d_model, 3 * config.inner_width)
        self.o = Linear(config.inner_width, config.d_model)

    def __call__(self, x: mx.array, batch: int, bias: mx.array) -> mx.array:
        queries, keys, values = split_heads(self.qkv(x), batch, 3, self.heads)
        return self.o(attend(queries, keys, values, bias))

    def decode(self, x: mx.array, bias: mx.array, cache: LayerCache, at: mx.array) -> mx.array:
        queries, keys, values = split_heads(self.qkv(x), cache.rows, 3, self.heads)
        keys, values = cache.append(keys, values, at)
        return self.o(attend(queries, keys, values, bias))


class CrossAttention(nn.Module):
    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.heads = config.num_heads
        self.q = Linear(config.d_model, config.inner_width)
        self.kv = Linear(config.d_model, 2 * config.inner_width)
        self.o = Linear(config.inner_width, config.d_model)

    def project(self, memory: mx.array) -> LayerCache:
        keys, values = split_heads(self.kv(memory.flatten(0, 1)), memory.shape[0], 2, self.heads)
        return LayerCache.of(mx.contiguous(keys), mx.contiguous(values))

    def __call__(self, x: mx.array, cache: LayerCache, memory_mask: mx.array) -> mx.array:
        (queries,) = split_heads(self.q(x), cache.rows, 1, self.heads)
        return self.o(attend(queries, cache.cross_keys, cache.cross_values, memory_mask))


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

    def __call__(self, x: mx.array, bias: mx.array, cache: LayerCache, at: mx.array, memory_mask: mx.array) -> mx.array:
        x = x + self.self_attention.decode(self.self_norm(x), bias, cache, at)
        x = x + self.cross_attention(self.cross_norm(x), cache, memory_mask)
        return x + self.ff(self.ff_norm(x))


class RelativePositionBias(nn.Module):
    """The learned bias of each (distance bucket, head), for one layer or shared by all."""

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.weight = mx.zeros((config.relative_attention_num_buckets, config.num_heads))
        self.max_distance = config.relative_attention_max_distance

    def of_encoder(self, length: int) -> mx.array:
        """(H, length, length): every token sees every other."""
        return bias_matrix(self.weight, length, self.max_distance)

    def of_decoder(self) -> BiasWindows:
        return BiasWindows(self.weight, self.max_distance)


class Stack(nn.Module):
    """What encoder and decoder have in common: layers, position biases, and a norm at the end."""

    def __init__(self, config: T5Config, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = layers
        self.norm = nn.RMSNorm(config.d_model, eps=config.layer_norm_epsilon)
        self.position_biases = [RelativePositionBias(config) for _ in (layers if config.bias_per_layer else layers[:1])]

    def for_layers(self, biases: Sequence[mx.array]) -> list[mx.array]:
        """One bias for each layer, where they share one too."""
        return [*biases] if len(biases) == len(self.layers) else [*biases] * len(self.layers)


class T5(EncoderDecoder):
    config: T5Config

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.encoder = Stack(config, [EncoderLayer(config) for _ in range(config.num_layers)])
        self.decoder = Stack(config, [DecoderLayer(config) for _ in range(config.decoder_layers)])
        if not config.tie_word_embeddings:
            self.head = Linear(config.d_model, config.vocab_size)

    def encode(self, tokens: mx.array, mask: mx.array | None = None) -> mx.array:
        batch, length = tokens.shape
        x = self.embedding(tokens.flatten())
        hidden = None if mask is None else additive(mask, x.dtype)
        biases = self.encoder.for_layers([bias.of_encoder(length) for bias in self.encoder.position_biases])
        for layer, bias in zip(self.encoder.layers, biases, strict=True):
            x = layer(x, batch, bias if hidden is None else bias + hidden)
        return self.encoder.norm(x).reshape(batch, length, -1)

    def make_cache(self, memory: mx.array, mask: mx.array | None = None) -> DecoderCache:
        batch, length, _ = memory.shape
        room = -length % SOURCE_STEP
        if mask is None:
            mask = mx.ones((batch, length), mx.bool_)
        memory, mask = mx.pad(memory, [(0, 0), (0, room), (0, 0)]), mx.pad(mask, [(0, 0), (0, room)])
        layers = [layer.cross_attention.project(memory) for layer in self.decoder.layers]
        biases = [bias.of_decoder() for bias in self.decoder.position_biases]
        return DecoderCache(layers, biases, additive(mask, memory.dtype))

    def decoder_states(
        self,
        tokens: mx.array,
        at: mx.array,
        biases: Sequence[mx.array],
        memory_mask: mx.array,
        layers: Sequence[LayerCache],
    ) -> mx.array:
        x = self.embedding(tokens.flatten())
        parts = zip(self.decoder.layers, self.decoder.for_layers(biases), layers, strict=True)
        for layer, bias, cache in parts:
            x = layer(x, bias, cache, at, memory_mask)
        x = self.decoder.norm(x)
        if self.config.head_is_scaled:
            x = x * self.config.d_model**-0.5
        return x.reshape(*tokens.shape, -1)

    def logits(self, states: mx.array) -> mx.array:
        return self.embedding.as_linear(states) if self.config.tie_word_embeddings else self.head(states)

    def head_of(self, ids: mx.array) -> Head:
        layer = self.embedding if self.config.tie_word_embeddings else self.head
        parts = {name: layer[name][ids] for name in ("weight", "scales", "biases") if name in layer}
        if "scales" not in parts:
            return partial(linear, parts["weight"])
        settings = {"bits": layer.bits, "group_size": layer.group_size, "mode": layer.mode}
        return lambda x: mx.quantized_matmul(x, parts["weight"], parts["scales"], parts.get("biases"), **settings)

    @classmethod
    def parameter_sources(cls, config: T5Config, names: Set[str]) -> dict[str, tuple[str, ...]]:
        tables = ("shared.weight", "decoder.embed_tokens.weight", "encoder.embed_tokens.weight")
        sources: dict[str, tuple[str, ...]] = {
            "embedding.weight": (next((name for name in tables if name in names), tables[0]),)
        }
        if not config.tie_word_embeddings:
            sources["head.weight"] = ("lm_head.weight",)
        for stack, depth in (("encoder", config.num_layers), ("decoder", config.decoder_layers)):
            sources |= {
                f"{stack}.{path}": tuple(f"{stack}.{name}" for name in joined)
                for path, joined in stack_sources(config, depth, has_cross_attention=stack == "decoder")
            }
        return sources


def linear(weight: mx.array, x: mx.array) -> mx.array:
    return x @ weight.T


def additive(mask: mx.array, dtype: mx.Dtype) -> mx.array:
    """(B, S) bool -> (B, 1, 1, S): 0 where there is a token, -inf on padding.

    A row without any token, as of a slot that is free, is left open: with nothing to attend to it would be NaN.
    """
    return mx.where(mask | ~mask.any(axis=1, keepdims=True), mx.array(0, dtype), mx.array(-mx.inf, dtype))[
        :, None, None, :
    ]


def embedding_table(names: Set[str]) -> str:
    """The name under which this checkpoint keeps the embedding."""
    return next((name for name in TABLES if name in names), TABLES[0])


def stack_sources(config: T5Config, depth: int, *, has_cross_attention: bool) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Parameter path within a stack -> Hugging Face names within that stack."""
    yield "norm.weight", ("final_layer_norm.weight",)
    for i in range(depth):
        here, hf = f"layers.{i}", f"block.{i}.layer"
        attention = f"{hf}.0.SelfAttention"
        if i == 0 or config.bias_per_layer:
            yield f"position_biases.{i}.weight", (f"{attention}.relative_attention_bias.weight",)
        yield f"{here}.self_norm.weight", (f"{hf}.0.layer_norm.weight",)
        yield f"{here}.self_attention.qkv.weight", tuple(f"{attention}.{part}.weight" for part in "qkv")
        yield f"{here}.self_attention.o.weight", (f"{attention}.o.weight",)
        if has_cross_attention:
            attention = f"{hf}.1.EncDecAttention"
            yield f"{here}.cross_norm.weight", (f"{hf}.1.layer_norm.weight",)
            yield f"{here}.cross_attention.q.weight", (f"{attention}.q.weight",)
            yield f"{here}.cross_attention.kv.weight", tuple(f"{attention}.{part}.weight" for part in "kv")
            yield f"{here}.cross_attention.o.weight", (f"{attention}.o.weight",)
        feed_forward = f"{hf}.{2 if has_cross_attention else 1}"
        parts = ("wi_0", "wi_1") if config.is_gated else ("wi",)
        yield f"{here}.ff_norm.weight", (f"{feed_forward}.layer_norm.weight",)
        yield f"{here}.ff.wi.weight", tuple(f"{feed_forward}.DenseReluDense.{part}.weight" for part in parts)
        yield f"{here}.ff.wo.weight", (f"{feed_forward}.DenseReluDense.wo.weight",)
