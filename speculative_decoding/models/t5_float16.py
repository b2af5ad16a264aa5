"""Rescales T5's weights so that activations fit in float16, without changing the logits.

The residual stream of T5 can exceed float16's maximum of 65504. Every layer norm divides by the magnitude of the
stream, so the whole stream can be scaled by 2^-k: the embeddings and every sublayer's output are scaled by 2^-k, the
norms' epsilon by 4^-k. Scaling by a power of two causes no rounding, so the logits do not change. This module scales
sublayer weights, or their quantization scales and biases if they are quantized. The model itself scales the embeddings,
because the head may use the same matrix.

k is computed from an upper bound on the stream, which is derived from the weights and holds for every input.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Set
from itertools import chain
from typing import Any, NamedTuple

import mlx.core as mx

from ..checkpoints.base import Checkpoint, part_name
from ..errors import CheckpointError, Float16Error
from .t5 import SHARED, SOURCE, T5Config, layer_names

LIMIT = 2.0**15  # half of float16's range, as a margin for rounding
# Near zero, float16 rounds to multiples of 2^-24, so numbers below `LEAST` have fewer significant bits than in
# bfloat16.
LEAST = 2.0**-16
STACKS = ("encoder", "decoder")


def for_float16(raw: Mapping[str, Any], checkpoint: Checkpoint) -> tuple[Mapping[str, Any], Checkpoint]:
    """Return the config.json and weights of an equivalent model that fits in float16. Many models fit unchanged.

    Raises:
        Float16Error: The rescaled weights are so small that float16 would be less precise than bfloat16.
    """
    config = T5Config.from_dict(raw, checkpoint)
    exponent = needed_exponent(config, checkpoint)
    if exponent == 0:
        return raw, checkpoint
    exponents = weight_exponents(config, checkpoint.keys(), exponent)
    embeddings = {embedding_name(config, stack) for stack in STACKS}
    sizes = [root_mean_square(read_matrix(checkpoint, name, config.d_model)) * 2.0**-exponent for name in embeddings]
    sizes += [root_mean_square(checkpoint[name]) * 2.0**-each for name, each in exponents.items()]
    if min(sizes) < LEAST:
        raise Float16Error(f"{checkpoint}: float16 is less precise than bfloat16 for these weights; use bfloat16")
    changes = {
        "layer_norm_epsilon": config.layer_norm_epsilon * 4.0**-exponent,
        "residual_scale": config.residual_scale * 2.0**-exponent,
        "value_scale": config.value_scale * 2.0 ** -(exponent // 2),
    }
    return {**raw, **changes}, RescaledCheckpoint(checkpoint, exponents)


class RescaledCheckpoint(Checkpoint):
    """A checkpoint with some of its tensors multiplied by powers of two.

    Args:
        exponents: Maps the name of each rescaled tensor to e if the tensor is multiplied by 2^-e.
    """

    def __init__(self, inner: Checkpoint, exponents: Mapping[str, int]) -> None:
        self._inner = inner
        self._exponents = exponents
        super().__init__(inner, {name: inner.info(name) for name in inner})

    def __getitem__(self, name: str) -> mx.array:
        array = self._inner[name]
        exponent = self._exponents.get(name, 0)
        return array.astype(mx.float32) * 2.0**-exponent if exponent else array


def weight_exponents(config: T5Config, names: Set[str], exponent: int) -> dict[str, int]:
    """Return exponents for `RescaledCheckpoint` that scale each sublayer's output by 2^-exponent."""
    exponents: dict[str, int] = {}
    for sublayer in chain.from_iterable(sublayers(config, stack) for stack in STACKS):
        # Split the exponent between a sublayer's two matrices, to keep their values above float16's subnormal range.
        half = exponent // 2 if sublayer.is_homogeneous else 0
        for name, each in ((sublayer.inputs[-1], half), (sublayer.output, exponent - half)):
            parts = [part_name(name, part) for part in ("scales", "biases")]
            exponents |= dict.fromkeys(parts if parts[0] in names else [name], each)
    return exponents


