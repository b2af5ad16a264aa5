"""Beam search as transformers 4.46 has it (`BeamSearchScorer` in generation/beam_search.py): which outputs of a prompt
are followed, which have ended, and when nothing better is to be expected. Knows neither models nor text.

The N likeliest outputs without an end are followed: the beams. One that ends leaves them and is kept among the N best,
by its log-probability divided by length ** length_penalty.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import mlx.core as mx

from ..sampling.distribution import BLOCK, in_blocks

LEAST = -1e9  # the score of all beams but one at the beginning, where all are the same


class Continuation(NamedTuple):
    """A beam and a token behind it. score: the log-probabilities of its tokens, summed in float32."""

    score: float
    beam: int
    token: int


class Hypothesis(NamedTuple):
    """An output that has ended. score: divided by the length. tokens: those generated, its end too if it has one."""

    score: float
    tokens: list[int]


def best_continuations(logprobs: mx.array, scores: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """(P, N, V) log-probabilities behind each beam, (P, N) its own score -> of the best `count` continuations of each
    prompt, the best first, the scores and the numbers beam * V + token, both (P, count).
    """
    blocks = in_blocks((logprobs + scores[..., None]).flatten(1))  # to sort all of them would take as long as a pass
    count = min(count, logprobs[0].size)
    chosen = mx.argsort(-blocks.max(axis=-1), axis=-1)[:, :count]  # in so few blocks are the best
    found = mx.take_along_axis(blocks, chosen[..., None], axis=1).flatten(1)
    numbers = (chosen[..., None] * BLOCK + mx.arange(BLOCK)).flatten(1)
    order = mx.argsort(-found, axis=-1)[:, :count]
    return mx.take_along_axis(found, order, axis=-1), mx.take_along_axis(numbers, order, axis=-1)


@dataclass(eq=False)
class BeamSearch:
    """Of one prompt.

    most: tokens. ends: ids that end an output. beginning: the start token and a prefix, in front of all outputs.
    beams: the ids of those followed, the beginning too. finished: at most N, as they came.
    """

    num_beams: int
    length_penalty: float
    early_stopping: bool | str
    most: int
    ends: Collection[int]
    beginning: Sequence[int]
    beams: list[list[int]] = field(init=False)
    scores: list[float] = field(init=False)
    finished: list[Hypothesis] = field(init=False, default_factory=list)
    is_done: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.beams = [list(self.beginning) for _ in range(self.num_beams)]
        self.scores = [0.0] + [LEAST] * (self.num_beams - 1)

    @property
    def length(self) -> int:
        """How many tokens each beam has."""
        return len(self.beams[0]) - len(self.beginning)

    @property
    def is_over(self) -> bool:
        return self.is_done or self.length == self.most

    @property
    def num_continuations(self) -> int:
        """So many that N of them have no end."""
        return max(2, 1 + len(self.ends)) * self.num_beams

    def step(self, continuations: Sequence[Continuation]) -> list[int]:
        """continuations: the best `num_continuations`, the best first. The beams grow by a token; for each the number
        that it had before.
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
        self.is_done = self._nothing_better(continuations[0].score, length)
        followed = at_parents(followed)
        self.beams = [[*self.beams[each.beam], each.token] for each in followed]
        self.scores = [each.score for each in followed]
        if length == self.most and not self.is_done:  # what is cut off there counts too
            for each, tokens in zip(followed, self.beams, strict=True):
                self._finish(each.score, tokens)
        return [each.beam for each in followed]

    def best(self, count: int) -> list[Hypothesis]:
        """The best first; of equal ones the later."""
        return sorted(self.finished, key=lambda each: each.score)[::-1][:count]

    def _finish(self, score: float, tokens: Sequence[int]) -> None:
        own = list(tokens[len(self.beginning) :])
        found = Hypothesis(score / len(own) ** self.length_penalty, own)
        if len(self.finished) < self.num_beams or found.score > self._worst.score:
            self.finished.append(found)
            if len(self.finished) > self.num_beams:
                self.finished.remove(self._worst)

    @property
    def _worst(self) -> Hypothesis:
        return min(self.finished, key=lambda each: each.score)

    def _nothing_better(self, best: float, length: int) -> bool:
        """best: of all continuations, the score; length: theirs. Only with "never" it is certain: a beam's score falls
        as it grows, and may be divided by more.
        """
        if len(self.finished) < self.num_beams:
            return False
        if self.early_stopping is True:
            return True
        longest = self.most if self.early_stopping == "never" and self.length_penalty > 0 else length
        return self._worst.score >= best / longest**self.length_penalty


def at_parents(followed: Sequence[Continuation]) -> list[Continuation]:
    """In another order, so that few rows of a cache move: the first that continues a beam takes its number."""
    by_number: dict[int, Continuation] = {}
    for each in followed:
        by_number.setdefault(each.beam, each)
    others = (each for each in followed if by_number[each.beam] is not each)
    return [by_number[number] if number in by_number else next(others) for number in range(len(followed))]
