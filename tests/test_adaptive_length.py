"""The adaptive length against the best fixed length in hindsight, on sessions whose law is known; one row and many."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import product

import pytest

from speculative_decoding.draft_length import AdaptiveLength, Choice, Drafted, FixedLength, adaptive
from speculative_decoding.draft_length.costs import Costs, RoundTimes
from speculative_decoding.drafters.base import COPY, MODEL
from speculative_decoding.errors import InputError

from .simulated_rounds import Truth, bundled, flat, play, session, steep

PRIOR = Costs(position=0.1, step=0.16, reading=0.6)  # what is predicted for the bundled pair
SHARE_OF_BEST, SHARE_OF_PLAIN = 0.97, 0.98
NOISE = 0.1


def requests_of(rows: int) -> int:
    return 100 + 40 * rows


class FixedPair(FixedLength):
    """So many tokens for copies, so many for the model."""

    def __init__(self, copied: int, modelled: int) -> None:
        super().__init__(max(copied, modelled))
        self._counts = {COPY: copied, MODEL: modelled}

    def choose(self, rows: Sequence[Choice]) -> list[int]:
        return [min(self._counts[row.kind], row.room) for row in rows]


@cache
def fixed(name: str, rows: int, truth: Truth, drafter: str = MODEL) -> tuple[float, float]:
    """Seconds of the best fixed lengths, and without any draft."""
    requests, counts = session(name, requests_of(rows)), (0, 1, 2, 3, 5, 7)
    if drafter == "auto":
        pairs = [(copied, modelled) for copied in (0, 3, 7) for modelled in (0, 1, 2, 3, 5)]
        seconds = [play(FixedPair(*pair), requests, truth, rows=rows, drafter=drafter).seconds for pair in pairs]
    else:
        seconds = [play(FixedLength(n), requests, truth, rows=rows, drafter=drafter).seconds for n in counts]
    return min(seconds), seconds[0]


def shares(
    name: str,
    rows: int,
    truth: Truth,
    *,
    drafter: str = MODEL,
    make: Callable[[Costs], AdaptiveLength] = AdaptiveLength,
    prior: Costs = PRIOR,
    noise: float = NOISE,
) -> tuple[float, float]:
    """Its speed in shares of the best fixed lengths' and of plain decoding's."""
    best, plain = fixed(name, rows, truth, drafter)
    played = play(make(prior), session(name, requests_of(rows)), truth, rows=rows, noise=noise, drafter=drafter)
    return best / played.seconds, plain / played.seconds


ONE_ROW = [
    *("translation", "grammar", "describe", "useless", "rarely right", "0.5", "0.9"),
    *("a task at random", "useless at first", "useless in the end"),
]
MANY_ROWS = ["translation", "grammar", "describe", "useless", "0.9", "useless at first"]


@pytest.mark.parametrize(
    ("name", "rows"), [*((name, 1) for name in ONE_ROW), *product(MANY_ROWS, (4, 8)), *product(MANY_ROWS[:4], (16,))]
)
def test_it_is_about_as_fast_as_the_best_fixed_length_and_never_slower_than_none(name: str, rows: int) -> None:
    of_best, of_plain = shares(name, rows, bundled)
    assert of_best >= SHARE_OF_BEST and of_plain >= SHARE_OF_PLAIN


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize(
    ("name", "drafter"), [("copies", "copy"), ("copies", "auto"), ("copies, useless model", "auto")]
)
def test_kinds_are_judged_apart_and_a_drafter_that_often_finds_nothing_by_what_it_finds(
    name: str, drafter: str, rows: int
) -> None:
    of_best, of_plain = shares(name, rows, bundled, drafter=drafter)
    assert of_best >= SHARE_OF_BEST and of_plain >= SHARE_OF_PLAIN


def test_where_no_draft_can_pay_it_costs_next_to_nothing() -> None:
    assert shares("0.9", 1, steep)[1] >= SHARE_OF_PLAIN


def test_a_draft_that_becomes_good_is_drafted_again() -> None:
    """The useless half first, so that it is parked, and only the good half is timed."""
    requests, length = session("useless at first", 400), AdaptiveLength(PRIOR)
    play(length, requests[:200], bundled, noise=NOISE)
    assert length.parked and "parked" in length.describe()
    played = play(length, requests[200:], bundled, noise=NOISE)
    assert not length.parked and "promise" in length.describe()
    best = min(play(FixedLength(count), requests[200:], bundled).seconds for count in (3, 4, 5, 6, 7))
    assert best / played.seconds >= 0.9  # it takes some hundred rounds until a probe is due, and others follow


WRONG = [replace(PRIOR, position=PRIOR.position * f, step=PRIOR.step * f, reading=PRIOR.reading * f) for f in (0.5, 2)]


@pytest.mark.parametrize("prior", WRONG, ids=["half", "double"])
@pytest.mark.parametrize(("name", "rows"), [("describe", 1), ("grammar", 1), ("useless", 1), ("grammar", 8)])
def test_costs_predicted_wrongly_by_a_factor_of_two_are_corrected(name: str, rows: int, prior: Costs) -> None:
    """Once it has decoded one session, the next is as fast as if nothing had been wrong."""
    length, requests = AdaptiveLength(prior), session(name, requests_of(rows))
    play(length, requests, bundled, rows=rows, noise=NOISE)
    best, plain = fixed(name, rows, bundled)
    played = play(length, requests, bundled, rows=rows, noise=NOISE)
    assert best / played.seconds >= SHARE_OF_BEST and plain / played.seconds >= SHARE_OF_PLAIN


def forgets_what_was_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptive.Acceptance, "observe", lambda self, rows: None)


def never_corrects_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RoundTimes, "observe", lambda self, *what: None)


def never_compares_with_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptive, "FIRST_GAP", 10**9)


def probes_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PROBE_SHARE", "LEAST_WAIT"):
        monkeypatch.setattr(adaptive, name, 1)


def never_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AdaptiveLength, "_due", lambda self, rows: None)


def takes_the_untested_for_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    observe = adaptive.Acceptance.observe

    def faulty(self: adaptive.Acceptance, rows: Sequence[Drafted]) -> None:
        observe(self, rows)
        for row in rows:
            for i in range(row.accepted + 1, min(row.drafted, len(self._seen))):
                self._seen[i] += 1.0

    monkeypatch.setattr(adaptive.Acceptance, "observe", faulty)


CHEAP, DEAR = Costs(0.01, 0.02), Costs(0.4, 0.7)


@pytest.mark.parametrize(
    ("fault", "name", "truth", "prior"),
    [
        (forgets_what_was_accepted, "useless", bundled, PRIOR),
        (forgets_what_was_accepted, "0.9", bundled, PRIOR),
        (never_corrects_costs, "rarely right", bundled, CHEAP),
        (never_corrects_costs, "0.5", bundled, DEAR),
        (never_compares_with_plain, "0.9", steep, CHEAP),
        (probes_all_the_time, "useless", bundled, PRIOR),
        (never_probes, "useless at first", bundled, PRIOR),
        (takes_the_untested_for_wrong, "0.9", bundled, PRIOR),
    ],
)
def test_planted_faults_are_slower_than_they_may_be(
    fault: Callable[[pytest.MonkeyPatch], None], name: str, truth: Truth, prior: Costs, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    of_best, of_plain = shares(name, 1, truth, prior=prior)
    assert of_best < SHARE_OF_BEST or of_plain < SHARE_OF_PLAIN


def test_while_parked_hardly_a_round_asks_what_there_is_to_draft() -> None:
    requests = session("useless", 200)
    for make, few in ((AdaptiveLength, True), (lambda costs: Restless(costs), False)):
        played = play(make(PRIOR), requests, bundled, noise=NOISE)
        assert (played.skipped >= 0.9 * played.rounds) == few


class Restless(AdaptiveLength):
    def skips_round(self) -> bool:
        super().skips_round()
        return False


def test_rounds_that_tell_no_time_teach_no_costs() -> None:
    """As those that compile: what they accepted counts all the same."""
    lengths = [AdaptiveLength(PRIOR) for _ in range(2)]
    requests = session("describe", 40)
    play(lengths[0], requests, bundled, told=lambda seconds: 0.0)
    assert lengths[0]._times._factors == [1.0, 1.0, 1.0] and not lengths[0]._times.plain_rounds
    assert lengths[0]._kinds[MODEL].expected != lengths[1]._kinds[MODEL].expected


def taught(costs: Costs, right: dict[str, float], most: int) -> AdaptiveLength:
    length, dice = AdaptiveLength(costs, most=most), random.Random(0)
    for _ in range(400):
        for kind, chance in right.items():
            accepted = next((i for i in range(most) if dice.random() >= chance), most)
            length.observe([Drafted(most, most, accepted, kind)], 0.0)
    return length


ALL_COSTS = [Costs(0.03, 0.05), Costs(0.1, 0.16), Costs(0.02, 0.6), Costs(0.3, 0.01)]


@pytest.mark.parametrize("costs", ALL_COSTS)
def test_no_other_lengths_promise_more(costs: Costs) -> None:
    """Every way to give each of three rows 0 to 3 tokens, by the law of the round."""
    length = taught(costs, {COPY: 0.9, MODEL: 0.6}, most=3)
    for kinds in product((COPY, MODEL), repeat=3):

        def rate(counts: Sequence[int], kinds: Sequence[str] = kinds) -> float:
            tokens = sum(1 + length._kinds[kind].expected[n] for kind, n in zip(kinds, counts, strict=True))
            steps = max(n * (kind == MODEL) for kind, n in zip(kinds, counts, strict=True))
            return tokens / (1.0 + sum(costs.parts(3, max(counts), steps)))

        best = max(rate(counts) for counts in product(range(4), repeat=3))
        lengths, gain = length._best([Choice(3, kind) for kind in kinds])
        if best > 1.05 * rate((0, 0, 0)):
            assert rate([lengths[kind] for kind in kinds]) == pytest.approx(best, rel=1e-3)
            assert gain == pytest.approx(best / rate((0, 0, 0)), rel=1e-3)


@pytest.mark.parametrize("costs", ALL_COSTS)
@pytest.mark.parametrize("right", [0.3, 0.6, 0.9])
def test_for_one_row_it_is_the_length_with_the_largest_s_of_g(costs: Costs, right: float) -> None:
    """S(g) = E(g) / (t(g + 1) + s + g c + h) with t(1) + h = 1 (algorithms of Leviathan et al. 2023, section 3.3)."""
    length = taught(costs, {MODEL: right}, most=12)
    expected = length._kinds[MODEL].expected
    speeds = [(1 + expected[g]) / (1.0 + sum(costs.parts(1, g, g))) for g in range(13)]
    lengths, gain = length._best([Choice(12, MODEL)])
    assert lengths[MODEL] == max(range(1, 13), key=speeds.__getitem__) and gain == pytest.approx(max(speeds[1:]))
    for i in range(12):  # the acceptance behind it, but for its prior and memory
        assert expected[i + 1] == pytest.approx(sum(right**k for k in range(1, i + 2)), rel=0.3, abs=0.1)


def test_what_the_draft_model_reads_must_be_earned() -> None:
    """It takes as long as three rounds, and requests have some 25 tokens: a gain of a tenth is none then."""

    def truth(rows: int, width: int, steps: int, readings: int) -> float:
        return flat(rows, width, steps, 0) + 15.0 * readings

    requests = session("rarely right", 200)
    plain = play(FixedLength(0), requests, truth).seconds
    honest, blind = AdaptiveLength(Costs(0.02, 0.08, 3.0)), AdaptiveLength(Costs(0.02, 0.08, 0.0))
    assert plain / play(honest, requests, truth).seconds >= SHARE_OF_PLAIN
    assert plain / play(blind, requests, truth, told=lambda seconds: 0.0).seconds < SHARE_OF_PLAIN


def test_a_kind_that_is_not_drafted_is_probed() -> None:
    """A row that has a copy at every second token, which is never right, beside a model that often is."""
    length, asked = taught(PRIOR, {MODEL: 0.9, COPY: 0.0}, 8), Counter[str]()
    for number in range(800):
        kind, count = (MODEL, COPY)[number % 2], 0
        if not length.skips_round():
            (count,) = length.choose([Choice(50, kind)])
        asked[kind] += count > 0
        length.observe([Drafted(count, count, count if kind == MODEL else 0, kind)], 0.0)
    assert asked[MODEL] > 100 > asked[COPY] > 0


@pytest.mark.parametrize("most", [1, 3, 16])
def test_room_is_kept(most: int) -> None:
    length = taught(Costs(0.01), {COPY: 0.9, MODEL: 0.9}, most)
    for rooms in product((0, 1, 5, 99), repeat=3):
        rows = [Choice(room, kind) for room, kind in zip(rooms, (COPY, MODEL, COPY), strict=True)]
        counts = length.choose(rows)
        assert all(0 <= count <= min(room, most) for count, room in zip(counts, rooms, strict=True))
        assert not any(rooms) or any(counts)


def test_longer_drafts_than_it_asked_for_do_no_harm() -> None:
    length = AdaptiveLength(PRIOR, most=4)
    length.observe([Drafted(40, 40, 40, MODEL)], 1.0)
    assert all(0 <= count <= 4 for count in length.choose([Choice(9, MODEL)]))


def test_no_length_at_all_is_refused() -> None:
    with pytest.raises(InputError, match="the longest draft must be >= 1, not 0"):
        AdaptiveLength(PRIOR, most=0)
