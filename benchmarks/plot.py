"""Results as a PNG. matplotlib is asked for only here, and only when a plot is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from speculative_decoding.errors import InputError

from .report import Study, growth_series


def require_matplotlib() -> Any:
    """`matplotlib.figure`. Raises `InputError` that says how to get it."""
    try:
        from matplotlib import figure
    except ImportError as error:
        raise InputError(f"--plot: needs matplotlib ({error}); get it with: pip install matplotlib") from error
    return figure


def plot_results(studies: Sequence[Study], path: Path) -> None:
    """A panel for each model, task and temperature: ms per token of every contender, with quartiles."""
    panels = [
        (study.model, task, temperature, [r for r in study.rows if (r.task, r.temperature) == (task, temperature)])
        for study in studies
        for task, temperature in dict.fromkeys((row.task, row.temperature) for row in study.rows)
    ]
    most = max(len(rows) for *_, rows in panels)
    figure = require_matplotlib().Figure(figsize=(8, (0.35 * most + 1) * len(panels)), layout="constrained")
    for axes, (model, task, temperature, rows) in zip(
        figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True
    ):
        times = [row.ms_per_token for row in rows]
        errors = [[time.median - time.low for time in times], [time.high - time.median for time in times]]
        colours = ["tab:blue" if row.is_ours else "tab:gray" for row in rows]
        axes.barh([row.label for row in rows], [time.median for time in times], xerr=errors, color=colours)
        axes.invert_yaxis()
        axes.set(title=f"{model}, {task}, temperature {temperature:g}", xlabel="ms per token: median and quartiles")
    figure.savefig(path, dpi=120)


def plot_growth(studies: Sequence[Study], path: Path) -> None:
    """Time per token against source length and output length, on logarithmic axes."""
    kinds = [kind for kind in ("source", "output") if growth_series(studies, kind)]
    figure = require_matplotlib().Figure(figsize=(5 * len(kinds), 4), layout="constrained")
    for axes, kind in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds, strict=True):
        for label, points in growth_series(studies, kind).items():
            lengths = sorted(points)
            axes.plot(lengths, [points[n].ms_per_token.median for n in lengths], marker="o", label=label)
        axes.set(xscale="log", yscale="log", xlabel=f"{kind} tokens", ylabel="ms per token, encoder included")
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)
