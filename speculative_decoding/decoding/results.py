"""Results for callers: a token of a stream, a generation, or one generation of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from ..sampling import GenerationOptions
from .stats import GenerationStats

Result = TypeVar("Result")


@dataclass(frozen=True)
class GenerationResponse:
    """One token of a stream.

    Args:
        text: The text that it releases; empty while a character or a stop string may be incomplete.
        token: Its id.
        logprob: Its log-probability under the target, at temperature 1; None unless `logprobs=True`.
        from_draft: Whether it is an accepted draft token.
        accepted: The number of draft tokens that its round accepted.
        finish_reason: Set on the last token; see `Round`.
        stats: The statistics so far; the same object is updated in place.
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
        text: The text, without the stop string that ended it.
        tokens: The generated ids, including the one that ended the output.
        finish_reason: See `Round`; "blank" for a blank text of several.
        stats: Counts and times; with beams, those of the search.
        logprobs: One for each token; None unless `logprobs=True`.
        score: With beams, log-probability / length ** length_penalty.
        sequences: All outputs, best first, if several were requested; this is the first of them.
    """

    text: str
    tokens: list[int]
    finish_reason: str
    stats: GenerationStats
    logprobs: list[float] | None = None
    score: float | None = None
    sequences: Sequence[GenerationResult] = ()


def blank_result(options: GenerationOptions) -> GenerationResult:
    """The result of a blank text of several, which is not decoded: it has no tokens."""
    result = GenerationResult("", [], "blank", GenerationStats(), [] if options.logprobs else None)
    count = options.num_return_sequences
    return result if count == 1 else replace(result, sequences=(result,) * count)


@dataclass(frozen=True)
class BatchResult(Generic[Result]):
    """The result of one prompt or recording of a batch, or a one-line error. index: its position, from 0."""

    index: int
    result: Result | None
    error: str | None = None
