"""Runs -> one row for each task and contender: medians, quartiles, and what follows from them. No formatting."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from speculative_decoding.decoding.stats import GenerationStats

from .interleave import Run

T = TypeVar("T")


class Spread(NamedTuple):
    """The quartiles of repeats."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(*statistics.quantiles([*values] * 2 if len(values) == 1 else values, n=4, method="inclusive"))


@dataclass(frozen=True)
class Row:
    """A contender on a task (see `Task` and `Contender`). Times in ms per token are over all prompts of a repeat,
    encoder included but for decode_ms_per_token.

    tokens: of a repeat. gain: against plain decoding of the same run, task and temperature. same_ids: of the ids that
    greedy plain decoding gives, the share that is the same at its place. share_of_limit: of the time of a token without
    drafts (decoding alone), the part in which the weights of a pass could be read. None: not known, or of no sense.
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
    gain: float
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


def summarise(model: str, runs: Sequence[Run], target_bytes: int, bandwidth: float) -> list[Row]:
    """Rows in the order in which contenders first ran. Every task must have runs of "plain" at every temperature.

    target_bytes: of weights that a pass of the target reads; bandwidth: how many the machine reads in a second.
    """
    model += f", {target_bytes / 1e6:.1f} MB a pass"
    groups = grouped(runs, lambda run: (run.task, run.contender.temperature, run.contender.label))
    return [row(model, groups[key], groups[*key[:2], "plain"], target_bytes, bandwidth) for key in groups]


def row(model: str, runs: Sequence[Run], plain: Sequence[Run], target_bytes: int, bandwidth: float) -> Row:
    task, who = runs[0].task, runs[0].contender
    ms, plain_ms = (Spread.of(per_repeat(each, lambda run: run.output.seconds)) for each in (runs, plain))
    values: dict[str, Any] = {}
    if who.temperature == 0:
        values["same_ids"] = share_of_same_ids(runs, plain)
    if is_ours := runs[0].output.stats is not None:
        total = GenerationStats()
        for run in runs:
            total.add(run.output.stats or GenerationStats())
        values["tokens_per_target_call"] = total.tokens_per_target_call
        values["acceptance"] = total.acceptance_rate if total.drafted_tokens else None
        if task.slots is None:  # in batches the time of a round counts for each of its rows
            ms_of = per_repeat(runs, lambda run: run.output.stats.decode_seconds if run.output.stats else 0.0)
            values["decode_ms_per_token"] = decode_ms = statistics.median(ms_of)
            if not total.drafted_tokens:
                values["share_of_limit"] = target_bytes / bandwidth / (decode_ms / 1e3)
    tokens = sum(len(run.output.tokens) for run in runs if run.repeat == runs[0].repeat)
    about = (model, task.name, task.slots, who.label, who.setting, who.temperature, is_ours, tokens)
    return Row(*about, ms, plain_ms.median / ms.median, **values)


def per_repeat(runs: Sequence[Run], seconds: Callable[[Run], float]) -> list[float]:
    """For each repeat, ms per token over all its prompts."""
    repeats = grouped(runs, lambda run: run.repeat).values()
    return [1e3 * sum(map(seconds, each)) / sum(len(run.output.tokens) for run in each) for each in repeats]


def share_of_same_ids(runs: Sequence[Run], plain: Sequence[Run]) -> float:
    """In the first repeat."""
    expected = {run.prompt: run.output.tokens for run in plain if run.repeat == plain[0].repeat}
    found = {run.prompt: run.output.tokens for run in runs if run.repeat == runs[0].repeat}
    same = sum(a == b for prompt, ids in found.items() for a, b in zip(ids, expected[prompt], strict=False))
    longest = sum(max(len(ids), len(expected[prompt])) for prompt, ids in found.items())
    return same / longest
