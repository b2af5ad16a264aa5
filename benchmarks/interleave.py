"""Who runs when: every contender decodes every task in every repeat, in turns, so that all see the same machine."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from speculative_decoding.decoding.stats import GenerationStats

from .tasks import Task
from .ways import Output

SLICE = 0.5  # seconds: shorter than the machine stays as fast or slow as it is
SETTLE = 0.1  # seconds between contenders: threads of the last one's library spin for a while after their work


class Contender(Protocol):
    @property
    def label(self) -> str: ...

    @property
    def temperature(self) -> float: ...

    @property
    def num_draft(self) -> int: ...

    @property
    def draft_steps(self) -> int | None:
        """Passes of the draft model in a round, as far as they are fixed; None if they are not, or not known."""

    def decode(self, task: Task) -> Iterator[Output]: ...


@dataclass(frozen=True)
class Run:
    """One prompt decoded once by one contender."""

    task: str
    label: str
    temperature: float
    num_draft: int
    draft_steps: int | None
    repeat: int
    prompt: int
    output: Output
    load: float  # the machine's load average, over a minute

    def as_dict(self) -> dict[str, Any]:
        """For a line of JSON; the ids are not in it."""
        stats: GenerationStats | None = self.output.stats
        values = {"kind": "run", "task": self.task, "way": self.label, "temperature": self.temperature}
        values |= {"num_draft": self.num_draft, "repeat": self.repeat, "prompt": self.prompt, "load": self.load}
        values |= {"tokens": len(self.output.tokens), "seconds": self.output.seconds}
        return values | ({} if stats is None else {"stats": stats.as_dict()})


def take_turns(
    contenders: Mapping[str, Sequence[Contender]],
    tasks: Sequence[Task],
    repeats: int,
    *,
    warm_ups: int,
    settle: float,
    progress: Callable[[int], None] = lambda repeat: None,
) -> Iterator[Run]:
    """Yield the runs of all repeats. contenders: for each task by name.

    Contenders take turns within a task, for `SLICE` seconds each, and each repeat starts with the next one, so that
    none always follows the same other. The first `warm_ups` repeats are decoded and dropped.
    """
    for repeat in range(-warm_ups, repeats):
        progress(repeat)
        for task in tasks:
            row = contenders[task.name]
            order = [row[(turn + repeat) % len(row)] for turn in range(len(row))]
            for contender, prompt, output in in_slices(order, task, settle):
                if repeat >= 0:
                    yield Run(
                        task=task.name,
                        label=contender.label,
                        temperature=contender.temperature,
                        num_draft=contender.num_draft,
                        draft_steps=contender.draft_steps,
                        repeat=repeat,
                        prompt=prompt,
                        output=output,
                        load=os.getloadavg()[0],
                    )


def in_slices(contenders: Iterable[Contender], task: Task, settle: float) -> Iterator[tuple[Contender, int, Output]]:
    """(who, number of the prompt, output). A machine that is slower for a minute is so for all of them."""
    waiting = deque((contender, enumerate(contender.decode(task))) for contender in contenders)
    while waiting:
        contender, outputs = waiting.popleft()
        time.sleep(settle)
        started = time.perf_counter()
        for prompt, output in outputs:
            yield contender, prompt, output
            if time.perf_counter() - started > SLICE:
                waiting.append((contender, outputs))
                break
