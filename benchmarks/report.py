"""Rows as Markdown, and the flags that were fastest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .summary import Row, grouped


def shown(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


COLUMNS: Mapping[str, Callable[[Row], str]] = {  # those of a table in which a row has something to say
    "slots": lambda row: shown(row.slots, "d"),
    "way": lambda row: row.label if row.is_ours else f"{row.label} ({row.setting})",
    "T": lambda row: f"{row.temperature:g}",
    "ms/token (quartiles)": lambda row: "{1:.2f} ({0:.2f}-{2:.2f})".format(*row.ms_per_token),
    "tokens/s": lambda row: f"{1e3 / row.ms_per_token.median:.0f}",
    "against plain": lambda row: f"{row.gain:.2f}x",
    "decoding alone, ms/token": lambda row: shown(row.decode_ms_per_token, ".2f"),
    "tokens/target call": lambda row: shown(row.tokens_per_target_call, ".2f"),
    "accepted": lambda row: shown(row.acceptance, ".0%"),
    "of the byte limit": lambda row: shown(row.share_of_limit, ".0%"),
    "same ids": lambda row: shown(row.same_ids, ".1%"),
}


def table(rows: Sequence[Row]) -> str:
    """Of a task, at one number of slots or at several."""
    header = [name for name, cell in COLUMNS.items() if any(map(cell, rows))]
    lines = [header, ["---"] * len(header), *([COLUMNS[name](row) for name in header] for row in rows)]
    title = f"### {rows[0].model}: {rows[0].task}, {rows[0].tokens} tokens a repeat"
    return title + "\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines)


def report(rows: Sequence[Row], environment: Mapping[str, Any], notes: Sequence[str]) -> str:
    tables = grouped(rows, lambda row: (row.model, row.task))
    where = "; ".join(f"{name.replace('_', ' ')} {value}" for name, value in environment.items())
    return "\n\n".join([where, *(f"**Note: {note}.**" for note in notes), *map(table, tables.values())])


def fastest_lines(rows: Sequence[Row]) -> list[str]:
    """The flags of our fastest way on each task, and on all of a model together, to which each brings its tokens; at
    each temperature and number of slots. Nothing where there was no choice.
    """
    lines = []
    own = (row for row in rows if row.is_ours)
    for (_, slots, temperature), alike in grouped(own, lambda row: (row.model, row.slots, row.temperature)).items():
        tokens = {row.task: row.tokens for row in alike if row.label == "plain"}
        times = {task: dict.fromkeys((row.setting for row in alike), 0.0) for task in [*tokens, "all of them"]}
        for row in alike:
            for task in (row.task, "all of them"):
                times[task][row.setting] += row.ms_per_token.median * tokens[row.task]
        where = f", {slots} slots" * (slots is not None) + f", temperature {temperature:g}" * (temperature > 0)
        for task in [*tokens, "all of them"][: None if len(tokens) > 1 else 1]:
            plain, flags = next(iter(times[task].values())), min(times[task], key=times[task].__getitem__)
            gain = plain / times[task][flags]
            said = f"{gain:.2f}x plain decoding" if gain > 1 else "no draft beats plain decoding"
            lines += [f"fastest for {task}{where}: {flags}, {said}"] * (len(times[task]) > 1)
    return lines
