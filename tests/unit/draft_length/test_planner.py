"""The planner of a session: measurements, stored state, and notes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from speculative_decoding import GenerationOptions, InputError, Session
from speculative_decoding.cli.runner import settle_exactness
from speculative_decoding.draft_length import DraftLength, FixedLength
from speculative_decoding.draft_length.costs import MAX_WIDTH, WIDER_WIDTHS
from speculative_decoding.draft_length.exact_widths import ExactWidths
from speculative_decoding.draft_length.passes import PassWidths, RoundCosts
from speculative_decoding.draft_length.store import COMPARISON
from speculative_decoding.drafters import NoDrafter
from speculative_decoding.engine import Engine
from speculative_decoding.runs.log import changed_setting
from tests.parity.test_scoring import Numbers
from tests.support.fake_probe import Clock, FakeProbe
from tests.support.tiny import noisy_copy, tiny_model

pytestmark = pytest.mark.filterwarnings("ignore:measuring this device")


class OtherLength(DraftLength):
    """A schedule of a caller, with two tokens a round."""

    def choose(self, kinds: Sequence[str], limits: Sequence[int]) -> list[int]:
        return [min(2, limit) for limit in limits]

    def describe(self) -> str:
        return "two tokens"


def session_of(probes: list[FakeProbe], **options: Any) -> Session:
    """Return a session on a device without known bits. `probes` gets each probe that it creates."""
    target = tiny_model()
    session = Session(target, Numbers(), noisy_copy(target))

    def create() -> FakeProbe:
        probes.append(FakeProbe(**options))
        return probes[-1]

    planner = session.planner
    planner.probe = cache(create)
    planner.exact_widths = ExactWidths(planner.probe, planner.store)
    return session


@pytest.fixture
def probes(folder: Path) -> list[FakeProbe]:
    """The probes that sessions create. Measurements are stored in an empty folder."""
    return []


def test_a_session_calibrates_once_and_notes_what_may_differ(probes: list[FakeProbe]) -> None:
    session = session_of(probes)
    for _ in range(2):
        session.generate("5 9 3", max_tokens=4)
    assert len(probes) == 1 and probes[0].timed

    def note(**options: Any) -> str | None:
        found = session.planner.exactness_note(session.options_with(options))
        return None if found is None else str(found)

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


def test_a_number_of_draft_tokens_measures_no_times(probes: list[FakeProbe]) -> None:
    session = session_of(probes)
    for strict in (False, True, None):
        session.generate("5 9 3", num_draft_tokens=4, strict=strict, max_tokens=10)
        assert bool(probes) == (strict is not False)  # bits decide whether passes are exact
    assert probes[0].compared and not probes[0].timed
    compared = len(probes[0].compared)
    session_of(probes).generate("5 9 3", num_draft_tokens=4, max_tokens=10)
    assert len(probes[0].compared) == compared and len(probes) == 1


@pytest.mark.parametrize("length", [4, OtherLength()])
def test_nothing_is_opened_where_the_kernel_gives_equal_bits(
    folder: Path, probes: list[FakeProbe], length: Any
) -> None:
    session = session_of(probes)
    session.planner.exact_widths = None
    for strict in (None, True, False):
        options = session.options_with({"num_draft_tokens": length, "strict": strict})
        session.generate("5 9 3", num_draft_tokens=length, strict=strict)
        assert session.planner.widths(options, 8).exact == (strict is not False)
        assert session.planner.exactness_note(options, 8) is None
    assert not probes and not folder.exists()


def test_nothing_is_measured_if_nothing_is_decoded(folder: Path, probes: list[FakeProbe]) -> None:
    session = session_of(probes)
    assert [*session.batch([])] == []
    assert not probes and not folder.exists()


def test_a_schedule_for_each_request_leaves_nothing_behind(probes: list[FakeProbe]) -> None:
    session = session_of(probes)
    used = [OtherLength() for _ in range(3)]
    for length in used:
        session.generate("5 9 3", num_draft_tokens=length, max_tokens=4)
    references = [weakref.ref(length) for length in used]
    del used, length
    gc.collect()
    assert [reference() for reference in references] == [None] * 3
    assert len(session.planner._widths) == 1


def test_the_device_is_measured_before_a_round_and_refined_after_the_first_token() -> None:
    happened: list[str] = []
    widths = PassWidths(
        lambda rows: happened.append("measured") or RoundCosts({1: 1.0}),  # type: ignore[func-returns-value]
        refine=lambda rows: happened.append("refined"),
    )
    engine = Engine(tiny_model(), Numbers(), NoDrafter(), slots=1, widths=widths)
    engine.submit("5 9 3", GenerationOptions(max_tokens=3), FixedLength(0))
    for step in range(3):
        engine.step()
        assert happened[0] == ("refined" if step else "measured") and happened.count("refined") == (step > 0)
        happened.clear()
    assert engine.is_idle


@pytest.mark.parametrize(("timed", "observed"), [(False, 3), (True, 0)])
def test_costs_are_learned_from_rounds_of_known_shapes(timed: bool, observed: bool) -> None:
    """A request's first round and the first round of a shape, which MLX traces, do not count."""
    found: list[tuple[int, int, int, float]] = []
    widths = PassWidths(lambda rows: RoundCosts({1: 1.0}), observe=lambda *round: found.append(round))
    engine = Engine(tiny_model(), Numbers(), NoDrafter(), slots=1, widths=widths)
    request = engine.submit("5 9 3", GenerationOptions(max_tokens=5, timed=timed), FixedLength(0))
    while not engine.is_idle:
        engine.step()
    assert request.stats.target_calls == 5 and len(found) == observed
    assert all(round[:3] == (1, 1, 0) and 0.0 < round[3] < request.stats.decode_seconds for round in found)


