"""A request: a prompt, its options, and its output as it grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import mlx.core as mx
import numpy as np

from ..draft_length.base import DraftLength
from ..drafters.base import RequestView
from .results import GenerationResult, GenerationStats
from .text_streamer import TextStreamer


class Observer(Protocol):
    """Receives the target's logits, for callers that need more than tokens, such as a transcription.

    position: The number of prefix tokens after which `prefilled` receives the logits.
    """

    position: int

    def prefilled(self, logits: mx.array) -> None:
        """Receive the raw logits (V,) after the first `position` tokens, as a lazy array."""

    def committed(self, logits: np.ndarray, tokens: Sequence[int]) -> None:
        """Receive a round's tokens, and each token's logits after penalties and constraints, (N, V)."""


@dataclass(eq=False)
class Request(RequestView):
    """One output to decode.

    Args:
        draft_length: The policy that chooses how many tokens are drafted. Requests may share a policy, which then
            learns from all of them.
        streamer: Converts tokens to text and finds the end of the output.
        observer: Receives logits; None unless the caller needs them.
        search: The state that a strategy other than `speculate` keeps for this request, such as its beams.

    Attributes:
        prefix_length: The number of decoder tokens that were not generated: the start token and a forced prefix.
        finish_reason: "stop" at an end-of-sequence token or a stop string, "length" at max_tokens, "error" if the
            target's logits are not finite, "cancelled" for a cancelled request; None while the request runs.
        error: One line for the user, if finish_reason is "error".
        text: The text released so far.
        new_texts: The text that each token of the last round released.
        logprobs: The log-probability of each generated token, if the request's options set `logprobs`.
        outputs: The results, best first, of a strategy that finds several outputs; otherwise empty.
        stats: The request's statistics, which are updated in place.
        needs_retry: Whether the target's logits were not finite in the last round; see `retry_or_fail`.
    """

    draft_length: DraftLength = field(kw_only=True)
    streamer: TextStreamer = field(kw_only=True)
    observer: Observer | None = field(kw_only=True, default=None)
    search: Any = field(kw_only=True, default=None)
    prefix_length: int = field(init=False)
    finish_reason: str | None = field(init=False, default=None)
    error: str | None = field(init=False, default=None)
    text: str = field(init=False, default="")
    new_texts: list[str] = field(init=False, default_factory=list)
    logprobs: list[float] = field(init=False, default_factory=list)
    outputs: Sequence[GenerationResult] = field(init=False, default=())
    stats: GenerationStats = field(init=False)
    started: float = field(init=False, default=0.0)  # when its encoding began, from `time.perf_counter`
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

    def fail(self) -> None:
        """End the output, because the target's logits are not finite."""
        self.finish_reason = "error"
        self.error = not_finite(len(self.tokens) + 1)

    def reason_of_end(self, length: int) -> str:
        """The finish_reason of an output of this length that ends with an end token.

        An end token that was forced at max_tokens counts as "length".
        """
        is_forced = length == self.options.max_tokens and self.constraints.forces(self.prefix_length + length - 1)
        return "length" if is_forced else "stop"

    def results(self) -> Sequence[GenerationResult]:
        """The results of a finished request, best first."""
        assert self.finish_reason is not None
        logprobs = self.logprobs if self.options.logprobs else None
        return self.outputs or [GenerationResult(self.text, self.tokens, self.finish_reason, self.stats, logprobs)]


def not_finite(number: int) -> str:
    """The error message for output token `number`, counted from 1."""
    return (
        f"target: the logits of output token {number} are not finite (corrupt weights, or overflow in this dtype); "
        "reconvert the model, or use float32"
    )
