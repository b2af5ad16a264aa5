"""A small target for training, its examples, students and runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from speculative_decoding import Session
from speculative_decoding.drafters.draft_model import DraftVocabulary
from speculative_decoding.loading.load import ModelHandle
from speculative_decoding.loading.tokenizer import Vocabulary
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.draft_head import DraftHead, default_layers
from speculative_decoding.training.batches import Labels
from speculative_decoding.training.loss import training_loss
from speculative_decoding.training.options import TrainingOptions
from speculative_decoding.training.outputs import Example
from speculative_decoding.training.students import HeadStudent, ModelStudent, Student
from speculative_decoding.training.teacher import Teacher
from speculative_decoding.training.trainer import Schedule
from speculative_decoding.training.training_run import TrainingRun
from tests.support.tiny import EOS, tiny_model
from tests.support.together import Letters

TARGET = tiny_model(num_layers=3, feed_forward_proj="gelu")
LAYERS = default_layers(3)


def some_examples(target: EncoderDecoder, count: int = 30, seed: int = 0) -> list[Example]:
    """Return random sources and outputs; a student can learn the target's distributions on any text."""
    rng = np.random.default_rng(seed)
    size = target.config.vocab_size
    return [
        Example([*map(int, rng.integers(2, size, 3 + i % 5)), EOS], [*map(int, rng.integers(2, size, 4 + i % 9)), EOS])
        for i in range(count)
    ]


def frequent_of(target: EncoderDecoder) -> Any:
    return np.arange(1, target.config.vocab_size // 2, dtype=np.int32)


def head_student(target: EncoderDecoder) -> HeadStudent:
    layers = default_layers(target.config.decoder_layers)
    frequent = frequent_of(target)
    vocabulary = DraftVocabulary(tuple(map(int, frequent)))
    return HeadStudent(target, DraftHead.for_target(target, layers), frequent, vocabulary)


def model_student(target: EncoderDecoder) -> ModelStudent:
    return ModelStudent(target, tiny_model(5, num_layers=1, feed_forward_proj="gelu"), frequent_of(target))


def batch_of(student: Student) -> Any:
    examples = some_examples(student.target)[3:9]
    targets = Teacher(student.target, LAYERS).compute(examples)
    return student.batch(examples, targets, np.random.default_rng(1))


def loss_on(student: Student, batch: Any) -> float:
    return training_loss(
        student.states(batch), student.output_matrix(batch), batch.labels, total_variation=False
    ).item()  # type: ignore[return-value]


def random_labels() -> tuple[mx.array, mx.array, Labels]:
    rng = np.random.default_rng(2)
    ids = np.stack([rng.permutation(20)[:6] for _ in range(10)]).astype(np.int32)
    probs = rng.dirichlet(np.ones(6), 10).astype(np.float32)
    probs[3, 2:], ids[3, 2:] = 0.0, 0  # padding, as in a small vocabulary
    probs /= probs.sum(axis=-1, keepdims=True)
    weights = rng.random(10).astype(np.float32)
    written = rng.integers(0, 20, 10).astype(np.int32)
    arrays = map(mx.array, (np.arange(20), ids, probs, written, weights))
    return mx.array(rng.normal(size=(10, 7))), mx.array(rng.normal(size=(7, 20))), Labels(*arrays)


class LetterTarget(Letters):
    """`Letters` with the `vocabulary` property that tokenizers of folders have."""

    @property
    def vocabulary(self) -> Vocabulary:
        return Letters().vocabulary


PROMPTS = {"one": [("abcdefgh"[i % 8 :] + "ab")[: 3 + i % 6] for i in range(40)], "two": ["cab", "dab", "e"] * 6}


def training_in(folder: Path, steps: int = 60, draft: ModelHandle | None = None, **options: Any) -> TrainingRun:
    session = Session(TARGET, LetterTarget())
    own = TrainingOptions(**{"max_tokens": 12, "slots": 8, "held_out": 8, "frequent": 10, "dtype": "float32"} | options)
    return TrainingRun(session, PROMPTS, folder / "work", Schedule(5e-3, steps=steps), own, draft)


def run_all(training: TrainingRun, *, resume: bool = False) -> list[Any]:
    training.begin({"seed": 0}, resume=resume)
    training.write_outputs(lambda done: None)
    if training.keeps_targets:
        training.keep_targets(lambda done: None)
    return list(training.train())
