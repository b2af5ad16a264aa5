"""What a job has done, and how fast."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..decoding.results import GenerationResult
from ..decoding.stats import GenerationStats


@dataclass
class Totals:
    """What a job has done. Times are wall-clock seconds; those of rows that were decoded together overlap, so
    `encode_seconds` and `decode_seconds` share out the time of the whole job as the rows' own times divide.

    lines, errors: written, with those of earlier runs if it was resumed. All else is of this run alone.
    error_lines: the first few. input_bytes: how far into the input that reaches.
    batch_time_to_first_token: until each of the first `slots` rows had one.
    """

    lines: int = 0
    errors: int = 0
    error_lines: list[int] = field(default_factory=list)
    input_bytes: int = 0
    rows: int = 0
    seconds: float = 0.0
    first_token_seconds: float = 0.0  # summed over rows
    batch_time_to_first_token: float = 0.0
    stats: GenerationStats = field(default_factory=GenerationStats)

    def add(self, result: GenerationResult, *, is_first: bool) -> None:
        """is_first: one of the rows that filled the slots when the engine began."""
        self.rows += 1
        self.stats.add(result.stats)
        self.first_token_seconds += result.stats.time_to_first_token
        if is_first:
            self.batch_time_to_first_token = max(self.batch_time_to_first_token, result.stats.time_to_first_token)

    @property
    def mean_time_to_first_token(self) -> float:
        return ratio(self.first_token_seconds, self.rows)

    @property
    def end_to_end_tps(self) -> float:
        """Generated tokens per second of the job."""
        return ratio(self.stats.generated_tokens, self.seconds)

    @property
    def decode_tps(self) -> float:
        """Generated tokens per second of decoding, all slots together."""
        return ratio(self.stats.generated_tokens, self.decode_seconds)

    @property
    def accepted_per_target_call(self) -> float:
        return ratio(self.stats.accepted_tokens, self.stats.target_calls)

    @property
    def encode_seconds(self) -> float:
        return self.stats.encode_seconds * self._share

    @property
    def decode_seconds(self) -> float:
        return self.stats.decode_seconds * self._share

    @property
    def _share(self) -> float:
        return min(1.0, ratio(self.seconds, self.stats.encode_seconds + self.stats.decode_seconds))

    def as_dict(self) -> dict[str, Any]:
        """For JSON. `iterations` counts a round of each row; rounds of rows that are decoded together share a pass."""
        of_a_row = ("time_to_first_token", "total_variation", "generation_tps")
        ours = (
            *("lines", "errors", "rows", "seconds", "mean_time_to_first_token", "batch_time_to_first_token"),
            *("decode_tps", "end_to_end_tps", "accepted_per_target_call", "encode_seconds", "decode_seconds"),
        )
        stats = {name: value for name, value in self.stats.as_dict().items() if name not in of_a_row}
        return stats | {name: getattr(self, name) for name in ours} | {"iterations": self.stats.target_calls}


def ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
