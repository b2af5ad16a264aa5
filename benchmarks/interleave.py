"""Who runs when: every contender decodes every task in every repeat, in turns, so that all see the same machine."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from speculative_decoding.decoding.stats import GenerationStats

from .tasks import Task

SLICE = 0.5  # seconds: shorter than the machine stays as fast or slow as it is
SETTLE = 0.1  # seconds between contenders: threads of the last one's library spin for a while after their work


@dataclass(frozen=True)
class Output:
    """One prompt decoded. seconds: wall-clock, encoder included, from ids to ids; of prompts decoded together, the time
    for all since the prompt before. stats: ours has them.
    """

    tokens: list[int]
    seconds: float
    stats: GenerationStats | None = None


@dataclass(frozen=True)
class Contender(ABC):
    """Who decodes. label: in tables. setting: our flags, or a peer's mode in words."""

    label: str
    setting: str
    temperature: float

    @abstractmethod
    def decode(self, task: Task) -> Iterator[tuple[int, Output]]:
        """(number of the source, its output), as they are finished."""


@dataclass(frozen=True)
class Run:
    """One prompt decoded once by one contender."""

    task: Task
    contender: Contender
    repeat: int
    prompt: int
    output: Output


def take_turns(
    contenders: Sequence[tuple[Task, Sequence[Contender]]], repeats: int, warm_ups: int, say: Callable[[str], None]
) -> Iterator[Run]:
    """Yield the runs of all repeats. contenders: of each task.

    Contenders take turns within a task, for `SLICE` seconds each, and each repeat starts with the next one, so that
    none always follows the same other. The first `warm_ups` repeats are decoded and dropped.
    """
    for repeat in range(-warm_ups, repeats):
        say("warm-up" if repeat < 0 else f"repeat {repeat + 1} of {repeats}")
        for task, row in contenders:
            order = [row[(turn + repeat) % len(row)] for turn in range(len(row))]
            for contender, prompt, output in in_slices(order, task):
                if repeat >= 0:
                    yield Run(task, contender, repeat, prompt, output)


def in_slices(contenders: Iterable[Contender], task: Task) -> Iterator[tuple[Contender, int, Output]]:
    """(who, number of the prompt, output). A machine that is slower for a minute is so for all of them."""
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
