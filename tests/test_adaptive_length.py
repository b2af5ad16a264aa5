"""The controller against the best fixed length in hindsight, on processes whose law is known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from speculative_decoding.draft_length import adaptive as module
from speculative_decoding.draft_length import experience
from speculative_decoding.draft_length.adaptive import AdaptiveLength, best_length
from speculative_decoding.draft_length.costs import Costs
from speculative_decoding.draft_length.schedules import DraftLength, FixedLength
from speculative_decoding.errors import InputError

REQUESTS = 100
SHARE_OF_BEST, SHARE_OF_PLAIN = 0.97, 0.98  # what it must reach

Request = Sequence[bool]  # for each token of the output: would a draft get it right, given all before it?


def alike(dice: random.Random, right: float) -> Request:
    return [dice.random() < right for _ in range(dice.randint(10, 40))]


def in_stretches(dice: random.Random) -> Request:
    """Easy and hard tokens come in runs of eight or so."""
    request, easy = [], dice.random() < 0.5
    for _ in range(dice.randint(10, 40)):
        easy ^= dice.random() < 1 / 8
        request.append(dice.random() < (0.95 if easy else 0.25))
    return request


# Draws the i-th request of a session.
PROCESSES: dict[str, Callable[[random.Random, int], Request]] = {
    "useless": lambda dice, i: alike(dice, 0.0),
    "rarely right": lambda dice, i: alike(dice, 0.1),
    "0.3": lambda dice, i: alike(dice, 0.3),
    "0.5": lambda dice, i: alike(dice, 0.5),
    "0.7": lambda dice, i: alike(dice, 0.7),
    "0.9": lambda dice, i: alike(dice, 0.9),
    "in stretches": lambda dice, i: in_stretches(dice),
    "a task at random": lambda dice, i: alike(dice, dice.choice([0.9, 0.1, 0.6])),
    "one task after another": lambda dice, i: alike(dice, (0.85, 0.05, 0.6)[3 * i // REQUESTS]),
    "useless at first": lambda dice, i: alike(dice, 0.0 if 2 * i < REQUESTS else 0.85),
    "useless in the end": lambda dice, i: alike(dice, 0.85 if 3 * i < REQUESTS else 0.0),
}
MEASURED = (4.5, 4.6, 4.7, 4.7, 5.3, 5.7, 5.5, 4.7, 4.9, 5.4, 5.5, 5.7, 6.2, 6.8, 6.3, 5.8)  # the bundled pair here
COSTS = {
    "measured": Costs(MEASURED, 0.65, 0.2),
    "flat": Costs((1.0,) * 16, 0.05, 0.02),
    "looked up": Costs(tuple(1 + 0.03 * i for i in range(16)), 0.0, 0.02),
    "steps of four": Costs(tuple(1 + 0.5 * (i // 4) for i in range(16)), 0.08, 0.02),
    "slow BLAS": Costs(tuple(1 + 0.85 * i for i in range(16)), 0.1, 0.02),  # never pays
    "large draft": Costs(tuple(1 + 0.05 * i for i in range(16)), 0.95, 0.02),  # never pays
}


@cache
def session(process: str, seed: int) -> list[Request]:
    dice = random.Random(f"{process} {seed}")
    return [PROCESSES[process](dice, i) for i in range(REQUESTS)]


def decode(
    length: DraftLength,
    requests: Sequence[Request],
    costs: Costs,
    *,
    noise: float = 0.0,
    found: float = 1.0,
    reading: float = 0.0,
) -> float:
    """Seconds that the rounds of a session take. The same tokens are right for every length.

    noise: of the seconds that the length is told, which now and then are thrice as many besides.
    found: how often the drafter has anything to propose.
    reading: seconds that the first draft of a request takes besides.
    """
    dice, total = random.Random(5), 0.0
    for request in requests:
        length.begin()
        done, unread = 0, reading
        while done < len(request):
            drafted = length.next(100 - done - 1)
            assert 0 <= drafted < 100
            drafted = drafted if dice.random() < found else 0
            ahead = request[done : done + drafted]
            accepted = next((i for i, right in enumerate(ahead) if not right), len(ahead))
            seconds = costs.round_seconds(drafted)
            if drafted:
                seconds, unread = seconds + unread, 0.0
            total += seconds
            told = seconds * math.exp(dice.gauss(0, noise)) * (3 if noise and dice.random() < 0.02 else 1)
            length.observe(drafted, accepted, told)
            done += accepted + 1
    return total


@cache
def fixed(process: str, seed: int, costs: Costs) -> tuple[float, float]:
    """Seconds of the best fixed length, and without any draft."""
    seconds = [rounds_of(process, seed, count) * costs.round_seconds(count) for count in range(17)]
    return min(seconds), seconds[0]


@cache
def rounds_of(process: str, seed: int, count: int) -> float:
    """How many rounds of drafts of a fixed length there are; it does not matter what they cost, here 1."""
    return decode(FixedLength(count), session(process, seed), Costs((1.0,) * 17))


CASES = [(name, process, seed) for name in COSTS for process in PROCESSES for seed in (0, 1)]


def shortfalls(
    make: Callable[[Costs], DraftLength], cases: Sequence[tuple[str, str, int]] = CASES, noise: float = 0.0
) -> list[str]:
    """Where it is slower than it may be, with its speed in shares of the best fixed length's and of none."""
    found = []
    for name, process, seed in cases:
        seconds = decode(make(COSTS[name]), session(process, seed), COSTS[name], noise=noise)
        best, plain = fixed(process, seed, COSTS[name])
        if best / seconds < SHARE_OF_BEST or plain / seconds < SHARE_OF_PLAIN:
            found.append(f"{name}, {process}, {seed}: {best / seconds:.3f} {plain / seconds:.3f}")
    return found


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_it_is_about_as_fast_as_the_best_fixed_length_and_never_slower_than_none(noise: float) -> None:
    assert shortfalls(AdaptiveLength, noise=noise) == []


