"""The planner of a session: measurements, stored state, and notes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding import InputError, Session, engine
from speculative_decoding.draft_length import DraftLength
from speculative_decoding.draft_length.calibration import Calibration
from speculative_decoding.errors import written
from speculative_decoding.models.base import EncoderDecoder
from tests.parity.test_scoring import Numbers
from tests.support.fake_probe import FakeProbe
from tests.support.tiny import noisy_copy, tiny_model

pytestmark = pytest.mark.filterwarnings("ignore:measuring this device")


class OtherLength(DraftLength):
    """A schedule of a caller, with two tokens a round."""

    def choose(self, kinds: Sequence[str], limits: Sequence[int]) -> list[int]:
        return [min(2, limit) for limit in limits]

    def describe(self) -> str:
        return "two tokens"


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> list[FakeProbe]:
    """A list of the probes that planners create."""
    created: list[FakeProbe] = []

    def create(model: EncoderDecoder, make_drafter: Any = None) -> FakeProbe:
        created.append(FakeProbe())
        return created[-1]

    monkeypatch.setattr("speculative_decoding.draft_length.probe.Probe", create)
    monkeypatch.setattr("speculative_decoding.draft_length.planner.gives_any_width_the_same_bits", lambda target: False)
    return created


def test_a_session_calibrates_once_and_notes_what_may_differ(folder: Path, probes: list[FakeProbe]) -> None:
    target = tiny_model()
    session = Session(target, Numbers(), noisy_copy(target))
    for _ in range(2):
        session.generate("5 9 3", max_tokens=4)
    assert len(probes) == 1 and probes[0].timed

    def note(**options: Any) -> str | None:
        found = session.planner.exactness_note(session.options_with(options))
        return found and written(found)

    assert "strict prevents that" in str(note(drafter="none")) and "strict prevents that" in str(note())
    assert note(num_draft_tokens=6) is None  # passes of 7 positions are exact
    assert "choose a smaller num_draft_tokens" in str(note(num_draft_tokens=40))
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


def test_a_number_of_draft_tokens_measures_no_times(folder: Path, probes: list[FakeProbe]) -> None:
    target = tiny_model()
    session = Session(target, Numbers(), noisy_copy(target))
    for strict in (False, True, None):
        session.generate("5 9 3", num_draft_tokens=4, strict=strict, max_tokens=10)
        assert bool(probes) == (strict is not False)  # bits decide whether passes are exact
    assert probes[0].compared and not probes[0].timed
    compared = len(probes[0].compared)
    again = Session(target, Numbers(), noisy_copy(target))
    again.generate("5 9 3", num_draft_tokens=4, max_tokens=10)
    assert len(probes[0].compared) == compared and len(probes) == 1


@pytest.mark.parametrize("length", [4, OtherLength()])
def test_nothing_is_opened_where_the_kernel_gives_equal_bits(
    folder: Path, probes: list[FakeProbe], monkeypatch: pytest.MonkeyPatch, length: Any
) -> None:
    monkeypatch.setattr("speculative_decoding.draft_length.planner.gives_any_width_the_same_bits", lambda target: True)
    target = tiny_model()
    session = Session(target, Numbers(), noisy_copy(target))
    for strict in (None, True, False):
        options = session.options_with({"num_draft_tokens": length, "strict": strict})
        session.generate("5 9 3", num_draft_tokens=length, strict=strict)
        assert session.planner.widths(options, 8).exact == (strict is not False)
        assert session.planner.exactness_note(options, 8) is None
    assert not probes and not folder.exists()


def test_nothing_is_measured_if_nothing_is_decoded(folder: Path, probes: list[FakeProbe]) -> None:
    target = tiny_model()
    session = Session(target, Numbers(), noisy_copy(target))
    assert [*session.batch([])] == []
    assert not probes and not folder.exists()


def test_a_schedule_for_each_request_leaves_nothing_behind(folder: Path, probes: list[FakeProbe]) -> None:
    target = tiny_model()
    session = Session(target, Numbers(), noisy_copy(target))
    used = [OtherLength() for _ in range(3)]
    for length in used:
        session.generate("5 9 3", num_draft_tokens=length, max_tokens=4)
    references = [weakref.ref(length) for length in used]
    del used, length
    gc.collect()
    assert [reference() for reference in references] == [None] * 3
    assert len(session.planner._widths) == 1


def test_the_device_is_measured_before_a_round_and_refined_after_the_first_token(
    folder: Path, probes: list[FakeProbe], monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    events = {"costs": "measured", "refine": "refined"}
    for name, event in events.items():
        own = getattr(Calibration, name)

        def noted(self: Calibration, *given: Any, own: Any = own, event: str = event, **options: Any) -> Any:
            happened.append(event)
            return own(self, *given, **options)

        monkeypatch.setattr(Calibration, name, noted)
    speculate = engine.speculate
    monkeypatch.setattr(engine, "speculate", lambda *given: (happened.append("round"), speculate(*given))[1])
    target = tiny_model()
    session = Session(target, Numbers(), noisy_copy(target))
    session.generate("5 9 3", max_tokens=3, num_draft_tokens="auto")
    first = happened.index("round")
    assert happened[0] == "measured" and "refined" not in happened[:first]
    assert happened.count("refined") == happened.count("round") - 1 > 0


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
    (probe,) = probes
    probe.speed = 2.0
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
