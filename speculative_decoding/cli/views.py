"""How a text looks with its draft: accepted green, rejected red and struck out, the target's own blue.

Where there is no colour (`NO_COLOR`, a pipe, a dumb terminal) marks take its place: [-rejected-] {+the target's own+}.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from rich.console import Console
from rich.text import Text

from ..decoding.results import GenerationResponse
from ..decoding.stats import GenerationStats, Round
from ..loading.tokenizer import REPLACEMENT, Tokenizer
from .screen import has_colour, visible
from .watching import Watcher

CONTEXT = 8  # tokens: enough to know whether a piece brings a space


class Kind(Enum):
    """(style, mark in front, mark behind)"""

    ACCEPTED = ("green", "", "")
    REJECTED = ("red strike", "[-", "-]")
    OWN = ("bright_blue", "{+", "+}")  # a correction behind a rejected token, or a bonus behind an accepted draft


class DraftView(Watcher):
    """A stream, printed with its draft. Never takes back what it printed.

    rounds: a line for each round, with its numbers.
    """

    def __init__(self, console: Console, tokenizer: Tokenizer, *, rounds: bool = False) -> None:
        self._console, self._tokenizer, self._rounds = console, tokenizer, rounds
        self._colour = has_colour(console)

    def legend(self) -> None:
        parts = ((Kind.ACCEPTED, "accepted"), (Kind.REJECTED, "rejected"), (Kind.OWN, "correction or bonus"))
        line = Text()
        for kind, words in parts:
            line.append(" " if line else "").append_text(self._styled(words, kind))
        self._console.print(line)

    def begin(self) -> None:
        self._tokens: list[int] = []
        self._number, self._left = 0, 0
        self._open: Kind | None = None
        self._line = Text()

    def round(self, event: Round) -> None:
        self._event, self._left = event, len(event.tokens)
        self._number += 1

    def add(self, response: GenerationResponse) -> None:
        at = len(self._event.tokens) - self._left
        if at == self._event.accepted:  # the first that was not drafted: in its place stood what was rejected
            self._show(self._rejected(), Kind.REJECTED)
        self._show(response.text, Kind.ACCEPTED if response.from_draft else Kind.OWN)
        self._tokens.append(response.token)
        self._left -= 1
        if self._rounds and not self._left:
            self._end_line()

    def end(self) -> None:
        if self._rounds:
            if self._left:  # stopped inside a round
                self._end_line()
        else:
            self._close()
            self._console.print()

    def _rejected(self) -> str:
        """What the tokens that were not accepted would have read, behind what stands there."""
        context, text = self._tokens[-CONTEXT:], ""
        for token in self._event.proposed[self._event.accepted :]:
            before = self._tokenizer.decode(context).rstrip(REPLACEMENT)
            context.append(token)
            piece = self._tokenizer.decode(context)[len(before) :]
            text += piece if piece.strip(REPLACEMENT) else str(self._tokenizer.vocabulary.pieces.get(token, token))
        return text

    def _show(self, text: str, kind: Kind) -> None:
        if not text:
            return
        if self._rounds:
            self._line.append_text(self._styled(text, kind))
            return
        if not self._colour and kind is not self._open:
            self._close()
            self._print(Text(kind.value[1]))
            self._open = kind
        self._print(Text(visible(text), kind.value[0] if self._colour else ""))

    def _close(self) -> None:
        if self._open is not None:
            self._print(Text(self._open.value[2]))
        self._open = None

    def _print(self, text: Text) -> None:
        if text:
            self._console.print(text, end="", soft_wrap=True)  # whatever comes next, the terminal wraps

    def _styled(self, text: str, kind: Kind) -> Text:
        style, before, behind = kind.value
        return Text(visible(text), style) if self._colour else Text(f"{before}{visible(text)}{behind}")

    def _end_line(self) -> None:
        event = self._event
        numbers = f"round {self._number}: {event.accepted} of {event.drafted} accepted"
        if event.kind:
            numbers += f", {event.kind}"
        times = f", {1000 * event.seconds:.1f} ms"
        if event.draft_seconds is not None:
            times += f" (draft {1000 * event.draft_seconds:.1f})"
        self._console.print(Text(f"{numbers}{times}: ", "dim" if self._colour else "").append_text(self._line))
        self._line = Text()


def lossy(stats: GenerationStats, delta: float, *, is_greedy: bool) -> str:
    """What a lossy run is to be told of."""
    price = stats.delta_total_variation
    measured = f"{price:.1%} of the tokens are not the target's first choice"
    if not is_greedy:
        measured = f"measured total variation {price:.4f} per token"
    return f"LOSSY: --delta {delta:g} accepts tokens that the target alone would not write; {measured}"


def share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def accepted_bars(histogram: dict[int, int], width: int) -> Sequence[str]:
    """A line for each number of accepted tokens, from 0 to the most: how many rounds had it."""
    rounds, most = sum(histogram.values()), max(histogram.values(), default=0)
    room = max(width - 24, 8)
    return [
        f"{count:3d} accepted {share(histogram.get(count, 0), rounds):>6} "
        + "#" * round(room * histogram.get(count, 0) / most)
        for count in range(max(histogram, default=-1) + 1)
    ]
