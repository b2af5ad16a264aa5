"""Checks kernels at a model's shapes by comparing them with basic operations in float32 on the CPU.

The kernels are called in the same way as in the model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ..models.attention import attend, joined_heads
from ..models.base import EncoderDecoder
from ..models.config import LayerConfig
from ..models.gemma import Norm, SelfAttention
from ..models.layers import DerivedWeight, matrix
from ..models.rope import Rope

LENGTHS = (1, 6, 8, 9)  # MLX uses different Metal kernels for attention with up to 8 queries and with more
BATCHES = (1, 3)
KEYS = 48
MASKED_KEYS = 5  # number of masked keys at the end
FLOAT32_TOLERANCE = 1e-4
TF32_TOLERANCE = 5e-3  # TF32 keeps 10 bits of the fraction


class KernelCheck(NamedTuple):
    """Result of one check. deviation: the largest absolute difference, relative to the largest reference value."""

    kernel: str
    shape: str
    deviation: float
    tolerance: float

    @property
    def passed(self) -> bool:
        return self.deviation <= self.tolerance  # false for NaN


Case = tuple[str, str, mx.array, mx.array]  # kernel, shape, the kernel's result, the reference result


def kernel_checks(model: EncoderDecoder, *, tf32: bool = False) -> list[KernelCheck]:
    """Check the kernels that this model uses on a GPU.

    tf32: whether the device computes float32 matmuls in TF32.
    """
    dtype = model.embed(mx.array([[0]])).dtype
    tolerance = TF32_TOLERANCE if tf32 else FLOAT32_TOLERANCE
    if dtype != mx.float32:
        tolerance = max(tolerance, 8 * float(mx.finfo(dtype).eps))
    checks = []
    for kernel, shape, found, expected in cases(model, dtype):
        reference = np.array(expected)
        difference = np.abs(np.array(found.astype(mx.float32)) - reference).max()
        checks.append(KernelCheck(kernel, shape, float(difference / np.abs(reference).max()), tolerance))
    return checks


def cases(model: EncoderDecoder, dtype: mx.Dtype) -> Iterator[Case]:
    for config in dict.fromkeys((model.config.encoder, model.config.decoder)):
        if config.attention_cap is not None:
            continue  # soft-capped attention uses no fused kernel
        yield from attention_cases(config, dtype)
    norms: dict[object, nn.Module] = {}
    products: dict[object, nn.Module] = {}
    ropes: dict[tuple[Rope, int], None] = {}
    for module in model.modules():
        if isinstance(module, nn.RMSNorm | nn.LayerNorm | Norm):
            norms.setdefault((type(module), module.weight.shape), module)
        elif isinstance(module, nn.QuantizedLinear):
            products.setdefault((module.weight.shape, module.bits, module.group_size), module)
        elif isinstance(module, SelfAttention):
            ropes.setdefault((module.layer_type.rope, module.config.head_dim), None)
    for norm in norms.values():
        yield norm_case(norm, dtype)
    for layer in products.values():
        yield from product_cases(layer, dtype)
    for rope, width in ropes:
        for offsets in (mx.array([0, 5, 40]), mx.array([0])):  # as in the decoder and in the encoder
            yield rope_case(rope, width, offsets, dtype)


def attention_cases(config: LayerConfig, dtype: mx.Dtype) -> Iterator[Case]:
    heads = config.num_heads
    groups = config.num_kv_heads
    width = config.head_dim
    for batch, length in product(BATCHES, LENGTHS):
        for mask_shape in ((batch, 1, 1, KEYS), (batch, heads if heads == groups else 1, length, KEYS)):
            queries = noise((batch, heads, length, width), dtype, 1) / (config.scale * math.sqrt(width))
            keys, values = (noise((batch, groups, KEYS, width), dtype, seed) for seed in (2, 3))
            queries = queries.astype(dtype)
            is_visible = mx.arange(KEYS) < KEYS - MASKED_KEYS
            mask = mx.where(is_visible, noise(mask_shape, dtype, 4), -mx.inf).astype(dtype)
            found = attend(queries, keys, values, mask, scale=config.scale)
            with mx.stream(mx.cpu):
                queries, keys, values, mask = (each.astype(mx.float32) for each in (queries, keys, values, mask))
                keys, values = (mx.repeat(each, heads // groups, axis=1) for each in (keys, values))
                weights = mx.softmax(config.scale * (queries @ keys.swapaxes(-1, -2)) + mask, axis=-1)
                expected = joined_heads(weights @ values)
            shape = f"batch {batch}, heads {heads} of {width}, length {length}, mask {mask_shape}"
            yield "attention", shape, found, expected


def norm_case(norm: nn.Module, dtype: mx.Dtype) -> Case:
    width = norm.weight.shape[0]
    x = noise((LENGTHS[-1], width), dtype, 5)
    found = norm(x)
    with mx.stream(mx.cpu):
        x = x.astype(mx.float32)
        weight = (norm.derive() if isinstance(norm, DerivedWeight) else norm.weight).astype(mx.float32)
        centered = x - x.mean(axis=-1, keepdims=True) if isinstance(norm, nn.LayerNorm) else x
        expected = centered / mx.sqrt(mx.square(centered).mean(axis=-1, keepdims=True) + norm.eps) * weight
        if "bias" in norm:
            expected = expected + norm.bias.astype(mx.float32)
    return "layer_norm" if isinstance(norm, nn.LayerNorm) else "rms_norm", f"width {width}", found, expected


def product_cases(layer: nn.Module, dtype: mx.Dtype) -> Iterator[Case]:
    with mx.stream(mx.cpu):
        weight = matrix(layer).astype(mx.float32)
    outputs, inputs = weight.shape
    for rows in sorted({batch * length for batch, length in product(BATCHES, LENGTHS)}):
        x = noise((rows, inputs), dtype, 6)
        found = layer(x)
        with mx.stream(mx.cpu):
            expected = x.astype(mx.float32) @ weight.T
            if "bias" in layer:
                expected = expected + layer.bias.astype(mx.float32)
        shape = f"{layer.bits} bits, groups of {layer.group_size}, {rows} x {inputs} x {outputs}"
        yield "quantized_matmul", shape, found, expected


def rope_case(rope: Rope, width: int, offsets: mx.array, dtype: mx.Dtype) -> Case:
    x = noise((3, 2, LENGTHS[-1], width), dtype, 7)
    found = rope(x, offsets)
    with mx.stream(mx.cpu):
        positions = (offsets[:, None] + mx.arange(x.shape[2])).astype(mx.float32) / rope.factor
        frequencies = mx.power(rope.base, -mx.arange(0, width, 2).astype(mx.float32) / width)
        angles = positions[:, None, :, None] * frequencies
        cos = mx.cos(angles)
        sin = mx.sin(angles)
        first, second = mx.split(x.astype(mx.float32), 2, axis=-1)
        expected = mx.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)
    return "rope", f"width {width}, base {rope.base:g}, {len(offsets)} offsets for {len(x)} rows", found, expected


def noise(shape: tuple[int, ...], dtype: mx.Dtype, seed: int) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)
