"""Beam search as in transformers 4.46 (`BeamSearchScorer` in generation/beam_search.py).

The N most likely unfinished outputs are the beams. A finished output is removed from the beams, and kept if its score,
log-probability / length ** length_penalty, is among the N best. This module is independent of models and text.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import mlx.core as mx

from ..sampling.distribution import BLOCK, in_blocks


class Continuation(NamedTuple):
    """A beam followed by a token. score: the sum of the log-probabilities of its tokens, in float32."""

    score: float
    beam: int
    token: int


class Hypothesis(NamedTuple):
    """A finished output: its score (log-probability / length ** length_penalty) and its generated tokens."""

    score: float
    tokens: list[int]


def best_continuations(logprobs: mx.array, scores: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """Return the best continuations of each prompt, best first.

    Args:
        logprobs: (P, N, V), log-probabilities after each beam.
        scores: (P, N), scores of the beams.
        count: The number of continuations.

    Returns:
        The scores of the continuations, and their numbers beam * V + token, both (P, count).
    """
    # Sorting all values would take as long as a decoder pass.
    blocks = in_blocks((logprobs + scores[..., None]).flatten(1))
    count = min(count, logprobs[0].size)
    chosen = mx.argsort(-blocks.max(axis=-1), axis=-1)[:, :count]  # only these blocks can contain the best values
    found = mx.take_along_axis(blocks, chosen[..., None], axis=1).flatten(1)
    numbers = (chosen[..., None] * BLOCK + mx.arange(BLOCK)).flatten(1)
    order = mx.argsort(-found, axis=-1)[:, :count]
    return mx.take_along_axis(found, order, axis=-1), mx.take_along_axis(numbers, order, axis=-1)


@dataclass(eq=False)
class BeamSearch:
    """The search for one prompt.

    Args:
        num_beams: N.
        length_penalty: See `GenerationOptions`.
        early_stopping: See `GenerationOptions`.
        max_tokens: The maximum length of an output.
        ends: Ids that end an output.
        prefix: The start token and a forced prefix; every output begins with them.

    Attributes:
        beams: The ids of the beams, with the prefix.
        scores: The scores of the beams.
        finished: Up to N finished outputs, in the order in which they ended.
    """

    normalizes_after_constraints: ClassVar[bool] = False  # log-probabilities are normalized before constraints

    num_beams: int
    length_penalty: float
    early_stopping: bool | str
    max_tokens: int
    ends: Collection[int]
    prefix: Sequence[int]
    beams: list[list[int]] = field(init=False)
    scores: list[float] = field(init=False)
    finished: list[Hypothesis] = field(init=False, default_factory=list)
    is_done: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.beams = [list(self.prefix) for _ in range(self.num_beams)]
        # All beams start with the same tokens, so only the first is extended.
        self.scores = [0.0] + [-1e9] * (self.num_beams - 1)

    @property
    def length(self) -> int:
        """The number of generated tokens in each beam."""
        return len(self.beams[0]) - len(self.prefix)

    @property
    def is_over(self) -> bool:
        return self.is_done or self.length == self.max_tokens

    @property
    def num_continuations(self) -> int:
        """The number of continuations that a step needs to ensure that at least N of them are unfinished."""
        return max(2, 1 + len(self.ends)) * self.num_beams

    def step(self, continuations: Sequence[Continuation]) -> list[int]:
        """Extend the beams by one token.

        Args:
            continuations: The `num_continuations` best continuations, best first.

        Returns:
            For each new beam, the number of the previous beam that it extends.
        """
        followed = []
        for rank, each in enumerate(continuations):
            if each.token not in self.ends:
                followed.append(each)
                if len(followed) == self.num_beams:
                    break
            elif rank < self.num_beams:
                self._finish(each.score, [*self.beams[each.beam], each.token])
        length = self.length + 1
        self.is_done = self._can_stop(continuations[0].score, length)
        followed = in_parent_order(followed)
        self.beams = [[*self.beams[each.beam], each.token] for each in followed]
        self.scores = [each.score for each in followed]
        if length == self.max_tokens and not self.is_done:  # outputs truncated at max_tokens also count
            for each, tokens in zip(followed, self.beams, strict=True):
                self._finish(each.score, tokens)
        return [each.beam for each in followed]

    def best(self, count: int) -> list[Hypothesis]:
        """Return the best finished outputs, best first. If scores are equal, the later output comes first."""
        return sorted(self.finished, key=lambda each: each.score)[::-1][:count]

    def _finish(self, score: float, tokens: Sequence[int]) -> None:
        own = list(tokens[len(self.prefix) :])
        found = Hypothesis(score / len(own) ** self.length_penalty, own)
        if len(self.finished) < self.num_beams or found.score > self._worst.score:
            self.finished.append(found)
            if len(self.finished) > self.num_beams:
                self.finished.remove(self._worst)

    @property
    def _worst(self) -> Hypothesis:
        return min(self.finished, key=lambda each: each.score)

    def _can_stop(self, best: float, length: int) -> bool:
        """Return whether the search can stop. Only `early_stopping="never"` is exact: longer outputs may score better.

        Args:
            best: The score of the best continuation.
            length: The number of tokens in the continuations.
        """
        if len(self.finished) < self.num_beams:
            return False
        if self.early_stopping is True:
            return True
        longest = self.max_tokens if self.early_stopping == "never" and self.length_penalty > 0 else length
        return self._worst.score >= best / longest**self.length_penalty


def in_parent_order(followed: Sequence[Continuation]) -> list[Continuation]:
    """Reorder continuations so that few cache rows move: the first continuation of a beam gets the beam's number."""
    by_number: dict[int, Continuation] = {}
    for each in followed:
        by_number.setdefault(each.beam, each)
    others = (each for each in followed if by_number[each.beam] is not each)
    return [by_number[number] if number in by_number else next(others) for number in range(len(followed))]
