"""Rescales T5's weights so that activations fit in float16 and logits do not change.

The residual stream of T5 can exceed float16's maximum of 65504. Every layer norm divides by the size of the stream, so
the whole stream can be scaled by 2^-k: the embeddings and the output of each block by 2^-k, the norms' epsilon by 4^-k.
Scaling by a power of two does not round, so the logits are equal. The head keeps the original embedding.

k is computed from an upper bound on the stream, which follows from the weights and holds for every input.
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
from .t5 import T5Config, layer_names
from .tensors import HEAD, embedding_table

LIMIT = 2.0**15  # half of float16's range, as a margin for rounding
STACKS = ("encoder", "decoder")


def for_float16(raw: Mapping[str, Any], checkpoint: Checkpoint) -> tuple[Mapping[str, Any], Checkpoint]:
    """Return config.json and weights of an equivalent model that fits in float16. Many models need no rescaling."""
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


class RescaledCheckpoint(Checkpoint):
    """A checkpoint with the embedding and blocks scaled by powers of two, and with the original head."""

    def __init__(self, inner: Checkpoint, config: T5Config, exponent: int) -> None:
        table = embedding_table(inner.keys())
        self._inner = inner
        self._origin = {HEAD: table} if config.tie_word_embeddings else {}
        self._exponents = {table: exponent}
        # Split the exponent between both matrices of a block, to keep their values away from float16's subnormals.
        for block in chain.from_iterable(blocks(config, stack) for stack in STACKS):
            half = exponent // 2 if block.is_homogeneous else 0
            self._exponents |= {block.inputs[-1]: half, block.output: exponent - half}
        names = dict.fromkeys((*inner, *self._origin))
        super().__init__(inner, {name: inner.info(self._origin.get(name, name)) for name in names})

    def __getitem__(self, name: str) -> mx.array:
        array = self._inner[self._origin.get(name, name)]
        exponent = 0 if name in self._origin else self._exponents.get(name, 0)
        return array.astype(mx.float32) * 2.0**-exponent if exponent else array


class Block(NamedTuple):
    """The tensor names of an attention or feed-forward block.

    inputs: matrices that multiply the normed input; with a gate, there are several, whose products are multiplied.
    output: the matrix whose result is added to the residual stream.
    is_homogeneous: whether scaling the last input matrix scales the block's output by the same factor.
    """

    norm: str
    inputs: tuple[str, ...]
    output: str
    is_homogeneous: bool = True


def blocks(config: T5Config, stack: str) -> Iterator[Block]:
    """Yield all blocks of "encoder" or "decoder", in order."""
    names = layer_names(config, has_cross_attention=stack == "decoder")
    is_homogeneous = config.is_gated or config.decoder.activation == "relu"
    for i in range(config.num_layers if stack == "encoder" else config.decoder_layers):
        here = {path: tuple(f"{stack}.block.{i}.layer.{name}.weight" for name in own) for path, own in names.items()}
        yield Block(here["self_norm"][0], here["self_attention.qkv"][-1:], here["self_attention.o"][0])
        if stack == "decoder":
            encoder_norm = "encoder.final_layer_norm.weight"
            yield Block(encoder_norm, here["cross_attention.kv"][-1:], here["cross_attention.o"][0])
        yield Block(here["ff_norm"][0], here["ff.wi"], here["ff.wo"][0], is_homogeneous)


def needed_exponent(config: T5Config, checkpoint: Checkpoint) -> int:
    """Return the smallest k for which no value in the residual stream or inside a block exceeds `LIMIT`."""
    stream, inside = bounds(config, checkpoint)
    if not math.isfinite(stream + inside):
        raise CheckpointError(
            f"{checkpoint}: weights are not finite, so float16 cannot hold them; download or convert it again"
        )
    return max(excess_exponent(stream), 2 * excess_exponent(inside))


def excess_exponent(bound: float) -> int:
    """Return the smallest k with bound * 2^-k <= LIMIT."""
    return max(0, math.ceil(math.log2(bound / LIMIT))) if bound > 0 else 0


def bounds(config: T5Config, checkpoint: Checkpoint) -> tuple[float, float]:
    """Return upper bounds, for any input, on the residual stream and on the values inside blocks.

    A norm with weight g outputs g * u with |u| = sqrt(d_model). By Cauchy-Schwarz, row w of the next matrix yields at
    most sqrt(d_model) * |w * g|. Attention averages its values, and activations do not increase magnitudes.
    """

    def read(name: str) -> NDArray[np.float32]:
        return np.array(checkpoint[name].astype(mx.float32))

    def row_bounds(matrix: str, norm: str) -> NDArray[np.float32]:
        weight = read(matrix) * read(norm)
        return math.sqrt(config.d_model) * np.sqrt(np.einsum("ij,ij->i", weight, weight))

    largest_stream = 0.0
    largest_inside = 0.0
    embedding = np.abs(read(embedding_table(checkpoint.keys()))).max(axis=0)
    for stack in STACKS:
        stream = embedding
        for block in blocks(config, stack):
            values = np.prod([row_bounds(matrix, block.norm) for matrix in block.inputs], axis=0)
            stream = stream + np.abs(read(block.output)) @ values
            largest_inside = float(np.maximum(largest_inside, values.max()))  # np.maximum keeps NaN
        largest_stream = float(np.maximum(largest_stream, stream.max()))
    return largest_stream, largest_inside
