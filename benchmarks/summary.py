"""Summarizes runs: one row per task and contender, with medians and quartiles. report.py formats them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from speculative_decoding.cli.modes import BASELINE
from speculative_decoding.decoding.results import GenerationStats

from .interleave import Run

T = TypeVar("T")


class Spread(NamedTuple):
    """Quartiles over repeats."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(*statistics.quantiles([*values] * 2 if len(values) == 1 else values, n=4, method="inclusive"))


@dataclass(frozen=True)
class SummaryRow:
    """A contender's results on a task (see `Task` and `Contender`). None marks unknown or meaningless figures.

    Args:
        model: Name and dtype.
        task: Name.
        slots: Batch size.
        label: Label of the contender.
        setting: Setting of the contender.
        temperature: Temperature of the contender.
        is_ours: False for peers.
        tokens: Number of tokens generated in one repeat.
        ms_per_token: Time over all prompts of a repeat, including the encoder.
        speedup: Speedup over baseline decoding in the same run, for the same task and temperature.
        same_ids: Share of positions at which this contender's id is the same as the greedy baseline's.
        decode_ms_per_token: Time without the encoder.
        tokens_per_target_call: See `GenerationStats`.
        acceptance: Acceptance rate.
        share_of_limit: Time to read the weights once, as a share of the baseline's `decode_ms_per_token`.
    """

    model: str
    task: str
    slots: int | None
    label: str
    setting: str
    temperature: float
    is_ours: bool
    tokens: int
    ms_per_token: Spread
    speedup: float
    same_ids: float | None = None
    decode_ms_per_token: float | None = None
    tokens_per_target_call: float | None = None
    acceptance: float | None = None
    share_of_limit: float | None = None


def grouped(items: Iterable[T], key: Callable[[T], Any]) -> dict[Any, list[T]]:
    found: dict[Any, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def summarize(model: str, runs: Sequence[Run], target_bytes: int, bandwidth: float) -> list[SummaryRow]:
    """Return rows in the order of the contenders' first runs. Every task needs baseline runs at every temperature.

    Args:
        model: Name and dtype.
        runs: Runs of all tasks.
        target_bytes: Bytes of weights that one target pass reads.
        bandwidth: Memory bandwidth in bytes per second.
    """
    model += f", {target_bytes / 1e6:.1f} MB per pass"
    groups = grouped(runs, lambda run: (run.task, run.contender.temperature, run.contender.label))
    return [row(model, groups[key], groups[*key[:2], BASELINE.name], target_bytes, bandwidth) for key in groups]


def row(model: str, runs: Sequence[Run], baseline: Sequence[Run], target_bytes: int, bandwidth: float) -> SummaryRow:
    task = runs[0].task
    contender = runs[0].contender
    ms, baseline_ms = (Spread.of(per_repeat(each, lambda run: run.output.seconds)) for each in (runs, baseline))
    values: dict[str, Any] = {}
    if contender.temperature == 0:
        values["same_ids"] = share_of_same_ids(runs, baseline)
    if is_ours := runs[0].output.stats is not None:
        total = GenerationStats()
        for run in runs:
            total.add(run.output.stats or GenerationStats())
        values["tokens_per_target_call"] = total.tokens_per_target_call
        values["acceptance"] = total.acceptance_rate if total.drafted_tokens else None
        if task.slots is None:  # in a batch, the time of a round would be counted once for each row
            ms_of = per_repeat(runs, lambda run: run.output.stats.decode_seconds if run.output.stats else 0.0)
            values["decode_ms_per_token"] = decode_ms = statistics.median(ms_of)
            if not total.drafted_tokens:
                values["share_of_limit"] = target_bytes / bandwidth / (decode_ms / 1e3)
    tokens = sum(len(run.output.tokens) for run in runs if run.repeat == runs[0].repeat)
    return SummaryRow(
        model=model,
        task=task.name,
        slots=task.slots,
        label=contender.label,
        setting=contender.setting,
        temperature=contender.temperature,
        is_ours=is_ours,
        tokens=tokens,
        ms_per_token=ms,
        speedup=baseline_ms.median / ms.median,
        **values,
    )


def per_repeat(runs: Sequence[Run], seconds: Callable[[Run], float]) -> list[float]:
    """Return the time per token in ms for each repeat, over all of its prompts."""
    repeats = grouped(runs, lambda run: run.repeat).values()
    return [1e3 * sum(map(seconds, each)) / sum(len(run.output.tokens) for run in each) for each in repeats]


def share_of_same_ids(runs: Sequence[Run], baseline: Sequence[Run]) -> float:
    """Compare the first repeats."""
    expected = {run.prompt: run.output.tokens for run in baseline if run.repeat == baseline[0].repeat}
    found = {run.prompt: run.output.tokens for run in runs if run.repeat == runs[0].repeat}
    same = sum(a == b for prompt, ids in found.items() for a, b in zip(ids, expected[prompt], strict=False))
    longest = sum(max(len(ids), len(expected[prompt])) for prompt, ids in found.items())
    return same / longest
