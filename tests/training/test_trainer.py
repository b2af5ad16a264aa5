"""Training steps and their checkpoints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from speculative_decoding import CheckpointError, Session
from speculative_decoding.training.batches import (
    Sampler,
)
from speculative_decoding.training.teacher import TargetStore, Teacher
from speculative_decoding.training.trainer import Schedule, Trainer
from tests.parity.test_t5 import TEXT_GOLDENS, load_golden
from tests.support.tiny import noisy_copy, tiny_model
from tests.support.together import Letters
from tests.support.training import (
    head_student,
    loss_on,
    run_all,
    some_examples,
    training_in,
)


@pytest.mark.parametrize("folder", TEXT_GOLDENS, ids=lambda folder: folder.name)
def test_five_steps_lower_the_loss(folder: Path, tmp_path: Path) -> None:
    target, _ = load_golden(folder)
    student, examples = head_student(target), some_examples(target)
    store = TargetStore(Teacher(target, student.module.config.layers), examples)
    schedule = Schedule(3e-3, steps=5)
    trainer = Trainer(student, store, Sampler(examples, 0), schedule, Session(target, Letters()), {}, tmp_path / "c")
    batch = student.batch(examples[:12], store.get(range(12)), np.random.default_rng(1))

    before = loss_on(student, batch)
    assert len(list(trainer.run())) == 1
    assert loss_on(student, batch) < before


def test_checkpoint_of_another_student_is_refused(tmp_path: Path) -> None:
    run_all(training := training_in(tmp_path, steps=4))
    training.work.joinpath("checkpoint.npz").rename(tmp_path / "other.npz")
    other = noisy_copy(tiny_model(d_model=8))
    student = head_student(other)
    store = TargetStore(Teacher(other, student.module.config.layers), some_examples(other))
    parts = student, store, Sampler(store.examples, 0), Schedule(1e-3, steps=9), Session(other, Letters()), {}
    with pytest.raises(CheckpointError, match="not a checkpoint of this training"):
        Trainer(*parts, tmp_path / "other.npz").resume()


def test_the_rate_warms_up_in_80_steps_and_falls_to_two_percent_along_a_cosine() -> None:
    schedule = Schedule(0.5, steps=1000)
    rates = [schedule.rate(0, 0.0), schedule.rate(79, 0.0), schedule.rate(999, 0.5), schedule.rate(999, 1.0)]
    assert rates == pytest.approx([0.5 / 80, 0.5, 0.5 * 0.51, 0.01])
