"""A writer of known outputs, in place of a draft model of another vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from speculative_decoding.drafters.base import MODEL, RequestView
from speculative_decoding.drafters.writing import GrowingText

HELD_BACK = 2


class ScriptedOutput:
    """An output that is known before it is written. A token of None has no id of the target."""

    def __init__(self, committed: Sequence[int], rest: Sequence[int | None]) -> None:
        self.committed, self.rest = list(committed), list(rest)
        self.num_tokens = 0
        self.is_cancelled = False

    @property
    def is_complete(self) -> bool:
        return self.is_cancelled or self.num_tokens == len(self.rest)

    def target_ids(self) -> list[int]:
        end = self.num_tokens if self.num_tokens == len(self.rest) else max(self.num_tokens - HELD_BACK, 0)
        return [*self.committed, *(token for token in self.rest[:end] if token is not None)]

    def new_text(self, pieces: Mapping[int, str]) -> GrowingText:
        return GrowingText([], pieces, MODEL)

    def cancel(self) -> None:
        self.is_cancelled = True


class ScriptedWriter:
    """Writes `output_of(request)`, or after a new start its tokens behind the committed ones.

    Attributes:
        started: All outputs, in the order of their start.
        steps: The number of steps so far.
    """

    def __init__(self, output_of: Callable[[RequestView], Sequence[int | None] | None]) -> None:
        self._output_of = output_of
        self.started: list[ScriptedOutput] = []
        self.steps = 0

    @property
    def live(self) -> list[ScriptedOutput]:
        return [each for each in self.started if not each.is_complete]

    def start(self, request: RequestView) -> ScriptedOutput | None:
        committed = request.decoder_tokens[1:]
        if (output := self._output_of(request)) is None:
            return None
        self.started.append(ScriptedOutput(committed, output[len(committed) :]))
        return self.started[-1]

    def step(self) -> None:
        self.steps += 1
        for output in self.live:
            output.num_tokens += 1

    def rehearse(self, slot: int) -> ScriptedOutput:
        self.started.append(ScriptedOutput((), [5] * 200))
        return self.started[-1]