class Sublayer(NamedTuple):
    """An attention or feed-forward sublayer's tensor names.

    inputs: matrices that multiply the normalized input. A gated sublayer has two, whose results are multiplied.
    output: the matrix whose result is added to the residual stream.
    is_homogeneous: whether scaling the last input matrix scales the output by the same factor.
    """

    norm: str
    inputs: tuple[str, ...]
    output: str
    is_homogeneous: bool = True


def sublayers(config: T5Config, stack: str) -> Iterator[Sublayer]:
    """Yield all sublayers of `stack`, which is "encoder" or "decoder", in order."""
    names = layer_names(config, has_cross_attention=stack == "decoder")
    is_homogeneous = config.decoder.is_gated or config.decoder.activation == "relu"
    for i in range(config.num_layers if stack == "encoder" else config.decoder_layers):
        here = {path: tuple(f"{stack}.block.{i}.layer.{name}.weight" for name in own) for path, own in names.items()}
        yield Sublayer(here["self_norm"][0], here["self_attention.qkv"][-1:], here["self_attention.o"][0])
        if stack == "decoder":
            encoder_norm = "encoder.final_layer_norm.weight"
            yield Sublayer(encoder_norm, here["cross_attention.kv"][-1:], here["cross_attention.o"][0])
        yield Sublayer(here["ff_norm"][0], here["ff.wi"], here["ff.wo"][0], is_homogeneous)


def needed_exponent(config: T5Config, checkpoint: Checkpoint) -> int:
    """Return the smallest k for which no value in the residual stream or inside a sublayer exceeds `LIMIT`."""
    stream, inside = bounds(config, checkpoint)
    if not math.isfinite(stream + inside):
        raise CheckpointError(
            f"{checkpoint}: weights are not finite, so float16 cannot hold them; download or convert it again"
        )
    return max(excess_exponent(stream), 2 * excess_exponent(inside))


def excess_exponent(bound: float) -> int:
    """Return the smallest k for which bound * 2^-k <= LIMIT."""
    return max(0, math.ceil(math.log2(bound / LIMIT))) if bound > 0 else 0


def bounds(config: T5Config, checkpoint: Checkpoint) -> tuple[float, float]:
    """Return upper bounds, valid for any input, on the residual stream and on the values inside sublayers.

    A norm with weight g outputs g * u with |u| = sqrt(d_model). By Cauchy-Schwarz, row w of the next matrix yields at
    most sqrt(d_model) * |w * g|. Attention averages its values, and activation functions do not increase magnitudes.
    """

    def row_bounds(matrix: str, norm: str) -> mx.array:
        weight = read_matrix(checkpoint, matrix, config.d_model) * checkpoint[norm].astype(mx.float32)
        return math.sqrt(config.d_model) * mx.sqrt(mx.square(weight).sum(axis=1))

    streams: list[mx.array] = []
    insides: list[mx.array] = []
    for stack in STACKS:
        embedding = read_matrix(checkpoint, embedding_name(config, stack), config.d_model)
        stream = mx.abs(embedding).max(axis=0) * config.residual_scale
        for sublayer in sublayers(config, stack):
            values = math.prod((row_bounds(matrix, sublayer.norm) for matrix in sublayer.inputs), start=mx.array(1.0))
            stream = stream + mx.abs(read_matrix(checkpoint, sublayer.output, values.size)) @ values
            insides.append(values.max())
            mx.eval(stream, insides)  # evaluate sublayers one at a time, so that few weights are in memory
        streams.append(stream.max())
    return float(mx.stack(streams).max()), float(mx.stack(insides).max())


def embedding_name(config: T5Config, stack: str) -> str:
    return SOURCE if stack == "encoder" and config.has_source_embedding else SHARED


def read_matrix(checkpoint: Checkpoint, name: str, columns: int) -> mx.array:
    """Return a matrix in float32, dequantized if necessary. Its shapes determine the quantization format."""
    weight = checkpoint[name]
    if part_name(name, "scales") not in checkpoint:
        return weight.astype(mx.float32)
    scales, biases = (checkpoint[part_name(name, part)].astype(mx.float32) for part in ("scales", "biases"))
    bits = 32 * weight.shape[1] // columns
    return mx.dequantize(weight, scales, biases, columns // scales.shape[1], bits)


def root_mean_square(x: mx.array) -> float:
    return float(mx.sqrt(mx.square(x.astype(mx.float32)).mean()))
