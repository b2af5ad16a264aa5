"""The data that callers receive: rounds, generation statistics, stream tokens, and results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any


@dataclass
class Round:
    """One round of one request. Not frozen, because creating a frozen instance takes three times as long.

    Args:
        tokens: The committed ids; the first `accepted` of them are draft tokens. Empty if the target's logits were not
            finite, and with beams until the search is finished.
        proposed: All draft tokens of the round, accepted or not; the accepted ones come first.
        accepted: The number of accepted draft tokens that became part of the output.
        seconds: Wall-clock time of the round; filled in by the engine.
        kind: The kind of draft (`BatchDrafter.kind_and_limit`); "" without a draft.
        draft_seconds: Time to draft, for `timed` requests. Measuring it requires a second host sync.
        verify_seconds: Time of the target's pass, for `timed` requests. The rest of `seconds` is host time.
        finish_reason: "stop" at an end-of-sequence token or a stop string, "length" at max_tokens, "error" (without
            tokens) if the target's logits are not finite; None if more rounds follow.
        total_variation: The error of a lossy rule, summed over the tokens (see `AcceptanceResult`).
        logprobs: The log-probability of each token under the target, if requested.
    """

    tokens: list[int]
    proposed: list[int]
    accepted: int
    seconds: float = 0.0
    kind: str = ""
    draft_seconds: float | None = None
    verify_seconds: float | None = None
    finish_reason: str | None = None
    total_variation: float = 0.0
    logprobs: list[float] | None = None

    @property
    def drafted(self) -> int:
        """The number of draft tokens."""
        return len(self.proposed)

    @property
    def from_draft(self) -> list[bool]:
        """Whether each token is an accepted draft token."""
        return [i < self.accepted for i in range(len(self.tokens))]

    @property
    def rejected(self) -> list[int]:
        """The draft tokens that were not accepted."""
        return self.proposed[self.accepted :]


@dataclass
class GenerationStats:
    """Counts and times of one generation, or the sum of several. Times are wall-clock seconds."""

    prompt_tokens: int = 0
    generated_tokens: int = 0  # includes the end-of-sequence token
    target_calls: int = 0  # the number of rounds; each is one pass of the target's decoder
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    accepted_histogram: Counter[int] = field(default_factory=Counter)  # counts rounds by number of accepted tokens
    drafted_by_kind: Counter[str] = field(default_factory=Counter)  # by `Round.kind`
    accepted_by_kind: Counter[str] = field(default_factory=Counter)
    declined_by_kind: Counter[str] = field(default_factory=Counter)  # drafts for which `DraftLength` chose no tokens
    encode_seconds: float = 0.0
    decode_seconds: float = 0.0
    draft_seconds: float | None = None  # part of decode_seconds; None unless timed
    verify_seconds: float | None = None  # part of decode_seconds; None unless timed
    time_to_first_token: float = 0.0
    # MLX's peak memory in this process, for all sessions together, because MLX does not measure sessions separately. A
    # session never resets the peak, because that would distort other sessions' figures; call mx.reset_peak_memory().
    peak_memory_bytes: int = 0
    lossless: bool = True
    total_variation: float = 0.0  # the error of a lossy rule, summed over tokens

    def add(self, other: GenerationStats) -> None:
        """Add another generation. Times and counts are summed, except that the first `time_to_first_token` is kept."""
        if not self.target_calls:
            self.time_to_first_token = other.time_to_first_token
        not_summed = ("time_to_first_token", "peak_memory_bytes", "lossless")
        for name, value in vars(other).items():
            if isinstance(value, Counter):
                getattr(self, name).update(value)
            elif name not in not_summed and value is not None:
                setattr(self, name, (getattr(self, name) or 0) + value)
        self.peak_memory_bytes = max(self.peak_memory_bytes, other.peak_memory_bytes)
        self.lossless = self.lossless and other.lossless

    @property
    def acceptance_rate(self) -> float:
        """The share of draft tokens that were accepted."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else 0.0

    @property
    def acceptance_by_position(self) -> list[float]:
        """Each position's acceptance rate, given that all earlier ones were accepted. Assumes equally long drafts."""
        longest = max(self.accepted_histogram, default=0)
        reached = [
            sum(n for accepted, n in self.accepted_histogram.items() if accepted >= i) for i in range(longest + 1)
        ]
        return [after / before for before, after in pairwise(reached)]

    @property
    def tokens_per_target_call(self) -> float:
        return self.generated_tokens / self.target_calls if self.target_calls else 0.0

    @property
    def delta_total_variation(self) -> float:
        """The mean total variation between the distribution of each token and the target's, given the tokens before it.

        Leviathan et al. 2023 call this value beta relaxed - beta. At temperature 0, it is the share of tokens that are
        not the target's arg-max. For lossless rules, it is 0.
        """
        return self.total_variation / self.generated_tokens if self.generated_tokens else 0.0

    @property
    def generation_tps(self) -> float:
        """Generated tokens per second of decoding time, which excludes encoding."""
        return self.generated_tokens / self.decode_seconds if self.decode_seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return all values that are not None, for JSON."""
        derived = ("acceptance_rate", "tokens_per_target_call", "delta_total_variation", "generation_tps")
        values = vars(self) | {name: getattr(self, name) for name in derived}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class GenerationResponse:
    """One token of a stream.

    Args:
        text: The text that the token releases; empty while a character or a stop string may be incomplete.
        token: The id of the token.
        logprob: The token's log-probability under the target, at temperature 1; None unless `logprobs=True`.
        from_draft: Whether the token is an accepted draft token.
        accepted: The number of draft tokens that were accepted in the token's round.
        finish_reason: Set on the last token; see `Round`.
        stats: The request's current statistics; the same object is updated in place with each token.
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
        finish_reason: See `Round`; "blank" for a blank prompt in a batch.
        stats: Counts and times; with beams, of the whole search.
        logprobs: The log-probability of each token; None unless `logprobs=True`.
        score: With beams, log-probability / length ** length_penalty.
        sequences: All outputs, best first, if several were requested; this result repeats the first.
    """

    text: str
    tokens: list[int]
    finish_reason: str
    stats: GenerationStats
    logprobs: list[float] | None = None
    score: float | None = None
    sequences: Sequence[GenerationResult] = ()
