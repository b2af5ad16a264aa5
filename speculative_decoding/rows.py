"""Decodes many items together: `drive` keeps the slots of a `Scheduler` busy until no items are left.

`drive` does not depend on models or on the kind of item. It works for prompts, recordings and the lines of a file.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from .decoding.request import Request
from .decoding.results import GenerationResult, GenerationStats
from .draft_length.base import DraftLength
from .engine import Engine, result_of
from .errors import InputError
from .sampling import GenerationOptions

Item = TypeVar("Item")
ItemIn = TypeVar("ItemIn", contravariant=True)
Progress = TypeVar("Progress")
ProgressOut = TypeVar("ProgressOut", covariant=True)
Result = TypeVar("Result")


@dataclass(frozen=True)
class BatchResult(Generic[Result]):
    """The result of one prompt or recording of a batch, or a one-line error. index: its position, from 0."""

    index: int
    result: Result | None
    error: str | None = None


class Scheduler(Protocol[ItemIn, ProgressOut]):
    """Decodes several items at a time."""

    @property
    def wants_more(self) -> bool:
        """Whether another item should be submitted, so that no slot stays free. True if the scheduler is idle."""

    @property
    def is_idle(self) -> bool:
        """Whether all submitted items are finished."""

    def submit(self, item: ItemIn) -> Iterable[ProgressOut]:
        """Queue an item. Returns any progress that is available immediately, such as an error."""

    def step(self) -> Iterable[ProgressOut]:
        """Run a round. Returns the progress of the items."""


def drive(scheduler: Scheduler[Item, Progress], items: Iterable[Item]) -> Iterator[Progress]:
    """Decode all items, and yield their progress as soon as it is available.

    An item is read only when the scheduler wants one, so memory does not grow with the number of items.
    """
    unread = iter(items)
    has_more = True
    while True:
        while has_more and scheduler.wants_more:
            try:
                item = next(unread)
            except StopIteration:
                has_more = False
            else:
                yield from scheduler.submit(item)
        if scheduler.is_idle:
            return
        yield from scheduler.step()


def in_order(
    progress: Iterable[Progress],
    number: Callable[[Progress], int],
    is_last: Callable[[Progress], bool] = lambda _: True,
) -> Iterator[Progress]:
    """Yield all progress of item 0, then all progress of item 1, and so on, each as soon as possible.

    Args:
        progress: The progress of items, in any order.
        number: Returns the number of the item that the progress belongs to.
        is_last: Returns whether this is the last progress of its item.
    """
    held: dict[int, deque[Progress]] = defaultdict(deque)
    current = 0
    for each in progress:
        held[number(each)].append(each)
        while held[current]:
            ready = held[current].popleft()
            yield ready
            if is_last(ready):
                del held[current]
                current += 1


class PromptScheduler:
    """Decodes numbered prompts with one engine: texts, audio frames, or mappings with "prompt" and its options.

    Args:
        options_of: Returns the options of a prompt, given the options that the prompt sets itself.
        new_engine: Creates the engine. Called only for the first prompt, because an engine may measure the device.
        draft_length: Returns the draft-length policy for a prompt with these options.
        reads_text: Whether the model reads text, so that a blank text gives a blank text. Speech models reject text.
    """

    def __init__(
        self,
        options_of: Callable[[Mapping[str, Any]], GenerationOptions],
        new_engine: Callable[[], Engine],
        draft_length: Callable[[GenerationOptions], DraftLength],
        *,
        reads_text: bool,
    ) -> None:
        self._options_of = options_of
        self._new_engine = new_engine
        self._draft_length = draft_length
        self._reads_text = reads_text
        self._engine: Engine | None = None
        # For each unfinished request: the number of its prompt, and all requests for that prompt
        self._samples: dict[Request, tuple[int, list[Request]]] = {}

    @property
    def wants_more(self) -> bool:
        return self._engine is None or self._engine.wants_more

    @property
    def is_idle(self) -> bool:
        return not self._samples

    def submit(self, item: tuple[int, Any]) -> list[BatchResult[GenerationResult]]:
        number, prompt = item
        if self._engine is None:
            self._engine = self._new_engine()
        try:
            own = dict(prompt) if isinstance(prompt, Mapping) else {"prompt": prompt}
            if "audio" in own:
                raise InputError("this model reads text and cannot transcribe", "audio", "give a prompt")
            if "prompt" not in own:
                raise InputError("is missing", "prompt", "give each row a prompt")
            text = own.pop("prompt")
            options = self._options_of(own)
            if self._reads_text and isinstance(text, str) and not text.strip():
                return [BatchResult(number, blank_result(options))]
            requests = self._engine.submit_samples(text, options, self._draft_length(options))
        except InputError as error:
            return [BatchResult(number, None, str(error))]
        self._samples |= {request: (number, requests) for request in requests}
        return []

    def step(self) -> Iterator[BatchResult[GenerationResult]]:
        assert self._engine is not None
        for event in self._engine.step():
            if event.is_last:
                number, requests = self._samples.pop(event.request)
                if not any(request in self._samples for request in requests):  # several may end in the same round
                    error = next((request.error for request in requests if request.error), None)
                    yield BatchResult(number, None if error else result_of(requests), error)


def blank_result(options: GenerationOptions) -> GenerationResult:
    """The result of a blank text in a batch. It is not decoded, so it has no tokens."""
    result = GenerationResult("", [], "blank", GenerationStats(), [] if options.logprobs else None)
    count = options.num_return_sequences
    return result if count == 1 else replace(result, sequences=(result,) * count)
