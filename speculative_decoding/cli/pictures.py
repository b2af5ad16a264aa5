"""A report's picture: where drafts are accepted, where rounds are long, where the time goes. With matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import InputError
from .trace_run import TraceRun

COLOURS = {"encode": "#7f7f7f", "draft": "#2ca02c", "verify": "#1f77b4", "host": "#d62728"}


def draw(runs: Sequence[TraceRun], path: Path) -> None:
    """Write a PNG. Raises `InputError` if it cannot be written, or matplotlib is not there."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("--png needs matplotlib: pip install matplotlib, or leave it out") from error
    figure = Figure(figsize=(12, 3.6 + 0.15 * len(runs)), layout="constrained")
    FigureCanvasAgg(figure)
    accepted, rounds, times = figure.subplots(1, 3)
    draw_accepted(accepted, runs)
    draw_rounds(rounds, runs)
    draw_times(times, {run.name: run.split() for run in runs})
    try:
        figure.savefig(path, dpi=110, format="png")
    except OSError as error:
        raise InputError(f"--png {path}: cannot be written ({error.strerror}); name another file") from error


def draw_accepted(axes: Any, runs: Sequence[TraceRun]) -> None:
    for run in runs:
        shares = run.accepted_by_position()
        axes.plot(range(1, len(shares) + 1), [100 * share for share in shares], marker="o", label=run.name)
    axes.set(title="Accepted", xlabel="token of the draft", ylabel="% of the rounds that drafted it", ylim=(0, 105))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend()


def draw_rounds(axes: Any, runs: Sequence[TraceRun]) -> None:
    for run in runs:
        means = run.tokens_per_round()
        known = [(i + 0.5, mean) for i, mean in enumerate(means) if mean is not None]
        axes.plot([100 * at / len(means) for at, _ in known], [mean for _, mean in known], marker="o", label=run.name)
    axes.set(title="Tokens per round", xlabel="% of the output", ylabel="tokens", xlim=(0, 100))
    axes.set_ylim(bottom=0)


def draw_times(axes: Any, splits: Mapping[str, Mapping[str, float]]) -> None:
    names = list(splits)
    left = [0.0] * len(names)
    for part, colour in COLOURS.items():
        seconds = [splits[name][part] for name in names]
        axes.barh(names, seconds, left=left, color=colour, label=part)
        left = [before + more for before, more in zip(left, seconds, strict=True)]
    axes.set(title="Where the time goes", xlabel="seconds")
    axes.invert_yaxis()
    axes.legend()
