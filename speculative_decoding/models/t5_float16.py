"""Keeps T5 inside float16's range without changing a logit.

T5's residual stream outgrows float16 (largest 65504). Every layer norm divides by the stream's own size, so the whole
stream may be made smaller by a power of two: embeddings times 2^-k, what each block adds times 2^-k, the norms' epsilon
times 4^-k. Powers of two round nothing, so the logits are the same. The head keeps the embedding as it was.

k is not guessed: it comes from a bound on the stream that holds for every input, computed from the weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ..checkpoints.base import Checkpoint, TensorInfo
from .t5_config import HEAD, T5Config, embedding_table

LIMIT = 2.0**15  # half of float16's range, so that rounding cannot tip it over
HOMOGENEOUS = ("relu",)  # f(s * x) = s * f(x), so the scale may be put in front of it

ATTENTIONS = {"encoder": ("SelfAttention",), "decoder": ("SelfAttention", "EncDecAttention")}


class RescaledCheckpoint(Checkpoint):
    """The embedding, and each block's inner and outer matrix, multiplied by powers of two; the head as it was."""

    def __init__(self, inner: Checkpoint, config: T5Config, exponent: int) -> None:
        table = embedding_table(inner.keys())
        self._inner = inner
        self._origin = {HEAD: table} if config.tie_word_embeddings else {}
        self._exponents = {table: exponent}
        # Half of the exponent each, so that neither matrix is pushed towards float16's smallest numbers.
        for inside, outside in blocks(config):
            halves = exponent // 2 if inside is not None else 0
            if inside is not None:
                self._exponents[inside] = halves
            self._exponents[outside] = exponent - halves

    def info(self, name: str) -> TensorInfo:
        return self._inner.info(self._origin.get(name, name))

    def __getitem__(self, name: str) -> mx.array:
        if name in self._origin:
            return self._inner[self._origin[name]]
        array = self._inner[name]
        if name not in self._exponents:
            return array
        return array.astype(mx.float32) * 2.0 ** -self._exponents[name]

    def __iter__(self) -> Iterator[str]:
        yield from (name for name in self._inner if name not in self._origin)
        yield from self._origin

    def __len__(self) -> int:
        return len(self._inner.keys() | self._origin.keys())

    def __str__(self) -> str:
        return str(self._inner)


def for_float16(
    raw_config: Mapping[str, Any], config: T5Config, checkpoint: Checkpoint
) -> tuple[dict[str, Any], Checkpoint]:
    """config.json and weights of the same model, rescaled by as much as it needs; often by nothing at all."""
    exponent = needed_exponent(config, checkpoint)
    if exponent == 0:
        return dict(raw_config), checkpoint
    changes = {
        "tie_word_embeddings": False,
        "scale_decoder_outputs": config.head_is_scaled,
        "layer_norm_epsilon": config.layer_norm_epsilon * 4.0**-exponent,
    }
    return {**raw_config, **changes}, RescaledCheckpoint(checkpoint, config, exponent)


def blocks(config: T5Config) -> Iterator[tuple[str | None, str]]:
    """(matrix the scale may enter by, matrix out of the block) for every attention and feed-forward block."""
    for stack, depth in (("encoder", config.num_layers), ("decoder", config.decoder_layers)):
        for i in range(depth):
            layers = f"{stack}.block.{i}.layer"
            for j, attention in enumerate(ATTENTIONS[stack]):
                yield f"{layers}.{j}.{attention}.v.weight", f"{layers}.{j}.{attention}.o.weight"
            dense = f"{layers}.{len(ATTENTIONS[stack])}.DenseReluDense"
            if config.is_gated:
                yield f"{dense}.wi_1.weight", f"{dense}.wo.weight"
            else:
                is_homogeneous = config.activation_name in HOMOGENEOUS
                yield f"{dense}.wi.weight" if is_homogeneous else None, f"{dense}.wo.weight"


def needed_exponent(config: T5Config, checkpoint: Checkpoint) -> int:
    """The smallest k for which nothing in the residual stream or inside a block can pass `LIMIT`."""
    stream, inside = bounds(config, checkpoint)
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
        weight = read(f"{matrix}.weight") * read(f"{norm}.weight")
        return math.sqrt(config.d_model) * np.sqrt(np.einsum("ij,ij->i", weight, weight))

    largest_stream = largest_inside = 0.0
    start = np.abs(read(embedding_table(checkpoint.keys()))).max(axis=0)
    for stack, depth in (("encoder", config.num_layers), ("decoder", config.decoder_layers)):
        stream = start
        for i in range(depth):
            layers = f"{stack}.block.{i}.layer"
            for j, attention in enumerate(ATTENTIONS[stack]):
                norm = "encoder.final_layer_norm" if attention == "EncDecAttention" else f"{layers}.{j}.layer_norm"
                values = rows(f"{layers}.{j}.{attention}.v", norm)
                stream = stream + np.abs(read(f"{layers}.{j}.{attention}.o.weight")) @ values
                largest_inside = max(largest_inside, float(values.max()))
            j = len(ATTENTIONS[stack])
            dense, norm = f"{layers}.{j}.DenseReluDense", f"{layers}.{j}.layer_norm"
            if config.is_gated:
                values = rows(f"{dense}.wi_0", norm) * rows(f"{dense}.wi_1", norm)
            else:
                values = rows(f"{dense}.wi", norm)
            stream = stream + np.abs(read(f"{dense}.wo.weight")) @ values
            largest_inside = max(largest_inside, float(values.max()))
        largest_stream = max(largest_stream, float(stream.max()))
    return largest_stream, largest_inside
