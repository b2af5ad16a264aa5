"""Every option of the tools beside main.py: convert.py, verify, tune and report.

Declares flags; knows nothing of what the tools do with them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..loading.load import BITS, DTYPES, GROUP_SIZES, KEEP
from .draft_options import add_stores
from .options import add_decoding, add_models
from .parser import Parser, whole

TUNED_LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, "auto")


def convert_parser() -> Parser:
    parser = Parser(prog="convert.py", description="Convert a T5 checkpoint to MLX .npz weights, with bounded memory.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--model", metavar="NAME", help="a local folder, or a model on the Hub")
    what.add_argument("--verify", type=Path, metavar="DIR", help="check a converted folder against its manifest")
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="where to (default: models/<its name>)", default=argparse.SUPPRESS
    )
    parser.add_argument(
        "--dtype",
        choices=tuple(DTYPES),
        help="the type to store weights in (default: bfloat16)",
        default=argparse.SUPPRESS,
    )
    parser.add_argument(
        "--quantize", type=int, choices=BITS, help="store matrices in that many bits", default=argparse.SUPPRESS
    )
    parser.add_argument(
        "--group-size",
        type=int,
        choices=GROUP_SIZES,
        help="columns that share a scale, with --quantize (default: 64)",
        default=argparse.SUPPRESS,
    )
    parser.add_argument(
        "--keep",
        nargs="*",
        choices=KEEP,
        help="layers that stay in --dtype when the others are quantised (default: head)",
        default=argparse.SUPPRESS,
    )
    parser.add_argument("--revision", metavar="REV", help="branch, tag or commit on the Hub", default=argparse.SUPPRESS)
    parser.add_argument("--force", action="store_true", help="replace an existing output folder")
    return parser


def verify_parser() -> Parser:
    parser = Parser(
        prog="python -m speculative_decoding.verify",
        description="Decode prompts with and without a draft and compare the outputs token by token.",
    )
    parser.add_argument("prompts", nargs="*", type=Path, help="files with a prompt a line (default: the bundled ones)")
    add_models(parser)
    add_decoding(parser, lengths=(5,), drafters="model if there is one")
    add_stores(parser)
    parser.add_argument(
        "--slots",
        type=whole(1),
        nargs="+",
        metavar="N",
        help="decode so many prompts together (several: each is tried; default: one at a time)",
        default=[None],
    )
    return parser


def tune_parser() -> Parser:
    parser = Parser(
        prog="python -m benchmarks.tune",
        description="Decode prompts with every --drafter and --num-draft and without a draft, in turns; print what "
        "each gains, and keep the fastest in the model's folder, where main.py finds it.",
    )
    parser.add_argument(
        "--prompts",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="files with a prompt a line (default: the bundled ones)",
        default=argparse.SUPPRESS,
    )
    parser.add_argument("--limit", type=whole(1), default=8, metavar="N", help="prompts of each file")
    parser.add_argument("--repeats", type=whole(1), default=3, metavar="N", help="runs of each; their median counts")
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="draw the speed-ups and those that measured costs and acceptance promise, as PNG; needs matplotlib",
        default=argparse.SUPPRESS,
    )
    parser.add_argument("--dry-run", action="store_true", help="do not keep the fastest")
    add_models(parser)
    add_decoding(parser, lengths=TUNED_LENGTHS, drafters="all but none, as far as there is a draft model")
    return parser


def report_parser() -> Parser:
    parser = Parser(
        prog="python -m speculative_decoding.report",
        description="What main.py --trace wrote, of one run or of several, as a picture and as a Markdown table.",
    )
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE", help="files that --trace wrote")
    parser.add_argument(
        "--png",
        type=Path,
        metavar="FILE",
        help="the picture (default: beside the trace)",
        default=argparse.SUPPRESS,
    )
    return parser
