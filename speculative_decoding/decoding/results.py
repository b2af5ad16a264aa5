"""What callers get: a token of a stream, a whole generation, or one of many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .stats import GenerationStats


@dataclass(frozen=True)
class GenerationResponse:
    """One token of a stream.

    text: what it adds; empty while a character is incomplete, or while it may belong to a stop string.
    logprob: its log-probability under the target, at temperature 1; None unless `logprobs=True` was given.
    from_draft: whether it was drafted. accepted: how many drafted tokens its round accepted.
    finish_reason: of the last token, see `Round`.
    stats: so far; one object that runs along.
    """

    text: str
    token: int
    logprob: float | None
    from_draft: bool
    accepted: int
    finish_reason: str | None
    stats: GenerationStats


@dataclass(frozen=True)
class GenerationResult:
    """`tokens` as the target wrote them, up to and including the one that ended it: an end-of-sequence token, or the
    one that completed a stop string. `text` ends in front of the stop string. `logprobs`: one for each of the tokens,
    None unless `logprobs=True` was given.

    score: with beams, the log-probability / length ** length_penalty. sequences: where several were asked for, all of
    them, the best first; this is the first. With beams they have the statistics of the search in common.
    """

    text: str
    tokens: list[int]
    finish_reason: str
    stats: GenerationStats
    logprobs: list[float] | None = None
    score: float | None = None
    sequences: Sequence[GenerationResult] = ()


@dataclass(frozen=True)
class BatchResult:
    """index: the prompt's position in the input, from 0. error: one line, instead of a result."""

    index: int
    result: GenerationResult | None
    error: str | None = None