@pytest.mark.parametrize("strict", [False, True])
def test_a_text_that_is_right_gets_longer_drafts_after_wider_passes_are_timed(
    probes: list[FakeProbe], clock: Clock, monkeypatch: pytest.MonkeyPatch, strict: bool
) -> None:
    """Not before, and not wider than the exact passes where bits matter."""
    session = session_of(probes, kind_of=lambda width: 0, slope=0.001)
    monkeypatch.setattr(session.model, "config", replace(session.model.config, eos_token_ids=()))
    options = {"drafter": "text", "strict": strict, "max_tokens": 250}
    text = session.generate("5 9 3", **options).text
    widths: list[int] = []
    longest = []
    for _ in range(6):
        result = session.generate("5 9 3", draft_text=text, **options)
        assert result.text == text
        longest.append(max(result.stats.accepted_histogram))
        widths = [width for _, width in probes[0].timed if width > MAX_WIDTH]
        assert longest[-1] < max([MAX_WIDTH, *widths])
    assert longest[0] >= 16 and longest[-1] == (31 if strict else 63)
    assert {*widths} == ({24, 32} if strict else {*WIDER_WIDTHS})


def test_a_calibrated_session_frees_its_models(folder: Path) -> None:
    session = Session(tiny_model(), Numbers(), noisy_copy(tiny_model()))
    session.calibrate()
    models = [weakref.ref(session.model), weakref.ref(session.draft_model)]
    del session
    gc.collect()
    assert [model() for model in models] == [None, None]


def test_calibrating_again_measures_passes_with_and_without_a_draft(probes: list[FakeProbe]) -> None:
    session = session_of(probes)
    both = [session.options_with({"drafter": drafter}) for drafter in ("auto", "ngram")]
    session.calibrate()
    before = [session.planner.calibration(options).costs(1).baseline for options in both]
    (probe,) = probes
    probe.speed = 2.0
    session.calibrate(again=True)
    after = [session.planner.calibration(options).costs(1).baseline for options in both]
    assert after == pytest.approx([2 * seconds for seconds in before], rel=1e-3)


def test_the_reserved_capacity_does_not_depend_on_drafts(probes: list[FakeProbe]) -> None:
    """Where bits depend on the capacity of the KV cache, baseline and drafts would differ otherwise."""
    session = session_of(probes, capacity_borders=[1024])

    def reserved(**options: Any) -> int:
        widths = session.planner.widths(session.options_with(options | {"strict": True}))
        assert widths.reaches_border(1024) and not widths.reaches_border(512)
        return widths.reserved

    baseline = reserved(drafter="none")
    assert baseline > 1
    for options in ({"num_draft_tokens": "auto"}, {"num_draft_tokens": 5}, {"drafter": "ngram"}):
        assert reserved(**options) == baseline


@pytest.mark.parametrize("strict", [None, True])
def test_a_job_whose_passes_an_earlier_version_compared_says_so_when_it_is_resumed(
    strict: bool | None, probes: list[FakeProbe], capsys: pytest.CaptureFixture[str]
) -> None:
    session = session_of(probes, kind_of=lambda width: 0)
    given = {} if strict is None else {"exact": strict}

    def says_so(recorded: dict[str, Any], *, is_new: bool) -> bool:
        session.options = GenerationOptions(strict=strict)
        log: Any = SimpleNamespace(settings=recorded, is_new=is_new)
        settle_exactness(session, 1, log)
        return "an earlier version compared passes less strictly" in capsys.readouterr().err

    new = dict(given)
    assert not says_so(new, is_new=True)
    assert new == {"exact": True, "comparison": COMPARISON} and changed_setting(new, given) == ""
    assert not says_so(new, is_new=False)
    assert says_so({"exact": True}, is_new=False)
    session.planner.exact_widths = None  # nothing is compared on this device
    assert not says_so({"exact": True}, is_new=False)


@pytest.mark.parametrize("exact", [True, False])
def test_a_resumed_job_compares_nothing_to_keep_its_exactness(exact: bool, probes: list[FakeProbe]) -> None:
    session = session_of(probes)
    log: Any = SimpleNamespace(settings={"exact": exact}, is_new=False)
    settle_exactness(session, 2, log)
    assert session.options.strict is exact and not probes
