"""Tests that parts of texts are returned in order and in bounded memory, although prompts finish in any order."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculative_decoding.decoding.results import GenerationResult, GenerationStats
from speculative_decoding.rows.parts import MIN_WINDOW, PartScheduler, Steps, Task, Window, decode_in_order
from speculative_decoding.rows.scheduling import BatchResult, drive


def result_of(prompt: str) -> GenerationResult:
    return GenerationResult(prompt[::-1], [], "stop", GenerationStats(generated_tokens=len(prompt)))


class Prompts:
    """Reverses prompts and finishes them in any order. Refuses blank prompts, and fails prompts with a digit."""

    def __init__(self, seed: int, slots: int = 3) -> None:
        self._random = random.Random(seed)
        self._slots = slots
        self.prompts: dict[Any, str] = {}
        self.submitted = 0

    @property
    def running(self) -> int:
        return min(self._slots, len(self.prompts))

    @property
    def waiting(self) -> int:
        return len(self.prompts) - self.running

    @property
    def wants_more(self) -> bool:
        return len(self.prompts) < self._slots

    @property
    def is_idle(self) -> bool:
        return not self.prompts

    def submit(self, item: tuple[Any, Mapping[str, Any]]) -> list[BatchResult[GenerationResult]]:
        number, prompt = item
        assert number not in self.prompts
        self.submitted += 1
        if not prompt["prompt"].strip():
            return [BatchResult(number, None, "blank")]
        self.prompts[number] = prompt["prompt"]
        return []

    def step(self) -> list[BatchResult[GenerationResult]]:
        number = self._random.choice([*self.prompts])
        text = self.prompts.pop(number)
        if any(map(str.isdigit, text)):
            return [BatchResult(number, None, "digit")]
        return [BatchResult(number, result_of(text))]

    def cancel(self, number: Any) -> None:
        self.prompts.pop(number, None)


def words(text: str, rounds: int) -> Steps:
    """Reverse the words of a text repeatedly. The prompts of each repetition depend on the previous outputs."""
    found = text.split(" ") if text else []
    for _ in range(rounds):
        if not found:
            break
        outputs = yield found
        assert len(outputs) == len(found)
        found = [each.text if each.error is None else f"<{each.error}>" for each in outputs]
    return "|".join(found)


def alone(text: str, rounds: int) -> str:
    """Do the same as `words`, one prompt after another."""
    steps = words(text, rounds)
    prompts = Prompts(0, 1)
    found: str | None = None
    for each in drive(scheduler := PartScheduler(prompts), [(0, Task(steps, lambda text: {"prompt": text}))]):
        found = each.result
    assert found is not None and scheduler.num_prompts == prompts.submitted
    return found


@given(
    st.lists(st.tuples(st.text("ab1 ", max_size=8), st.integers(0, 3)), max_size=12),
    st.integers(0, 2**16),
    st.integers(1, 5),
)
def test_each_part_is_decoded_as_if_it_were_alone_and_comes_in_order(
    parts: list[tuple[str, int]], seed: int, slots: int
) -> None:
    prompts = Prompts(seed, slots)
    scheduler = PartScheduler(prompts)

    def submit(number: int, part: tuple[str, int]) -> Any:
        if part[1] == 3:
            return [BatchResult(number, None)]  # a copied part
        return scheduler.submit((number, Task(words(*part), lambda text: {"prompt": text})))

    window = Window[tuple[str, int]](slots, lambda part: len(part[0]), 20)
    found = [(part, each.result) for part, each in decode_in_order(scheduler, parts, submit, window)]
    assert found == [(part, None if part[1] == 3 else alone(*part)) for part in parts]
    assert (scheduler.num_parts, scheduler.num_prompts) == (sum(part[1] != 3 for part in parts), prompts.submitted)
    assert not prompts.prompts and scheduler.is_idle


@pytest.mark.parametrize(("size", "largest", "most"), [(1, 10**9, MIN_WINDOW), (100, 1000, 10)])
def test_no_more_parts_are_read_than_the_window_holds(size: int, largest: int, most: int) -> None:
    """The first part is slow."""

    class LastFirst(Prompts):
        def step(self) -> list[BatchResult[GenerationResult]]:
            number = max(self.prompts, key=lambda each: each[0])
            return [BatchResult(number, result_of(self.prompts.pop(number)))]

    read = written = 0
    scheduler = PartScheduler(LastFirst(0))

    def parts() -> Iterator[int]:
        nonlocal read
        for number in range(1000):
            assert read - written < most
            read += 1
            yield number

    def submit(number: int, part: int) -> Any:
        return scheduler.submit((number, Task(words("a", 1), lambda text: {"prompt": text})))

    for part, _ in decode_in_order(scheduler, parts(), submit, Window(1, lambda _: size, largest)):
        assert part == written
        written += 1
    assert read == written == 1000


def test_a_cancelled_part_frees_its_prompts_and_leaves_the_others() -> None:
    prompts = Prompts(0)
    scheduler = PartScheduler(prompts)
    for number in range(3):
        assert not [*scheduler.submit((number, Task(words("a b", 1), lambda text: {"prompt": text})))]
    scheduler.cancel(1)
    scheduler.cancel(7)  # an unknown number
    assert {number for number, _ in prompts.prompts} == {0, 2}
    assert sorted(each.index for each in drive(scheduler, [])) == [0, 2]


def test_the_statistics_are_the_sum_over_all_prompts() -> None:
    scheduler = PartScheduler(Prompts(0))
    assert [each.result for each in drive(scheduler, [(0, Task(words("ab cde", 2), lambda text: {"prompt": text}))])]
    assert scheduler.stats.generated_tokens == 10
