"""Runs -> one row for each task and contender: medians, quartiles, and what follows from them. No formatting."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from speculative_decoding.decoding.stats import GenerationStats
from speculative_decoding.draft_length.costs import Costs

from .interleave import Run
from .speedup import efficiency, share_of_limit


@dataclass(frozen=True)
class Spread:
    """The median of repeats and the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


@dataclass(frozen=True)
class Weights:
    """What the machine's limit follows from: bytes that a pass of target and draft reads, bytes per second it can."""

    target_bytes: int
    draft_bytes: int
    bandwidth: float


@dataclass(frozen=True)
class Row:
    """A contender on a task. Times in ms per token are over all prompts of a repeat, encoder included.

    gain: against plain decoding of the same run, task and temperature. efficiency: only at temperature 0, for which its
    costs are measured, and where a draft model takes a fixed number of steps a round. same_ids: of the ids that greedy
    plain decoding gives, the share that is the same at its place; same_outputs: of prompts. None: does not apply.
    """

    task: str
    label: str
    temperature: float
    num_draft: int
    setting: str
    tokens: int
    ms_per_token: Spread
    gain: float
    is_ours: bool
    same_ids: float | None = None
    same_outputs: float | None = None
    decode_ms_per_token: Spread | None = None
    first_token_ms: float | None = None
    tokens_per_target_call: float | None = None
    acceptance: float | None = None
    peak_memory_bytes: int | None = None
    efficiency: float | None = None
    share_of_limit: float | None = None
    length: str = ""

    @property
    def tokens_per_second(self) -> float:
        return 1e3 / self.ms_per_token.median

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"tokens_per_second": self.tokens_per_second}


def summarise(
    runs: Sequence[Run],
    settings: Mapping[tuple[str, str], str],
    costs: Costs | None = None,
    weights: Weights | None = None,
) -> list[Row]:
    """Rows in the order in which contenders first ran in each task, plain decoding first.

    settings: (task, label) -> in which mode a peer ran. Every task must have runs of "plain".
    """
    groups: dict[tuple[str, float, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.task, run.temperature, run.label), []).append(run)
    order = {task: i for i, task in enumerate(dict.fromkeys(run.task for run in runs))}
    keys = sorted(
        groups, key=lambda key: (order[key[0]], groups[key][0].output.stats is None, key[1], key[2] != "plain")
    )
    rows = []
    for task, temperature, label in keys:
        plain = groups[task, temperature, "plain"]
        setting = settings.get((task, label), "")
        rows.append(row(groups[task, temperature, label], plain, setting, costs, weights))
    return rows


def row(runs: Sequence[Run], plain: Sequence[Run], setting: str, costs: Costs | None, weights: Weights | None) -> Row:
    first, ms = runs[0], Spread.of(per_repeat(runs, lambda run: run.output.seconds))
    reference = Spread.of(per_repeat(plain, lambda run: run.output.seconds)).median
    ids = shares_of_identity(runs, plain) if first.temperature == 0 else (None, None)
    basic = Row(
        task=first.task,
        label=first.label,
        temperature=first.temperature,
        num_draft=first.num_draft,
        setting=setting,
        tokens=sum(len(run.output.tokens) for run in runs if run.repeat == first.repeat),
        ms_per_token=ms,
        gain=reference / ms.median,
        is_ours=first.output.stats is not None,
        same_ids=ids[0],
        same_outputs=ids[1],
    )
    if not basic.is_ours:
        return basic
    total = GenerationStats()
    for run in runs:
        total.add(stats_of(run))
    decode = Spread.of(per_repeat(runs, lambda run: stats_of(run).decode_seconds))
    plain_decode = Spread.of(per_repeat(plain, lambda run: stats_of(run).decode_seconds)).median
    per_call, steps = total.tokens_per_target_call, first.draft_steps
    return Row(
        **{name: getattr(basic, name) for name in basic.__dataclass_fields__ if name not in OURS},
        decode_ms_per_token=decode,
        first_token_ms=1e3 * statistics.median(stats_of(run).time_to_first_token for run in runs),
        tokens_per_target_call=per_call,
        acceptance=total.acceptance_rate if total.drafted_tokens else None,
        peak_memory_bytes=total.peak_memory_bytes,
        efficiency=efficiency(
            plain_decode / decode.median, per_call, steps, costs.with_reading_spread(total.target_calls / len(runs))
        )
        if steps and costs is not None and first.temperature == 0
        else None,
        share_of_limit=None
        if weights is None or steps is None
        else share_of_limit(
            (weights.target_bytes + steps * weights.draft_bytes) / per_call,
            weights.bandwidth,
            decode.median / 1e3,
        ),
        length=runs[-1].output.length,
    )


OURS = (
    "decode_ms_per_token",
    "first_token_ms",
    "tokens_per_target_call",
    "acceptance",
    "peak_memory_bytes",
    "efficiency",
    "share_of_limit",
    "length",
)


def stats_of(run: Run) -> GenerationStats:
    assert run.output.stats is not None
    return run.output.stats


def per_repeat(runs: Sequence[Run], seconds: Any) -> list[float]:
    """For each repeat, ms per token over all its prompts."""
    repeats: dict[int, tuple[float, int]] = {}
    for run in runs:
        time, tokens = repeats.get(run.repeat, (0.0, 0))
        repeats[run.repeat] = time + seconds(run), tokens + len(run.output.tokens)
    return [1e3 * time / tokens for time, tokens in repeats.values()]


def shares_of_identity(runs: Sequence[Run], plain: Sequence[Run]) -> tuple[float, float]:
    """Of the ids, and of the outputs, the share that plain decoding has too, in the first repeat."""
    first = plain[0].repeat
    expected = {run.prompt: run.output.tokens for run in plain if run.repeat == first}
    found = {run.prompt: run.output.tokens for run in runs if run.repeat == runs[0].repeat}
    same = sum(a == b for prompt, ids in found.items() for a, b in zip(ids, expected[prompt], strict=False))
    longest = sum(max(len(ids), len(expected[prompt])) for prompt, ids in found.items())
    return same / longest, sum(ids == expected[prompt] for prompt, ids in found.items()) / len(found)
