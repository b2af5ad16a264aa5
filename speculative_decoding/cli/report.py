"""`python -m speculative_decoding.report TRACE...`: what the rounds of one or more runs say, as a table and a picture.

Reads what `main.py --trace` wrote. Knows nothing of models; of matplotlib only when it draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import InputError
from . import common
from .parser import File, Parser, require_writable, word
from .trace import POSITIONS, TraceRun, read_trace

COLOURS = {"encode": "#7f7f7f", "draft": "#2ca02c", "verify": "#1f77b4", "host": "#d62728"}


def cells(run: TraceRun) -> dict[str, str]:
    """A row of the table, by its headings."""
    split, drafted, rounds = run.split(), run.total("drafted"), len(run.rounds)
    seconds = sum(split.values())
    return {
        "run": run.name.replace("|", "\\|"),
        "prompts": str(len({each["request"] for each in run.rounds})),
        "rounds": str(rounds),
        "tokens": str(run.tokens),
        "tokens/round": f"{run.tokens / rounds:.2f}",
        "accepted": f"{run.total('accepted') / drafted:.1%}" if drafted else "-",
        "tokens/s": f"{run.tokens / seconds:.1f}" if seconds else "-",
        **{f"{part} s": f"{spent:.3f}" for part, spent in split.items()},
    }


def markdown(runs: Sequence[TraceRun]) -> str:
    """A row for each run."""
    table = [cells(run) for run in runs]
    rows = [table[0].keys(), ["---"] * len(table[0]), *(row.values() for row in table)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def draw(runs: Sequence[TraceRun], path: Path) -> None:
    """Write a PNG: where drafts are accepted, where rounds are long, where the time goes.

    Raises `InputError` if it cannot be written, or matplotlib is not there.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError(
            "a picture needs matplotlib: pip install matplotlib, or this package with its extra [plots]"
        ) from error
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
    with common.writing("--png", path):
        figure.savefig(path, dpi=110, format="png")


def report(traces: Sequence[Path], picture: Path) -> int:
    require_writable("png", picture)
    if picture in traces:
        raise InputError(f"--png {picture}: is a trace; name another file")
    stems = [path.stem for path in traces]
    runs = [read_trace(path, path.stem if stems.count(path.stem) == 1 else str(path)) for path in traces]
    print(markdown(runs))
    draw(runs, picture)
    common.say(f"picture: {picture}")
    return 0


def main(argv: Sequence[str] | None = None, program: str = "python -m speculative_decoding.report") -> int:
    parser = Parser(
        prog=program,
        description="What main.py --trace wrote, of one run or of several, as a picture and as a Markdown table.",
    )
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE", help="files that --trace wrote")
    parser.add_argument("--png", type=word(File()), metavar="FILE", help="the picture, by default beside the trace")
    chosen = parser.parse_args(argv)
    return common.run("report", lambda: report(chosen.traces, chosen.png or chosen.traces[0].with_suffix(".png")))
