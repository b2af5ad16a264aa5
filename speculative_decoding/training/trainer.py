"""The training loop: steps, learning rate, measurements on held-out prompts, and checkpoints.

A killed run resumes from its last checkpoint and takes the same steps as an uninterrupted run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from ..checkpoints.npz import read_npz, write_npz
from ..decoding.results import GenerationStats
from ..errors import CheckpointError, InputError, Message, writing
from ..runs.places import atomic_file, clean_up
from ..session import Session
from .batches import Sampler
from .loss import training_loss
from .recordings import Prompt, Recording
from .students import Batch, Student
from .teacher import TargetStore
from .training_group import SINGLE_PROCESS, TrainingGroup

REPORT_STEPS = 25
NUM_DRAFT_TOKENS = 7  # draft length in measurements
MEASUREMENTS = 8  # number of measurements on held-out prompts during a run
MEASURED_PROMPTS = 60  # approximate number per measurement; the last measurement uses all held-out prompts
SAVE_SECONDS = 60.0
HISTORY = ("step", "progress", "loss", "agreement", "tokens_per_call")


@dataclass(frozen=True)
class Schedule:
    """The highest learning rate, and the length of a training run in steps or minutes."""

    learning_rate: float
    steps: int | None = None
    minutes: float | None = None

    def progress(self, step: int, seconds: float) -> float:
        """Return the progress from 0 to 1."""
        done = step / self.steps if self.steps is not None else seconds / (60 * (self.minutes or 1))
        return min(1.0, done)

    def rate(self, step: int, progress: float) -> float:
        """Return the learning rate: a linear warm-up of 80 steps, times half a cosine period that ends at 2 %."""
        warm_up = min(1.0, (step + 1) / 80)
        cosine = 0.5 * (1 + math.cos(math.pi * progress))
        return self.learning_rate * warm_up * (0.02 + 0.98 * cosine)


@dataclass(frozen=True)
class Report:
    """The state of a training run.

    Args:
        step: Number of steps taken.
        progress: Progress from 0 to 1.
        seconds: Time spent in steps.
        positions: Number of output tokens trained on.
        loss: Loss of the last step.
        agreement: Share of positions at which the draft's most likely token equals the target's token.
        tokens_per_call: Tokens per target call on held-out prompts; None unless measured for this report.
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
    """Trains a student.

    Args:
        student: The network.
        store: The examples and their targets.
        sampler: Chooses the examples of each step.
        schedule: Learning rate and length.
        session: Decodes the held-out prompts.
        held_out: Prompts or recordings to measure on, keyed by file name.
        checkpoint: The file to save to and resume from.
        processes: The ranks of this run.

    Attributes:
        final_stats: The result of `measure` at the end of training. Empty until then, after a finished run is resumed,
            and on ranks other than 0.
    """

    student: Student
    store: TargetStore
    sampler: Sampler
    schedule: Schedule
    session: Session
    held_out: Mapping[str, Sequence[Prompt]]
    checkpoint: Path
    processes: TrainingGroup = SINGLE_PROCESS
    step: int = field(init=False, default=0)
    seconds: float = field(init=False, default=0.0)
    positions: int = field(init=False, default=0)
    history: list[list[float]] = field(init=False, default_factory=list)
    final_stats: dict[str, GenerationStats] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._optimizer = optim.AdamW(self.schedule.learning_rate, betas=[0.9, 0.95], weight_decay=0.01)
        self._parameters: Any = self.student.module.trainable_parameters()
        self._optimizer.init(self._parameters)

    def run(self) -> Iterator[Report]:
        """Train to the end of the schedule. The student has its current weights when a report is yielded."""
        last_save = time.monotonic()
        measurements = int(MEASUREMENTS * self._progress)
        while self._progress < 1.0:
            started = time.monotonic()
            loss, batch = self._take_step()
            self.seconds += self.processes.from_first(time.monotonic() - started)
            is_end = self._progress >= 1.0
            if self.step % REPORT_STEPS and not is_end:
                continue

            self.student.module.update(self._parameters)
            tokens_per_call = None
            if any(self.held_out.values()) and (int(MEASUREMENTS * self._progress) > measurements or is_end):
                measurements = int(MEASUREMENTS * self._progress)
                if self.processes.is_first:
                    if is_end:
                        self.final_stats = self.measure()
                        stats = total_stats(self.final_stats)
                    else:
                        per_file = max(1, MEASURED_PROMPTS // len(self.held_out))
                        some = [prompt for prompts in self.held_out.values() for prompt in prompts[:per_file]]
                        stats = measure_draft(self.session, self.student, some)
                    tokens_per_call = stats.tokens_per_target_call
            agreement = to_float(self.processes.mean([self.student.agreement(batch)])[0])
            measured = math.nan if tokens_per_call is None else tokens_per_call
            self.history.append([self.step, self._progress, loss, agreement, measured])

            if not math.isfinite(loss):
                raise InputError(f"the loss is {loss} in step {self.step}", "learning_rate", "choose a smaller rate")
            if self.processes.is_first and (time.monotonic() - last_save > SAVE_SECONDS or is_end):
                self.save()
                last_save = time.monotonic()
            yield Report(self.step, self._progress, self.seconds, self.positions, loss, agreement, tokens_per_call)

    def measure(self) -> dict[str, GenerationStats]:
        """Decode all held-out prompts with the current draft. Returns the statistics for each file."""
        held_out = {name: prompts for name, prompts in self.held_out.items() if prompts}
        return {name: measure_draft(self.session, self.student, prompts) for name, prompts in held_out.items()}

    @property
    def _progress(self) -> float:
        return self.schedule.progress(self.step, self.seconds)

    def _take_step(self) -> tuple[float, Batch]:
        progress = self._progress
        indices = self.sampler.indices(self.step)
        examples = [self.store.examples[index] for index in indices]
        batch = self.student.batch(examples, self.store.get(indices), self.sampler.rng(self.step))
        if self.processes.size > 1:
            batch = batch.part(self.processes.rank, self.processes.size)
        student = self.student

        def loss_of(parameters: Any) -> mx.array:
            student.module.update(parameters)
            return training_loss(
                student.states(batch),
                student.output_matrix(batch),
                batch.labels,
                total_variation=progress >= 0.6,  # KL until then
                soft_cap=student.output_model.logit_cap,
                trains_output_matrix=student.trains_output_matrix,
            )

        loss, gradients = self.processes.mean(mx.value_and_grad(loss_of)(self._parameters))
        gradients, _ = optim.clip_grad_norm(gradients, 1.0)  # type: ignore[no-untyped-call]
        self._optimizer.learning_rate = self.schedule.rate(self.step, progress)
        self._parameters = self._optimizer.apply_gradients(gradients, self._parameters)
        mx.eval(loss, self._parameters, self._optimizer.state)
        self.step += 1
        self.positions += sum(len(each.output) for each in examples)
        return to_float(loss), batch

    def save(self) -> None:
        """Write the checkpoint. The previous file remains until the new one is on disk."""
        arrays: list[tuple[str, mx.array]] = [
            ("step", mx.array([self.step], mx.uint32)),
            ("positions", mx.array([self.positions], mx.uint32)),
            ("seconds", mx.array([self.seconds])),
            ("history", mx.array(np.array(self.history, np.float32).reshape(-1, len(HISTORY)))),
        ]
        for name, tree in (("parameters", self._parameters), ("optimizer", self._optimizer.state)):
            leaves: Any = tree_flatten(tree)
            arrays += [(f"{name}.{path}", storable(array)) for path, array in leaves]
        with writing("training", self.checkpoint, Message("free disk space, then continue with {resume}")):
            clean_up(self.checkpoint)
            with atomic_file(self.checkpoint) as file:
                write_npz(file, arrays)

    def resume(self) -> None:
        """Read the checkpoint if it exists. Raises `CheckpointError` if it belongs to a different training run."""
        if not self.checkpoint.exists():
            return
        saved = read_npz(self.checkpoint)
        trees: dict[str, list[tuple[str, mx.array]]] = {"parameters": [], "optimizer": []}
        try:
            for name, tree in (("parameters", self._parameters), ("optimizer", self._optimizer.state)):
                leaves: Any = tree_flatten(tree)
                for path, array in leaves:
                    trees[name].append((path, saved[f"{name}.{path}"].astype(array.dtype).reshape(array.shape)))
            self.step = int(to_float(saved["step"]))
            self.positions = int(to_float(saved["positions"]))
            self.seconds = to_float(saved["seconds"])
            self.history = np.array(saved["history"]).astype(float).tolist()
        except (KeyError, ValueError, TypeError) as error:
            raise CheckpointError(
                f"{self.checkpoint}: not a checkpoint of this training run ({error}); delete it"
            ) from error
        self._parameters = tree_unflatten(trees["parameters"])
        self._optimizer.state = tree_unflatten(trees["optimizer"])
        mx.eval(self._parameters, self._optimizer.state)
        self.student.module.update(self._parameters)


def to_float(array: mx.array) -> float:
    return array.item()  # type: ignore[return-value]


def storable(array: mx.array) -> mx.array:
    """Convert an array to a dtype and shape that our .npz reader accepts."""
    return (array.astype(mx.uint32) if mx.issubdtype(array.dtype, mx.integer) else array).reshape(-1)


def total_stats(stats: Mapping[str, GenerationStats]) -> GenerationStats:
    """Return the total over all files."""
    found = GenerationStats()
    for each in stats.values():
        found.add(each)
    return found


def measure_draft(session: Session, student: Student, prompts: Sequence[Prompt]) -> GenerationStats:
    """Decode prompts or transcribe recordings greedily, with the student as draft. Returns the total statistics."""
    drafting = Session(session.model, session.tokenizer, student.draft(), slots=16)
    stats = GenerationStats()
    # strict=False: only counts matter, so there is no need to calibrate exact passes
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    for each in drafting.batch(texts, drafter="model", num_draft_tokens=NUM_DRAFT_TOKENS, strict=False):
        if each.result is not None:
            stats.add(each.result.stats)
    if recordings := [prompt.audio for prompt in prompts if isinstance(prompt, Recording)]:
        options: Any = {"drafter": "model", "num_draft_tokens": NUM_DRAFT_TOKENS, "strict": False}
        for event in drafting.transcribe_batch(recordings, temperature=0.0, **options):
            if event.result is not None:
                stats.add(event.result.stats)
    return stats
