"""Training batches, built from examples and teacher targets.

Distributions cover a few candidate ids instead of the whole vocabulary. A step's examples and random choices depend
only on the seed and the step's number, so a resumed run makes the same choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ..models.source import token_ids
from .options import BATCH_SIZE
from .outputs import Example
from .teacher import TeacherTargets

DRAFT_STEPS = 5  # tokens that a head drafts after each anchor
FREQUENT_CANDIDATES = 1536  # number of the most frequent ids, which are candidates in every step
LIKELY_CANDIDATES = 768  # number of additional ids that have the highest probabilities in the labels
RANDOM_CANDIDATES = 512  # additional random ids


class Labels(NamedTuple):
    """The target's distributions at N positions. Ids are stored as indices into `candidates`.

    Args:
        candidates: (C,) vocabulary ids that the distributions cover.
        ids: (N, 16) the most likely ids.
        probs: (N, 16) their probabilities; 0 for padding.
        written: (N,) the ids in the target's output.
        weights: (N,) the weights of the positions; they sum to 1.
    """

    candidates: mx.array
    ids: mx.array
    probs: mx.array
    written: mx.array
    weights: mx.array

    def select(self, positions: mx.array, weight_factor: int) -> Labels:
        """Return the labels at the given positions, with their weights multiplied by `weight_factor`."""
        ids, probs, written, weights = (each[positions.reshape(-1)] for each in self[1:])
        return Labels(self.candidates, ids, probs, written, weight_factor * weights)


class HeadBatch(NamedTuple):
    """Inputs of a draft head: A anchors in each of B examples, and `DRAFT_STEPS` tokens after each anchor.

    Args:
        hidden: (B, A, layers * d) the target's normalized states at the position before each anchor.
        is_first: (B, A, 1) whether the anchor is the first position, so that no state precedes it.
        tokens: (DRAFT_STEPS, B, A) input tokens of each draft step.
        encoder_output: (B, S, d).
        mask: (B, S) whether a source position is real.
        labels: Labels for the DRAFT_STEPS * B * A positions of `tokens`, flattened.
    """

    hidden: mx.array
    is_first: mx.array
    tokens: mx.array
    encoder_output: mx.array
    mask: mx.array
    labels: Labels

    def part(self, rank: int, size: int) -> HeadBatch:
        """Return every size-th example, starting at this rank.

        Averaging the losses and the gradients of all parts yields the loss and the gradient of the whole batch.
        """
        rows, factor = rows_of_rank(len(self.mask), rank, size)
        positions = mx.arange(self.tokens.size).reshape(self.tokens.shape)[:, rows]
        return HeadBatch(
            self.hidden[rows],
            self.is_first[rows],
            self.tokens[:, rows],
            self.encoder_output[rows],
            self.mask[rows],
            self.labels.select(positions, factor),
        )


class SequenceBatch(NamedTuple):
    """Inputs of a draft model.

    Args:
        source: (B, S) source tokens.
        mask: (B, S) whether a source position is real.
        tokens: (B, L) decoder input.
        labels: Labels for the B * L positions of `tokens`, flattened.
    """

    source: mx.array
    mask: mx.array
    tokens: mx.array
    labels: Labels

    def part(self, rank: int, size: int) -> SequenceBatch:
        """Return every size-th example, starting at this rank, as in `HeadBatch.part`."""
        rows, factor = rows_of_rank(len(self.mask), rank, size)
        positions = mx.arange(self.tokens.size).reshape(self.tokens.shape)[rows]
        labels = self.labels.select(positions, factor)
        return SequenceBatch(self.source[rows], self.mask[rows], self.tokens[rows], labels)


def rows_of_rank(count: int, rank: int, size: int) -> tuple[mx.array, int]:
    """Return a rank's examples, and the factor for their weights. A rank without examples gets one with factor 0."""
    return mx.arange(min(rank, count - 1), count, size), size if rank < count else 0


