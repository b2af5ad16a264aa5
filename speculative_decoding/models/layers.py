"""Linear layers, and the Transformer layers of T5 and BART (Vaswani et al. 2017, arXiv 1706.03762).

Values that linear layers derive from their weights are evaluated only once, and `rows_of` computes logits for a subset
of the vocabulary. Gemma's layers reuse parts of this module. Positions are encoded in the masks and embeddings, which
the caller computes.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn

from .attention import Softmax, attend, precise_softmax, split_heads, split_parts
from .cache import CrossAttentionCache
from .config import ACTIVATIONS, LayerConfig
from .device import on_gpu

Head = Callable[[mx.array], mx.array]


class DerivedWeight(nn.Module):
    """A layer that uses a value derived from its weight. `finalize_layers` evaluates this value once for all passes.

    If the weight has been replaced since, as in a training step, every pass derives the value again.
    """

    @abstractmethod
    def derive(self) -> mx.array:
        """Compute the value from the weight."""

    @property
    def derived(self) -> mx.array:
        weight, derived = self.get("_finalized", (None, None))
        return derived if weight is self.weight else self.derive()


class ScaledNorm(DerivedWeight, nn.RMSNorm):
    """An RMS norm whose output is multiplied by a scale.

    A power of two is multiplied into the weight instead, which saves an operation and changes no bits, except those of
    subnormal outputs in float16.
    """

    def __init__(self, width: int, eps: float, scale: float) -> None:
        super().__init__(width, eps)
        self.scale = scale

    def derive(self) -> mx.array:
        return self.weight * self.scale

    def __call__(self, x: mx.array) -> mx.array:
        if math.frexp(self.scale)[0] == 0.5 and x.dtype != mx.float16:
            return mx.fast.rms_norm(x, self.derived, self.eps)
        return super().__call__(x) * self.scale


def finalize_layers(module: nn.Module) -> None:
    """Evaluate the derived value of every layer in a module."""
    for layer in module.modules():
        if isinstance(layer, DerivedWeight):
            derived = layer.derive()
            mx.eval(derived)
            layer._finalized = layer.weight, derived


class Linear(DerivedWeight, nn.Linear):
    """x (..., inputs) -> (..., outputs), with a weight (outputs, inputs).

    Unlike this class, `nn.Linear` transposes the weight in every pass, which adds a graph node.
    """

    def __call__(self, x: mx.array) -> mx.array:
        return mx.addmm(self.bias, x, self.derived) if "bias" in self else x @ self.derived

    def derive(self) -> mx.array:
        """Return the transposed weight, (inputs, outputs)."""
        return self.weight.T


def project(layer: nn.Module, x: mx.array, residual: mx.array | None = None) -> mx.array:
    """Return layer(x) plus the residual, if given. For a `Linear` without bias, one operation computes both.

    x: (rows, inputs). residual: (rows, outputs).
    """
    if residual is None:
        return layer(x)
    if isinstance(layer, Linear) and "bias" not in layer and adds_rows_in_bounds(len(x), x.shape[1], residual.shape[1]):
        return mx.addmm(residual, x, layer.derived)
    return residual + layer(x)


def adds_rows_in_bounds(rows: int, inputs: int, outputs: int) -> bool:
    """Return whether `mx.addmm` reads no memory past the end of its addend (rows, outputs).

    One of MLX's Metal matmul kernels reads and ignores up to 63 rows past the end, but this may cause a GPU fault. The
    kernels for one row, and for few rows with many inputs, never read past the end (docs/decisions/mlx-faults.md).
    Follows `steel_matmul_regular_axpby` and "Split K" in mlx/backend/metal/matmul.cpp at commit 846d176.
    """
    tiles = -(-rows // 16) * -(-outputs // 16)
    splits_inputs = inputs >= max(rows, outputs, 128) and tiles <= 1024
    return not on_gpu() or rows == 1 or splits_inputs


def matrix(layer: nn.Module) -> mx.array:
    """Return the layer's weight (outputs, inputs), dequantized if necessary."""
    if "scales" not in layer:
        return layer.weight
    return mx.dequantize(layer.weight, layer.scales, layer.get("biases"), layer.group_size, layer.bits, layer.mode)


