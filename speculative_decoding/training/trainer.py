"""Steps of a student on its lessons, with a schedule, measured on held-out prompts; a killed run goes on where its last
checkpoint stands, with the same steps as if it had never stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from ..checkpoints.npz import read_npz, write_npz
from ..decoding.stats import GenerationStats
from ..distributed.training_group import SINGLE_PROCESS, TrainingGroup
from ..errors import CheckpointError, InputError, writing
from ..loading.atomic_io import sync
from ..session import Session
from .batches import Sampler
from .lessons import Lessons
from .loss import loss_of
from .students import Student
from .teacher import number

WARM_UP = 80  # steps
LEAST_RATE = 0.02  # of the learning rate, at the end
TOTAL_VARIATION_FROM = 0.6  # of the way: Kullback-Leibler before
REPORT_STEPS = 25
NUM_DRAFT = 7  # of the drafts that are measured
EVALUATIONS = 8  # on held-out prompts, on the way
SAVE_SECONDS = 60.0
HISTORY = ("step", "progress", "loss", "agreement", "tokens_per_call")


@dataclass(frozen=True)
class Schedule:
    """How long to train: so many steps, or so many minutes. learning_rate: the highest."""

    learning_rate: float
    steps: int | None = None
    minutes: float | None = None

    def progress(self, step: int, seconds: float) -> float:
        """0 to 1."""
        done = step / self.steps if self.steps is not None else seconds / (60 * (self.minutes or 1))
        return min(1.0, done)

    def rate(self, step: int, progress: float) -> float:
        warm = min(1.0, (step + 1) / WARM_UP)
        return self.learning_rate * warm * (LEAST_RATE + (1 - LEAST_RATE) * 0.5 * (1 + math.cos(math.pi * progress)))


@dataclass(frozen=True)
class Report:
    """How far a training has come. tokens_per_call: with drafts of 7 on held-out prompts, where that was just measured.
    positions: of outputs, seen so far.
    """

    step: int
    progress: float
    seconds: float
    positions: int
    loss: float
    agreement: float
    tokens_per_call: float | None = None


@dataclass
class Trainer:
    """checkpoint: a file. held_out: prompts for what is measured on the way."""

    student: Student
    lessons: Lessons
    sampler: Sampler
    schedule: Schedule
    session: Session
    held_out: Sequence[str]
    checkpoint: Path
    processes: TrainingGroup = SINGLE_PROCESS
    step: int = 0
    seconds: float = 0.0
    positions: int = 0
    history: list[list[float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._optimizer = optim.AdamW(self.schedule.learning_rate, betas=[0.9, 0.95], weight_decay=0.01)
        self._parameters: Any = self.student.module.trainable_parameters()
        self._optimizer.init(self._parameters)

    def run(self) -> Iterator[Report]:
        """Train to the end of the schedule; the student has the new weights whenever this yields."""
        saved, evaluated = time.monotonic(), int(EVALUATIONS * self._progress)
        while self._progress < 1.0:
            started = time.monotonic()
            loss, batch = self._one_step()
            self.seconds += self.processes.from_first(time.monotonic() - started)
            is_end = self._progress >= 1.0
            if self.step % REPORT_STEPS and not is_end:
                continue
            self.student.module.update(self._parameters)
            found = None
            if self.held_out and (int(EVALUATIONS * self._progress) > evaluated or is_end):
                evaluated = int(EVALUATIONS * self._progress)
                found = None
                if self.processes.is_first:
                    found = held_out_stats(self.session, self.student, self.held_out).tokens_per_target_call
            agreement = number(self.processes.mean([self.student.agreement(batch)])[0])
            self.history.append([self.step, self._progress, loss, agreement, math.nan if found is None else found])
            if not math.isfinite(loss):
                raise InputError(f"the loss is {loss} in step {self.step}; choose a smaller --learning-rate")
            if self.processes.is_first and (time.monotonic() - saved > SAVE_SECONDS or is_end):
                self.save()
                saved = time.monotonic()
            yield Report(self.step, self._progress, self.seconds, self.positions, loss, agreement, found)

    @property
    def _progress(self) -> float:
        return self.schedule.progress(self.step, self.seconds)

    def _one_step(self) -> tuple[float, Any]:
        progress, indices = self._progress, self.sampler.indices(self.step)
        examples = [self.lessons.examples[index] for index in indices]
        batch = self.student.batch(examples, self.lessons.of(indices), self.sampler.dice(self.step))
        if self.processes.size > 1:
            batch = batch.part(self.processes.rank, self.processes.size)
        student, total_variation = self.student, progress >= TOTAL_VARIATION_FROM

        def loss_with(parameters: Any) -> mx.array:
            student.module.update(parameters)
            return loss_of(
                student.states(batch),
                student.matrix(batch),
                batch.labels,
                total_variation=total_variation,
                soft_cap=student.soft_cap,
                is_trained=student.owns_matrix,
            )

        loss, gradients = self.processes.mean(mx.value_and_grad(loss_with)(self._parameters))
        gradients, _ = optim.clip_grad_norm(gradients, 1.0)  # type: ignore[no-untyped-call]
        self._optimizer.learning_rate = self.schedule.rate(self.step, progress)
        self._parameters = self._optimizer.apply_gradients(gradients, self._parameters)
        mx.eval(loss, self._parameters, self._optimizer.state)
        self.step += 1
        self.positions += sum(len(each.output) for each in examples)
        return number(loss), batch

    def save(self) -> None:
        """The file of before stays until the new one is on the disk."""
        arrays: list[tuple[str, mx.array]] = [
            ("step", mx.array([self.step], mx.uint32)),
            ("positions", mx.array([self.positions], mx.uint32)),
            ("seconds", mx.array([self.seconds])),
        ]
        arrays.append(("history", mx.array(np.array(self.history, np.float32).reshape(-1, len(HISTORY)))))
        for name, tree in (("parameters", self._parameters), ("optimizer", self._optimizer.state)):
            flat: Any = tree_flatten(tree)
            arrays += [(f"{name}.{path}", stored(array)) for path, array in flat]
        partial = self.checkpoint.with_suffix(".partial")
        with writing("training", self.checkpoint, "make room there, and go on with --resume"):
            try:
                write_npz(partial, arrays)
                sync(partial)
                partial.replace(self.checkpoint)
            finally:
                partial.unlink(missing_ok=True)

    def resume(self) -> None:
        """From the checkpoint, if there is one. Raises `CheckpointError` for a damaged one."""
        if not self.checkpoint.exists():
            return
        found = read_npz(self.checkpoint)
        try:
            step, positions, seconds = (number(found[name]) for name in ("step", "positions", "seconds"))
            trees: dict[str, list[tuple[str, mx.array]]] = {"parameters": [], "optimizer": []}
            for name, tree in (("parameters", self._parameters), ("optimizer", self._optimizer.state)):
                flat: Any = tree_flatten(tree)
                for path, array in flat:
                    read = found[f"{name}.{path}"].astype(array.dtype).reshape(array.shape)
                    trees[name].append((path, read))
            self.history = np.array(found["history"]).astype(float).tolist()
        except (KeyError, ValueError, TypeError) as error:
            raise CheckpointError(f"{self.checkpoint}: is not of this training ({error}); delete it") from error
        self.step, self.positions, self.seconds = int(step), int(positions), seconds
        self._parameters = tree_unflatten(trees["parameters"])
        self._optimizer.state = tree_unflatten(trees["optimizer"])
        mx.eval(self._parameters, self._optimizer.state)
        self.student.module.update(self._parameters)


def stored(array: mx.array) -> mx.array:
    """In a type and shape that a file of ours may have."""
    return (array.astype(mx.uint32) if mx.issubdtype(array.dtype, mx.integer) else array).reshape(-1)


def held_out_stats(session: Session, student: Student, prompts: Sequence[str]) -> GenerationStats:
    """Of decoding these prompts with this draft and chains of `NUM_DRAFT`, at temperature 0."""
    drafting = Session(session.model, session.tokenizer, student.draft(), slots=16)
    stats = GenerationStats()
    # strict False: only counts are wanted, and nothing needs to be measured for them
    for each in drafting.batch(prompts, drafter="model", num_draft_tokens=NUM_DRAFT, strict=False):
        if each.result is not None:
            stats.add(each.result.stats)
    return stats
