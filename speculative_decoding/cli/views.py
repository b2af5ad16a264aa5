"""A generation and those who watch it as it comes: its plain text, the text with its draft, a trace of its rounds.

Accepted is green, rejected red and struck out, the target's own blue. Where there is no colour (`NO_COLOR`, a pipe, a
dumb terminal) marks take its place: [-rejected-] {+the target's own+}.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from rich.console import Console
from rich.text import Text

from ..decoding.results import GenerationResult
from ..decoding.stats import Round
from ..engine import Event
from ..errors import writing
from ..loading.tokenizer import REPLACEMENT, Tokenizer, continuation_text
from .common import printing

INTERRUPTED = "interrupted"  # the finish_reason of a generation that was stopped

COPIED = ("tokens", "proposed", "drafted", "accepted", "kind", "seconds", "draft_seconds", "verify_seconds")
# Control characters would be obeyed by a terminal; a line end and a tab are text.
CONTROLS = {code: chr(0x2400 + code) for code in range(32) if code not in (9, 10)}
CONTROLS |= {127: "\u2421"} | dict.fromkeys(range(128, 160), REPLACEMENT)


Watcher = Callable[[Iterator[Event]], Iterator[Event]]  # shows what each round brought, and hands it on


def watch(
    events: Iterator[Event], watchers: Sequence[Watcher] = (), is_stopped: Callable[[], bool] = lambda: False
) -> GenerationResult:
    """Run a generation to its end, or to the first round behind which it is to stop. The first watcher sees a round
    first; with beams all that there is to see comes with the last.
    """

    def until_stopped() -> Iterator[Event]:
        for event in events:
            if event.texts:
                yield event
                if is_stopped():
                    return

    watched = until_stopped()
    for watcher in watchers:
        watched = watcher(watched)
    *_, last = watched
    request = last.request
    return GenerationResult(request.text, request.tokens, request.finish_reason or INTERRUPTED, request.stats)


def plain_text(file: TextIO) -> Watcher:
    """The text as it comes, and a line end behind it."""

    def show(events: Iterator[Event]) -> Iterator[Event]:
        for event in events:
            with printing():
                print(*event.texts, sep="", end="", flush=True, file=file)
            yield event
        with printing():
            print(flush=True, file=file)

    return show


def make_console() -> Console:
    """Of standard error. Prints text as it is, without highlights, markup and emoji; wraps it only at a terminal."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    console.soft_wrap = not console.is_terminal
    return console


def has_colour(console: Console) -> bool:
    return console.color_system is not None and not console.no_color


def visible(text: str) -> str:
    return text.translate(CONTROLS)


class Kind(NamedTuple):
    """What stands for it: a colour, or else marks in front and behind."""

    style: str
    before: str = ""
    behind: str = ""


PLAIN = Kind("")
ACCEPTED = Kind("green")
REJECTED = Kind("red strike", "[-", "-]")
OWN = Kind("bright_blue", "{+", "+}")  # a correction behind a rejected token, or a bonus behind an accepted draft


class DraftView:
    """A watcher that prints a text with its draft. Never takes back what it printed.

    rounds: a line for each round, with its numbers.
    """

    def __init__(self, console: Console, tokenizer: Tokenizer, *, rounds: bool = False) -> None:
        self._console, self._tokenizer, self._rounds = console, tokenizer, rounds
        self._colour = has_colour(console)
        self._kind = PLAIN  # of what was added last: its mark is still open

    def legend(self) -> None:
        line = Text()
        for words, kind in (("accepted", ACCEPTED), ("rejected", REJECTED), ("correction or bonus", OWN)):
            self._add(line, words, kind)
            self._add(line, " ", PLAIN)
        line.rstrip()
        self._console.print(line)

    def __call__(self, events: Iterator[Event]) -> Iterator[Event]:
        before: list[int] = []
        for number, event in enumerate(events, start=1):
            round, kept, line = event.round, event.round.accepted, Text()
            self._add(line, "".join(event.texts[:kept]), ACCEPTED)
            if kept < len(event.texts):  # the first that was not drafted: in its place stood the rejected
                rejected = continuation_text(self._tokenizer, before + round.tokens[:kept], round.rejected)
                self._add(line, rejected, REJECTED)
                self._add(line, "".join(event.texts[kept:]), OWN)
            before += round.tokens
            if self._rounds:
                self._end_round(number, round, line)
            else:
                self._console.print(line, end="", soft_wrap=True)  # whatever comes next, the terminal wraps
            yield event
        if not self._rounds:
            self._add(line := Text(), "\n", PLAIN)
            self._console.print(line, end="", soft_wrap=True)

    def _add(self, line: Text, text: str, kind: Kind) -> None:
        """To the line, in the kind's colour, or between marks that stand where the kind changes."""
        if not text:
            return
        if not self._colour and kind != self._kind:
            line.append(self._kind.behind + kind.before)
        line.append(visible(text), kind.style if self._colour else "")
        self._kind = kind

    def _end_round(self, number: int, round: Round, line: Text) -> None:
        """Print the line behind the round's numbers."""
        kind, close = f", {round.kind}" if round.kind else "", "" if self._colour else self._kind.behind
        drafted = f"{round.accepted} of {round.drafted} accepted{kind}" if round.drafted else "nothing drafted"
        draft = "" if round.draft_seconds is None else f" (draft {1000 * round.draft_seconds:.1f})"
        numbers = f"round {number}: {drafted}, {1000 * round.seconds:.1f} ms{draft}: "
        self._console.print(Text(numbers, "dim" if self._colour else "").append_text(line).append(close))
        self._kind = PLAIN


class Trace:
    """A watcher that writes a line of JSON for every round, at once and whole, so that an interrupted run leaves whole
    lines. The file is a new one.

    Each line: request, round (both from 0), position (tokens in front of it), text, those of `COPIED`, finish_reason;
    the first of a request also encode_seconds.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._requests = path, count()
        with writing("--trace", path):
            path.write_text("")

    def __call__(self, events: Iterator[Event]) -> Iterator[Event]:
        request, position = next(self._requests), 0
        for number, event in enumerate(events):
            line: dict[str, Any] = {"request": request, "round": number, "position": position}
            if number == 0:
                line["encode_seconds"] = event.request.stats.encode_seconds
            line |= {"text": "".join(event.texts), **{name: getattr(event.round, name) for name in COPIED}}
            line["finish_reason"] = event.round.finish_reason
            with writing("--trace", self._path), self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
            position += len(event.round.tokens)
            yield event
