"""What a generation cost and what it gained. Filled from the rounds; knows nothing of how they came about."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any


@dataclass(frozen=True)
class Round:
    """One round of a row: the event that streams, consoles and statistics read.

    tokens: the new ids; the first `accepted` of them were drafted.
    proposed: the drafted ids, the accepted ones first.
    kind: which kind of draft it was, where a drafter has several (`BatchDrafter.kind`).
    seconds: the whole round, filled in by the engine. draft_seconds: proposing, and verify_seconds: the target's pass,
        where the request is `timed` (that takes a second wait for the device), else None; what is left is the host's.
    finish_reason: "stop" at an end-of-sequence token or a stop string, "length" at max_tokens, "error" (without tokens)
        where the target's logits are not finite, None while there is more to come.
    total_variation: what a lossy rule cost, summed over the tokens (`AcceptanceResult`); 0 if it is lossless.
    logprobs: of each of the tokens its log-probability under the target, if the request asks for it.
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
        """How many tokens were proposed."""
        return len(self.proposed)

    @property
    def rejected(self) -> list[int]:
        """The drafted ids that were not accepted."""
        return self.proposed[self.accepted :]


NOT_SUMMED = ("accepted_histogram", "time_to_first_token", "peak_memory_bytes", "lossless")


@dataclass
class GenerationStats:
    """Counts and times of one generation, or of several added up. Times are wall-clock seconds."""

    prompt_tokens: int = 0
    generated_tokens: int = 0  # the end-of-sequence token counts
    target_calls: int = 0  # passes of the target's decoder = rounds
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    accepted_histogram: Counter[int] = field(default_factory=Counter)  # rounds by how many they accepted
    encode_seconds: float = 0.0
    decode_seconds: float = 0.0
    draft_seconds: float | None = None  # of decode_seconds; None unless the rounds were timed
    verify_seconds: float | None = None  # likewise
    time_to_first_token: float = 0.0
    peak_memory_bytes: int = 0
    lossless: bool = True
    total_variation: float = 0.0  # summed over tokens: what a lossy rule cost

    def add_round(self, event: Round) -> None:
        self.generated_tokens += len(event.tokens)
        self.target_calls += 1
        self.drafted_tokens += event.drafted
        self.accepted_tokens += event.accepted
        self.accepted_histogram[event.accepted] += 1
        self.total_variation += event.total_variation
        self.decode_seconds += event.seconds
        if event.draft_seconds is not None and event.verify_seconds is not None:
            self.draft_seconds = (self.draft_seconds or 0.0) + event.draft_seconds
            self.verify_seconds = (self.verify_seconds or 0.0) + event.verify_seconds

    def add(self, other: GenerationStats) -> None:
        """Add another generation. Times and counts sum; the time to the first token is the first one's."""
        if not self.target_calls:
            self.time_to_first_token = other.time_to_first_token
        for name, value in vars(other).items():
            if name not in NOT_SUMMED and value is not None:
                setattr(self, name, (getattr(self, name) or 0) + value)
        self.accepted_histogram.update(other.accepted_histogram)
        self.peak_memory_bytes = max(self.peak_memory_bytes, other.peak_memory_bytes)
        self.lossless = self.lossless and other.lossless

    @property
    def acceptance_rate(self) -> float:
        """Accepted / drafted."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else 0.0

    @property
    def acceptance_by_position(self) -> list[float]:
        """How often each drafted position was accepted after all before it were, for drafts of one length."""
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
        """The mean, over generated tokens, of the total variation between the law a token was drawn from and the
        target's, given what stands before it (Leviathan et al. 2023: beta relaxed - beta). At temperature 0 this is
        the share of tokens that are not the target's arg-max. 0 unless a lossy rule was asked for.
        """
        return self.total_variation / self.generated_tokens if self.generated_tokens else 0.0

    @property
    def generation_tps(self) -> float:
        """Generated tokens per second of decoding; encoding is not in it."""
        return self.generated_tokens / self.decode_seconds if self.decode_seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Everything that is known, for JSON."""
        derived = ("acceptance_rate", "tokens_per_target_call", "delta_total_variation", "generation_tps")
        values = vars(self) | {name: getattr(self, name) for name in derived}
        return {name: value for name, value in values.items() if value is not None}
