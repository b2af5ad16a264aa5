"""The planner of a session: measurements, stored state, and notes."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding import InputError, Session
from speculative_decoding.errors import written
from speculative_decoding.models.base import EncoderDecoder
from tests.parity.test_scoring import Numbers
from tests.support.fake_probe import FakeProbe
from tests.support.tiny import noisy_copy, tiny_model

pytestmark = pytest.mark.filterwarnings("ignore:measuring this device")


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> list[FakeProbe]:
    """A list of the probes that planners create."""
    created: list[FakeProbe] = []

    def create(model: EncoderDecoder, make_drafter: Any = None) -> FakeProbe:
        created.append(FakeProbe())
        return created[-1]

    monkeypatch.setattr("speculative_decoding.draft_length.planner.Probe", create)
    return created


def test_a_session_calibrates_once_and_reports_the_price(folder: Path, probes: list[FakeProbe]) -> None:
    target = tiny_model()
    session = Session(target, Numbers(), noisy_copy(target))
    for _ in range(2):
        session.generate("5 9 3", max_tokens=4)
    assert len(probes) == 1 and probes[0].timed

    def note(**options: Any) -> str | None:
        found = session.planner.exactness_note(session.options_with(options))
        return found and written(found)

    baseline = note(drafter="none")
    assert baseline and "strict prevents that and costs" in baseline and "%" in baseline
    assert note(strict=True) is None
    assert note(strict=False) is None
    assert note(temperature=1.0) == note()
    assert note(temperature=1.0, acceptance="rejection") is None  # samples may differ in any case
    too_many = "num_draft_tokens: 20 is too many for exact passes on this device, which have up to 14"
    with pytest.raises(InputError, match=too_many):
        session.generate("5 9 3", num_draft_tokens=20, strict=True)
    for schedule in ("auto", 14):  # drafts are cut to the exact passes
        session.generate("5 9 3", num_draft_tokens=schedule, strict=True, max_tokens=30)
    timed = len(probes[0].timed)
    session.calibrate(again=True)
    assert len(probes[0].timed) > timed


def test_a_calibrated_session_frees_its_models(folder: Path) -> None:
    session = Session(tiny_model(), Numbers(), noisy_copy(tiny_model()))
    session.calibrate()
    models = [weakref.ref(session.model), weakref.ref(session.draft_model)]
    del session
    gc.collect()
    assert [model() for model in models] == [None, None]


def test_calibrating_again_measures_passes_with_and_without_a_draft(folder: Path, probes: list[FakeProbe]) -> None:
    target = tiny_model()
    session = Session(target, Numbers(), noisy_copy(target))
    both = [session.options_with({"drafter": drafter}) for drafter in ("auto", "ngram")]
    before = [session.planner.calibration(options).costs(1).baseline for options in both]
    assert len(probes) == 2
    for each in probes:
        each.speed = 2.0
    session.calibrate(again=True)
    after = [session.planner.calibration(options).costs(1).baseline for options in both]
    assert after == pytest.approx([2 * seconds for seconds in before])


def test_the_reserved_capacity_does_not_depend_on_drafts(
    folder: Path, probes: list[FakeProbe], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where bits depend on the capacity of the KV cache, baseline and drafts would differ otherwise."""
    monkeypatch.setattr(FakeProbe, "capacity_matters", lambda self, width: True)
    target = tiny_model()
    session = Session(target, Numbers(), noisy_copy(target))

    def reserved(**options: Any) -> int | None:
        return session.planner.widths(session.options_with(options | {"strict": True})).reserved

    baseline = reserved(drafter="none")
    assert baseline is not None
    for options in ({"num_draft_tokens": "auto"}, {"num_draft_tokens": 5}, {"drafter": "ngram"}):
        assert reserved(**options) == baseline
