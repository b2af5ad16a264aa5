"""The networks that are trained: a draft head, or a small model of the target's family."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from numpy.typing import NDArray

from ..drafters.draft_model import DraftVocabulary
from ..models.base import EncoderDecoder
from ..models.cache import padding_mask
from ..models.draft_head import DraftHead
from .batches import HeadBatch, SequenceBatch, make_head_batch, make_sequence_batch
from .outputs import Example
from .teacher import TeacherTargets

Batch = HeadBatch | SequenceBatch


@dataclass(frozen=True)
class Student(ABC):
    """A network that is being trained.

    Args:
        target: The model that is the teacher.
        module: The network to train.
        frequent: Ids that are candidates in every step.
    """

    target: EncoderDecoder
    module: nn.Module
    frequent: NDArray[np.int32]
    trains_output_matrix: ClassVar[bool]

    @abstractmethod
    def batch(
        self, examples: Sequence[Example], targets: Sequence[TeacherTargets], rng: np.random.Generator
    ) -> Batch: ...

    @abstractmethod
    def states(self, batch: Any) -> mx.array:
        """Return the final states at the label positions, (N, d); (N, d + 1) if the output matrix has a bias row."""

    @abstractmethod
    def draft(self) -> EncoderDecoder | DraftHead:
        """Return the draft with its current weights."""

    @property
    @abstractmethod
    def output_model(self) -> EncoderDecoder:
        """The model whose output matrix and soft cap produce the draft's logits."""

    def output_matrix(self, batch: Batch) -> mx.array:
        """Return the candidates' output matrix, (d, C); (d + 1, C) with a bias row."""
        matrix = output_matrix_of(self.output_model, batch.labels.candidates)
        return matrix if self.trains_output_matrix else mx.stop_gradient(matrix)

    def agreement(self, batch: Batch) -> mx.array:
        """Return the weighted share of positions at which the draft's most likely token equals the target's token."""
        is_equal = mx.argmax(self.states(batch) @ self.output_matrix(batch), axis=-1) == batch.labels.written
        return (is_equal * batch.labels.weights).sum()


@dataclass(frozen=True)
class HeadStudent(Student):
    """A draft head, which shares the target's embedding and output matrix.

    Args:
        vocabulary: The ids that the finished head may propose.
    """

    module: DraftHead
    vocabulary: DraftVocabulary
    trains_output_matrix = False

    def batch(
        self, examples: Sequence[Example], targets: Sequence[TeacherTargets], rng: np.random.Generator
    ) -> HeadBatch:
        config = self.target.config
        return make_head_batch(examples, targets, self.frequent, config.decoder_start_token_id, config.vocab_size, rng)

    def states(self, batch: HeadBatch) -> mx.array:
        head = self.module
        keys, values = self.target.cross_projections(batch.encoder_output)[-1]
        mask = padding_mask(batch.mask, batch.encoder_output.dtype)
        state = mx.where(batch.is_first, head.start_state, head.features(batch.hidden))
        states = []
        for tokens in batch.tokens:
            state, _ = head.step(self.target.embed(tokens), state, keys, values, mask)
            states.append(state)
        return flatten_states(self.target, head.outputs(mx.concatenate(states)))

    @property
    def output_model(self) -> EncoderDecoder:
        return self.target

    def draft(self) -> DraftHead:
        return self.module.with_frequent(self.vocabulary.ids, self.vocabulary.by_source)


@dataclass(frozen=True)
class ModelStudent(Student):
    """A draft model, distilled from the target."""

    module: EncoderDecoder
    trains_output_matrix = True

    def batch(
        self, examples: Sequence[Example], targets: Sequence[TeacherTargets], rng: np.random.Generator
    ) -> SequenceBatch:
        config = self.target.config
        return make_sequence_batch(
            examples, targets, self.frequent, config.decoder_start_token_id, config.vocab_size, rng
        )

    def states(self, batch: SequenceBatch) -> mx.array:
        model = self.module
        encoder_output = model.encode(batch.source, batch.mask)
        return flatten_states(model, model.teacher_forced(batch.tokens, encoder_output, batch.mask))

    @property
    def output_model(self) -> EncoderDecoder:
        return self.module

    def draft(self) -> EncoderDecoder:
        self.module.finalize()
        return self.module


def output_matrix_of(model: EncoderDecoder, ids: mx.array) -> mx.array:
    """Return the matrix that maps states to the logits of these ids before any soft cap, (d, N).

    A bias becomes an additional last row, (d + 1, N). The matrix is the head's output for an identity matrix, which
    also works for quantized weights.
    """
    head = model.head_of(ids)
    width = model.config.d_model
    cap = model.logit_cap
    if "logits_bias" not in model:
        logits = head(mx.eye(width))
        return logits if cap is None else cap * mx.arctanh(logits / cap)
    logits = head(mx.eye(width + 1, width))  # the last row is a zero state; its logits are the bias
    return mx.concatenate([logits[:-1] - logits[-1:], logits[-1:]])


def flatten_states(model: EncoderDecoder, states: mx.array) -> mx.array:
    """Reshape (B, L, d) to (B * L, d). If the model has a bias, append a 1 for the bias row of `output_matrix_of`."""
    rows = states.reshape(-1, states.shape[-1])
    return mx.pad(rows, [(0, 0), (0, 1)], constant_values=1) if "logits_bias" in model else rows
