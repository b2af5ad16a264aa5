"""Every option of main.py: its own (watching it work, many prompts) and those it shares.

Declares flags; which of them contradict each other is for main.py and jobs.py to say.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..jobs.rows import FORMATS
from .draft_options import add_stores
from .options import add_decoding, add_models
from .parser import Parser, real, whole


def add_views(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("watching it work")
    group.add_argument(
        "--interactive", "-i", action="store_true", help="a console: every line is a prompt; /help lists its commands"
    )
    group.add_argument(
        "--compare", action="store_true", help="decode with the target alone and with the draft alone too, and compare"
    )
    group.add_argument(
        "--show-draft",
        nargs="?",
        const="text",
        choices=("text", "rounds"),
        help="show which tokens were accepted, rejected and corrected, in the text or in a line per round",
        default=argparse.SUPPRESS,
    )
    group.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="a line of JSON for every round; python -m speculative_decoding.report makes a picture of it",
        default=argparse.SUPPRESS,
    )


def add_jobs(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("many prompts")
    group.add_argument(
        "--input",
        metavar="FILE",
        help="decode each line: text (.txt), or a JSON object (.jsonl) with prompt, its own options, and fields to "
        "carry through; - is standard input",
        default=argparse.SUPPRESS,
    )
    group.add_argument(
        "--input-format",
        choices=FORMATS,
        help="what the lines are (default: by the file's name, or else by whether the first line begins with {)",
        default=argparse.SUPPRESS,
    )
    group.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="a JSON object for each line of the input, in its order (default: standard output)",
        default=argparse.SUPPRESS,
    )
    group.add_argument(
        "--resume", action="store_true", help="go on with an output where it was interrupted, or begin it"
    )
    group.add_argument("--force", action="store_true", help="replace an existing output")
    group.add_argument(
        "--slots", type=whole(1), metavar="N", help="rows decoded together (default: 8)", default=argparse.SUPPRESS
    )
    group.add_argument(
        "--max-memory",
        type=real(0, above=True),
        metavar="GB",
        help="use fewer slots rather than more memory than this",
        default=argparse.SUPPRESS,
    )


def main_parser() -> Parser:
    parser = Parser(
        prog="main.py",
        description="Speculative decoding for T5-like models: a draft proposes, the target verifies, the text is the "
        "target's own. Text goes to standard output, everything else to standard error.",
    )
    parser.add_argument(
        "--prompt",
        metavar="TEXT",
        help="what to decode; without it each line of standard input, and at a terminal an example",
        default=argparse.SUPPRESS,
    )
    add_views(parser)
    add_jobs(parser)
    add_models(parser)
    add_decoding(parser)
    add_stores(parser)
    parser.add_argument("--regular-decode", action="store_true", help="the target alone, without a draft")
    parser.add_argument(
        "--verify", action="store_true", help="decode without a draft as well and compare; exit status 1 if they differ"
    )
    parser.add_argument(
        "--stats-json", type=Path, metavar="FILE", help="write settings and statistics there", default=argparse.SUPPRESS
    )
    return parser
