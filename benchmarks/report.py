"""Formats rows as Markdown tables, and determines the fastest flags."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from speculative_decoding.cli.modes import BASELINE

from .machine import described
from .summary import SummaryRow, grouped


def formatted(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


COLUMNS: Mapping[str, Callable[[SummaryRow], str]] = {  # columns that are empty in all rows are omitted from a table
    "slots": lambda row: formatted(row.slots, "d"),
    "mode": lambda row: row.label if row.is_ours else f"{row.label} ({row.setting})",
    "T": lambda row: f"{row.temperature:g}",
    "ms/token (quartiles)": lambda row: "{1:.2f} ({0:.2f}-{2:.2f})".format(*row.ms_per_token),
    "tokens/s": lambda row: f"{1e3 / row.ms_per_token.median:.0f}",
    "speedup": lambda row: f"{row.speedup:.2f}x",
    "decoder only, ms/token": lambda row: formatted(row.decode_ms_per_token, ".2f"),
    "tokens/target call": lambda row: formatted(row.tokens_per_target_call, ".2f"),
    "accepted": lambda row: formatted(row.acceptance, ".0%"),
    "of the bandwidth limit": lambda row: formatted(row.share_of_limit, ".0%"),
    "same ids": lambda row: formatted(row.same_ids, ".1%"),
}


def table(rows: Sequence[SummaryRow]) -> str:
    """Return the table of one task, with all its batch sizes."""
    header = [name for name, cell in COLUMNS.items() if any(map(cell, rows))]
    lines = [header, ["---"] * len(header), *([COLUMNS[name](row) for name in header] for row in rows)]
    title = f"### {rows[0].model}: {rows[0].task}, {rows[0].tokens} tokens per repeat"
    return title + "\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines)


def report(rows: Sequence[SummaryRow], environment: Mapping[str, Any], notes: Sequence[str]) -> str:
    tables = grouped(rows, lambda row: (row.model, row.task))
    return "\n\n".join(
        [described(environment), *(f"**Note: {note}.**" for note in notes), *map(table, tables.values())]
    )


def fastest_lines(rows: Sequence[SummaryRow]) -> list[str]:
    """Return a line with the fastest flags for each task, and one for all tasks of a model, weighted by tokens.

    Each temperature and batch size has separate lines. If only one mode was measured, there are no lines.
    """
    lines = []
    own = (row for row in rows if row.is_ours)
    for (_, slots, temperature), alike in grouped(own, lambda row: (row.model, row.slots, row.temperature)).items():
        tokens = {row.task: row.tokens for row in alike if row.label == BASELINE.name}
        times = {task: dict.fromkeys((row.setting for row in alike), 0.0) for task in [*tokens, "all of them"]}
        for row in alike:
            for task in (row.task, "all of them"):
                times[task][row.setting] += row.ms_per_token.median * tokens[row.task]
        where = f", {slots} slots" * (slots is not None) + f", temperature {temperature:g}" * (temperature > 0)
        for task in [*tokens, "all of them"][: None if len(tokens) > 1 else 1]:
            baseline = next(iter(times[task].values()))
            flags = min(times[task], key=times[task].__getitem__)
            speedup = baseline / times[task][flags]
            verdict = f"{speedup:.2f}x baseline decoding" if speedup > 1 else "no draft beats baseline decoding"
            lines += [f"fastest for {task}{where}: {flags}, {verdict}"] * (len(times[task]) > 1)
    return lines
