"""The schedules, against what Hugging Face's code does."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from speculative_decoding.draft_length import Choice, Drafted, DraftLength, FixedLength, HeuristicLength
from speculative_decoding.errors import InputError


class HuggingFace:
    """What transformers 4.46 and 5.23 do with num_assistant_tokens, for one candidate generator after another.

    A request makes a new generator from the assistant's generation config, rounds update the generator, and the end of
    a request writes its number back to the config under "heuristic" (generation/utils.py, _assisted_decoding).
    """

    def __init__(self, schedule: str, num_assistant_tokens: int) -> None:
        self.schedule = schedule
        self.config = self.generator = num_assistant_tokens

    def begin(self) -> None:
        self.generator = self.config

    def end(self) -> None:
        if self.schedule == "heuristic":
            self.config = self.generator

    def max_new_tokens(self, room: int) -> int:
        return min(int(self.generator), room)

    def update_candidate_strategy(self, candidates: int, num_matches: int) -> None:
        if self.schedule in {"heuristic", "heuristic_transient"}:
            if num_matches == candidates:
                self.generator += 2
            else:
                self.generator = max(1, self.generator - 1)


OURS: dict[str, Callable[[int], DraftLength]] = {
    "constant": lambda start: FixedLength(start),
    "heuristic": lambda start: HeuristicLength(start, most=10_000),
    "heuristic_transient": lambda start: HeuristicLength(start, transient=True, most=10_000),
}


@pytest.mark.parametrize("schedule", OURS)
@pytest.mark.parametrize("start", [1, 5, 20])
def test_a_schedule_asks_for_what_hugging_face_would(schedule: str, start: int) -> None:
    dice = random.Random(start)
    ours, theirs = OURS[schedule](start), HuggingFace(schedule, start)
    asked = set()
    for _ in range(20):
        ours.begin()
        theirs.begin()
        likely = dice.choice([0.2, 0.8, 0.97])
        for room in range(dice.randint(1, 40), 0, -1):
            (count,) = ours.choose([Choice(room)])
            assert count == theirs.max_new_tokens(room)
            accepted = next((i for i in range(count) if dice.random() > likely), count)
            ours.observe([Drafted(count, count, accepted)])
            theirs.update_candidate_strategy(count, accepted)
            asked.add(count)
        theirs.end()
    assert len(asked) > 5 or schedule == "constant"


def count_of(length: DraftLength, room: int = 99) -> int:
    (count,) = length.choose([Choice(room)])
    return count


def test_a_round_that_found_nothing_to_draft_changes_nothing() -> None:
    length = HeuristicLength(4)
    for _ in range(10):
        length.observe([Drafted(4, 0, 0)])
    assert count_of(length) == 4


def test_no_draft_is_longer_than_most() -> None:
    length = HeuristicLength(4, most=7)
    for _ in range(10):
        count = count_of(length)
        length.observe([Drafted(count, count, count)])
    assert count_of(length) == length.most == 7


@pytest.mark.parametrize("length", [FixedLength(3), HeuristicLength(3)])
def test_none_asks_for_more_than_there_is_room_for(length: DraftLength) -> None:
    length.begin()
    assert length.choose([Choice(room) for room in (0, 1, 2, 3, 4)]) == [0, 1, 2, 3, 3]
    assert "3" in length.describe() and "\n" not in length.describe()


def test_impossible_numbers_are_named() -> None:
    with pytest.raises(InputError, match=r"num_draft_tokens must be >= 0, not -1"):
        FixedLength(-1)
    with pytest.raises(InputError, match=r"num_draft_tokens must be >= 1 for a heuristic schedule, not 0"):
        HeuristicLength(0)
