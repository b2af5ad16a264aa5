"""A generation and those who watch it as it comes. Knows nothing of colours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

from ..decoding.results import GenerationResponse, GenerationResult
from ..decoding.stats import Round

OnRound = Callable[[Round], None]
INTERRUPTED = "interrupted"  # the finish_reason of a generation that was stopped


def never() -> bool:
    return False


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
    is_stopped: Callable[[], bool] = never,
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
            print(step.response.text, end="", flush=True, file=file)
            yield step
        print(flush=True, file=file)

    return show
