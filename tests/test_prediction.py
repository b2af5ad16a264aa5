"""Speed-ups from counts: by hand, by simulation, and counted off the loop itself."""

from __future__ import annotations

import random
from importlib import import_module
from itertools import accumulate
from operator import mul
from typing import Any

import pytest

from benchmarks.prediction import Cycle, Watched, acceptance_by_position, predicted_speedups
from speculative_decoding import generate
from speculative_decoding.decoding.stats import Round
from speculative_decoding.draft_length.costs import Costs
from speculative_decoding.draft_length.schedules import FixedLength, HeuristicLength
from speculative_decoding.drafters.base import COPY, MODEL
from tests.test_generate import Letters
from tests.tiny import EOS, noisy_copy, tiny_model

COSTS = Costs((1.0, 1.5, 1.6), draft=0.25, host=0.5)


def test_half_of_every_position_by_hand() -> None:
    """Of four drafts of two tokens, two are wrong at once, one at the second token, one not at all."""
    cycles = [Cycle(2, 2, accepted, kind=MODEL) for accepted in (0, 0, 1, 2)]
    assert acceptance_by_position(cycles) == [0.5, 0.5]
    # E = 1, 1.5, 1.75 tokens in 1.5, 2.25 and 2.6 seconds
    assert predicted_speedups(cycles, COSTS) == pytest.approx([1.0, 1.5 / 2.25 * 1.5, 1.75 / 2.6 * 1.5])


def test_behind_the_end_of_the_output_nothing_was_tested() -> None:
    cycles = [Cycle(3, 3, 0), Cycle(3, 3, 1, cut=True), Cycle(3, 3, 3), Cycle(3, 3, 2)]
    assert acceptance_by_position(cycles) == [3 / 4, 2 / 2, 1 / 2]
    assert acceptance_by_position([Cycle(3, 3, 1, cut=True)]) == [1.0, 1.0, 1.0]  # as at the position before
    assert acceptance_by_position([Cycle(2, 2, 2, cut=True), Cycle(2, 2, 2)]) == [1.0, 1.0]


def test_a_position_that_could_not_be_asked_for_says_nothing() -> None:
    """The last drafts of an output are shorter, for no more tokens may come."""
    assert acceptance_by_position([Cycle(3, 3, 3), Cycle(1, 1, 1), Cycle(0, 0, 0)]) == [1.0, 1.0, 1.0]
    assert predicted_speedups([Cycle(2, 2, 2, kind=MODEL), Cycle(0, 0, 0)], COSTS)[2] == pytest.approx(3 / 2.6 * 1.5)


def test_a_copy_that_ends_early_costs_and_brings_only_what_it_has() -> None:
    """One copy of two tokens, both right; one search that found nothing."""
    cycles = [Cycle(2, 2, 2, kind=COPY), Cycle(2, 0, 0, kind=COPY)]
    assert acceptance_by_position(cycles) == [0.5, 1.0]
    seconds = [1.5, (2.0 + 1.5) / 2, (2.1 + 1.5) / 2]  # copied tokens cost no c
    assert predicted_speedups(cycles, COSTS) == pytest.approx([1.0, 1.5 / seconds[1] * 1.5, 2.0 / seconds[2] * 1.5])


def test_no_cycles_promise_nothing() -> None:
    assert acceptance_by_position([]) == [] and predicted_speedups([], COSTS) == [1.0]


def test_shorter_lengths_are_foretold_from_the_longest() -> None:
    """Simulated rounds with an acceptance per position: tokens per second of each length, against the prediction."""
    dice, acceptance = random.Random(5), [0.9, 0.8, 0.5, 0.7, 0.6]
    costs = Costs((1.0, 1.2, 1.3, 1.7, 1.8, 2.2), draft=0.1, host=0.2)

    def accepted(length: int) -> int:
        return next((i for i in range(length) if dice.random() > acceptance[i]), length)

    foretold = predicted_speedups([Cycle(5, 5, accepted(5), kind=MODEL) for _ in range(20_000)], costs)
    for length in range(6):
        tokens = sum(accepted(length) + 1 for _ in range(20_000)) / 20_000
        assert foretold[length] == pytest.approx(tokens / costs.round_seconds(length) * 1.2, rel=0.02)
    exact = [sum(accumulate(acceptance[:g], mul, initial=1.0)) / costs.round_seconds(g) * 1.2 for g in range(6)]
    assert foretold == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize("length", [FixedLength(4), HeuristicLength(start=3)], ids=["fixed", "heuristic"])
@pytest.mark.parametrize("max_tokens", [1, 7, 40])
def test_watched_cycles_are_the_rounds_of_the_loop(
    length: Any, max_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the loop's own events; some outputs end inside a draft."""
    events: list[Round] = []

    class Seen(Round):
        def __init__(self, *values: Any) -> None:
            super().__init__(*values)
            events.append(self)

    monkeypatch.setattr(import_module("speculative_decoding.decoding.loop"), "Round", Seen)
    target = tiny_model()
    draft, watched, cut = noisy_copy(target, noise=0.05), Watched(length), 0
    for prompt in ("abc", "bbg", "cab", "hhh", "b", "adcb"):
        before = len(watched.cycles)
        events.clear()
        result = generate(
            target, Letters(), prompt, draft_model=draft, num_draft=watched, max_tokens=max_tokens, eos_token_ids=[7, 9]
        )
        watched.end(result.stats)
        ours, written = watched.cycles[before:], 0
        assert [(c.drafted, c.accepted) for c in ours] == [(e.drafted, e.accepted) for e in events]
        for cycle, event in zip(ours, events, strict=True):
            assert cycle.drafted == cycle.asked <= max_tokens - written - 1
            assert cycle.cut == (len(event.tokens) == event.accepted)
            written += len(event.tokens)
        assert all(not cycle.cut for cycle in ours[:-1])
        assert ours[-1].cut == (result.tokens[-1] in (EOS, 7, 9) and ours[-1].accepted == len(events[-1].tokens))
        cut += ours[-1].cut
    assert cut or max_tokens < 40
    assert watched.describe() == length.describe() and watched.most == length.most
