"""Batches of examples as students take them: anchors, what stands behind each, and the target's distributions there,
over a few candidate ids. Which examples and anchors a step has is a function of (seed, step).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from .outputs import Example
from .teacher import Lesson

EXAMPLES = 24  # in a step
CHAIN = 5  # tokens drafted behind an anchor
ANCHORS = 0.4  # of the positions
FADING = 4.0  # a chain's k-th token counts exp(-k / FADING)
LENGTH_NOISE = 0.1  # examples of about the same length stand together
FREQUENT = 1536  # candidates in every step,
LIKELY_OTHERS, RANDOM_OTHERS = 768, 512  # and others


class Labels(NamedTuple):
    """The target's distributions at N places.

    candidates: (C,) ids that distributions are over; in what follows an id is its index there.
    ids, probs: (N, 16), the likeliest; 0 where there is none. written: (N,) the token that the output has.
    weights: (N,), adding up to 1.
    """

    candidates: mx.array
    ids: mx.array
    probs: mx.array
    written: mx.array
    weights: mx.array

    def at(self, places: mx.array, factor: int) -> Labels:
        """Some places alone, over the same candidates, with weights so many times as large."""
        ids, probs, written, weights = (each[places.reshape(-1)] for each in self[1:])
        return Labels(self.candidates, ids, probs, written, factor * weights)


class Chains(NamedTuple):
    """For a draft head; A anchors in each of B examples, and `CHAIN` tokens behind each.

    hidden: (B, A, layers * d) normed states at the place before the anchor; is_first: (B, A, 1), where there is none.
    tokens: (CHAIN, B, A), what the head reads. memory, mask: (B, S, d), and (B, S) bool.
    labels: of (CHAIN, B, A) places, flat.
    """

    hidden: mx.array
    is_first: mx.array
    tokens: mx.array
    memory: mx.array
    mask: mx.array
    labels: Labels

    def part(self, rank: int, size: int) -> Chains:
        """Every size-th example from that rank on: the means of parts' losses and gradients are those of the whole."""
        rows, factor = rows_of(len(self.mask), rank, size)
        places = mx.arange(self.tokens.size).reshape(self.tokens.shape)[:, rows]
        hidden, is_first, memory, mask = (each[rows] for each in (self.hidden, self.is_first, self.memory, self.mask))
        return Chains(hidden, is_first, self.tokens[:, rows], memory, mask, self.labels.at(places, factor))


class Wholes(NamedTuple):
    """For a model: source (B, S) with its mask, tokens (B, L) that the decoder reads, labels of (B, L) places, flat."""

    source: mx.array
    mask: mx.array
    tokens: mx.array
    labels: Labels

    def part(self, rank: int, size: int) -> Wholes:
        """As of `Chains`."""
        rows, factor = rows_of(len(self.mask), rank, size)
        labels = self.labels.at(mx.arange(self.tokens.size).reshape(self.tokens.shape)[rows], factor)
        return Wholes(self.source[rows], self.mask[rows], self.tokens[rows], labels)


def rows_of(count: int, rank: int, size: int) -> tuple[mx.array, int]:
    """A part's examples, and by what their weights grow; where there are fewer than parts, one that has no weight."""
    return mx.arange(min(rank, count - 1), count, size), size if rank < count else 0


@dataclass(frozen=True)
class Sampler:
    """Which examples a step has. Every example once in an epoch."""

    examples: Sequence[Example]
    seed: int

    @cached_property
    def _lengths(self) -> NDArray[np.float64]:
        return np.array([len(each.output) + 0.1 * len(each.source) for each in self.examples])

    def indices(self, step: int) -> list[int]:
        count = -(-len(self.examples) // EXAMPLES)
        epoch, place = divmod(step, count)
        dice = np.random.default_rng([self.seed, epoch])
        noise = np.exp(LENGTH_NOISE * dice.standard_normal(len(self._lengths)))
        order = np.argsort(self._lengths * noise, kind="stable")
        place = int(dice.permutation(count)[place])
        return [int(index) for index in order[place * EXAMPLES : (place + 1) * EXAMPLES]]

    def dice(self, step: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, 1, step])


