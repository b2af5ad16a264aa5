"""Every option of the benchmark: what is measured, against whom, and where results go.

Declares flags; knows the names of ways, peers and shapes, not how they are measured.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from speculative_decoding.cli.options import add_models
from speculative_decoding.cli.parser import Parser, real, several_of, whole

from .peers import PEERS
from .random_weights import SHAPES
from .ways import WAYS


def benchmark_parser() -> Parser:
    parser = Parser(
        prog="python -m benchmarks.main",
        description="Measure how fast prompts are decoded: a table and, last on standard output, a line of JSON.",
    )
    parser.add_argument("prompts", nargs="*", type=Path, help="files with a prompt a line (default: the bundled ones)")
    parser.add_argument(
        "--limit",
        type=whole(1),
        metavar="N",
        help="prompts of each file (default: 25), or random sources (default: 2)",
        default=argparse.SUPPRESS,
    )
    add_models(parser)
    group = parser.add_argument_group("what is measured")
    group.add_argument(
        "--ways",
        type=several_of(WAYS),
        metavar="NAMES",
        help=f"ways of decoding, separated by commas, besides plain: {', '.join(WAYS)} "
        "(default: all that the models allow)",
        default=argparse.SUPPRESS,
    )
    group.add_argument(
        "--num-draft",
        type=whole(1, 64),
        nargs="+",
        default=[1, 3, 5, 7],
        metavar="N",
        help="tokens drafted per round; each is tried",
    )
    group.add_argument(
        "--temperature", type=real(0), nargs="+", default=[0.0], metavar="T", help="each is tried, at 0 with peers"
    )
    group.add_argument(
        "--slots",
        type=whole(1),
        nargs="+",
        metavar="N",
        help="decode so many prompts together, each number is tried; of the ways the one that adapts by default",
        default=argparse.SUPPRESS,
    )
    group.add_argument(
        "--max-tokens", "-m", type=whole(1), default=100, metavar="N", help="the most tokens to generate"
    )
    group.add_argument("--repeats", type=whole(1), default=5, metavar="N", help="of everything, in turns")
    group.add_argument("--warm-ups", type=whole(0), default=1, metavar="N", help="repeats before those that count")
    group = parser.add_argument_group("peers")
    group.add_argument(
        "--peers",
        type=several_of(PEERS),
        default=[],
        metavar="NAMES",
        help=f"other programs on the same weights, separated by commas: {', '.join(PEERS)}",
    )
    group.add_argument(
        "--peer-python",
        metavar="PATH",
        help="the Python that has them (default: this one)",
        default=argparse.SUPPRESS,
    )
    group = parser.add_argument_group("random weights")
    group.add_argument(
        "--random",
        type=several_of(SHAPES),
        metavar="NAMES",
        help=f"models of these shapes with random weights instead, plain decoding of 40-token sources to --max-tokens "
        f"tokens, separated by commas: {', '.join(SHAPES)}",
        default=argparse.SUPPRESS,
    )
    group.add_argument(
        "--growth", action="store_true", help="how the cost grows with source, output and shape (all, or --random)"
    )
    group.add_argument(
        "--source-lengths",
        type=whole(1),
        nargs="+",
        metavar="N",
        help="with --growth (default: 16 to 2048)",
        default=argparse.SUPPRESS,
    )
    group.add_argument(
        "--output-lengths",
        type=whole(1),
        nargs="+",
        metavar="N",
        help="with --growth (default: 16 to 1024)",
        default=argparse.SUPPRESS,
    )
    group = parser.add_argument_group("results")
    group.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="write runs.jsonl (every run, as it ends), table.md and summary.json there",
        default=argparse.SUPPRESS,
    )
    group.add_argument("--plot", action="store_true", help="and plot.png; needs matplotlib")
    return parser
