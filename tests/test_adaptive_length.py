"""The controller against the best fixed length in hindsight, on processes whose law is known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import cache

import pytest

from speculative_decoding import adaptive_length as module
from speculative_decoding.adaptive_length import AdaptiveLength, Controller, best_length
from speculative_decoding.costs import Costs
from speculative_decoding.draft_length import DraftLength, FixedLength
from speculative_decoding.errors import InputError

REQUESTS = 60
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
) -> float:
    """Seconds that the rounds of a session take. The same tokens are right for every length.

    noise: of the seconds that the length is told, which now and then are thrice as many besides.
    found: how often the drafter has anything to propose.
    """
    dice, total = random.Random(5), 0.0
    for request in requests:
        length.begin()
        done = 0
        while done < len(request):
            drafted = length.next(100 - done - 1)
            assert 0 <= drafted < 100
            drafted = drafted if dice.random() < found else 0
            ahead = request[done : done + drafted]
            accepted = next((i for i, right in enumerate(ahead) if not right), len(ahead))
            seconds = costs.round_seconds(drafted)
            total += seconds
            told = seconds * math.exp(dice.gauss(0, noise)) * (3 if noise and dice.random() < 0.02 else 1)
            length.observe(drafted, accepted, told)
            done += accepted + 1
    return total


@cache
def fixed(process: str, seed: int, costs: Costs) -> tuple[float, float]:
    """Seconds of the best fixed length, and without any draft."""
    seconds = [decode(FixedLength(count), session(process, seed), costs) for count in range(17)]
    return min(seconds), seconds[0]


def shortfalls(make: Callable[[Costs], DraftLength], noise: float = 0.0) -> list[str]:
    """Where it is slower than it may be."""
    found = []
    for name, costs in COSTS.items():
        for process in PROCESSES:
            for seed in (0, 1):
                seconds = decode(make(costs), session(process, seed), costs, noise=noise)
                best, plain = fixed(process, seed, costs)
                if best / seconds < SHARE_OF_BEST or plain / seconds < SHARE_OF_PLAIN:
                    found.append(f"{name}, {process}, {seed}: {best / seconds:.3f} {plain / seconds:.3f}")
    return found


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_it_is_about_as_fast_as_the_best_fixed_length_and_never_slower_than_none(noise: float) -> None:
    print(*shortfalls(AdaptiveLength, noise), sep='\n'); assert 0


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
    for name in ("FIRST_WAIT", "LONGEST_WAIT", "PROBE_SHARE"):
        monkeypatch.setattr(module, name, 1)


def never_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cheapest_probe", lambda seconds, most: 0)


def takes_the_untested_for_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    observe = module.Acceptance.observe

    def faulty(self: module.Acceptance, drafted: int, accepted: int) -> None:
        observe(self, drafted, accepted)
        for i in range(accepted + 1, drafted):
            self._seen[i] += 1.0

    monkeypatch.setattr(module.Acceptance, "observe", faulty)


@pytest.mark.parametrize(
    ("fault", "make", "where"),
    [
        (None, IgnoresCosts, "slow BLAS, useless"),
        (None, IgnoresCosts, "large draft, 0.9"),
        (None, IgnoresCosts, "steps of four, 0.9"),
        (None, ForgetsRequests, "measured, useless"),
        (never_parks, AdaptiveLength, "measured, useless"),
        (never_parks, AdaptiveLength, "slow BLAS, 0.9"),
        (probes_all_the_time, AdaptiveLength, "measured, useless"),
        (never_probes, AdaptiveLength, "measured, useless at first"),
        (takes_the_untested_for_wrong, AdaptiveLength, "flat, 0.9"),
    ],
)
def test_planted_faults_are_slower_than_they_may_be(
    fault: Callable[[pytest.MonkeyPatch], None] | None,
    make: Callable[[Costs], DraftLength],
    where: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if fault:
        fault(monkeypatch)
    assert any(line.startswith(where + ",") for line in shortfalls(make))


STALE = {  # what was measured -> what is true by now
    "measured too dear": ("large draft", "flat"),
    "measured too cheap": ("flat", "large draft"),
    "measured too flat": ("flat", "slow BLAS"),
}


@pytest.mark.parametrize("measured, true", STALE.values(), ids=STALE)
def test_rounds_correct_costs_that_are_no_longer_true(measured: str, true: str) -> None:
    for process in ("useless", "0.7"):
        seconds = decode(AdaptiveLength(COSTS[measured]), session(process, 0), COSTS[true], noise=0.1)
        print(measured, true, process, [x/seconds for x in fixed(process, 0, COSTS[true])])
    assert 0
