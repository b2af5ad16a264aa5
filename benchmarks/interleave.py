"""Runs contenders in turns: each one decodes every task in every repeat, so that conditions are the same for all."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from speculative_decoding.decoding.results import GenerationStats

from .tasks import Task

SLICE = 0.5  # seconds per turn; shorter than typical fluctuations in a machine's speed
SETTLE = 0.1  # seconds between turns, so that idle threads of the previous contender stop spinning


@dataclass(frozen=True)
class Output:
    """One decoded prompt.

    Args:
        tokens: The output.
        seconds: Wall-clock time from source ids to output ids, including the encoder. In a batch, the time since the
            previous prompt finished.
        stats: Statistics, only for contenders of this package.
    """

    tokens: list[int]
    seconds: float
    stats: GenerationStats | None = None


@dataclass(frozen=True)
class Contender(ABC):
    """A program with a particular setting.

    Args:
        label: Name in tables.
        setting: Command-line flags of this package, or the settings of a peer.
        temperature: Sampling temperature.
    """

    label: str
    setting: str
    temperature: float

    @abstractmethod
    def decode(self, task: Task) -> Iterator[tuple[int, Output]]:
        """Yield (index of the source, its output) in order of completion."""


@dataclass(frozen=True)
class Run:
    """One prompt, decoded once by one contender."""

    task: Task
    contender: Contender
    repeat: int
    prompt: int
    output: Output


def take_turns(
    contenders: Sequence[tuple[Task, Sequence[Contender]]], repeats: int, warm_ups: int, say: Callable[[str], None]
) -> Iterator[Run]:
    """Yield the runs of all repeats.

    Within a task, contenders take turns of `SLICE` seconds. Each repeat starts with the next contender, so that the
    order of contenders varies.

    Args:
        contenders: The contenders of each task.
        repeats: Number of measured repeats.
        warm_ups: Number of unmeasured repeats before them.
        say: Receives a line for each repeat.
    """
    for repeat in range(-warm_ups, repeats):
        say("warm-up" if repeat < 0 else f"repeat {repeat + 1} of {repeats}")
        for task, row in contenders:
            order = [row[(turn + repeat) % len(row)] for turn in range(len(row))]
            for contender, prompt, output in in_slices(order, task):
                if repeat >= 0:
                    yield Run(task, contender, repeat, prompt, output)


def in_slices(contenders: Iterable[Contender], task: Task) -> Iterator[tuple[Contender, int, Output]]:
    """Yield (contender, index of the prompt, output), switching to the next contender after each slice."""
    waiting = deque((contender, contender.decode(task)) for contender in contenders)
    while waiting:
        contender, outputs = waiting.popleft()
        time.sleep(SETTLE)
        started = time.perf_counter()
        for prompt, output in outputs:
            yield contender, prompt, output
            if time.perf_counter() - started > SLICE:
                waiting.append((contender, outputs))
                break
