"""Rows as Markdown, and the flags that were fastest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .summary import Row, Spread, grouped


def shown(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def spread(value: Spread) -> str:
    return f"{value.median:.2f} ({value.low:.2f}-{value.high:.2f})"


COLUMNS: Mapping[str, Callable[[Row], str]] = {
    "way": lambda row: row.label if row.is_ours else f"{row.label} ({row.setting})",
    "T": lambda row: f"{row.temperature:g}",
    "ms/token (quartiles)": lambda row: spread(row.ms_per_token),
    "tokens/s": lambda row: f"{1e3 / row.ms_per_token.median:.0f}",
    "against plain": lambda row: f"{row.gain:.2f}x",
    "decoding alone, ms/token": lambda row: shown(row.decode_ms_per_token, ".2f"),
    "tokens/target call": lambda row: shown(row.tokens_per_target_call, ".2f"),
    "accepted": lambda row: shown(row.acceptance, ".0%"),
    "of the byte limit": lambda row: shown(row.share_of_limit, ".0%"),
    "same ids (outputs)": lambda row: (
        "" if row.same_ids is None else f"{row.same_ids:.1%} ({shown(row.same_outputs, '.0%')})"
    ),
    "draft length at the end": lambda row: row.length if row.label.endswith("auto") else "",
}


def series(rows: Sequence[Row]) -> dict[tuple[str, str, str], list[Row]]:
    """(model, task, axis) -> rows of a table."""
    return grouped(rows, lambda row: (row.model, row.task, row.axis))


def table(rows: Sequence[Row]) -> str:
    """Of a task, or a series of tasks."""
    first = rows[0]
    columns: dict[str, Callable[[Row], str]] = {first.axis: lambda row: str(row.at) * bool(row.axis), **COLUMNS}
    header = [name for name, cell in columns.items() if any(cell(row) for row in rows)]
    lines = [header, ["---"] * len(header), *([columns[name](row) for name in header] for row in rows)]
    title = f"### {first.model}: {first.task}" + f", {first.tokens} tokens a repeat" * (not first.axis)
    return title + "\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines)


def report(rows: Sequence[Row], environment: Mapping[str, Any], notes: Sequence[str]) -> str:
    where = "; ".join(f"{name.replace('_', ' ')} {value}" for name, value in environment.items())
    return "\n\n".join([where, *(f"**Note: {note}.**" for note in notes), *map(table, series(rows).values())])


def fastest_lines(rows: Sequence[Row]) -> list[str]:
    """The flags of our fastest way on each task, and on all of a model together, to which each brings its tokens; at
    each temperature and number of slots. Nothing where there was no choice.
    """
    lines = []
    for (_, axis, at, temperature), alike in grouped(
        (row for row in rows if row.is_ours), lambda row: (row.model, row.axis, row.at, row.temperature)
    ).items():
        tokens = {row.task: row.tokens for row in alike if row.label == "plain"}
        times = {task: dict.fromkeys((row.setting for row in alike), 0.0) for task in [*tokens, "all of them"]}
        for row in alike:
            for task in (row.task, "all of them"):
                times[task][row.setting] += row.ms_per_token.median * tokens[row.task]
        where = f", {at} {axis}" * bool(axis) + f", temperature {temperature:g}" * (temperature > 0)
        for task in [*tokens, "all of them"][: None if len(tokens) > 1 else 1]:
            plain, flags = next(iter(times[task].values())), min(times[task], key=times[task].__getitem__)
            gain = plain / times[task][flags]
            said = f"{gain:.2f}x plain decoding" if gain > 1 else "no draft beats plain decoding"
            lines += [f"fastest for {task}{where}: {flags}, {said}"] * (len(times[task]) > 1)
    return lines
