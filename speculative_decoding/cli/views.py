"""A generation and those who watch it as it comes: its plain text, the text with its draft, a trace of its rounds.

Accepted is green, rejected red and struck out, the target's own blue. Where there is no colour (`NO_COLOR`, a pipe, a
dumb terminal) marks take its place: [-rejected-] {+the target's own+}.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from rich.console import Console
from rich.text import Text

from ..decoding.results import GenerationResponse, GenerationResult
from ..decoding.stats import Round
from ..errors import writing
from ..loading.tokenizer import REPLACEMENT, Tokenizer, text_behind
from .common import printing

OnRound = Callable[[Round], None]
INTERRUPTED = "interrupted"  # the finish_reason of a generation that was stopped

COPIED = ("tokens", "proposed", "drafted", "accepted", "kind", "seconds", "draft_seconds", "verify_seconds")
# Control characters would be obeyed by a terminal; a line end and a tab are text.
CONTROLS = {code: chr(0x2400 + code) for code in range(32) if code not in (9, 10)}
CONTROLS |= {127: "\u2421"} | dict.fromkeys(range(128, 160), REPLACEMENT)


@dataclass(frozen=True)
class Step:
    """A token as it comes. number: of its round, and place: of the token in the round, both from 0."""

    response: GenerationResponse
    round: Round
    number: int
    place: int

    @property
    def ends_round(self) -> bool:
        return self.place + 1 == len(self.round.tokens)


Watcher = Callable[[Iterator[Step]], Iterator[Step]]  # shows each step, and hands it on


def watch(
    start: Callable[[OnRound], Iterator[GenerationResponse]],
    watchers: Sequence[Watcher] = (),
    is_stopped: Callable[[], bool] = lambda: False,
) -> GenerationResult:
    """Run a stream to its end, or to the first token at which it is to stop. The first watcher sees a token first."""
    rounds: list[Round] = []
    stream = start(rounds.append)  # a wrong request raises before anything is shown

    def numbered() -> Iterator[Step]:
        place = 0
        for response in stream:  # behind the event of its round
            yield Step(response, rounds[-1], len(rounds) - 1, place)
            if is_stopped():
                return
            place = (place + 1) % len(rounds[-1].tokens)

    steps = numbered()
    for watcher in watchers:
        steps = watcher(steps)
    responses = [step.response for step in steps]
    text, tokens = "".join(each.text for each in responses), [each.token for each in responses]
    return GenerationResult(text, tokens, responses[-1].finish_reason or INTERRUPTED, responses[-1].stats)


def plain_text(file: TextIO) -> Watcher:
    """The text as it comes, and a line end behind it."""

    def show(steps: Iterator[Step]) -> Iterator[Step]:
        for step in steps:
            with printing():
                print(step.response.text, end="", flush=True, file=file)
            yield step
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

    def __call__(self, steps: Iterator[Step]) -> Iterator[Step]:
        tokens: list[int] = []
        line = Text()
        for step in steps:
            if step.place == step.round.accepted:  # the first that was not drafted: in its place stood the rejected
                self._add(line, text_behind(self._tokenizer, tokens, step.round.rejected), REJECTED)
            self._add(line, step.response.text, ACCEPTED if step.response.from_draft else OWN)
            tokens.append(step.response.token)
            if self._rounds and step.ends_round:
                line = self._end_round(step, line)
            elif not self._rounds:
                self._console.print(line, end="", soft_wrap=True)  # whatever comes next, the terminal wraps
                line = Text()
            yield step
        if not self._rounds:
            self._add(line, "\n", PLAIN)
            self._console.print(line, end="", soft_wrap=True)
        elif not step.ends_round:  # stopped inside a round
            self._end_round(step, line)

    def _add(self, line: Text, text: str, kind: Kind) -> None:
        """To the line, in the kind's colour, or between marks that stand where the kind changes."""
        if not text:
            return
        if not self._colour and kind != self._kind:
            line.append(self._kind.behind + kind.before)
        line.append(visible(text), kind.style if self._colour else "")
        self._kind = kind

    def _end_round(self, step: Step, line: Text) -> Text:
        """Print it behind its numbers; a new line."""
        event, close = step.round, "" if self._colour else self._kind.behind
        kind = f", {event.kind}" if event.kind else ""
        drafted = f"{event.accepted} of {event.drafted} accepted{kind}" if event.drafted else "nothing drafted"
        draft = "" if event.draft_seconds is None else f" (draft {1000 * event.draft_seconds:.1f})"
        numbers = f"round {step.number + 1}: {drafted}, {1000 * event.seconds:.1f} ms{draft}: "
        self._console.print(Text(numbers, "dim" if self._colour else "").append_text(line).append(close))
        self._kind = PLAIN
        return Text()


class Trace:
    """A watcher that writes a line of JSON for every round, for programs and `python -m speculative_decoding report`:
    when all its tokens are out, at once and whole, so that an interrupted run leaves whole lines.

    Each line: request, round (both from 0), position (tokens in front of it), text, those of `COPIED`, finish_reason;
    the first of a request also encode_seconds.
    """

    def __init__(self, path: Path, file: TextIO) -> None:
        self._path, self._file, self._requests = path, file, count()

    def __call__(self, steps: Iterator[Step]) -> Iterator[Step]:
        request, position, text = next(self._requests), 0, ""
        for step in steps:
            text += step.response.text
            if step.ends_round:
                line: dict[str, Any] = {"request": request, "round": step.number, "position": position}
                if step.number == 0:
                    line["encode_seconds"] = step.response.stats.encode_seconds
                line |= {"text": text, **{name: getattr(step.round, name) for name in COPIED}}
                line["finish_reason"] = step.round.finish_reason
                with writing("--trace", self._path):
                    self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
                    self._file.flush()
                position, text = position + len(step.round.tokens), ""
            yield step


@contextmanager
def traces_to(path: Path | None) -> Iterator[list[Watcher]]:
    """A trace, where a file is named."""
    if path is None:
        yield []
        return
    with writing("--trace", path):
        file = path.open("w", encoding="utf-8")
    try:
        yield [Trace(path, file)]
    finally:
        with suppress(OSError):  # of what was refused already
            file.close()
