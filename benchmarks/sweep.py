"""Ways of decoding, measured against each other: each prompt in every way in turn, medians over repeats.

Knows nothing of how drafts are made and verified, and prints nothing.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from speculative_decoding.cli.tuned import Tuned
from speculative_decoding.decoding.stats import GenerationStats
from speculative_decoding.drafters import NgramDrafter
from speculative_decoding.generate import GenerationResult
from speculative_decoding.session import Session

from .prediction import Watched

PLAIN = Tuned("none", 0)
Runs = Sequence[Sequence[GenerationResult]]  # of each case (a prompt with a seed), one for each repeat


@dataclass
class Setting:
    """A way of decoding, with the experience it gathers, and its runs."""

    choice: Tuned
    session: Session
    length: Watched
    ngram: NgramDrafter | None = None
    runs: list[list[GenerationResult]] = field(default_factory=list)

    def run(self, prompt: str, request: Mapping[str, Any]) -> GenerationResult:
        drafts = {"drafter": self.choice.drafter, "num_draft": self.length, "ngram": self.ngram}
        result = self.session.generate(prompt, **request, **drafts)
        self.length.end(result.stats)
        return result


@dataclass(frozen=True)
class Row:
    """What a setting achieved. first_token: seconds. same: cases with regular decoding's tokens, None where chance
    tells them apart; of `cases`.
    """

    choice: Tuned
    acceptance: float
    tokens_per_call: float
    tokens_per_second: float
    speed_up: float
    first_token: float
    peak_memory_bytes: int
    same: int | None
    cases: int


def measured(choice: Tuned, runs: Runs, plain: Runs, *, comparable: bool) -> Row:
    """A case counts with its median time per token, and with as many tokens as plain decoding gave it: samples of
    different length weigh the same.
    """
    total = GenerationStats()
    for result in (result for case in runs for result in case):
        total.add(result.stats)
    seconds, plain_seconds = (
        sum(
            statistics.median(result.stats.decode_seconds / len(result.tokens) for result in case)
            * statistics.mean(len(result.tokens) for result in regular)
            for case, regular in zip(ours, plain, strict=True)
        )
        for ours in (runs, plain)
    )
    tokens = sum(statistics.mean(len(result.tokens) for result in regular) for regular in plain)
    same = sum(
        all(result.tokens == regular[0].tokens for result in case) for case, regular in zip(runs, plain, strict=True)
    )
    return Row(
        choice,
        acceptance=total.acceptance_rate,
        tokens_per_call=total.tokens_per_target_call,
        tokens_per_second=tokens / seconds,
        speed_up=plain_seconds / seconds,
        first_token=statistics.median(result.stats.time_to_first_token for case in runs for result in case),
        peak_memory_bytes=total.peak_memory_bytes,
        same=same if comparable else None,
        cases=len(runs),
    )


def fastest(rows: Sequence[Row]) -> Row:
    """The first of the fastest, so plain decoding where nothing beats it."""
    return max(rows, key=lambda row: row.speed_up)


def sweep(settings: Sequence[Setting], cases: Sequence[tuple[str, Mapping[str, Any]]], repeats: int) -> Iterator[int]:
    """Decode each case with every setting before the next one, in an order that changes: a machine is now slower and
    now faster, which must not favour one of them. Yields the number of each repeat that is done. One run of each,
    before them, is not counted, nor are its cycles.
    """
    prompt, request = cases[0]
    for setting in settings:
        setting.run(prompt, request)
        setting.length.cycles.clear()
        setting.runs += ([] for _ in cases)
    order = random.Random(0)
    for repeat in range(repeats):
        for number, (prompt, request) in enumerate(cases):
            for setting in order.sample(settings, len(settings)):
                setting.runs[number].append(setting.run(prompt, request))
        yield repeat + 1
