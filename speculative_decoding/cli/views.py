"""Watchers that print the output with its drafts, or a trace of its rounds.

Accepted tokens are green, rejected tokens red and struck out, corrections and bonus tokens blue. Without color
(`NO_COLOR`, a pipe, a dumb terminal), marks replace the colors: [-rejected-] {+correction or bonus+}.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from ..decoding.request import Request
from ..decoding.results import Round
from ..engine import Event
from ..errors import Name, writing
from ..loading.tokenizer import REPLACEMENT, Tokenizer, continuation_text

# Replacements for control characters, which a terminal would interpret. Newlines and tabs are kept.
CONTROLS = {code: chr(0x2400 + code) for code in range(32) if code not in (9, 10)}
CONTROLS |= {127: "\u2421"} | dict.fromkeys(range(128, 160), REPLACEMENT)


def make_console() -> Console:
    """Return a console on standard error that prints text unchanged and wraps it only at a terminal."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    console.soft_wrap = not console.is_terminal
    return console


def has_color(console: Console) -> bool:
    return console.color_system is not None and not console.no_color


def visible(text: str) -> str:
    """Make control characters visible."""
    return text.translate(CONTROLS)


class Mark(NamedTuple):
    """How a part of the text is shown: in a color, or with marks before and after it."""

    style: str
    before: str = ""
    after: str = ""


UNMARKED = Mark("")
ACCEPTED = Mark("green")
REJECTED = Mark("red strike", "[-", "-]")
OWN = Mark("bright_blue", "{+", "+}")  # a correction after a rejected token, or a bonus token


class DraftView:
    """Watcher that prints one output with its drafts and never rewrites printed text.

    rounds: whether to print one line per round, with its statistics.
    """

    def __init__(self, console: Console, tokenizer: Tokenizer, *, rounds: bool = False) -> None:
        self._console = console
        self._tokenizer = tokenizer
        self._rounds = rounds
        self._color = has_color(console)
        self._open = UNMARKED  # the style of the last text printed, which may still need its closing mark
        self._tokens: list[int] = []  # the tokens of the text printed so far
        self._number = 0  # number of the last round

    def legend(self) -> None:
        line = Text()
        for words, mark in (("accepted", ACCEPTED), ("rejected", REJECTED), ("correction or bonus", OWN)):
            self._add(line, words, mark)
            self._add(line, " ", UNMARKED)
        line.rstrip()
        self._console.print(line)

    def __call__(self, event: Event | None) -> None:
        line = Text()
        if event is None:
            if not self._rounds:
                self._add(line, "\n", UNMARKED)
                self._console.print(line, end="", soft_wrap=True)
            return
        round = event.round
        self._add(line, "".join(event.texts[: round.accepted]), ACCEPTED)
        if round.accepted < len(event.texts):
            known = self._tokens + round.tokens[: round.accepted]
            self._add(line, continuation_text(self._tokenizer, known, round.rejected), REJECTED)
            self._add(line, "".join(event.texts[round.accepted :]), OWN)
        self._tokens += round.tokens
        self._number += 1
        if self._rounds:
            self._end_round(round, line)
        else:
            self._console.print(line, end="", soft_wrap=True)  # text may follow, so let the terminal wrap the line

    def _add(self, line: Text, text: str, mark: Mark) -> None:
        """Append text in the mark's color. Without color, print the mark's characters where the mark changes."""
        if not text:
            return
        if not self._color and mark != self._open:
            line.append(self._open.after + mark.before)
        line.append(visible(text), mark.style if self._color else "")
        self._open = mark

    def _end_round(self, round: Round, line: Text) -> None:
        """Print the round's statistics and its text."""
        drafted = "no draft"
        if round.drafted:
            kind = f", {round.kind}" if round.kind else ""
            drafted = f"{round.accepted} of {round.drafted} accepted{kind}"
        draft = "" if round.draft_seconds is None else f" (draft {1000 * round.draft_seconds:.1f})"
        numbers = f"round {self._number}: {drafted}, {1000 * round.seconds:.1f} ms{draft}: "
        close = "" if self._color else self._open.after
        self._console.print(Text(numbers, "dim" if self._color else "").append_text(line).append(close))
        self._open = UNMARKED


class Trace:
    """Watcher that writes one JSON line per round to a new file. An interrupted run leaves only complete lines.

    Each line contains request and round (both from 0), position (number of earlier tokens), text, and the fields of
    `Round`. The first round of a request also has encode_seconds.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._request: Request | None = None  # request of the last event
        self._counts = {"request": -1, "round": 0, "position": 0}  # values for the next line
        with writing(Name("trace"), path):
            path.write_text("")

    def __call__(self, event: Event | None) -> None:
        if event is None:
            return
        round = event.round
        if event.request is not self._request:
            self._request = event.request
            self._counts = {"request": self._counts["request"] + 1, "round": 0, "position": 0}
        line: dict[str, Any] = {**self._counts}
        if self._counts["round"] == 0:
            line["encode_seconds"] = event.request.stats.encode_seconds
        line |= {
            "text": "".join(event.texts),
            "tokens": round.tokens,
            "proposed": round.proposed,
            "drafted": round.drafted,
            "accepted": round.accepted,
            "kind": round.kind,
            "seconds": round.seconds,
            "draft_seconds": round.draft_seconds,
            "verify_seconds": round.verify_seconds,
            "finish_reason": round.finish_reason,
        }
        with writing(Name("trace"), self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._counts["round"] += 1
        self._counts["position"] += len(round.tokens)
