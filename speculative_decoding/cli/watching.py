"""A generation and those who watch it: text on standard output, a view, a trace. Knows nothing of colours."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..decoding.results import GenerationResponse
from ..decoding.stats import GenerationStats, Round

OnRound = Callable[[Round], None]


class Watcher:
    """Sees a generation as it comes: each round, then the responses of its tokens. Overrides what it cares for."""

    def begin(self) -> None:
        pass

    def round(self, event: Round) -> None:
        pass

    def add(self, response: GenerationResponse) -> None:
        pass

    def end(self) -> None:
        pass


@dataclass(frozen=True)
class Run:
    """What came of a generation. finish_reason: None if it was stopped."""

    text: str
    tokens: list[int]
    finish_reason: str | None
    stats: GenerationStats

    @property
    def seconds(self) -> float:
        """The whole request: encoding, and all rounds with their drafts."""
        return self.stats.encode_seconds + self.stats.decode_seconds

    @property
    def tokens_per_second(self) -> float:
        return len(self.tokens) / self.seconds if self.seconds else 0.0


def watch(
    start: Callable[[OnRound], Iterator[GenerationResponse]],
    watchers: Sequence[Watcher] = (),
    is_stopped: Callable[[], bool] = lambda: False,
) -> Run:
    """Run a stream to its end, or to the first token at which it is to stop."""

    def on_round(event: Round) -> None:
        for watcher in watchers:
            watcher.round(event)

    stream = start(on_round)  # raises what is wrong with the request before anything is shown
    for watcher in watchers:
        watcher.begin()
    text, tokens, reason, stats = "", [], None, GenerationStats()
    for response in stream:
        text += response.text
        tokens.append(response.token)
        reason, stats = response.finish_reason, response.stats
        for watcher in watchers:
            watcher.add(response)
        if is_stopped():
            break
    for watcher in watchers:
        watcher.end()
    return Run(text, tokens, reason, stats)


class PlainText(Watcher):
    """The text as it comes, and a line end behind it."""

    def __init__(self, *, to_errors: bool = False) -> None:
        """to_errors: standard error, for text that is not the program's answer."""
        self._file = sys.stderr if to_errors else sys.stdout

    def add(self, response: GenerationResponse) -> None:
        print(response.text, end="", flush=True, file=self._file)

    def end(self) -> None:
        print(flush=True, file=self._file)


def one_screen() -> bool:
    """Whether standard output and standard error are both a terminal, so that text on both would be seen twice."""
    return sys.stdout.isatty() and sys.stderr.isatty()
