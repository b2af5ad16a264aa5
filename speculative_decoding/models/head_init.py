"""A new draft head, initialized from the target's last decoder layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from .base import EncoderDecoder
from .draft_head import DraftHead, DraftHeadConfig, Scales
from .gemma import Gemma, Norm
from .linear import matrix
from .t5 import T5
from .t5gemma2 import T5Gemma2


def new_head(target: EncoderDecoder, layers: Sequence[int], state_scale: float, seed: int = 0) -> DraftHead:
    """An untrained head for this target, with the last layer's most important feed-forward units.

    Args:
        layers: The decoder layers whose states the head reads.
        state_scale: The approximate size of the target's states.
    """
    last = last_layer(target)
    width = target.config.d_model
    stack = target.config.decoder
    embedded = target.embed(mx.arange(min(1024, target.config.vocab_size))[None]).astype(mx.float32)
    token_scale: Any = mx.sqrt(mx.square(embedded).mean()).item()
    config = DraftHeadConfig(
        d_model=width,
        heads=stack.num_heads,
        head_width=stack.head_dim,
        d_ff=min(2 * width, last.wo.shape[1]),
        layers=tuple(layers),
        activation=stack.activation,
        is_gated=stack.is_gated,
        scales=Scales(state_scale, token_scale, logit_scale(target)),
    )
    head = DraftHead(config)
    head.load_weights([*initial_weights(last, config, seed).items()])
    mx.eval(head.parameters())
    return head


class LastLayer(NamedTuple):
    """Weights (outputs, inputs) of the last decoder layer and the norm after it, dequantized.

    wi: one matrix, or two (gate and linear) if the feed-forward is gated.
    """

    cross_norm: mx.array
    q: mx.array
    o: mx.array
    ff_norm: mx.array
    wi: Sequence[mx.array]
    wo: mx.array
    norm: mx.array


def initial_weights(last: LastLayer, config: DraftHeadConfig, seed: int) -> Mapping[str, mx.array]:
    """The last layer's weights; the features are mostly the states of the last layer."""
    width = config.d_model
    count = len(config.layers)
    noise = mx.random.normal((width, (count + 2) * width), key=mx.random.key(seed)) * (0.02 / width**0.5)
    shares = [*[0.0] * (count - 2), 0.3, 0.7][-count:]
    identities = mx.concatenate([share * mx.eye(width) for share in shares], axis=1)
    importance = mx.linalg.norm(last.wo.astype(mx.float32), axis=0)
    for weight in last.wi:
        importance = importance * mx.linalg.norm(weight.astype(mx.float32), axis=1)
    units = mx.sort(mx.argsort(-importance)[: config.d_ff])
    parameters = {
        "start": mx.random.normal((width,), key=mx.random.key(seed + 1)),
        "combine.weight": noise[:, : count * width] + identities,
        "join_token.weight": noise[:, -2 * width : -width] + 0.3 * mx.eye(width),
        "join_state.weight": noise[:, -width:] + 0.7 * mx.eye(width),
        "q.weight": last.q * last.cross_norm,
        "o.weight": last.o,
        "wi.weight": mx.concatenate([weight[units] for weight in last.wi]) * last.ff_norm,
        "wo.weight": last.wo[:, units],
        "norm": last.norm,
    }
    return {name: array.astype(mx.float32) for name, array in parameters.items()}


def logit_scale(target: EncoderDecoder) -> float:
    """The factor between the target's normed states and the input of its head."""
    is_scaled = isinstance(target, T5) and target.config.head_is_scaled
    return target.config.d_model**-0.5 if is_scaled else 1.0


def last_layer(target: EncoderDecoder) -> LastLayer:
    layer = target.decoder.layers[-1]
    config = target.config.decoder
    wi = matrix(layer.ff.wi)
    inputs = [*mx.split(wi, 2)] if config.is_gated else [wi]
    if isinstance(target, T5Gemma2):
        attention = layer.self_attention
        return LastLayer(
            layer.self_norm.scale,
            normed_queries(target),
            through_norm(layer.self_post_norm, matrix(attention.o)),
            layer.ff_norm.scale,
            inputs,
            through_norm(layer.ff_post_norm, matrix(layer.ff.wo)),
            target.decoder.norm.scale,
        )
    q = matrix(layer.cross_attention.q) * config.scale
    o = matrix(layer.cross_attention.o)
    wo = matrix(layer.ff.wo)
    if isinstance(target, Gemma):
        return LastLayer(
            layer.cross_norm.scale,
            q,
            through_norm(layer.cross_post_norm, o),
            layer.ff_norm.scale,
            inputs,
            through_norm(layer.ff_post_norm, wo),
            target.decoder.norm.scale,
        )
    if config.norm_first:
        cross_norm, ff_norm, last_norm = layer.cross_norm, layer.ff_norm, target.decoder.norm
    else:  # a norm follows each block
        cross_norm, ff_norm, last_norm = layer.self_norm, layer.cross_norm, layer.ff_norm
    return LastLayer(cross_norm.weight, q, o, ff_norm.weight, inputs, wo, last_norm.weight)


def through_norm(norm: Norm, weight: mx.array) -> mx.array:
    """A matrix (d, inputs), rescaled as the norm after it would scale its outputs for inputs of variance 1."""
    size = mx.sqrt(mx.square(weight.astype(mx.float32)).sum(axis=1).mean())
    return norm.scale[:, None] * weight / mx.maximum(size, 1e-6)


def normed_queries(target: T5Gemma2) -> mx.array:
    """The query matrix of the last layer, with the norm of each head's queries approximated by a constant."""
    layer = target.decoder.layers[-1]
    config = target.config.decoder
    q = matrix(layer.self_attention.q)
    squares = mx.square(q.astype(mx.float32) * layer.self_norm.scale).sum(axis=1)
    sizes = mx.sqrt(squares.reshape(config.num_heads, -1, 1).mean(axis=1, keepdims=True))  # for inputs of variance 1
    q = q.reshape(config.num_heads, config.head_dim, -1)
    q = q * layer.self_attention.q_norm.scale[:, None] / sizes * config.scale
    return q.reshape(-1, config.d_model)
