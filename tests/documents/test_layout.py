"""A text is broken into as many lines as its source has, in order, and with the lowest cost."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculative_decoding.documents import layout
from speculative_decoding.documents.layout import break_places, line_break_text

WORDS = st.lists(st.text("ab,", min_size=1, max_size=9), min_size=1, max_size=9)
LINES = st.text("ab,. 中文。「」ก", min_size=1, max_size=12).map(str.strip).filter(bool)
WIDTHS = st.lists(st.integers(0, 25), min_size=1, max_size=5)
EXAMPLES = settings(max_examples=100, deadline=None, derandomize=True)


def lines_of(text: str, places: list[tuple[int, int]]) -> list[str]:
    ends = [0, *(end for place in places for end in place), len(text)]
    return [text[start:end] for start, end in zip(ends[::2], ends[1::2], strict=True)]


@EXAMPLES
@given(st.text(" ab.中文。「」เก\u3000\u00a0", max_size=30).map(str.strip), WIDTHS)
def test_breaks_are_as_many_as_possible_in_order_and_replace_only_white_space(text: str, widths: list[int]) -> None:
    places = break_places(text, widths)
    available = sum(layout.is_allowed(text, each) for each in layout.all_places(text))
    assert len(places) == min(available, len(widths) - 1) or lines_of(text, places) == [*map(len, widths)]
    assert all(lines_of(text, places)) or not text
    assert not "".join(text[start:end] for start, end in places).strip()


@EXAMPLES
@given(st.lists(LINES, min_size=1, max_size=6))
def test_a_text_with_the_lines_of_the_source_is_broken_as_the_source(lines: list[str]) -> None:
    text = lines[0]
    for before, after in pairwise(lines):
        text += line_break_text(before, after) + after
    assert lines_of(text, break_places(text, [*map(len, lines)])) == lines


def layouts(text: str, lines: int) -> list[list[tuple[int, int]]]:
    places = [each for each in layout.all_places(text) if layout.is_allowed(text, each)]
    return [[*each] for each in combinations(places, lines - 1)]


@EXAMPLES
@given(WORDS, WIDTHS, st.integers(0, 30), st.integers(0, 9))
def test_no_layout_is_better_than_the_one_found(words: list[str], widths: list[int], limit: int, column: int) -> None:
    text, limit = " ".join(words), max(limit, *widths)
    shares = layout.shares_of(max(len(text) - (len(widths) - 1), 1), widths, limit)

    def cost(places: list[tuple[int, int]]) -> tuple[int, float]:
        lines = lines_of(text, places)
        rooms = [limit - column, *(limit for _ in lines[1:])]
        costs = [layout.line_cost(len(each), *rest) for each, *rest in zip(lines, shares, rooms, strict=True)]
        return sum(over for over, _ in costs), round(sum(difference for _, difference in costs), 6)

    if found := layouts(text, len(widths)):
        places = break_places(text, widths, limit=limit, column=column)
        assert cost(places) == min(map(cost, found)) or [*map(len, lines_of(text, places))] == widths


@EXAMPLES
@given(st.text(" ab。中文、", max_size=16).map(str.strip), WIDTHS)
def test_no_line_is_wider_than_the_source_if_a_layout_without_such_a_line_exists(text: str, widths: list[int]) -> None:
    found = [max(map(len, lines_of(text, each))) for each in layouts(text, len(widths))]
    widest = max(map(len, lines_of(text, break_places(text, widths))))
    assert widest <= max(widths) or not found or min(found) > max(widths)


@EXAMPLES
@given(st.integers(1, 1000), st.lists(st.integers(0, 90), min_size=1, max_size=30))
def test_shares_add_up_and_keep_to_the_widest_line_if_possible(length: int, widths: list[int]) -> None:
    shares = layout.shares_of(length, widths, max(widths))
    assert sum(shares) == pytest.approx(length)
    assert max(shares) <= max(*widths, -(-length // len(widths)), 1) + 1e-6


def test_words_that_start_a_block_do_not_start_a_line() -> None:
    text = "we need 2. more - things # here"
    seen: list[str] = []

    def may_start(word: str) -> bool:
        seen.append(word)
        return word.isalpha()

    assert lines_of(text, break_places(text, [7, 9, 8], may_start)) == ["we need 2.", "more -", "things # here"]
    assert seen == ["need", "2.", "more", "-", "things", "#", "here"]


@pytest.mark.parametrize(
    "text, widths, lines",
    [
        ("他说、“你好。今天我们去公园。”", [10, 10], ["他说、“你好。", "今天我们去公园。”"]),
        ("これはペンでした。", [9, 1], ["これはペンでし", "た。"]),
        ("他说“你好", [3, 3], ["他说", "“你好"]),
        ("สวัสดีครับ ผมชื่อสมชาย", [8, 8], ["สวัสดีครับ", "ผมชื่อสมชาย"]),
        ("a\u00a0b c", [2, 2], ["a\u00a0b", "c"]),
        ("one two", [1, 2, 3], ["one", "two"]),
        ("", [3, 2], [""]),
    ],
)
def test_lines_break_where_their_script_allows_it(text: str, widths: list[int], lines: list[str]) -> None:
    assert lines_of(text, break_places(text, widths)) == lines


def test_time_is_linear_in_the_breaks_and_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    line_cost = layout.line_cost

    def counted(length: int, share: float, limit: int) -> tuple[int, float]:
        nonlocal calls
        calls += 1
        return line_cost(length, share, limit)

    monkeypatch.setattr(layout, "line_cost", counted)
    assert len(break_places("word " * 20_000 + "word", [9] * 1000)) == 999
    assert len(break_places("字" * 100_000, [9, 9])) == 1
    assert calls < 3 * layout.COMPARISONS
