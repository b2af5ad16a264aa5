"""The widths of passes with the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from speculative_decoding.draft_length.calibration import Calibration
from speculative_decoding.draft_length.exact_widths import COMPARED_WIDTHS, choose_exact_widths
from speculative_decoding.draft_length.key import gives_any_width_the_same_bits
from speculative_decoding.draft_length.probe import Probe
from speculative_decoding.draft_length.store import CALIBRATION_VARIABLE, CalibrationStore
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.cache import DecoderCache
from speculative_decoding.version import native_libraries
from tests.parity.test_t5 import GOLDENS, load_golden
from tests.support.fake_probe import (
    KEY,
    FakeProbe,
    calibrated,
    compared,
    exact_widths_of,
    metal,
)
from tests.support.paths import ROOT
from tests.support.tiny import tiny_model

CACHES = os.environ.get("XDG_CACHE_HOME", "")  # compiled kernels are here; the fixture `folder` sets another folder
pytestmark = pytest.mark.filterwarnings("ignore:measuring this device")


def test_the_largest_group_of_published_kernels_is_chosen(folder: Path) -> None:
    calibration = calibrated(FakeProbe())
    assert exact_widths_of(calibration).widths == [6, 8, 9, 10, 12, 14, 15]
    assert {*calibration.costs(1, exact=True).passes} <= {*range(6, 16)} and calibration.costs(1, exact=True).passes
    assert min(calibration.costs(1).passes) == 1


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([[1, 2, 3, 4], [5, 6], [16, 24, 32]], [1, 2, 3, 4]),
        ([[1], [2, 3], [4, 5], [24, 32, 16]], [2, 3]),  # the narrowest of equally large groups
        ([[width] for width in COMPARED_WIDTHS], [1]),
    ],
)
def test_the_choice_does_not_depend_on_the_order_of_groups(groups: list[list[int]], expected: list[int]) -> None:
    assert choose_exact_widths(groups) == expected == choose_exact_widths(groups[::-1])


def test_nothing_is_compared_where_the_kernel_gives_equal_bits(folder: Path) -> None:
    probe = FakeProbe(batches=False)
    calibration = Calibration(lambda: probe, CalibrationStore(KEY))
    assert calibration.costs(1, exact=True).passes == calibration.costs(1).passes
    assert calibration.costs(8, exact=True).passes == calibration.costs(8).passes
    assert probe.compared == []


@pytest.mark.parametrize(
    ("kind_of", "expected"),
    [
        (lambda width: 0, {0: True, 5: True, 40: True, None: True}),
        (metal, {0: False, 4: False, 5: True, 14: True, 15: False, None: False}),
        (lambda width: width > 1, {0: False, 1: True, 5: True, None: True}),  # 16 bits on M1: only width 1 differs
        (lambda width: width > 10, {0: True, 9: True, 10: False, None: True}),
    ],
)
def test_the_default_is_exact_where_usual_passes_need_no_padding(
    folder: Path, kind_of: Callable[[int], int], expected: Mapping[int | None, bool]
) -> None:
    assert {length: compared(FakeProbe(kind_of)).is_exact_by_default(length, 1) for length in expected} == expected


def test_batches_with_other_bits_are_not_exact(folder: Path) -> None:
    exact_widths = compared(FakeProbe(lambda width: 0, batches=False))
    assert exact_widths.is_exact_by_default(None, 1)
    assert not exact_widths.is_exact_by_default(None, 8) and not exact_widths.batches_match(8)


@pytest.mark.slow
@pytest.mark.parametrize("golden", GOLDENS, ids=lambda golden: golden.name)
def test_known_equal_bits_equal_those_of_a_comparison(folder: Path, golden: Path) -> None:
    model, _ = load_golden(golden)
    if not gives_any_width_the_same_bits(model):
        pytest.skip("nothing is known about this machine's kernels")
    found = compared(Probe(model), {"golden": golden.name})
    assert found.widths == [*COMPARED_WIDTHS]
    assert found.batches_match(4) and found.borders == ([], [])


def brute_force(model: EncoderDecoder, source: Sequence[int], widths: Sequence[int]) -> dict[int, list[np.ndarray]]:
    """Return the logits of 48 positions, decoded in passes of each width."""
    tokens, found = [(7 * i + 3) % 20 + 2 for i in range(48)], {}
    for width in widths:
        cache = model.make_cache(model.encode(mx.array([list(source)])))
        parts = [model.decode(mx.array([tokens[i : i + width]]), cache) for i in range(0, 48, width)]
        found[width] = list(np.array(mx.concatenate(parts, axis=1)[0].astype(mx.float32)))
    return found


def compare_with_brute_force(dtype: mx.Dtype = mx.float32) -> None:
    model = tiny_model(seed=3, position_scale=1.0, d_model=96, d_kv=24, d_ff=320, num_heads=4)
    model.set_dtype(dtype)
    found = compared(Probe(model), {"dtype": str(dtype)})
    logits = brute_force(model, [5, 9, 3, 7, 1], COMPARED_WIDTHS)
    reference = logits[found.widths[0]]
    same = [width for width in COMPARED_WIDTHS if all(map(np.array_equal, logits[width], reference))]
    assert found.widths == same, dtype


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
def test_exact_widths_equal_those_of_a_brute_force_comparison(folder: Path, dtype: mx.Dtype) -> None:
    compare_with_brute_force(dtype)


def test_exact_widths_with_the_blas_of_mlx(folder: Path) -> None:
    calibrations = f"del os.environ['{CALIBRATION_VARIABLE}']; os.environ['XDG_CACHE_HOME'] = {str(folder)!r}"
    program = f"import tests, os; {calibrations}; import {__name__} as t; t.compare_with_brute_force()"
    environment = os.environ | {"SPECULATIVE_DECODING_BLAS": "none", "XDG_CACHE_HOME": CACHES}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.fixture
def equal_bits(folder: Path) -> None:
    """Skip a test on a machine whose bits already depend on the shape; planted differences would add to them."""
    found = compared(Probe(tiny_model()))
    is_equal = found.widths == [*COMPARED_WIDTHS] and found.batches_match(4) and found.borders == ([], [])
    if "equal_rows" not in native_libraries and not is_equal:
        pytest.skip("bits depend on the shape here")
    assert is_equal


def planted(factor: Callable[[mx.array, DecoderCache], float]) -> EncoderDecoder:
    """Return a model whose states are multiplied by a factor."""
    own = tiny_model()

    class Planted(type(own)):  # type: ignore[misc]
        def states(self, tokens: mx.array, cache: DecoderCache) -> mx.array:
            return super().states(tokens, cache) * factor(tokens, cache)

    model = Planted(own.config)
    model.update(own.parameters())
    return model  # type: ignore[no-any-return]


@pytest.mark.usefixtures("equal_bits")
def test_widths_that_differ_in_the_last_bits_are_detected() -> None:
    """The published groups are planted in a real model."""
    model = planted(lambda tokens, cache: 1.0 + 2e-7 * metal(tokens.shape[1]))
    assert compared(Probe(model), KEY | {"planted": "widths"}).widths == [6, 8, 9, 10, 12, 14, 15]


DEPENDS: dict[str, Callable[[DecoderCache], bool]] = {
    "rows": lambda cache: cache.rows > 1,
    "source": lambda cache: cache.source_capacity > 32,
    "capacity": lambda cache: cache.capacity > 32,
}


@pytest.mark.usefixtures("equal_bits")
@pytest.mark.parametrize("what", DEPENDS)
def test_bits_that_depend_on_the_batch_or_the_capacity_are_detected(what: str) -> None:
    model = planted(lambda tokens, cache: 1.0 + 1e-6 * DEPENDS[what](cache))
    found = compared(Probe(model), KEY | {"planted": what})
    assert found.borders == ([64] if what == "capacity" else [], [])
    assert found.batches_match(4) == (what == "capacity")
