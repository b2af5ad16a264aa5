"""Live text at a terminal: final text is written once, and pending text is replaced in place. In a pipe: JSON lines."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculative_decoding.decoding.results import GenerationStats
from speculative_decoding.speech.live.display import JsonLines, TerminalText
from speculative_decoding.speech.live.update import LiveUpdate
from tests.support.terminal import Screen

TEXTS = st.lists(st.sampled_from([" a", " bb.", " ccccccc", " 日本語", " \x1b[2J", " dddddddddddddd"]), max_size=5)


def update(final: str, pending: str, *, is_last: bool = False) -> LiveUpdate:
    return LiveUpdate(final, pending, 1.0, GenerationStats(), is_last=is_last)


def shown(updates: Sequence[LiveUpdate], columns: int, lines: int) -> tuple[Screen, TerminalText]:
    screen = Screen(columns, lines)
    text = TerminalText(screen, lambda: (columns, lines))  # type: ignore[arg-type]
    for each in updates:
        text.show(each)
    return screen, text


def without_spaces(lines: Sequence[str]) -> str:
    return "".join("".join(lines).split())


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=6), st.integers(4, 20), st.integers(2, 8))
def test_final_text_is_written_once_and_pending_text_follows_it(
    parts: list[tuple[list[str], list[str]]], columns: int, lines: int
) -> None:
    """The lines are those of the whole text written at once, which is the oracle. Escapes in a text are shown."""
    updates = [update("".join(final), "".join(pending)) for final, pending in parts]
    screen, text = shown(updates, columns, lines)
    whole, _ = shown([update("".join(each.final for each in updates), "")], columns, 99)
    seen = [line for line in screen.text(dim=False) if line]
    assert seen == [line for line in whole.text(dim=False) if line] and not screen.rewritten
    pending = "".join("".join(parts[-1][1]).replace("\x1b", "␛").split()) if parts else ""
    visible = without_spaces(screen.text(dim=True))
    assert pending.startswith(visible) and (visible or not pending)
    end = max(
        (line for line, (_, is_dim) in ((place[0], each) for place, each in screen.cells.items()) if not is_dim),
        default=0,
    )
    assert visible == pending or screen.line == end + lines - 1  # cut only where the screen ends
    assert all(column < columns - 1 for _, column in screen.cells)
    text.close()
    assert not any(screen.text(dim=True)) and screen.column == 0 and not screen.rewritten
    assert [line for line in screen.text(dim=False) if line] == seen


def test_words_stay_whole_unless_they_are_longer_than_a_line() -> None:
    screen, _ = shown([update(" one two", " three"), update(" three", " fourteen!!!!")], 9, 8)
    assert screen.text(dim=False) == ["one two", "three", "", ""]
    assert screen.text(dim=True) == ["", "", "fourteen", "!!!!"]


def test_unchanged_text_is_not_written_again() -> None:
    screen, text = shown([update(" a", " b")], 20, 5)
    lines = io.StringIO()
    for display, file in ((text, screen), (JsonLines(lines), lines)):
        display.show(update("", " b"))
        before = len(lines.getvalue())
        file.write = pytest.fail  # type: ignore[assignment,method-assign]
        display.show(update("", " b"))
        assert len(lines.getvalue()) == before


def test_a_pipe_gets_a_line_for_each_change() -> None:
    file = io.StringIO()
    lines = JsonLines(file)
    for each in (update("", ""), update("", " ä"), update("", " ä"), update(" ä", ""), update("", "", is_last=True)):
        lines.show(each)
    lines.close()
    assert [json.loads(line) for line in file.getvalue().splitlines()] == [
        {"final": "", "pending": " ä"},
        {"final": " ä", "pending": ""},
    ]
