"""The price of exact passes, and when they are the default."""

from __future__ import annotations

from pathlib import Path

import pytest

from speculative_decoding.draft_length.calibration import Calibration, CalibrationStore
from speculative_decoding.draft_length.exactness import exactness_price
from tests.support.fake_probe import KEY, FakeProbe, calibrated

pytestmark = pytest.mark.filterwarnings("ignore:measuring this device")


def test_cheap_exact_passes_are_the_default_and_expensive_ones_are_not(folder: Path) -> None:
    alike, unlike = (
        calibrated(FakeProbe(lambda width: 0)),
        Calibration(FakeProbe(), CalibrationStore(KEY | {"mlx": "2"})),
    )
    for num_draft_tokens in (0, 5, None):
        assert exactness_price(alike, num_draft_tokens, 1, ()).is_worth_it
    baseline = exactness_price(unlike, 0, 1, ())
    assert baseline.is_possible and not baseline.is_worth_it
    assert baseline.share == pytest.approx(1 - unlike.costs(1).baseline / unlike.exact_costs(1).baseline)
    assert exactness_price(unlike, None, 1, ()).share < baseline.share  # drafts fill the wider passes
    assert not exactness_price(unlike, 15, 1, ()).is_possible  # no exact pass has 16 positions
    assert exactness_price(alike, 40, 1, ()).is_worth_it  # a width beyond the compared ones


def test_batches_with_different_bits_are_not_exact(folder: Path) -> None:
    calibration = calibrated(FakeProbe(lambda width: 0, batches=False))
    assert exactness_price(calibration, None, 1, ()).is_possible
    assert not exactness_price(calibration, None, 8, ()).is_possible and not calibration.batches_match(8)
