"""What is trained: a draft head, or a small model of the target's family."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from numpy.typing import NDArray

from ..drafters.draft_model import DraftModel, DraftVocabulary
from ..models.base import EncoderDecoder
from ..models.cache import additive
from ..models.draft_head import DraftHead
from .batches import Chains, Labels, Wholes, make_chains, make_wholes
from .outputs import Example
from .teacher import Lesson

Batch = Chains | Wholes


@dataclass(frozen=True)
class Student(ABC):
    """frequent: ids, candidates in every step. owns_matrix: whether its output matrix is trained."""

    target: EncoderDecoder
    module: nn.Module
    frequent: NDArray[np.int32]
    owns_matrix: ClassVar[bool]

    @abstractmethod
    def batch(self, examples: Sequence[Example], lessons: Sequence[Lesson], dice: np.random.Generator) -> Batch: ...

    @abstractmethod
    def states(self, batch: Any) -> mx.array:
        """(N, d), what the output matrix is multiplied by, at the places of the batch's labels; with a bias (N, d + 1),
        for its row of the matrix.
        """

    @abstractmethod
    def matrix(self, batch: Batch) -> mx.array:
        """(d, C), the output matrix of the candidates."""

    @abstractmethod
    def draft(self) -> DraftModel | DraftHead:
        """As it drafts."""

    @property
    @abstractmethod
    def soft_cap(self) -> float | None:
        """Of the logits that it drafts by."""

    def agreement(self, batch: Batch) -> mx.array:
        """How much of the labels' weight is on places where its likeliest token is the target's."""
        labels: Labels = batch.labels
        right = mx.argmax(self.states(batch) @ self.matrix(batch), axis=-1) == labels.written
        return (right * labels.weights).sum()

    @property
    def start_and_size(self) -> tuple[int, int]:
        return self.target.config.decoder_start_token_id, self.target.config.vocab_size


@dataclass(frozen=True)
class HeadStudent(Student):
    module: DraftHead
    vocabulary: DraftVocabulary  # that it will draft from
    owns_matrix = False

    def batch(self, examples: Sequence[Example], lessons: Sequence[Lesson], dice: np.random.Generator) -> Chains:
        return make_chains(examples, lessons, self.frequent, self.start_and_size, dice)

    def states(self, batch: Chains) -> mx.array:
        head, target = self.module, self.target
        keys, values = target.cross_projections(batch.memory)[-1]
        mask = additive(batch.mask, batch.memory.dtype)
        state = mx.where(batch.is_first, head.beginning, head.features(batch.hidden))
        states = []
        for tokens in batch.tokens:
            state = head.step(target.embed(tokens), state, keys, values, mask)
            states.append(state)
        return rows_for(target, head.outputs(mx.concatenate(states)))

    def matrix(self, batch: Batch) -> mx.array:
        return mx.stop_gradient(matrix_of(self.target, batch.labels.candidates))

    @property
    def soft_cap(self) -> float | None:
        return self.target.logit_cap

    def draft(self) -> DraftHead:
        return self.module.folded().with_frequent(self.vocabulary.ids, self.vocabulary.by_source)


@dataclass(frozen=True)
class ModelStudent(Student):
    module: EncoderDecoder
    owns_matrix = True

    def batch(self, examples: Sequence[Example], lessons: Sequence[Lesson], dice: np.random.Generator) -> Wholes:
        return make_wholes(examples, lessons, self.frequent, self.start_and_size, dice)

    def states(self, batch: Wholes) -> mx.array:
        model = self.module
        return rows_for(model, model.teacher_forced(batch.tokens, model.encode(batch.source, batch.mask), batch.mask))

    def matrix(self, batch: Batch) -> mx.array:
        return matrix_of(self.module, batch.labels.candidates)

    @property
    def soft_cap(self) -> float | None:
        return self.module.logit_cap

    def draft(self) -> DraftModel:
        self.module.finalize()
        return DraftModel(self.module)


def matrix_of(model: EncoderDecoder, ids: mx.array) -> mx.array:
    """(d, N), what the head multiplies states by to get these ids' logits before a soft cap; also of a quantised one.
    With a bias (d + 1, N).
    """
    head, width, cap = model.head_of(ids), model.config.d_model, model.logit_cap
    if not model.has_logits_bias:
        found = head(mx.eye(width))
        return found if cap is None else cap * mx.arctanh(found / cap)
    rows = head(mx.eye(width + 1, width))  # of the last, which is zero, the bias
    return mx.concatenate([rows[:-1] - rows[-1:], rows[-1:]])


def rows_for(model: EncoderDecoder, states: mx.array) -> mx.array:
    """(B, L, d) -> (B * L, d), as `matrix_of` multiplies them: with a 1 behind each where it has a row for the bias."""
    rows = states.reshape(-1, states.shape[-1])
    return mx.pad(rows, [(0, 0), (0, 1)], constant_values=1) if model.has_logits_bias else rows
