"""A request: a prompt, its options, and its output as it grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from ..beam_search.search import BeamSearch
from ..draft_length.base import DraftLength
from ..drafters.base import RequestView
from .results import GenerationResult
from .stats import GenerationStats
from .text_streamer import TextStreamer


@dataclass(eq=False)
class Evidence:
    """Probabilities of an output that a transcription needs.

    Args:
        position: Measure the probability of `token` after this many decoder tokens, which belong to the prefix.
        token: Its id.

    Attributes:
        probability: Of `token`, (1,); lazy.
        sum_logprob: The log-probability of the output, with constraints and at temperature 1.
    """

    position: int
    token: int
    probability: mx.array | None = field(init=False, default=None)
    sum_logprob: float = field(init=False, default=0.0)

    def add(self, scores: np.ndarray, tokens: Sequence[int]) -> None:
        """Count the tokens of a round. scores: (N, V) float32, logits with constraints at their positions.

        Computed on the host, because only the positions of committed tokens count, which the device does not know.
        """
        largest = scores.max(axis=-1)
        logsumexp = largest + np.log(np.exp(scores - largest[:, None]).sum(axis=-1, dtype=np.float64))
        self.sum_logprob += float((scores[np.arange(len(tokens)), tokens] - logsumexp).sum())


@dataclass(eq=False)
class Request(RequestView):
    """One output to decode.

    Args:
        draft_length: Chooses how many tokens are drafted; requests may share one, which then learns from all of them.
        streamer: Turns tokens into text and finds the end of the output.
        search: The beam search, with several beams; its best output is committed when it is finished.
        evidence: Gathered while the request is decoded; None unless requested.

    Attributes:
        prefix_length: The number of decoder tokens that were not generated: the start token and a forced prefix.
        finish_reason: "stop" at an end-of-sequence token or a stop string, "length" at max_tokens, "error" if the
            target's logits are not finite, "cancelled" for a cancelled request; None while it runs.
        text: The text released so far.
        new_texts: The text that each token of the last round released.
        logprobs: One for each generated token, if the request has `logprobs=True`.
        stats: Updated in place.
        needs_retry: Its logits were not finite in the last round; see `retry_or_fail`.
    """

    draft_length: DraftLength = field(kw_only=True)
    streamer: TextStreamer = field(kw_only=True)
    search: BeamSearch | None = field(kw_only=True, default=None)
    evidence: Evidence | None = field(kw_only=True, default=None)
    prefix_length: int = field(init=False)
    finish_reason: str | None = field(init=False, default=None)
    text: str = field(init=False, default="")
    new_texts: list[str] = field(init=False, default_factory=list)
    logprobs: list[float] = field(init=False, default_factory=list)
    stats: GenerationStats = field(init=False)
    started: float = field(init=False, default=0.0)  # when its encoding began; seconds of the engine's clock
    needs_retry: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.prefix_length = len(self.decoder_tokens)
        self.stats = GenerationStats(prompt_tokens=len(self.source))

    @property
    def tokens(self) -> list[int]:
        """The generated tokens."""
        return self.decoder_tokens[self.prefix_length :]

    @property
    def remaining_tokens(self) -> int:
        return self.options.max_tokens - (len(self.decoder_tokens) - self.prefix_length)

    @property
    def num_cached(self) -> int:
        """The number of tokens that the target's cache holds between rounds: all but the last."""
        return len(self.decoder_tokens if self.search is None else self.search.beams[0]) - 1

    @property
    def error(self) -> str | None:
        return not_finite(len(self.tokens) + 1) if self.finish_reason == "error" else None

    def commit(self, tokens: Sequence[int]) -> list[int]:
        """Append the tokens of a round up to the first one that ends the output, and decode their text.

        Returns:
            The committed tokens. Their text is in `new_texts`.
        """
        is_last = len(tokens) == self.remaining_tokens
        committed = []
        texts = []
        for token in tokens:
            committed.append(token)
            texts.append(self.streamer.add(token))
            if self.streamer.has_ended:
                break
        self.decoder_tokens += committed
        if self.streamer.has_ended:
            self.finish_reason = self.reason_of_end(len(self.decoder_tokens) - self.prefix_length)
        elif is_last:
            self.finish_reason = "length"
        if self.finish_reason:
            texts[-1] += self.streamer.finish()
        self.new_texts = texts
        self.text += "".join(texts)
        return committed

    def reason_of_end(self, length: int) -> str:
        """The finish_reason of an output of this length that ends with an end token.

        An end token that was forced at max_tokens counts as "length".
        """
        is_forced = length == self.options.max_tokens and self.constraints.forces(self.prefix_length + length - 1)
        return "length" if is_forced else "stop"

    def results(self) -> list[GenerationResult]:
        """The results of a finished request, best first; several with beams."""
        assert self.finish_reason is not None
        if self.search is None:
            logprobs = self.logprobs if self.options.logprobs else None
            return [GenerationResult(self.text, self.tokens, self.finish_reason, self.stats, logprobs)]
        found = []
        for each in self.search.best(self.options.num_return_sequences):
            reason = self.reason_of_end(len(each.tokens)) if each.tokens[-1] in self.search.ends else "length"
            text = self.streamer.text_of(each.tokens)
            found.append(GenerationResult(text, each.tokens, reason, self.stats, score=each.score))
        return found


def not_finite(number: int) -> str:
    """The error for output token `number`, from 1."""
    return (
        f"target: the logits of output token {number} are not finite (corrupt weights, or overflow in this dtype); "
        "reconvert the model, or use float32"
    )
