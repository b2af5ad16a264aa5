"""The place in a text that an output has reached, after copies and after each kind of edit."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence

import pytest

from speculative_decoding.drafters.base import COPY
from speculative_decoding.drafters.draft_text import DraftText, TextFollower

WORDS = re.findall(r"\S+", "</s> : , ▁grammar ▁the ▁The The ▁cat s ▁sat ▁on ▁a ▁mat ▁dog ▁ran ▁to ▁red ▁big ed x y z")
IDS = {piece: index for index, piece in enumerate(WORDS)}
PIECES = dict(enumerate(WORDS))


def ids(text: str) -> list[int]:
    return [IDS[piece] for piece in text.split()]


def aligned(source: str, output: str, pieces: Mapping[int, str] = PIECES) -> tuple[list[int], int | None]:
    """Return the ids that would be copied, and the length of the match; if tokens differ, minus their number."""
    text = DraftText(ids(source), pieces, COPY)
    follower = TextFollower(text, start=text.start)
    for token in ids(output):
        follower.append(token)
    place = follower.find()
    if place is None:
        return [], None
    return ids(source)[place.position :], -place.length if place.differs else place.length


@pytest.mark.parametrize(
    ("pieces", "are_same"),
    [({7: "Ġa", 8: "A"}, True), ({7: "▁", 8: "Ġ"}, False), ({7: "", 8: ""}, True), ({7: "▁▁", 8: "▁"}, True)],
)
def test_classes_of_unusual_pieces(pieces: dict[int, str], are_same: bool) -> None:
    text = DraftText([], pieces, COPY)
    assert (text.class_of(7) == text.class_of(8)) == are_same


SOURCE = "▁grammar : ▁the ▁cat s ▁sat ▁on ▁the ▁big ▁mat </s>"


@pytest.mark.parametrize(
    ("output", "copied", "length"),
    [
        ("", "▁the ▁cat s ▁sat ▁on ▁the ▁big ▁mat </s>", 0),  # after the task prefix
        ("▁the ▁cat", "s ▁sat ▁on ▁the ▁big ▁mat </s>", 2),
        ("▁The ▁cat", "s ▁sat ▁on ▁the ▁big ▁mat </s>", 2),  # in another case
        ("The", "▁cat s ▁sat ▁on ▁the ▁big ▁mat </s>", 1),  # without its leading space
        ("▁the ▁cat s ▁sat ▁on ▁the ▁big ▁mat", "</s>", 8),
        ("▁the ▁cat ▁ran", "▁sat ▁on ▁the ▁big ▁mat </s>", -1),  # replaces "s"
        ("▁the ▁cat s ▁ran", "▁on ▁the ▁big ▁mat </s>", -1),  # replaces "▁sat"
        ("▁the ▁cat s ▁sat ▁red", "▁the ▁big ▁mat </s>", -1),
        ("▁the ▁cat s ▁sat ed ▁on", "▁the ▁big ▁mat </s>", 1),  # extends a word
        ("▁the ▁cat s ▁sat , ▁on", "▁the ▁big ▁mat </s>", 1),  # inserts a token
        ("▁the ▁cat s ▁on", "▁the ▁big ▁mat </s>", 1),  # drops a token
        ("▁the ▁cat s ▁ran ▁on", "▁the ▁big ▁mat </s>", 1),  # replaces a token, then agrees
        ("▁the ▁cat s ▁sat ▁on ▁the", "▁big ▁mat </s>", 6),  # the second "▁the"
        ("▁the ▁cat s ▁ran ▁the", "▁big ▁mat </s>", 1),  # the next "▁the"
        ("▁big ▁mat ▁cat", "s ▁sat ▁on ▁the ▁big ▁mat </s>", 1),  # every occurrence has been passed
        ("▁red", "▁cat s ▁sat ▁on ▁the ▁big ▁mat </s>", -1),  # replaces the first word
        ("▁red ▁dog", "▁cat s ▁sat ▁on ▁the ▁big ▁mat </s>", -2),
        ("▁red ▁dog ▁ran ▁to", "", None),  # too many tokens differ
        ("▁red ▁dog ▁big ▁mat", "</s>", 2),
    ],
)
def test_copying_resumes_after_every_kind_of_edit(output: str, copied: str, length: int | None) -> None:
    assert aligned(SOURCE, output) == (ids(copied), length)


@pytest.mark.parametrize("replaced", ["▁dog x y z", "x y z"])
def test_all_pieces_of_a_replaced_word_are_skipped(replaced: str) -> None:
    found = aligned(f"▁grammar : ▁on ▁the {replaced} ▁cat ▁sat </s>", "▁on ▁the ▁big")
    assert found == (ids("▁cat ▁sat </s>"), -1)


def test_without_pieces_ids_are_compared_and_one_token_is_skipped() -> None:
    assert aligned("▁on ▁the ▁dog x y ▁cat ▁sat </s>", "▁on ▁the ▁big", {}) == (ids("x y ▁cat ▁sat </s>"), -1)
    assert aligned("▁the ▁dog x y ▁cat", "▁The", {}) == (ids("▁dog x y ▁cat"), -1)


def longest_suffix(source: Sequence[int], output: Sequence[int], max_size: int) -> int:
    return max(
        size
        for size in range(min(max_size, len(output)) + 1)
        if size == 0 or any(list(source[end - size : end]) == list(output[-size:]) for end in range(size, len(source)))
    )


def test_after_a_difference_the_longest_match_wins_and_the_next_one_ahead_among_equals() -> None:
    """Compares with naive search."""
    generator = random.Random(0)
    lengths = set()
    for _ in range(150):
        source = generator.choices(range(6), k=30)
        follower = TextFollower(DraftText(source, {}, COPY, max_context=5))
        output: list[int] = []
        position = 0
        for _ in range(15):
            copy = generator.random() < 0.7 and output
            at = generator.randrange(len(source))
            for token in source[at : at + 3] if copy else [generator.randrange(7)]:
                output.append(token)
                follower.append(token)
                longest = longest_suffix(source, output, 5)
                if source[position : position + 1] == [token]:
                    position += 1
                elif longest:
                    suffix = output[-longest:]
                    ends = [end for end in range(longest, len(source)) if source[end - longest : end] == suffix]
                    position = min([end for end in ends if end >= position] or ends[-1:])
                    lengths.add(longest)
                place = follower.find()
                assert place is None or place.differs or place.position == position
                assert follower.find() == place
    assert lengths == {1, 2, 3, 4, 5}
