"""Compiled passes: one trace per shape, a bounded number of traces, and never stale weights after `finalize`."""

from __future__ import annotations

import gc
import io
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from speculative_decoding.models.compiled import MAX_COLUMNS, MAX_SHAPES, compiled_by_shape, joined_columns, stacked
from speculative_decoding.models.layers import Linear, finalize_layers
from tests.support.device import use, within
from tests.support.metal import pretend_gpu
from tests.support.operations import operations, total_without_masks, uncompiled
from tests.support.tiny import tiny_model


@pytest.mark.usefixtures("compilation")
def test_each_shape_is_traced_once_until_there_are_too_many() -> None:
    traced: list[int] = []

    def double(x: mx.array) -> mx.array:
        traced.append(x.size)
        return 2 * x

    function = compiled_by_shape(double)
    all_shapes = range(1, MAX_SHAPES + 1)
    for sizes, new in (
        ([*all_shapes, *all_shapes, 1], [*all_shapes]),
        ([MAX_SHAPES + 1] * 2, [MAX_SHAPES + 1]),  # drops shape 2, the least recently used
        ([1, 3], []),
        ([2], [2]),
    ):
        before = len(traced)
        for size in sizes:
            assert function(size)(mx.ones(size)).tolist() == [2.0] * size
        assert traced[before:] == new


@pytest.mark.usefixtures("device")
def test_passes_use_the_current_weights_after_finalize() -> None:
    model = tiny_model()

    def logits() -> mx.array:
        return model.decode(mx.array([[0, 5, 3]]), model.make_cache(model.encode(mx.array([[5, 9, 1]]))))

    before = logits()
    assert mx.array_equal(before, logits())
    weight = model.decoder.layers[0].ff.wi.weight
    model.load_weights([("decoder.layers.0.ff.wi.weight", weight * 1.5)], strict=False)
    model.finalize()
    changed = logits()
    assert not mx.allclose(before, changed)
    model.set_dtype(mx.bfloat16)
    model.finalize()
    assert logits().dtype == mx.bfloat16
    model.set_dtype(mx.float32)
    model.load_weights([("decoder.layers.0.ff.wi.weight", weight)], strict=False)
    model.finalize()
    assert mx.allclose(before, logits(), atol=0.1) and not mx.allclose(logits(), changed)


@pytest.mark.usefixtures("device")
def test_compiled_passes_equal_uncompiled_ones() -> None:
    """The passes cover rewinds, growth beyond the first buffer, and rows at different offsets."""

    def run() -> list[mx.array]:
        model = tiny_model()
        cache = model.make_cache(model.encode(mx.array([[5, 9, 1]] * 2)))
        seen = []
        for step, (length, offsets) in enumerate(
            [(1, [1, 1]), (5, [4, 2]), (3, [6, 5]), (31, [30, 36]), (30, [60, 50]), (9, [0, 0])]
        ):
            tokens = mx.array([[(3 * step + i) % 20 + 2 for i in range(length)]] * 2)
            seen.append(model.decode(tokens, cache))
            cache.trim_to(offsets)
        return seen

    once = run()
    with uncompiled():
        again = run()
    for ours, theirs in zip(once, again, strict=True):
        assert mx.abs(ours - theirs).max().item() < within(1e-5)


def test_a_model_computes_on_one_device_after_another(device: str) -> None:
    """Compiled functions keep a trace for each device."""
    model, found = tiny_model(), []
    for each in ("cpu", device, "cpu", device):
        use(getattr(mx, each))
        cache = model.make_cache(model.encode(mx.array([[5, 9, 1]])))
        for tokens in ([[0, 5, 3]], [[7]]):
            found.append(model.decode(mx.array(tokens), cache)[:, -1])
        mx.eval(found)
    for one, other in zip(found, found[2:], strict=False):
        assert mx.allclose(one, other, atol=within(1e-5)).item()


def test_a_pass_over_one_position_transposes_only_keys() -> None:
    """`finalize` stores matrices transposed."""
    model, graph = tiny_model(), io.StringIO()
    cache = model.make_cache(model.encode(mx.array([[5, 9, 1]])))
    mx.eval(model.decode(mx.array([[0]]), cache), cache.arrays)
    mx.export_to_dot(graph, model.states(mx.array([[5]]), cache))
    assert graph.getvalue().count('"Transpose"') == 2 * len(model.decoder.layers)


@pytest.mark.usefixtures("device")
def test_a_linear_layer_uses_its_current_weight_even_before_finalize() -> None:
    layer, x = Linear(3, 2, bias=False), mx.array([[1.0, 2.0, 3.0]])
    for weight in (mx.ones((2, 3)), mx.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])):
        layer.update({"weight": weight})
        for _ in range(2):
            assert layer(x).tolist() == (x @ weight.T).tolist()
            finalize_layers(layer)
    assert list(layer.parameters()) == ["weight"]


def test_replaced_weights_are_freed_by_finalize() -> None:
    model = tiny_model(d_model=256, d_ff=4096)
    cache = model.make_cache(model.encode(mx.array([[5, 9, 1]])))
    mx.eval(model.decode(mx.array([[0]]), cache), cache.arrays)
    before = mx.get_active_memory()
    model.set_dtype(mx.bfloat16)
    mx.eval(model.parameters())
    model.finalize()
    gc.collect()
    size = sum(value.nbytes for _, value in tree_flatten(model.parameters()))
    assert mx.get_active_memory() < before - 0.9 * size  # the new weights take half the size of the old ones


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("model_type", ["t5", "umt5"])
@pytest.mark.parametrize("form", [nullcontext, uncompiled], ids=["compiled", "as written"])
def test_the_number_of_operations_is_independent_of_the_number_of_rows(
    model_type: str, form: Callable[[], AbstractContextManager[None]]
) -> None:
    """The pass has several positions, and its rows have different offsets."""
    model, taken = tiny_model(model_type=model_type, num_layers=2), []
    with form():
        for rows in (1, 8):
            cache = model.make_cache(model.encode(mx.array([[5, 9, 1]] * rows)))
            mx.eval(model.decode(mx.array([[3] * 20] * rows), cache), cache.arrays)
            cache.trim_to([5 + 7 * row % 13 for row in range(rows)])
            logits = model.decode(mx.array([[4] * 6] * rows), cache)
            counts = operations(logits, cache.arrays)
            assert counts["Matmul"] > 10
            taken.append(total_without_masks(counts))
    assert len(set(taken)) == 1, taken


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_stacked_arrays_equal_those_of_mlx(count: int, axis: int, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = [mx.random.normal((2, 3, 4), key=mx.random.key(i)) for i in range(count)]
    expected = mx.stack(arrays, axis)
    assert mx.array_equal(stacked(arrays, axis), expected)
    pretend_gpu(monkeypatch)
    assert mx.array_equal(stacked(arrays, axis), expected)


@pytest.mark.usefixtures("device", "compilation")
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("counts", [[1], [1, 0], [1, 4], [1, 4, 3], [1, 8], [1, 20]])
def test_joined_columns_equal_a_concatenation_in_few_kernels(
    counts: Sequence[int], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = [mx.random.randint(0, 1000, (rows, each)).astype(mx.uint32) for each in counts]
    expected = mx.concatenate(arrays, axis=1)
    mx.eval(arrays, expected)
    assert mx.array_equal(joined_columns(arrays), expected)
    pretend_gpu(monkeypatch)
    joined = joined_columns(arrays)
    kernels = -(-sum(counts) // MAX_COLUMNS)
    assert operations(joined).total() == kernels + (kernels > 1)
    assert mx.array_equal(joined, expected) and joined.dtype == mx.uint32
