"""Decodes parts of texts and files in batches, and yields their results in order, using bounded memory."""

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
    """The output for a prompt. error: The reason why there is no output, or None."""

    text: str
    finish_reason: str = "stop"
    error: Exception | str | None = None


Steps = Generator[list[str], list[Output], Any]  # yields prompts, receives their outputs, and finally returns a result


class Window(Generic[Part]):
    """Restores the order of results: parts finish in any order, and each result is held until all earlier parts finish.

    The window has a limited capacity. While the window is full because a slow part holds up the others, no more parts
    are read.

    Args:
        slots: The number of prompts that are decoded together.
        size: Returns a part's size.
        largest: The total size of parts at which the window is full.
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
        """Record a part's progress. Yields, in order, each part that can now be returned, with its result."""
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

    submit: Passes a numbered part to the scheduler, and returns progress that is available immediately.
    """

    def read(part: Part) -> Iterable[Progress]:
        return submit(window.add(part), part)

    for progress in drive(scheduler, parts, read, lambda: window.has_capacity):
        yield from window.receive(progress)
    assert not window, "the scheduler ended without a result for each part"


@dataclass
class Task:
    """The decoding of one part.

    Args:
        steps: Yields the texts to decode, and receives their outputs.
        prompt: Returns the prompt (with options) for a text.
        outputs: The outputs of the current prompts; None for each prompt that has not finished.
    """

    steps: Steps
    prompt: Callable[[str], Mapping[str, Any]]
    outputs: list[Output | None] = field(default_factory=list)


class PartScheduler:
    """A `Scheduler` for numbered parts. A part's prompts may depend on the outputs of its earlier prompts.

    Args:
        prompts: Decodes the prompts. A prompt's number is a pair: the number of its part, and a running number.
        raises_errors: Whether to raise a prompt's error, instead of passing it to the part's steps.

    Attributes:
        stats: The summed statistics of all prompts.
        num_prompts: The number of prompts that have been submitted.
        num_parts: The number of parts that have finished.
        on_output: Called after each prompt, even if its part has not finished.
    """

    def __init__(
        self, prompts: Scheduler[tuple[Any, Mapping[str, Any]], Progress], *, raises_errors: bool = False
    ) -> None:
        self.stats = GenerationStats()
        self.num_prompts = self.num_parts = 0
        self.on_output: Callable[[], None] = lambda: None
        self.prompts = prompts
        self._raises_errors = raises_errors
        self._tasks: dict[tuple[Any, int], tuple[Task, int]] = {}  # prompt number -> its task and its index in the task

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
        """Record a prompt's progress. Yields the result of its part if this finishes the part."""
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
        """Submit a part's next prompts, or finish the part. outputs: The outputs of its previous prompts, if any."""
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
        """Return the sum to which a prompt's statistics are added. number: The prompt's number."""
        return self.stats

    def submit_prompt(self, item: tuple[Any, Mapping[str, Any]]) -> Iterable[Progress]:
        """Pass a numbered prompt to `prompts`."""
        return self.prompts.submit(item)
