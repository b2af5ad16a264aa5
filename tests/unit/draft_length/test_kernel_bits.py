"""Kernels that add in another order are told apart in every precision, although 16 bits hide most differences."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from speculative_decoding.draft_length import kernel_bits
from speculative_decoding.draft_length.exact_widths import COMPARED_WIDTHS
from speculative_decoding.draft_length.kernel_bits import KernelBits, bits_of, paired, products, spread
from speculative_decoding.draft_length.probe import Probe
from speculative_decoding.models import base
from speculative_decoding.models.attention import joined_heads
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.layers import Linear
from tests.parity.test_t5 import GOLDENS, load_golden
from tests.support.fake_probe import compared
from tests.support.tiny import tiny_model

pytestmark = pytest.mark.filterwarnings("ignore:measuring this device")
DTYPES = [mx.float32, mx.float16, mx.bfloat16]
SIZES: dict[str, Any] = {"d_model": 128, "d_kv": 64, "d_ff": 256, "vocab_size": 96}


def product(x: mx.array, matrix: mx.array) -> mx.array:
    """(..., L, K) @ (..., K, N) with the same order of addition for any L, on every machine."""
    return (x[..., None, :] * matrix[..., None, :, :].swapaxes(-1, -2)).sum(axis=-1)


def in_parts(x: mx.array, matrix: mx.array, end: int) -> mx.array:
    """`product`, but terms before `end` are added up separately from the others."""
    first, second = slice(end), slice(end, None)
    return product(x[..., first], matrix[..., first, :]) + product(x[..., second], matrix[..., second, :])


def split_from(least: int) -> Callable[[nn.Module, mx.array], mx.array]:
    """Return `Linear.__call__` with another order of addition for `least` rows or more."""

    def call(layer: nn.Module, x: mx.array) -> mx.array:
        end = x.shape[-1] // 2 if x.size >= least * x.shape[-1] else 0
        return in_parts(x.astype(mx.float32), layer.weight.T.astype(mx.float32), end).astype(x.dtype)

    return call


@pytest.fixture
def layers_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare linear layers only, whatever this machine's other kernels do."""
    monkeypatch.setattr(KernelBits, "_attentions", lambda self: iter(()))
    monkeypatch.setattr(kernel_bits, "project", lambda layer, x, residual: residual + layer(x))
    monkeypatch.setattr(Probe, "bits", lambda self, width: [])
    monkeypatch.setattr(Probe, "single_bits", lambda self, row, width: [])
    monkeypatch.setattr(Probe, "batch_bits", lambda self, rows, width: [[]] * 2)
    monkeypatch.setattr(Probe, "borders", lambda self, widths: ([], []))


def model_in(dtype: mx.Dtype, **changes: Any) -> EncoderDecoder:
    model = tiny_model(**SIZES | changes)
    model.set_dtype(dtype)
    model.finalize()
    return model


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.usefixtures("layers_only")
def test_another_order_of_addition_is_found_in_every_precision(
    dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Linear, "__call__", split_from(6))
    found = compared(Probe(model_in(dtype)), {"dtype": str(dtype)})
    assert found.widths == [width for width in COMPARED_WIDTHS if width >= 6]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.usefixtures("layers_only")
def test_a_batch_multiplies_as_a_wider_pass(dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Linear, "__call__", split_from(40))
    found = compared(Probe(model_in(dtype)), {"dtype": str(dtype)})
    assert found.widths == [*COMPARED_WIDTHS]
    assert found.same_bits(4, 9) and not found.same_bits(4, 10)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("border", [64, 1024])
