"""Tests `drive`: how many items are read ahead and kept, and the order of progress."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator
from operator import attrgetter

import pytest

from speculative_decoding.rows.scheduling import BatchResult, drive, in_order


class Newest:
    """Simulates a scheduler with slots, which refuses every fifth item and finishes the newest item first."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self.items: list[int] = []

    @property
    def wants_more(self) -> bool:
        return len(self.items) < self._slots

    @property
    def is_idle(self) -> bool:
        return not self.items

    def submit(self, item: int) -> Iterable[BatchResult[int]]:
        if item % 5 == 4:
            return [BatchResult(item, None, "refused")]
        self.items.append(item)
        return []

    def step(self) -> Iterable[BatchResult[int]]:
        number = self.items.pop()
        return [BatchResult(number, number)]


@pytest.mark.parametrize("slots", [1, 3, 99])
@pytest.mark.parametrize("count", [0, 1, 4, 5, 40])
def test_every_item_is_answered_once_and_none_is_read_before_a_slot_is_free(slots: int, count: int) -> None:
    scheduler = Newest(slots)
    read: list[int] = []
    unfinished = 0

    def items() -> Iterator[int]:
        for number in range(count):
            assert len(scheduler.items) < slots
            read.append(number)
            yield number

    answers = drive(scheduler, items())
    assert read == []
    found = []
    for answer in answers:
        found.append(answer.index)
        unfinished = max(unfinished, len(read) - len(found))
        assert (answer.error == "refused") == (answer.index % 5 == 4)
    assert sorted(found) == read == [*range(count)] and unfinished < slots


def test_the_slots_of_finished_items_are_filled_before_the_next_round() -> None:
    scheduler = Newest(3)
    left = [len(scheduler.items) for _ in drive(scheduler, range(0, 100, 5))]
    assert left == [2] * 18 + [1, 0]


def test_results_can_be_put_in_order() -> None:
    assert list(in_order(drive(Newest(3), iter(range(20))), attrgetter("index"))) == [
        BatchResult(number, None, "refused") if number % 5 == 4 else BatchResult(number, number) for number in range(20)
    ]


class Step:
    """A step in the progress of an item."""

    def __init__(self, number: int, is_last: bool) -> None:
        self.number = number
        self.is_last = is_last


def test_progress_that_has_been_passed_on_is_not_kept() -> None:
    alive: list[weakref.ref[Step]] = []

    def steps() -> Iterator[Step]:
        for number in range(0, 300, 3):
            for each, is_last in ((2, True), (1, False), (1, True), (0, False), (0, False), (0, True)):
                step = Step(number + each, is_last)
                alive.append(weakref.ref(step))
                yield step
                del step

    order = []
    for each in in_order(steps(), attrgetter("number"), attrgetter("is_last")):
        order.append(each.number)
        gc.collect(0)
        assert sum(one() is not None for one in alive) <= 8
    assert order == sorted(order) and len(order) == 600


def test_progress_of_the_current_item_is_not_held_back() -> None:
    seen: list[int] = []

    def steps() -> Iterator[Step]:
        for number, is_last in ((1, False), (0, False), (0, True), (1, True), (2, True)):
            seen.append(number)
            yield Step(number, is_last)

    counts = [(each.number, len(seen)) for each in in_order(steps(), attrgetter("number"), attrgetter("is_last"))]
    assert counts == [(0, 2), (0, 3), (1, 3), (1, 4), (2, 5)]
