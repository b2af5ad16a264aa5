"""Where an output stands in its source: after copies, and after each kind of edit."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import pytest

from speculative_decoding.drafters.alignment import AHEAD, BEHIND, Alignment, Pieces, Place, nearest

WORDS = re.findall(r"\S+", "</s> : , ▁grammar ▁the ▁The The ▁cat s ▁sat ▁on ▁a ▁mat ▁dog ▁ran ▁to ▁red ▁big ed x y z")
IDS = {piece: index for index, piece in enumerate(WORDS)}
PIECES = Pieces.of(dict(enumerate(WORDS)))


def ids(text: str) -> list[int]:
    return [IDS[piece] for piece in text.split()]


def place(source: str, output: str, pieces: Pieces = PIECES, min_size: int = 2) -> tuple[list[int], Place | None]:
    """(what would be copied, the place)"""
    alignment = Alignment(ids(source), pieces, 8, min_size)
    for token in ids(output):
        alignment.read(token)
    found = alignment.place()
    return ids(source)[found.start :] if found else [], found


def test_pieces_fall_into_classes_without_space_and_case() -> None:
    def same(piece: str) -> int:
        return PIECES.classes.get(IDS[piece], IDS[piece])

    assert same("▁the") == same("▁The") == same("The") != same("▁cat")
    assert len({same(piece) for piece in WORDS}) == len(WORDS) - 2
    assert {WORDS[i] for i in PIECES.begins_word} == {piece for piece in WORDS if piece.startswith("▁")}
    assert {WORDS[i] for i in PIECES.ends_prefix} == {":"}


SOURCE = "▁grammar : ▁the ▁cat s ▁sat ▁on ▁the ▁big ▁mat </s>"


@pytest.mark.parametrize(
    ("output", "copied", "origin"),
    [
        ("", "▁the ▁cat s ▁sat ▁on ▁the ▁big ▁mat </s>", "opening"),  # behind the task prefix
        ("▁the ▁cat", "s ▁sat ▁on ▁the ▁big ▁mat </s>", "near"),
        ("▁The ▁cat", "s ▁sat ▁on ▁the ▁big ▁mat </s>", "near"),  # another case is in step
        ("The", "▁cat s ▁sat ▁on ▁the ▁big ▁mat </s>", "near"),  # and so is a word without its space
        ("▁the ▁cat s ▁sat ▁on ▁the ▁big ▁mat", "</s>", "near"),
        ("▁the ▁cat ▁ran", "▁sat ▁on ▁the ▁big ▁mat </s>", "resumed"),  # for "s"
        ("▁the ▁cat s ▁ran", "▁on ▁the ▁big ▁mat </s>", "resumed"),  # replaced
        ("▁the ▁cat s ▁sat ed", "▁on ▁the ▁big ▁mat </s>", "resumed"),  # prolonged
        ("▁the ▁cat s ▁sat ,", "▁on ▁the ▁big ▁mat </s>", "resumed"),  # inserted
        ("▁the ▁cat s ▁on", "▁the ▁big ▁mat </s>", "near"),  # dropped
        ("▁the ▁cat s ▁ran ▁on", "▁the ▁big ▁mat </s>", "near"),  # back in step
        ("▁the ▁cat s ▁sat ▁on ▁the", "▁big ▁mat </s>", "near"),  # this "the", not the first
        ("▁red", "▁cat s ▁sat ▁on ▁the ▁big ▁mat </s>", "resumed"),  # the first word replaced
        ("▁red ▁dog", "", None),  # lost
        ("▁red ▁dog ▁big ▁mat", "</s>", "far"),
    ],
)
def test_copying_goes_on_behind_every_kind_of_edit(output: str, copied: str, origin: str | None) -> None:
    rest, found = place(SOURCE, output)
    assert rest == ids(copied)
    assert (found.origin if found else None) == origin


@pytest.mark.parametrize("replaced", ["▁dog", "▁dog x y z", "x y z"])
def test_a_replaced_word_is_skipped_with_all_its_pieces(replaced: str) -> None:
    rest, found = place(f"▁grammar : ▁on ▁the {replaced} ▁cat ▁sat </s>", "▁on ▁the ▁big")
    assert rest == ids("▁cat ▁sat </s>")
    assert found is not None and found.origin == "resumed"


def test_without_pieces_ids_are_compared_and_single_tokens_replaced() -> None:
    rest, _ = place("▁on ▁the ▁dog x y ▁cat ▁sat </s>", "▁on ▁the ▁big", Pieces())
    assert rest == ids("x y ▁cat ▁sat </s>")
    _, found = place("▁the ▁dog x y ▁cat", "▁The", Pieces())
    assert found == Place(1, 0, "resumed")


def test_far_from_the_expected_place_a_match_must_be_long_enough() -> None:
    filling = " ".join(["x y"] * 10)
    source = f"▁the ▁cat {filling} ▁sat ▁on ▁a ▁mat"
    assert place(source, "▁the ▁cat ▁ran ▁to ▁on")[1] is None
    _, found = place(source, "▁the ▁cat ▁ran ▁to ▁sat ▁on")
    assert found == Place(24, 2, "far")
    _, found = place(source, "▁the ▁cat ▁ran ▁to ▁on", min_size=1)
    assert found == Place(24, 1, "far")


def test_nearest_prefers_what_lies_ahead() -> None:
    assert nearest([3, 9], 6) == 9 and nearest([5, 9], 6) == 5 and nearest([4, 8], 8) == 8 and nearest([4], 9) == 4


def longest_suffix(source: Sequence[int], output: Sequence[int], most: int) -> int:
    return max(
        size
        for size in range(min(most, len(output)) + 1)
        if size == 0 or any(list(source[end - size : end]) == list(output[-size:]) for end in range(size, len(source)))
    )


def test_a_match_is_as_long_as_naive_search_finds() -> None:
    """And stands where its length says; near means within the window, far long enough."""
    generator = random.Random(0)
    origins = set()
    for _ in range(400):
        source = generator.choices(range(6), k=30)
        alignment = Alignment(source, Pieces(), 5, 2)
        output: list[int] = []
        for _ in range(15):
            copy = generator.random() < 0.7 and output
            at = generator.randrange(len(source))
            output += source[at : at + 3] if copy else [generator.randrange(7)]
            for token in output[len(alignment._read) :]:
                alignment.read(token)
            before = alignment._expected
            found, longest = alignment.place(), longest_suffix(source, output, 5)
            origins.add(found.origin if found else None)
            if found and found.origin in ("near", "far"):
                size = min(found.length, 5)
                assert source[found.start - size : found.start] == output[-size:]
                assert found.length >= longest or found.origin == "near"
                assert found.origin == "near" or not before - BEHIND <= found.start < before + AHEAD or longest >= 2
            else:
                assert longest < 2
            if found and found.origin != "far":
                assert alignment.place() == found  # asking changes nothing
    assert origins == {"near", "far", "resumed", None}
