"""Results for callers: a token of a stream, a generation, or one generation of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .stats import GenerationStats


@dataclass(frozen=True)
class GenerationResponse:
    """One token of a stream.

    Args:
        text: the text that it releases; empty while a character or a stop string may be incomplete.
        token: its id.
        logprob: its log-probability under the target, at temperature 1; None unless `logprobs=True`.
        from_draft: whether it is an accepted draft token.
        accepted: the number of draft tokens that its round accepted.
        finish_reason: set on the last token; see `Round`.
        stats: the statistics so far; the same object is updated in place.
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
    """A finished generation.

    Args:
        text: the text, without the stop string that ended it.
        tokens: the generated ids, including the one that ended the output.
        finish_reason: see `Round`.
        stats: counts and times; with beams, those of the search.
        logprobs: one for each token; None unless `logprobs=True`.
        score: with beams, log-probability / length ** length_penalty.
        sequences: all outputs, best first, if several were requested; this is the first of them.
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
    """The result of one prompt of a batch, or a one-line error. index: the position of the prompt, from 0."""

    index: int
    result: GenerationResult | None
    error: str | None = None