def rows_of(layer: nn.Module, ids: mx.array) -> Head:
    """Return a function (B, L, d) -> (B, L, N) that multiplies by N rows of the (possibly quantized) weight."""
    parts = {name: layer[name][ids] for name in ("weight", "scales", "biases") if name in layer}
    if "scales" not in parts:
        transposed = parts["weight"].T  # transposed once, rather than in every product
        return lambda x: x @ transposed
    settings = {"bits": layer.bits, "group_size": layer.group_size, "mode": layer.mode}
    return lambda x: mx.quantized_matmul(x, parts["weight"], parts["scales"], parts.get("biases"), **settings)


class SelfAttention(nn.Module):
    """Self-attention with one key head per query head."""

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.config = config
        inner = config.num_heads * config.head_dim
        self.qkv = Linear(config.d_model, 3 * inner, config.has_bias)
        self.o = Linear(inner, config.d_model, config.has_bias)

    def __call__(
        self,
        x: mx.array,
        batch: int,
        mask: mx.array | None,
        cache: CrossAttentionCache | None = None,
        residual: mx.array | None = None,
    ) -> mx.array:
        queries, keys_values = mx.split(split_parts(self.qkv(x), batch, 3, self.config.num_heads), [1])
        keys, values = keys_values if cache is None else cache.append(keys_values)
        attended = attend(queries.squeeze(0), keys, values, mask, scale=self.config.scale)
        return project(self.o, attended, residual)


class CrossAttention(nn.Module):
    def __init__(self, config: LayerConfig, encoder_width: int) -> None:
        super().__init__()
        self.config = config
        self.softmax: Softmax = precise_softmax
        inner = config.num_heads * config.head_dim
        kv_inner = config.num_kv_heads * config.head_dim
        self.q = Linear(config.d_model, inner, config.has_bias)
        self.kv = Linear(encoder_width, 2 * kv_inner, config.has_bias)
        self.o = Linear(inner, config.d_model, config.has_bias)

    def project(self, encoder_output: mx.array) -> tuple[mx.array, mx.array]:
        x = self.kv(encoder_output.flatten(0, 1))
        keys, values = split_parts(x, encoder_output.shape[0], 2, self.config.num_kv_heads)
        return keys, values

    def __call__(
        self, x: mx.array, mask: mx.array, cache: CrossAttentionCache, residual: mx.array | None = None
    ) -> mx.array:
        queries = split_heads(self.q(x), len(cache.cross_keys), self.config.num_heads)
        attended = attend(
            queries,
            cache.cross_keys,
            cache.cross_values,
            mask,
            scale=self.config.scale,
            soft_cap=self.config.attention_cap,
            softmax=self.softmax,
        )
        return project(self.o, attended, residual)


class FeedForward(nn.Module):
    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.is_gated = config.is_gated
        self.activation = ACTIVATIONS[config.activation]
        self.wi = Linear(config.d_model, config.d_ff * (1 + config.is_gated), config.has_bias)
        self.wo = Linear(config.d_ff, config.d_model, config.has_bias)

    def __call__(self, x: mx.array, residual: mx.array | None = None) -> mx.array:
        x = self.wi(x)
        if self.is_gated:
            gate, x = mx.split(x, 2, axis=-1)
            return project(self.wo, self.activation(gate) * x, residual)
        return project(self.wo, self.activation(x), residual)


class Layer(nn.Module):
    """An encoder layer, or a decoder layer, which also attends over the encoder output.

    Each block's norm is applied either before the block (`norm_first`) or after the residual connection.
    """

    def __init__(
        self, config: LayerConfig, norm: Callable[[], nn.Module], *, has_cross_attention: bool = False
    ) -> None:
        super().__init__()
        self.norm_first = config.norm_first
        self.self_norm = norm()
        self.self_attention = SelfAttention(config)
        if has_cross_attention:
            self.cross_norm = norm()
            self.cross_attention = CrossAttention(config, config.d_model)
        self.ff_norm = norm()
        self.ff = FeedForward(config)

    def __call__(
        self,
        x: mx.array,
        batch: int,
        mask: mx.array | None,
        source_mask: mx.array | None = None,
        cache: CrossAttentionCache | None = None,
    ) -> mx.array:
        x = self.residual(x, self.self_norm, self.self_attention, batch, mask, cache)
        if cache is not None:
            x = self.residual(x, self.cross_norm, self.cross_attention, source_mask, cache)
        return self.residual(x, self.ff_norm, self.ff)

    def residual(self, x: mx.array, norm: nn.Module, block: nn.Module, *rest: object) -> mx.array:
        """Apply a block, its norm and its residual connection."""
        if self.norm_first:
            return block(norm(x), *rest, residual=x)
        return norm(block(x, *rest, residual=x))
