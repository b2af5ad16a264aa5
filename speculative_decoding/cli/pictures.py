"""A report's picture: where drafts are accepted, where rounds are long, where the time goes. With matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import InputError
from .trace_run import POSITIONS, TraceRun

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
    for run in runs:
        shares = [100 * share for share in run.accepted_by_position()]
        accepted.plot(range(1, len(shares) + 1), shares, marker="o", label=run.name)
        means = {100 * (i + 0.5) / POSITIONS: mean for i, mean in enumerate(run.tokens_per_round()) if mean is not None}
        rounds.plot(list(means), list(means.values()), marker="o", label=run.name)
        left = 0.0
        for part, seconds in run.split().items():
            times.barh(run.name, seconds, left=left, color=COLOURS[part], label=part if run is runs[0] else None)
            left += seconds
    accepted.set(title="Accepted", xlabel="token of the draft", ylabel="% of the rounds that drafted it", ylim=(0, 105))
    accepted.xaxis.get_major_locator().set_params(integer=True)
    accepted.legend()
    rounds.set(title="Tokens per round", xlabel="% of the output", ylabel="tokens", xlim=(0, 100))
    rounds.set_ylim(bottom=0)
    times.set(title="Where the time goes", xlabel="seconds")
    times.invert_yaxis()
    times.legend()
    try:
        figure.savefig(path, dpi=110, format="png")
    except OSError as error:
        raise InputError(f"--png {path}: cannot be written ({error.strerror}); name another file") from error
