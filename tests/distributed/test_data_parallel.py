"""Rows that several ranks share: which rank gets a row, and what a rank does with those it gets."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from speculative_decoding.decoding.results import GenerationResult, GenerationStats
from speculative_decoding.distributed import AllRanks, serve_rows
from speculative_decoding.jobs.job import parse_batch_result
from speculative_decoding.rows.scheduling import BatchResult, drive
from tests.support.job_engine import FakeScheduler, result_of


def test_the_lines_of_a_short_job_are_divided_evenly() -> None:
    sent, answers = Counter[int](), list[tuple[int, Any]]()

    def send(row: Any, rank: int | None = None) -> None:
        if rank is not None:
            sent[rank] += 1
            answers.append((rank, vars(BatchResult(row[0], None, "no"))))

    channel: Any = SimpleNamespace(send=send, received=list, receive=answers.pop)
    ranks = AllRanks(FakeScheduler(slots=99), channel, range(1, 4), max_pending=28, parse=parse_batch_result)
    found = drive(ranks, enumerate([{"prompt": "abc"}] * 24))
    assert sorted(each.index for each in found) == [*range(24)] and sent == {1: 6, 2: 6, 3: 6}


@pytest.mark.parametrize("slots", [1, 3])
def test_a_rank_that_is_slow_gets_fewer_rows(slots: int) -> None:
    """Rank 1 answers at once, rank 2 only when all others have nothing left to do."""
    sent: dict[int, deque[int]] = {1: deque(), 2: deque()}
    counts = Counter[int]()

    def send(row: Any, rank: int) -> None:
        sent[rank].append(row[0])
        counts[rank] += 1

    def received(rank: int = 1) -> list[tuple[int, Any]]:
        found = [(rank, vars(BatchResult(number, None, "no"))) for number in sent[rank]]
        sent[rank].clear()
        return found

    def receive() -> tuple[int, Any]:
        rank = 1 if sent[1] else 2
        return rank, vars(BatchResult(sent[rank].popleft(), None, "no"))

    channel: Any = SimpleNamespace(send=send, received=received, receive=receive)
    ranks = AllRanks(FakeScheduler(slots=slots), channel, range(1, 3), max_pending=4, parse=parse_batch_result)
    found = [each.index for each in drive(ranks, enumerate([{"prompt": "abc"}] * 60))]
    assert sorted(found) == [*range(60)] and ranks.is_idle
    assert counts[2] <= 6 < counts[1]


def test_a_cancelled_row_is_dropped_where_it_is() -> None:
    sent: list[tuple[Any, int | None]] = []
    late = [(1, vars(BatchResult(0, None, "no")))]  # was on its way
    channel: Any = SimpleNamespace(send=lambda row, rank=None: sent.append((row, rank)), received=lambda: late)
    own = FakeScheduler(slots=99)
    ranks = AllRanks(own, channel, range(1, 2), max_pending=4, parse=parse_batch_result)
    for number in range(4):
        assert not [*ranks.submit((number, {"prompt": f"{number}"}))]
    assert [row[0] for row, _ in sent] == [0, 2] and own.running == ranks.running == 2 and ranks.waiting == 2
    for number in (0, 1, 9):
        ranks.cancel(number)
    assert sent[2:] == [({"cancel": 0}, 1)] and own.running == 1
    assert [each.index for each in ranks.step()] == [3] and not ranks.is_idle


def test_a_rank_drops_a_row_that_rank_0_cancels() -> None:
    scheduler = FakeScheduler(slots=9)
    messages = iter([[(0, [1, {"prompt": "a"}]), (0, [2, {"prompt": "b"}]), (0, {"cancel": 1})]])
    sent: list[Any] = []
    channel: Any = SimpleNamespace(
        send=sent.append, receive=lambda: next(first), received=lambda: next(messages, [(0, {"leaves": 0})])
    )
    first = iter([(0, [0, {"prompt": "c"}]), (0, {"leaves": 0})])
    assert serve_rows(scheduler, channel) == 0
    assert 1 not in {each.index for each in sent} and {0} <= {each.index for each in sent}


class TwoRounds(FakeScheduler):
    """Needs two rounds for a row."""

    is_first = True

    def step(self) -> Iterable[BatchResult[GenerationResult]]:
        self.is_first = not self.is_first
        return super().step() if self.is_first else []


def test_a_rank_decodes_what_it_has_while_rows_arrive_and_ends_when_rank_0_leaves() -> None:
    """It waits for a message only while it has nothing to decode."""
    scheduler = TwoRounds()
    arriving: deque[list[Any]] = deque([[0], [1, 2], [], [3], [], [], [], [], [{"leaves": 7}]])
    calls: list[str] = []
    sent: list[Any] = []

    def messages(call: str) -> list[tuple[int, Any]]:
        calls.append(call)
        return [
            (0, [each, {"prompt": f"row {each}"}] if isinstance(each, int) else each) for each in arriving.popleft()
        ]

    channel: Any = SimpleNamespace(
        send=sent.append, receive=lambda: messages("receive")[0], received=lambda: messages("received")
    )
    assert serve_rows(scheduler, channel) == 7
    assert sent == [BatchResult(number, result_of(f"row {number}")) for number in range(4)]
    assert calls == ["receive", *["received"] * 7, "receive"] and not arriving


def test_a_result_survives_its_message() -> None:
    stats = GenerationStats(prompt_tokens=3, generated_tokens=2, target_calls=2)
    stats.accepted_histogram.update({0: 1, 2: 4})
    stats.drafted_by_kind.update({"text": 9, "copy": 2})
    stats.accepted_by_kind.update({"text": 8, "copy": 0})
    one = GenerationResult("ä", [5, 1], "stop", stats, score=-0.5)
    for answer in (BatchResult(4, replace(one, sequences=(one, one))), BatchResult(0, None, "too long")):
        found = parse_batch_result(json.loads(json.dumps(answer, default=vars)))
        assert found == answer
        if found.result is not None:
            total = GenerationStats()
            total.add(found.result.stats)
            total.add(found.result.stats)
            assert total.drafted_by_kind == {"text": 18, "copy": 4} and total.accepted_by_kind["text"] == 16