def test_capacities_where_attention_changes_its_order_are_found(
    border: int, dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As MLX's fused attention does from 1,024 keys on: a part of the visible keys is added separately."""

    def in_two_passes(queries: mx.array, keys: mx.array, values: mx.array, mask: mx.array, **options: Any) -> mx.array:
        arrays = (each.astype(mx.float32) for each in (queries, keys, values, mask))
        queries32, keys32, values32, mask32 = arrays
        weights = mx.softmax(product(queries32, keys32.swapaxes(-1, -2)) + mask32, axis=-1)
        out = in_parts(weights, values32, keys.shape[2] // 4 if keys.shape[2] >= border else 0)
        return joined_heads(out).astype(queries.dtype)

    monkeypatch.setattr(base, "attend", in_two_passes)
    kernels = KernelBits(model_in(dtype))
    assert border in kernels.capacity_borders(1) and border in kernels.source_borders(1)


@pytest.mark.parametrize("folder", GOLDENS, ids=lambda folder: folder.name)
def test_kernels_of_every_family_have_the_same_bits_on_a_cpu(folder: Any) -> None:
    """In 16 bits, MLX's CPU kernels compute each row separately. Each linear layer of a pass is compared."""
    model, _ = load_golden(folder)
    model.set_dtype(mx.bfloat16)
    model.finalize()
    kernels = KernelBits(model)
    found = kernels.of_passes([(1, 1), (1, 3), (3, 5)])
    assert found[1, 1] == found[1, 3] == found[3, 5]
    assert len(found[1, 1]) > 4 and len({*found[1, 1]}) > 4
    assert kernels.capacity_borders(3) == [] == kernels.source_borders(3)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("columns", [64, 128, 192])
def test_the_terms_of_a_quantized_product_cancel(bits: int, columns: int) -> None:
    layer = nn.QuantizedLinear(columns, 96, bias=False, group_size=64, bits=bits)
    size = 1e-3 * 32 * columns**0.5
    for kernel in products(layer, mx.float32, is_head=False):
        outputs = kernel(mx.array([[0, 1, 2, 3]]))
        assert outputs.shape == (4, 96) and mx.abs(outputs).max().item() < size


def test_a_result_that_depends_on_the_position_in_a_pass_equals_no_other() -> None:
    def kernel(chosen: mx.array, last: float = 0.0) -> mx.array:
        out = mx.ones((chosen.size, 8)) * (1 + chosen.flatten()[:, None])
        return mx.concatenate([out[:-1], out[-1:] + last])

    assert bits_of(kernel, 1, 1) == bits_of(kernel, 1, 5) == bits_of(kernel, 2, 4)
    wrong = partial(kernel, last=1e-6)
    assert len({bits_of(wrong, *shape) for shape in ((1, 5), (1, 6), (2, 4))}) == 3


@pytest.mark.parametrize(("size", "group"), [(8, 1), (7, 1), (256, 64), (192, 64), (64, 64)])
def test_each_index_has_one_partner_in_one_other_group(size: int, group: int) -> None:
    first, second = paired(np.random.default_rng(0), size, group)
    both = [*first, *second]
    assert len({*both}) == len(both) == size - size % 2
    partners = {int(a) // group: int(b) // group for a, b in zip(first, second, strict=True)}
    assert all(b // group == partners[a // group] for a, b in zip(first, second, strict=True))
    numbers = spread(np.ones((2, len(first))), (first, second), -1, size)
    assert (numbers.sum(axis=-1) == 0).all()


def test_quantized_layers_of_equal_shapes_are_told_apart() -> None:
    """8 bits in groups of 32 need the same arrays for 256 inputs as 4 bits in groups of 64 for 512."""
    model = model_in(mx.float32)
    kinds = [nn.QuantizedLinear(512, 96, False, 64, 4), nn.QuantizedLinear(256, 96, False, 32, 8)]
    assert kinds[0].weight.shape == kinds[1].weight.shape and kinds[0].scales.shape == kinds[1].scales.shape
    before = len([*KernelBits(model)._products()])
    layer = model.decoder.layers[0]
    layer.first, layer.second = kinds
    assert len([*KernelBits(model)._products()]) == before + 2


@pytest.mark.parametrize(("shape", "transposed"), [((1, 1), 0), ((1, 3), 1), ((2, 3), 0)])
def test_products_are_also_compared_for_the_transpose_that_attention_returns(
    shape: tuple[int, int], transposed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On some GPUs, `attend` returns joined heads as a transpose, for several positions of one row."""
    monkeypatch.setattr(kernel_bits, "multiplies_transposes", lambda dtype: True)
    seen: list[bool] = []
    usual = Linear.__call__

    def call(layer: Linear, x: mx.array) -> mx.array:
        mx.eval(x)
        seen.append(memoryview(x).c_contiguous)  # type: ignore[arg-type]
        return usual(layer, x)

    monkeypatch.setattr(Linear, "__call__", call)
    for kernel in products(Linear(64, 32), mx.float32, is_head=False):
        kernel(mx.zeros(shape, mx.int32))
    assert seen.count(False) == transposed and len(seen) >= 2
