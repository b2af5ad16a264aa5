"""Decodes the parts of texts and files in batches, and returns their results in order and in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Generic, NamedTuple, TypeVar

from ..decoding.results import GenerationStats
from .scheduling import BatchResult, Progress, Scheduler, drive, finished

Part = TypeVar("Part")

MIN_WINDOW = 256  # minimum number of parts to read ahead
WINDOW_PER_SLOT = 64


class Output(NamedTuple):
    """The output for a prompt. error: Why there is no output, or None."""

    text: str
    finish_reason: str = "stop"
    error: Exception | str | None = None


Steps = Generator[list[str], list[Output], Any]  # yields prompts, receives their outputs, and returns a result


class Window(Generic[Part]):
    """Reorders results: parts finish in any order, and each result is held until all earlier parts have finished.

    The window has a limited capacity. While one slow part delays a full window, no further parts are read.

    Args:
        slots: How many prompts are decoded together.
        size: Returns the size of a part.
        largest: The total size of the parts from which on the window is full.
    """

    def __init__(self, slots: int = 1, size: Callable[[Part], int] = lambda part: 0, largest: int = 1) -> None:
        self._most = max(MIN_WINDOW, WINDOW_PER_SLOT * slots)
        self._size = size
        self._free = largest
        self._number = count()
        self._parts: deque[tuple[int, Part]] = deque()
        self._results: dict[int, BatchResult[Any]] = {}

    def __len__(self) -> int:
        return len(self._parts)

    @property
    def has_capacity(self) -> bool:
        return len(self._parts) < self._most and self._free > 0

    def add(self, part: Part) -> int:
        """Add the next part, and return its number."""
        self._free -= self._size(part)
        self._parts.append((next(self._number), part))
        return self._parts[-1][0]

    def receive(self, progress: Progress) -> Iterator[tuple[Part, BatchResult[Any]]]:
        """Record the progress of a part. Yields, in order, each part that is now finished, with its result."""
        self._results |= {each.index: each for each in finished([progress])}
        while self._parts and self._parts[0][0] in self._results:
            number, part = self._parts.popleft()
            self._free += self._size(part)
            yield part, self._results.pop(number)


def decode_in_order(
    scheduler: Scheduler[Any, Progress],
    parts: Iterable[Part],
    submit: Callable[[int, Part], Iterable[Progress]],
    window: Window[Part],
) -> Iterator[tuple[Part, BatchResult[Any]]]:
    """Decode parts. Yields each part with its result, in order, as soon as the result is available.

    submit: Passes a numbered part to the scheduler, and returns any progress that is available immediately.
    """

    def read(part: Part) -> Iterable[Progress]:
        return submit(window.add(part), part)

    for progress in drive(scheduler, parts, read, lambda: window.has_capacity):
        yield from window.receive(progress)
    assert not window, "the scheduler ended without a result for each part"


@dataclass
class Task:
    """The decoding of a part.

    Args:
        steps: Yields the texts to decode, and receives their outputs.
        prompt: Returns the prompt for a text, with its options.
        outputs: The outputs of the current prompts; None for each prompt that has not finished.
    """

    steps: Steps
    prompt: Callable[[str], Mapping[str, Any]]
    outputs: list[Output | None] = field(default_factory=list)


class PartScheduler:
    """A `Scheduler` for numbered parts. The prompts of a part may depend on the outputs of its earlier prompts.

    Args:
        prompts: Decodes the prompts. The number of a prompt is a pair: the number of its part, and a running number.
        raises_errors: Whether to raise the error of a prompt, instead of passing it to the steps of the part.

    Attributes:
        stats: The sum of the statistics of all prompts.
        num_prompts: How many prompts have been submitted.
        num_parts: How many parts are finished.
        on_output: Called after each prompt, even if its part is not finished.
    """

    def __init__(
        self, prompts: Scheduler[tuple[Any, Mapping[str, Any]], Progress], *, raises_errors: bool = False
    ) -> None:
        self.stats = GenerationStats()
        self.num_prompts = self.num_parts = 0
        self.on_output: Callable[[], None] = lambda: None
        self.prompts = prompts
        self._raises_errors = raises_errors
        self._tasks: dict[tuple[Any, int], tuple[Task, int]] = {}  # number of a prompt -> its task and index there

    @property
    def running(self) -> int:
        return self.prompts.running

    @property
    def waiting(self) -> int:
        return self.prompts.waiting

    @property
    def wants_more(self) -> bool:
        return self.prompts.wants_more

    @property
    def is_idle(self) -> bool:
        return self.prompts.is_idle

    def submit(self, item: tuple[Any, Task]) -> Iterator[BatchResult[Any]]:
        return self._advance(*item, None)

    def step(self) -> Iterator[BatchResult[Any]]:
        for progress in self.prompts.step():
            yield from self.receive(progress)

    def cancel(self, number: Any) -> None:
        for prompt in [each for each in self._tasks if each[0] == number]:
            del self._tasks[prompt]
            self.prompts.cancel(prompt)

    def receive(self, progress: Progress) -> Iterator[BatchResult[Any]]:
        """Record the progress of a prompt. Yields the result of its part if the part is now finished."""
        if not progress.is_last:
            return
        task, index = self._tasks.pop(progress.number)
        if isinstance(progress.error, Exception) and self._raises_errors:
            raise progress.error
        if progress.error is not None:
            task.outputs[index] = Output("", "error", progress.error)
        else:
            self.stats_of(progress.number).add(progress.result.stats)
            task.outputs[index] = Output(progress.result.text, progress.result.finish_reason)
        self.on_output()
        outputs = [output for output in task.outputs if output is not None]
        if len(outputs) == len(task.outputs):
            yield from self._advance(progress.number[0], task, outputs)

    def _advance(self, number: Any, task: Task, outputs: list[Output] | None) -> Iterator[BatchResult[Any]]:
        """Submit the next prompts of a part, or finish the part. outputs: The outputs of its previous prompts."""
        try:
            texts = next(task.steps) if outputs is None else task.steps.send(outputs)
        except StopIteration as end:
            self.num_parts += 1
            yield BatchResult(number, end.value)
            return
        task.outputs = [None] * len(texts)
        for index, text in enumerate(texts):
            prompt = number, self.num_prompts
            self._tasks[prompt] = task, index
            self.num_prompts += 1
            for progress in self.submit_prompt((prompt, task.prompt(text))):
                yield from self.receive(progress)

    def stats_of(self, number: Any) -> GenerationStats:
        """Return the sum to which the statistics of a prompt are added. number: The number of the prompt."""
        return self.stats

    def submit_prompt(self, item: tuple[Any, Mapping[str, Any]]) -> Iterable[Progress]:
        """Pass a numbered prompt to `prompts`."""
        return self.prompts.submit(item)
