"""Keeps T5 inside float16's range without changing a logit.

T5's residual stream outgrows float16 (largest 65504). Every layer norm divides by the stream's own size, so the whole
stream may be made smaller by a power of two: embeddings times 2^-k, what each block adds times 2^-k, the norms' epsilon
times 4^-k. Powers of two round nothing, so the logits are the same. The head keeps the embedding as it was.

k is not guessed: it comes from a bound on the stream that holds for every input, computed from the weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ..checkpoints.base import Checkpoint
from ..errors import CheckpointError
from .t5 import layer_names
from .t5_config import T5Config
from .tensors import HEAD, embedding_table

LIMIT = 2.0**15  # half of float16's range, so that rounding cannot tip it over
HOMOGENEOUS = ("relu",)  # f(s * x) = s * f(x), so the scale may be put in front of it

STACKS = ("encoder", "decoder")


class RescaledCheckpoint(Checkpoint):
    """The embedding, and each block's inner and outer matrix, multiplied by powers of two; the head as it was."""

    def __init__(self, inner: Checkpoint, config: T5Config, exponent: int) -> None:
        table = embedding_table(inner.keys())
        self._inner = inner
        self._origin = {HEAD: table} if config.tie_word_embeddings else {}
        self._exponents = {table: exponent}
        # Half of the exponent each, so that neither matrix is pushed towards float16's smallest numbers.
        for block in chain.from_iterable(blocks(config, stack) for stack in STACKS):
            halves = exponent // 2 if block.is_homogeneous else 0
            self._exponents |= {block.inside[-1]: halves, block.outside: exponent - halves}
        names = dict.fromkeys((*inner, *self._origin))
        super().__init__(inner, {name: inner.info(self._origin.get(name, name)) for name in names})

    def __getitem__(self, name: str) -> mx.array:
        array = self._inner[self._origin.get(name, name)]
        exponent = 0 if name in self._origin else self._exponents.get(name, 0)
        return array.astype(mx.float32) * 2.0**-exponent if exponent else array


def for_float16(raw: Mapping[str, Any], checkpoint: Checkpoint) -> tuple[Mapping[str, Any], Checkpoint]:
    """config.json and weights of the same model, rescaled by as much as it needs; often by nothing at all."""
    config = T5Config.from_dict(raw, checkpoint)
    exponent = needed_exponent(config, checkpoint)
    if exponent == 0:
        return raw, checkpoint
    changes = {
        "tie_word_embeddings": False,
        "scale_decoder_outputs": config.head_is_scaled,
        "layer_norm_epsilon": config.layer_norm_epsilon * 4.0**-exponent,
    }
    return {**raw, **changes}, RescaledCheckpoint(checkpoint, config, exponent)


class Block(NamedTuple):
    """An attention or feed-forward block: `inside` are the matrices behind its norm whose products are multiplied, the
    last of them the one that a scale may enter by, if it comes out unchanged (`is_homogeneous`); `outside` leads back
    into the stream.
    """

    norm: str
    inside: tuple[str, ...]
    outside: str
    is_homogeneous: bool = True


def blocks(config: T5Config, stack: str) -> Iterator[Block]:
    """All blocks of "encoder" or "decoder", in their order, by their tensors' names."""
    names = layer_names(config, has_cross_attention=stack == "decoder")
    is_homogeneous = config.is_gated or config.decoder.activation in HOMOGENEOUS
    for i in range(config.num_layers if stack == "encoder" else config.decoder_layers):
        here = {path: tuple(f"{stack}.block.{i}.layer.{name}.weight" for name in own) for path, own in names.items()}
        yield Block(here["self_norm"][0], here["self_attention.qkv"][-1:], here["self_attention.o"][0])
        if stack == "decoder":
            memory_norm = "encoder.final_layer_norm.weight"
            yield Block(memory_norm, here["cross_attention.kv"][-1:], here["cross_attention.o"][0])
        yield Block(here["ff_norm"][0], here["ff.wi"], here["ff.wo"][0], is_homogeneous)


def needed_exponent(config: T5Config, checkpoint: Checkpoint) -> int:
    """The smallest k for which nothing in the residual stream or inside a block can pass `LIMIT`."""
    stream, inside = bounds(config, checkpoint)
    if not math.isfinite(stream + inside):
        raise CheckpointError(f"{checkpoint}: has weights that are not finite; it cannot be kept in float16")
    return max(excess(stream), 2 * excess(inside))


def excess(bound: float) -> int:
    return max(0, math.ceil(math.log2(bound / LIMIT))) if bound > 0 else 0


def bounds(config: T5Config, checkpoint: Checkpoint) -> tuple[float, float]:
    """Upper bounds, whatever the input, on the residual stream and on the values inside blocks.

    A normed vector is g * u with |u| = sqrt(d_model), so row w of a matrix behind it yields at most
    sqrt(d_model) * |w * g| (Cauchy-Schwarz); attention averages its values; an activation does not enlarge.
    """

    def read(name: str) -> NDArray[np.float32]:
        return np.array(checkpoint[name].astype(mx.float32))

    def rows(matrix: str, norm: str) -> NDArray[np.float32]:
        weight = read(matrix) * read(norm)
        return math.sqrt(config.d_model) * np.sqrt(np.einsum("ij,ij->i", weight, weight))

    largest_stream = largest_inside = 0.0
    start = np.abs(read(embedding_table(checkpoint.keys()))).max(axis=0)
    for stack in STACKS:
        stream = start
        for block in blocks(config, stack):
            values = np.prod([rows(matrix, block.norm) for matrix in block.inside], axis=0)
            stream = stream + np.abs(read(block.outside)) @ values
            largest_inside = float(np.maximum(largest_inside, values.max()))  # NaN, where one of them is
        largest_stream = float(np.maximum(largest_stream, stream.max()))
    return largest_stream, largest_inside
