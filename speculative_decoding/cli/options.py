"""Every flag of every command, declared once."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ..acceptance import ACCEPTANCE
from ..drafters import DRAFTERS
from ..drafters.ngram_store import STORAGES
from ..jobs.rows import FORMATS
from ..load import BITS, DTYPES, GROUP_SIZES, KEEP
from ..request import SCHEDULES

DEFAULT_DRAFTER = "what tune found best, else model if there is one"
TUNED_LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, "auto")
DEFAULT_PROMPT = "translate English to German: The method returns the value of the property."


class Parser(argparse.ArgumentParser):
    """An error is one line that names the option and its value; the exit status is 2."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.ArgumentDefaultsHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (--help lists the options)\n")


def whole(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    limits = f"a whole number from {minimum} to {maximum}" if maximum is not None else f"a whole number >= {minimum}"

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if value < minimum or (maximum is not None and value > maximum):
            raise argparse.ArgumentTypeError(f"must be {limits}, not {text!r}")
        return value

    return parse


def real(minimum: float, maximum: float = math.inf, *, above: bool = False) -> Callable[[str], float]:
    """above: the minimum itself is excluded."""
    limits = f"a number from {minimum:g} to {maximum:g}" if maximum < math.inf else f"a number >= {minimum:g}"
    if above:
        limits = f"a number above {minimum:g}" + (f", at most {maximum:g}" if maximum < math.inf else "")

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not minimum <= value <= maximum or math.isinf(value) or (above and value == minimum):
            raise argparse.ArgumentTypeError(f"must be {limits}, not {text!r}")
        return value

    return parse


def draft_length(text: str) -> int | str:
    return text if text in SCHEDULES else whole(0, 64)(text)


def several_of(choices: Collection[str]) -> Callable[[str], list[str]]:
    """Names separated by commas."""

    def parse(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in choices:
                raise argparse.ArgumentTypeError(f"unknown {name!r}; known are {', '.join(choices)}")
        return list(dict.fromkeys(names))

    return parse


def some_text(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def add_models(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("models")
    group.add_argument(
        "--model",
        "--model-name",
        metavar="NAME",
        help="the target: a folder, or one under models/ (default: t5-11b with t5-small if both are converted, "
        "else the bundled pair)",
        default=argparse.SUPPRESS,
    )
    group.add_argument(
        "--draft-model",
        "--draft-model-name",
        metavar="NAME",
        help="the draft, likewise; or self-8bit: the target itself in 8 bits; without it a --model decodes regularly, "
        "or with --drafter ngram",
        default=argparse.SUPPRESS,
    )
    group.add_argument(
        "--dtype",
        choices=tuple(DTYPES),
        help="compute in this type (default: as stored on a GPU, float32 on a CPU)",
        default=argparse.SUPPRESS,
    )


def add_drafting(parser: argparse.ArgumentParser, lengths: Sequence[int | str], drafters: str) -> None:
    """See `add_decoding`."""
    many: dict[str, Any] = {"nargs": "+"} if lengths else {}
    group = parser.add_argument_group("drafts")
    group.add_argument(
        "--drafter",
        choices=DRAFTERS,
        help="where drafts come from: the draft model; the text itself (prompt, output, store); auto, a copy where it "
        "is likely right, else the draft model; or nowhere "
        f"(default: {drafters})",
        default=argparse.SUPPRESS,
        **many,
    )
    group.add_argument(
        "--num-draft",
        type=draft_length,
        metavar="N",
        help="tokens drafted per round, 0 to 64; or auto: as many as measured costs and acceptance make worth it; or "
        "as in transformers: heuristic, heuristic_transient"
        + ("" if lengths else " (default: what tune found best, else 5)"),
        default=list(lengths) or argparse.SUPPRESS,
        **many,
    )
    group.add_argument(
        "--confidence-threshold",
        type=real(0, 1),
        metavar="P",
        help="stop a draft behind a token to which the draft model gave less; waits for each token (default: off)",
        default=argparse.SUPPRESS,
    )
    group.add_argument(
        "--draft-vocab",
        type=whole(1),
        metavar="N",
        help="the draft model proposes only the N most frequent tokens of --draft-vocab-text and those of the prompt",
        default=argparse.SUPPRESS,
    )
    group.add_argument(
        "--draft-vocab-text", type=Path, metavar="FILE", help="text like the outputs to come", default=argparse.SUPPRESS
    )
    group.add_argument(
        "--max-ngram-size",
        type=whole(1),
        metavar="N",
        help="the longest stretch of text to look up (default: 16)",
        default=argparse.SUPPRESS,
    )
    group.add_argument(
        "--min-ngram-size",
        type=whole(1),
        metavar="N",
        help="the shortest match that is believed (default: 1)",
        default=argparse.SUPPRESS,
    )


def add_stores(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("n-gram stores")
    group.add_argument(
        "--ngram-store",
        type=Path,
        metavar="FILE",
        help="what was read and written before is searched too, and kept there for the next time",
        default=argparse.SUPPRESS,
    )
    group.add_argument(
        "--ngram-storage",
        choices=STORAGES,
        help="what such a store keeps: whole texts, counts of all n-grams from --min- to --max-ngram-size, or of the "
        "longest alone (default: texts)",
        default=argparse.SUPPRESS,
    )
    group.add_argument(
        "--filler-top-k",
        type=whole(2, 64),
        metavar="K",
        help="a store of n-grams also counts the target's K likeliest tokens at each place",
        default=argparse.SUPPRESS,
    )
    group.add_argument(
        "--guess-unknown",
        action="store_true",
        help="a store of n-grams goes on behind an unknown one with its most frequent token",
        default=argparse.SUPPRESS,
    )


def add_decoding(
    parser: argparse.ArgumentParser, *, lengths: Sequence[int | str] = (), drafters: str = DEFAULT_DRAFTER
) -> None:
    """lengths: if given, --drafter, --num-draft and --seed take a list, to try them all; the --num-draft by default.
    drafters: what --drafter is by default, in words.
    """
    many: dict[str, Any] = {"nargs": "+"} if lengths else {}
    add_drafting(parser, lengths, drafters)
    group = parser.add_argument_group("decoding")
    group.add_argument(
        "--acceptance",
        choices=ACCEPTANCE,
        default="rejection",
        help="above temperature 0, all three exact: the original rule; one that keeps a little more; one whose output "
        "for a seed does not depend on the draft",
    )
    group.add_argument(
        "--delta",
        type=real(0, 1),
        default=0.0,
        metavar="X",
        help="accept more than the target would write, 0 to 1; above 0 the output is lossy",
    )
    group.add_argument(
        "--max-tokens", "-m", type=whole(1), default=100, metavar="N", help="the most tokens to generate"
    )
    group.add_argument(
        "--stop",
        action="append",
        type=some_text,
        default=[],
        metavar="TEXT",
        help="end in front of this text; may be repeated",
    )
    group.add_argument(
        "--output-prefix",
        type=some_text,
        metavar="TEXT",
        help="make the output begin with this; it is not printed",
        default=argparse.SUPPRESS,
    )
    group.add_argument(
        "--eos-token-id",
        action="append",
        type=whole(0),
        default=[],
        metavar="N",
        help="end at this token too; may be repeated",
    )
    group.add_argument(
        "--strict",
        action="store_true",
        help="compute every pass of the target in one shape: also in 16 bits the same tokens with and without a draft; "
        "slower",
    )
    group.add_argument(
        "--allow-long-prompt", action="store_true", help="accept a prompt longer than the model was trained on"
    )
    group = parser.add_argument_group("sampling")
    group.add_argument(
        "--temperature", type=real(0), default=0.0, metavar="T", help="0 takes the most likely token, above 0 samples"
    )
    group.add_argument("--top-k", type=whole(0), default=0, metavar="K", help="only the K most likely tokens; 0 is off")
    group.add_argument(
        "--top-p",
        type=real(0, 1, above=True),
        default=1.0,
        metavar="P",
        help="only the fewest tokens that reach this probability together; 1 is off",
    )
    group.add_argument(
        "--min-p",
        type=real(0, 1),
        default=0.0,
        metavar="P",
        help="only tokens this likely compared to the most likely one; 0 is off",
    )
    group.add_argument(
        "--repetition-penalty",
        type=real(0, above=True),
        default=1.0,
        metavar="X",
        help="above 1 makes tokens that were written less likely; acts at temperature 0 too; 1 is off",
    )
    group.add_argument(
        "--seed",
        type=whole(0, 2**32 - 1),
        default=[0] if lengths else 0,
        metavar="N",
        help="the same seed and settings give the same text",
        **many,
    )


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
    return parser


def tune_parser() -> Parser:
    parser = Parser(
        prog="python -m speculative_decoding.tune",
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


def benchmark_parser() -> Parser:
    from ..bench.peers import PEERS  # no other command needs these
    from ..bench.random_weights import SHAPES
    from ..bench.ways import WAYS

    parser = Parser(
        prog="python -m speculative_decoding.benchmark",
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
