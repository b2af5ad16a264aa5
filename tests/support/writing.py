"""A writer of known outputs, in place of a draft model of another vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from speculative_decoding.drafters.base import MODEL, RequestView
from speculative_decoding.drafters.draft_text import DraftText, TextFollower

HELD_BACK = 2


class ScriptedOutput:
    """An output that is known before it is written. A token of None has no id of the target."""

    def __init__(
        self,
        committed: Sequence[int],
        rest: Sequence[int | None],
        pieces: Mapping[int, str] | None = None,
        num_skipped: int = 0,
    ) -> None:
        self.committed, self.rest = list(committed), list(rest)
        self.num_skipped = num_skipped
        self.text = DraftText([], pieces or {}, MODEL)
        self.num_tokens = 0
        self.is_cancelled = False

    @property
    def is_complete(self) -> bool:
        return self.is_cancelled or self.num_tokens == len(self.rest)

    @property
    def size(self) -> int:
        return len(self.text.ids)

    def follow(self, prefix: Iterable[int] = ()) -> TextFollower:
        return self.text.follow(prefix)

    def update(self) -> None:
        end = self.num_tokens if self.num_tokens == len(self.rest) else max(self.num_tokens - HELD_BACK, 0)
        written = (token for token in self.rest[:end] if token is not None)
        self.text.update([*self.committed, *written][self.num_skipped :])

    def cancel(self) -> None:
        self.is_cancelled = True


class ScriptedWriter:
    """Writes `output_of(request)`, or after a new start its tokens behind the committed ones.

    Args:
        output_of: Returns the output for a request, or None if there is none.
        pieces: The vocabulary's pieces by id.
        num_skipped: See `Written`.

    Attributes:
        started: All outputs, in the order of their start.
        steps: The number of steps so far.
    """

    def __init__(
        self,
        output_of: Callable[[RequestView], Sequence[int | None] | None],
        pieces: Mapping[int, str] | None = None,
        num_skipped: int = 0,
    ) -> None:
        self._output_of = output_of
        self._pieces = pieces
        self._num_skipped = num_skipped
        self.started: list[ScriptedOutput] = []
        self.steps = 0

    @property
    def live(self) -> list[ScriptedOutput]:
        return [each for each in self.started if not each.is_complete]

    def start(self, request: RequestView) -> ScriptedOutput | None:
        committed = request.decoder_tokens[1:]
        if (output := self._output_of(request)) is None:
            return None
        self.started.append(ScriptedOutput(committed, output[len(committed) :], self._pieces, self._num_skipped))
        return self.started[-1]

    def step(self) -> None:
        self.steps += 1
        for output in self.live:
            output.num_tokens += 1

    def rehearse(self, slot: int) -> ScriptedOutput:
        self.started.append(ScriptedOutput((), [5] * 200))
        return self.started[-1]
