"""Measuring ways of decoding against each other: who is asked when, and what becomes of the numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from benchmarks.sweep import PLAIN, fastest, measured, sweep
from speculative_decoding.cli.tuned import Tuned
from speculative_decoding.decoding.stats import GenerationStats
from speculative_decoding.generate import GenerationResult

MODEL = Tuned("model", 5)


def result(
    tokens: list[int], seconds: float, *, calls: int = 0, drafted: int = 0, first: float = 0.1
) -> GenerationResult:
    calls = calls or len(tokens)
    stats = GenerationStats(
        generated_tokens=len(tokens),
        target_calls=calls,
        drafted_tokens=drafted,
        accepted_tokens=len(tokens) - calls,
        decode_seconds=seconds,
        time_to_first_token=first,
        peak_memory_bytes=int(1000 * seconds),
    )
    return GenerationResult("", tokens, "stop", stats)


PLAIN_RUNS = [[result([5] * 10, 1.0)], [result([6] * 30, 3.0)]]


def test_the_numbers_of_a_row_by_hand() -> None:
    runs = [
        [
            result([5] * 10, seconds, calls=4, drafted=9, first=first)
            for seconds, first in ((0.5, 0.1), (0.6, 0.2), (9.0, 0.9))
        ],
        [result([6] * 30, 1.4, calls=6, drafted=32, first=0.3)] * 3,
    ]
    row = measured(MODEL, runs, PLAIN_RUNS, comparable=True)
    assert row.speed_up == pytest.approx(4.0 / 2.0)  # medians: one slow run of three does not count
    assert row.tokens_per_second == pytest.approx(40 / 2.0)
    assert row.tokens_per_call == pytest.approx(120 / 30)
    assert row.acceptance == pytest.approx((3 * 6 + 3 * 24) / (3 * 9 + 3 * 32))
    assert row.first_token == pytest.approx(0.3)
    assert row.peak_memory_bytes == 9000
    assert (row.same, row.cases) == (2, 2)
    assert measured(PLAIN, PLAIN_RUNS, PLAIN_RUNS, comparable=True).speed_up == 1


def test_outputs_of_another_length_count_by_their_time_per_token() -> None:
    longer = [[result([5] * 20, 1.0)], [result([6] * 3, 0.15)]]  # twice as fast
    row = measured(MODEL, longer, PLAIN_RUNS, comparable=False)
    assert row.speed_up == pytest.approx(2.0) and row.same is None


@pytest.mark.parametrize("wrong", [[5] * 9 + [6], [5] * 9, [5] * 11, []])
def test_a_single_other_token_in_a_single_run_shows(wrong: list[int]) -> None:
    runs = [[result([5] * 10, 1.0), result(wrong or [7], 1.0)], [result([6] * 30, 3.0)] * 2]
    assert measured(MODEL, runs, PLAIN_RUNS, comparable=True).same == 1


def test_plain_decoding_wins_where_nothing_beats_it() -> None:
    def row(choice: Tuned, seconds: float) -> Any:
        return measured(choice, [[result([5] * 10, seconds)], [result([6] * 30, 3.0)]], PLAIN_RUNS, comparable=True)

    plain, slower, equal, faster = (
        row(PLAIN, 1.0),
        row(MODEL, 1.1),
        row(Tuned("auto", 3), 1.0),
        row(Tuned("ngram", 4), 0.9),
    )
    assert fastest([plain, slower, equal]) is plain
    assert fastest([plain, slower, faster, equal]) is faster


@dataclass
class Fake:
    """Stands for a `Setting`: writes down when it ran."""

    name: str
    log: list[tuple[str, str]]
    runs: list[list[Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.length, self.cycles = self, []

    def run(self, prompt: str, request: Any) -> str:
        self.cycles.append(prompt)
        self.log.append((self.name, prompt))
        return prompt


def test_settings_take_turns_and_the_first_run_of_each_does_not_count() -> None:
    log: list[tuple[str, str]] = []
    settings = [Fake(name, log) for name in "abcdef"]
    cases: list[Any] = [("one", {}), ("two", {}), ("three", {})]
    assert list(sweep(settings, cases, 4)) == [1, 2, 3, 4]  # type: ignore[arg-type]
    warm, log = log[:6], log[6:]
    assert warm == [(name, "one") for name in "abcdef"]
    turns = [log[i : i + 6] for i in range(0, len(log), 6)]
    assert [{prompt for _, prompt in turn} for turn in turns] == [{"one"}, {"two"}, {"three"}] * 4
    assert all(sorted(name for name, _ in turn) == list("abcdef") for turn in turns)
    for place in (0, -1):  # nobody always comes first, or last
        assert len({turn[place][0] for turn in turns}) > 3
    for setting in settings:
        assert setting.runs == [["one"] * 4, ["two"] * 4, ["three"] * 4]
        assert setting.cycles == ["one", "two", "three"] * 4