@dataclass(frozen=True)
class Sampler:
    """Chooses examples of similar length for each step. Each example is used once per epoch."""

    examples: Sequence[Example]
    seed: int
    batch_size: int = BATCH_SIZE

    @cached_property
    def _lengths(self) -> NDArray[np.float64]:
        return np.array([len(each.output) + 0.1 * len(each.source) for each in self.examples])

    def indices(self, step: int) -> list[int]:
        batches = -(-len(self.examples) // self.batch_size)
        epoch, batch = divmod(step, batches)
        rng = np.random.default_rng([self.seed, epoch])
        noise = np.exp(0.1 * rng.standard_normal(len(self._lengths)))
        order = np.argsort(self._lengths * noise, kind="stable")
        batch = int(rng.permutation(batches)[batch])
        return [int(index) for index in order[batch * self.batch_size : (batch + 1) * self.batch_size]]

    def rng(self, step: int) -> np.random.Generator:
        """Return the random generator for a step's other choices."""
        return np.random.default_rng([self.seed, 1, step])


def make_labels(
    ids: NDArray[np.int32],
    probs: NDArray[np.float32],
    written: NDArray[np.int32],
    weights: NDArray[np.float32],
    frequent: NDArray[np.int32],
    vocab_size: int,
    rng: np.random.Generator,
) -> Labels:
    """Choose the candidates of a step, and express the labels as indices into them.

    The candidates are the frequent ids, the most likely ids according to the labels, and random ids. Without random
    ids, the draft would not learn to avoid tokens that no label contains.

    Args:
        ids: (N, 16) the target's most likely ids.
        probs: (N, 16) their probabilities.
        written: (N,) ids in the target's outputs.
        weights: (N,) the weights of the positions; 0 for padding.
        frequent: Ids that are candidates in every step.
        vocab_size: The number of ids in the vocabulary.
        rng: Chooses the random ids.
    """
    candidate_index = np.full(vocab_size, -1, np.int32)
    candidate_index[frequent] = np.arange(len(frequent), dtype=np.int32)

    is_real = weights > 0
    weighted = (probs[is_real] * weights[is_real, None]).ravel()
    mass = np.bincount(ids[is_real].ravel(), weighted, minlength=vocab_size).astype(np.float64)
    mass[written[is_real]] += 1.0  # so that ids in the outputs come first

    rest = rng.permutation(np.flatnonzero(candidate_index < 0))
    likely = min(LIKELY_CANDIDATES, len(rest))
    order = np.argpartition(-mass[rest], likely - 1) if likely else np.arange(0)
    others = np.sort(rest[order[: likely + RANDOM_CANDIDATES]])
    candidate_index[others] = np.arange(len(frequent), len(frequent) + len(others), dtype=np.int32)
    candidates = np.concatenate([frequent, others]).astype(np.int32)

    indices = candidate_index[ids]
    kept = np.where(indices < 0, np.float32(0), probs)
    kept = kept / np.maximum(kept.sum(axis=-1, keepdims=True), 1e-6)
    weights = np.where(candidate_index[written] >= 0, weights, 0.0)
    return Labels(
        mx.array(candidates),
        mx.array(np.maximum(indices, 0)),
        mx.array(kept.astype(np.float32)),
        mx.array(np.maximum(candidate_index[written], 0)),
        mx.array((weights / max(weights.sum(), 1e-6)).astype(np.float32)),
    )


def make_head_batch(
    examples: Sequence[Example],
    targets: Sequence[TeacherTargets],
    frequent: NDArray[np.int32],
    start_token: int,
    vocab_size: int,
    rng: np.random.Generator,
) -> HeadBatch:
    """Build a batch for a draft head, with anchors at 40 % of the positions of each output."""
    anchors = [choose_anchors(len(each.output), rng) for each in examples]
    shape = (len(examples), max(map(len, anchors)))
    steps = (DRAFT_STEPS, *shape)
    source_length = max(len(each.source) for each in examples)
    width = targets[0].ids.shape[1]

    hidden = np.zeros((*shape, targets[0].hidden.shape[1]), np.float32)
    is_first = np.zeros((*shape, 1), bool)
    tokens = np.zeros(steps, np.int32)
    written = np.zeros(steps, np.int32)
    ids = np.zeros((*steps, width), np.int32)
    probs = np.zeros((*steps, width), np.float32)
    weights = np.zeros(steps, np.float32)
    encoder_output = np.zeros((len(examples), source_length, targets[0].encoder_output.shape[1]), np.float32)
    mask = np.zeros((len(examples), source_length), bool)
    step_weights = np.exp(-np.arange(DRAFT_STEPS) / 4.0)[:, None]  # later tokens are drafted less often

    for b, (example, target, anchor) in enumerate(zip(examples, targets, anchors, strict=True)):
        count = len(anchor)
        length = len(example.output)
        sequence = np.array([*example.decoder_input(start_token), example.output[-1]], np.int32)[-length - 1 :]
        positions = np.arange(DRAFT_STEPS)[:, None] + anchor
        is_inside = positions < length
        positions = np.minimum(positions, length - 1)

        hidden[b, :count] = target.hidden[np.maximum(anchor - 1, 0)]
        is_first[b, :count, 0] = anchor == 0
        tokens[:, b, :count] = sequence[positions]
        written[:, b, :count] = sequence[positions + 1]
        ids[:, b, :count] = target.ids[positions]
        probs[:, b, :count] = target.probs[positions]
        weights[:, b, :count] = is_inside * step_weights
        encoder_output[b, : len(example.source)] = target.encoder_output
        mask[b, : len(example.source)] = True

    labels = make_labels(
        ids.reshape(-1, width),
        probs.reshape(-1, width),
        written.ravel(),
        weights.ravel(),
        frequent,
        vocab_size,
        rng,
    )
    return HeadBatch(
        mx.array(hidden), mx.array(is_first), mx.array(tokens), mx.array(encoder_output), mx.array(mask), labels
    )


def make_sequence_batch(
    examples: Sequence[Example],
    targets: Sequence[TeacherTargets],
    frequent: NDArray[np.int32],
    start_token: int,
    vocab_size: int,
    rng: np.random.Generator,
) -> SequenceBatch:
    """Build a batch for a draft model, using every position of each output."""
    source_shape = (len(examples), max(len(each.source) for each in examples))
    shape = (len(examples), max(len(each.output) for each in examples))
    width = targets[0].ids.shape[1]

    source = np.zeros(source_shape, np.int32)
    mask = np.zeros(source_shape, bool)
    tokens = np.zeros(shape, np.int32)
    written = np.zeros(shape, np.int32)
    ids = np.zeros((*shape, width), np.int32)
    probs = np.zeros((*shape, width), np.float32)
    weights = np.zeros(shape, np.float32)

    for b, (example, target) in enumerate(zip(examples, targets, strict=True)):
        length = len(example.output)
        source[b, : len(example.source)] = token_ids(example.read_source())
        mask[b, : len(example.source)] = True
        tokens[b, :length] = [start_token, *example.output[:-1]]
        written[b, :length] = example.output
        ids[b, :length] = target.ids
        probs[b, :length] = target.probs
        weights[b, :length] = 1.0

    labels = make_labels(
        ids.reshape(-1, width),
        probs.reshape(-1, width),
        written.ravel(),
        weights.ravel(),
        frequent,
        vocab_size,
        rng,
    )
    return SequenceBatch(mx.array(source), mx.array(mask), mx.array(tokens), labels)


def choose_anchors(length: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Choose a random 40 % of the positions, and return them in ascending order."""
    return np.sort(rng.permutation(length)[: max(1, round(0.4 * length))])
