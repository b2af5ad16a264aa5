"""`python -m speculative_decoding.report TRACE...`: what the rounds of one or more runs say, as a table and a picture.

Reads what `main.py --trace` wrote. Knows nothing of models; of matplotlib only when it draws.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..errors import InputError
from . import common
from .parser import Parser
from .pictures import draw
from .trace_run import PARTS, TraceRun, read_trace


def markdown(runs: Sequence[TraceRun]) -> str:
    """A row for each run."""
    heads = [
        "run",
        "prompts",
        "rounds",
        "tokens",
        "tokens/round",
        "accepted",
        "tokens/s",
        *(f"{part} s" for part in PARTS),
    ]
    rows = [heads, ["---"] * len(heads)]
    for run in runs:
        requests, rounds = len({each["request"] for each in run.rounds}), len(run.rounds)
        accepted, drafted = run.total("accepted"), run.total("drafted")
        split = run.split()
        seconds = sum(split.values())
        counts = [
            run.name.replace("|", "\\|"),
            str(requests),
            str(rounds),
            str(run.tokens),
            f"{run.tokens / rounds:.2f}",
        ]
        shares = [f"{accepted / drafted:.1%}" if drafted else "-", f"{run.tokens / seconds:.1f}" if seconds else "-"]
        rows.append([*counts, *shares, *(f"{split[part]:.3f}" for part in PARTS)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def report(traces: Sequence[Path], picture: Path) -> int:
    if not picture.resolve().parent.is_dir():
        raise InputError(f"--png {picture}: cannot be written; name a file in a folder that exists")
    if picture in traces:
        raise InputError(f"--png {picture}: is a trace; name another file")
    stems = [path.stem for path in traces]
    runs = [read_trace(path, path.stem if stems.count(path.stem) == 1 else str(path)) for path in traces]
    print(markdown(runs))
    draw(runs, picture)
    common.say(f"picture: {picture}")
    return 0


def report_parser() -> Parser:
    parser = Parser(
        prog="python -m speculative_decoding.report",
        argument_default=argparse.SUPPRESS,
        description="What main.py --trace wrote, of one run or of several, as a picture and as a Markdown table.",
    )
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE", help="files that --trace wrote")
    parser.add_argument("--png", type=Path, metavar="FILE", help="the picture (default: beside the trace)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    chosen = report_parser().parse_args(argv)
    return common.run(
        "report", lambda: report(chosen.traces, getattr(chosen, "png", chosen.traces[0].with_suffix(".png")))
    )