def make_labels(
    ids: NDArray[np.int32],
    probs: NDArray[np.float32],
    written: NDArray[np.int32],
    weights: NDArray[np.float32],
    frequent: NDArray[np.int32],
    vocab_size: int,
    dice: np.random.Generator,
) -> Labels:
    """ids, probs: (N, 16). Candidates are the frequent ids, others that the labels give most, and random ones: without
    these nothing would keep a draft from proposing a token that is never a label.
    """
    index = np.full(vocab_size, -1, np.int32)
    index[frequent] = np.arange(len(frequent), dtype=np.int32)
    real = weights > 0
    given = (probs[real] * weights[real, None]).ravel()
    mass = np.bincount(ids[real].ravel(), given, minlength=vocab_size).astype(np.float64)
    mass[written[real]] += 1.0  # always among them, as far as there is room
    rest = dice.permutation(np.flatnonzero(index < 0))
    likely = min(LIKELY_OTHERS, len(rest))
    order = np.argpartition(-mass[rest], likely - 1) if likely else np.arange(0)
    others = np.sort(rest[order[: likely + RANDOM_OTHERS]])
    index[others] = np.arange(len(frequent), len(frequent) + len(others), dtype=np.int32)
    candidates = np.concatenate([frequent, others]).astype(np.int32)
    places, known = index[ids], index[written] >= 0
    kept = np.where(places < 0, np.float32(0), probs)
    kept = kept / np.maximum(kept.sum(axis=-1, keepdims=True), 1e-6)
    weights = np.where(known, weights, 0.0)
    return Labels(
        mx.array(candidates),
        mx.array(np.maximum(places, 0)),
        mx.array(kept.astype(np.float32)),
        mx.array(np.maximum(index[written], 0)),
        mx.array((weights / max(weights.sum(), 1e-6)).astype(np.float32)),
    )


def make_chains(
    examples: Sequence[Example],
    lessons: Sequence[Lesson],
    frequent: NDArray[np.int32],
    start_and_size: tuple[int, int],
    dice: np.random.Generator,
) -> Chains:
    """start_and_size: the decoder's start token, and how many ids there are."""
    start, vocab_size = start_and_size
    chosen = [anchors(len(each.output), dice) for each in examples]
    count = max(map(len, chosen))
    longest = max(len(each.source) for each in examples)
    shape, width = (len(examples), count), lessons[0].ids.shape[1]
    hidden = np.zeros((*shape, lessons[0].hidden.shape[1]), np.float32)
    is_first = np.zeros((*shape, 1), bool)
    tokens, written = (np.zeros((CHAIN, *shape), np.int32) for _ in range(2))
    ids, probs = np.zeros((CHAIN, *shape, width), np.int32), np.zeros((CHAIN, *shape, width), np.float32)
    weights = np.zeros((CHAIN, *shape), np.float32)
    memory = np.zeros((len(examples), longest, lessons[0].memory.shape[1]), np.float32)
    mask = np.zeros((len(examples), longest), bool)
    for b, (example, lesson, own) in enumerate(zip(examples, lessons, chosen, strict=True)):
        read, size = np.array([start, *example.output], np.int32), len(example.output)
        first, places = own == 0, np.arange(CHAIN)[:, None] + own
        here, places = places < size, np.minimum(places, size - 1)
        hidden[b, : len(own)] = lesson.hidden[np.maximum(own - 1, 0)]
        is_first[b, : len(own), 0] = first
        tokens[:, b, : len(own)], written[:, b, : len(own)] = read[places], read[places + 1]
        ids[:, b, : len(own)], probs[:, b, : len(own)] = lesson.ids[places], lesson.probs[places]
        weights[:, b, : len(own)] = here * np.exp(-np.arange(CHAIN) / FADING)[:, None]
        memory[b, : len(example.source)], mask[b, : len(example.source)] = lesson.memory, True
    flat = ids.reshape(-1, width), probs.reshape(-1, width), written.ravel(), weights.ravel()
    labels = make_labels(*flat, frequent, vocab_size, dice)
    return Chains(mx.array(hidden), mx.array(is_first), mx.array(tokens), mx.array(memory), mx.array(mask), labels)


def make_wholes(
    examples: Sequence[Example],
    lessons: Sequence[Lesson],
    frequent: NDArray[np.int32],
    start_and_size: tuple[int, int],
    dice: np.random.Generator,
) -> Wholes:
    start, vocab_size = start_and_size
    count, width = max(len(each.output) for each in examples), lessons[0].ids.shape[1]
    longest = max(len(each.source) for each in examples)
    shape = len(examples), count
    source, mask = np.zeros((len(examples), longest), np.int32), np.zeros((len(examples), longest), bool)
    tokens, written, weights = np.zeros(shape, np.int32), np.zeros(shape, np.int32), np.zeros(shape, np.float32)
    ids, probs = np.zeros((*shape, width), np.int32), np.zeros((*shape, width), np.float32)
    for b, (example, lesson) in enumerate(zip(examples, lessons, strict=True)):
        size = len(example.output)
        source[b, : len(example.source)], mask[b, : len(example.source)] = example.source, True
        tokens[b, :size], written[b, :size] = [start, *example.output[:-1]], example.output
        ids[b, :size], probs[b, :size], weights[b, :size] = lesson.ids, lesson.probs, 1.0
    flat = ids.reshape(-1, width), probs.reshape(-1, width), written.ravel(), weights.ravel()
    labels = make_labels(*flat, frequent, vocab_size, dice)
    return Wholes(mx.array(source), mx.array(mask), mx.array(tokens), labels)


def anchors(length: int, dice: np.random.Generator) -> NDArray[np.int64]:
    return np.sort(dice.permutation(length)[: max(1, round(ANCHORS * length))])