class IgnoresCosts(AdaptiveLength):
    """Takes every pass for equally long, whatever was measured and whatever rounds take."""

    def __init__(self, costs: Costs) -> None:
        super().__init__(Costs((1.0, 1.0)))

    def observe(self, drafted: int, accepted: int, seconds: float, kind: str = "") -> None:
        super().observe(drafted, accepted, 0.0, kind)


class ForgetsRequests(AdaptiveLength):
    def begin(self) -> None:
        self._controllers.clear()


def never_parks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WORTHWHILE", 0.0)


def probes_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_WAIT", "PROBE_SHARE"):
        monkeypatch.setattr(module, name, 1)


def never_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cheapest_probe", lambda seconds, most: 0)


def takes_the_untested_for_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    observe = experience.Acceptance.observe

    def faulty(self: experience.Acceptance, drafted: int, accepted: int) -> None:
        observe(self, drafted, accepted)
        for i in range(accepted + 1, drafted):
            self._seen[i] += 1.0

    monkeypatch.setattr(experience.Acceptance, "observe", faulty)


@pytest.mark.parametrize(
    ("fault", "make", "where"),
    [
        (None, IgnoresCosts, ("slow BLAS", "useless", 0)),
        (None, IgnoresCosts, ("large draft", "0.9", 0)),
        (None, IgnoresCosts, ("steps of four", "0.9", 0)),
        (None, ForgetsRequests, ("measured", "useless", 0)),
        (never_parks, AdaptiveLength, ("measured", "useless", 0)),
        (never_parks, AdaptiveLength, ("slow BLAS", "0.9", 0)),
        (probes_all_the_time, AdaptiveLength, ("measured", "useless", 0)),
        (never_probes, AdaptiveLength, ("measured", "useless at first", 0)),
        (takes_the_untested_for_wrong, AdaptiveLength, ("flat", "0.9", 0)),
    ],
)
def test_planted_faults_are_slower_than_they_may_be(
    fault: Callable[[pytest.MonkeyPatch], None] | None,
    make: Callable[[Costs], DraftLength],
    where: tuple[str, str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if fault:
        fault(monkeypatch)
    assert shortfalls(make, [where])


class Deaf(AdaptiveLength):
    """Does not hear what rounds really take."""

    def observe(self, drafted: int, accepted: int, seconds: float, kind: str = "") -> None:
        super().observe(drafted, accepted, 0.0, kind)


@pytest.mark.parametrize(
    ("measured", "true", "process", "least"),
    [
        ("flat", "large draft", "useless", 0.97),
        ("flat", "large draft", "0.5", 0.9),
        ("flat", "slow BLAS", "0.7", 0.85),
        ("steps of four", "slow BLAS", "0.7", 0.9),
    ],
)
def test_costs_that_are_no_longer_true_are_corrected(measured: str, true: str, process: str, least: float) -> None:
    best, _ = fixed(process, 0, COSTS[true])

    def share(length: DraftLength) -> float:
        return best / decode(length, session(process, 0), COSTS[true], noise=0.1)

    assert share(AdaptiveLength(COSTS[measured])) > least > share(Deaf(COSTS[measured]))


def never_owes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experience.Reading, "owed", 0.0)


@pytest.mark.parametrize("process", ["useless", "rarely right", "0.3", "0.5", "0.7", "a task at random"])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_what_a_draft_costs_once_in_a_request_must_be_earned(process: str, noise: float) -> None:
    """Reading takes as long as two rounds and a half: a gain of a tenth is none then."""
    costs, requests, reading = COSTS["flat"], session(process, 0), 2.5
    seconds = decode(AdaptiveLength(costs), requests, costs, noise=noise, reading=reading)
    best = min(decode(FixedLength(count), requests, costs, reading=reading) for count in range(17))
    plain = decode(FixedLength(0), requests, costs)
    assert best / seconds > SHARE_OF_BEST and plain / seconds > SHARE_OF_PLAIN


def test_without_that_it_would_be_slower_than_plain_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    never_owes(monkeypatch)
    costs, requests = COSTS["flat"], session("rarely right", 0)
    seconds = decode(AdaptiveLength(costs), requests, costs, reading=2.5)
    assert decode(FixedLength(0), requests, costs) / seconds < SHARE_OF_PLAIN


@pytest.mark.parametrize(("reading", "drafts"), [(0.0, True), (2.0, True), (40.0, False)])
def test_what_reading_was_measured_to_cost_counts_from_the_first_request_on(reading: float, drafts: bool) -> None:
    length = AdaptiveLength(replace(COSTS["flat"], reading=reading))
    length.begin()
    assert (length.next(50) > 0) == drafts


class TakesNothingForWrong(AdaptiveLength):
    def observe(self, drafted: int, accepted: int, seconds: float, kind: str = "") -> None:
        super().observe(drafted or 1, accepted, seconds, kind)


def test_a_drafter_that_often_finds_nothing_is_judged_by_what_it_finds() -> None:
    costs, requests = COSTS["looked up"], session("0.7", 0)
    best = min(decode(FixedLength(count), requests, costs, found=0.2) for count in range(17))
    assert best / decode(AdaptiveLength(costs), requests, costs, found=0.2) > SHARE_OF_BEST
    assert best / decode(TakesNothingForWrong(costs), requests, costs, found=0.2) < SHARE_OF_BEST


def test_the_best_length_is_the_one_with_most_expected_tokens_per_second() -> None:
    dice = random.Random(1)
    for _ in range(300):
        acceptance = [dice.random() for _ in range(8)]
        seconds = [1.0 + 3 * dice.random() for _ in range(9)]
        most = dice.randint(1, 8)
        rates = [
            sum(math.prod(acceptance[:i]) for i in range(count + 1)) / seconds[count] for count in range(1, most + 1)
        ]
        count, gain = best_length(acceptance, seconds, most)
        assert rates[count - 1] == pytest.approx(max(rates)) and gain == pytest.approx(max(rates) * seconds[0])


def feed(
    length: AdaptiveLength,
    right: float,
    rounds: int,
    kind: str = "",
    costs: Costs = COSTS["measured"],
    room: int = 50,
) -> list[int]:
    """Plays rounds; returns what was asked for."""
    dice, asked = random.Random(3), []
    for _ in range(rounds):
        drafted = length.next(room, kind)
        accepted = next((i for i in range(drafted) if dice.random() >= right), drafted)
        length.observe(drafted, accepted, costs.round_seconds(drafted), kind)
        asked.append(drafted)
    return asked


def test_it_parks_says_so_and_comes_back() -> None:
    costs = Costs((1.0,) * 16, 0.4, 0.02)
    length = AdaptiveLength(costs)
    assert not length.parked and length.parked_rounds == 0
    asked = feed(length, 0.0, 400, costs=costs)
    assert length.parked and 300 < length.parked_rounds < 400
    assert f"parked for {length.parked_rounds} rounds" in length.describe()
    probes = [i for i, count in enumerate(asked[20:]) if count]
    gaps = [b - a for a, b in pairwise(probes)]
    assert gaps == sorted(gaps) and gaps[-1] >= 60  # ever more rarely
    length.begin()
    assert length.parked  # a new request is no reason to begin again
    feed(length, 1.0, 300, costs=costs)
    assert not length.parked and length.parked_rounds == 0 and "promise" in length.describe()


def test_rounds_that_tell_no_time_say_nothing_about_costs() -> None:
    """As those that compile: what they accepted counts all the same."""
    timed, mute = AdaptiveLength(COSTS["measured"]), AdaptiveLength(COSTS["measured"])
    for drafted, accepted in ((3, 3), (3, 2), (0, 0), (4, 4), (2, 0)):
        timed.observe(drafted, accepted, COSTS["measured"].round_seconds(drafted))
        mute.observe(drafted, accepted, 0.0)
    assert timed.next(50) == mute.next(50) > 0
    assert timed.describe() == mute.describe()


def test_where_not_even_a_perfect_draft_would_pay_there_is_no_probe() -> None:
    costs = Costs(tuple(1.0 + i for i in range(16)), 0.1)
    assert set(feed(AdaptiveLength(costs), 0.0, 500, costs=costs)) == {0}


def test_a_good_draft_is_drafted_longer_than_a_bad_one() -> None:
    lengths = [feed(AdaptiveLength(COSTS["flat"]), right, 300)[-1] for right in (0.3, 0.6, 0.9)]
    assert lengths == sorted(lengths) and lengths[0] < lengths[-1]


def test_kinds_are_judged_apart() -> None:
    costs = COSTS["measured"]
    length = AdaptiveLength(costs.with_free_draft(), kinds={"model": costs})
    for _ in range(30):
        feed(length, 0.0, 10, "model")
        feed(length, 1.0, 10, "copy")
    assert length.next(50, "model") == 0 and length.next(50, "copy") == 16
    assert not length.parked and "model: parked" in length.describe() and "copy: 16 tokens" in length.describe()


def test_of_two_kinds_it_takes_the_one_that_promises_more() -> None:
    costs = COSTS["measured"]
    for right, best in (({"model": 0.9, "guess": 0.1}, "model"), ({"model": 0.1, "guess": 0.5}, "guess")):
        length = AdaptiveLength(costs.with_free_draft(), kinds={"model": costs})
        for kind, each in right.items():
            feed(length, each, 60, kind, costs if kind == "model" else costs.with_free_draft())
        ((kind, count),) = length.choose([(50, ("model", "guess"))])
        assert kind == best and count > 0
        assert length.choose([(50, ("model",)), (0, ("guess", "model"))])[0][0] == "model"


@pytest.mark.parametrize("most", [1, 3, 16])
def test_it_never_asks_for_more_than_there_is_room_for(most: int) -> None:
    length = AdaptiveLength(COSTS["flat"], most=most)
    asked = {room: max(feed(length, 1.0, 100, costs=COSTS["flat"], room=room)) for room in (99, 0, 1, 2)}
    assert asked == {99: most, 0: 0, 1: 1, 2: min(2, most)}


def test_rows_that_share_it_may_be_asked_before_any_has_answered() -> None:
    length = AdaptiveLength(COSTS["measured"])
    for _ in range(200):
        asked = [length.next(9) for _ in range(4)]
        for count in asked:
            length.observe(count, 0, COSTS["measured"].round_seconds(count))
    assert length.parked


def test_longer_drafts_than_it_asked_for_do_no_harm() -> None:
    length = AdaptiveLength(COSTS["flat"], most=4)
    length.observe(40, 40, 1.0)
    assert 0 <= length.next(9) <= 4


def test_no_length_at_all_is_refused() -> None:
    with pytest.raises(InputError, match="the longest draft must be >= 1, not 0"):
        AdaptiveLength(COSTS["flat"], most=0)
