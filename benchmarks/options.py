"""Every option of the benchmark, and what does not go together. Of drafters, peers and shapes it knows the names."""

from __future__ import annotations

import argparse
from pathlib import Path

from speculative_decoding.cli.models import ModelNames
from speculative_decoding.cli.parser import Parser, add_flags, several_of, word
from speculative_decoding.errors import InputError
from speculative_decoding.sampling.options import DRAFTERS, abouts
from speculative_decoding.sampling.values import Number, Whole

from .acceptance import LONGEST, read
from .models import HEAD, SHAPES
from .peers import ASSISTED, PEERS

COUNT = word(Whole(1))


def benchmark_parser() -> Parser:
    """An option that is not given, and has no default, is no attribute of what is parsed."""
    description = "Measure how fast prompts are decoded: tables, a line of JSON, and last the fastest flags."
    parser = Parser(prog="python -m benchmarks", description=description, argument_default=argparse.SUPPRESS)
    add = parser.add_argument
    add("prompts", nargs="*", type=Path, default=[], help="files with a prompt a line (default: the bundled ones)")
    add("--limit", type=COUNT, metavar="N", help="prompts of each file (default: 25), or random sources (2)")
    add("--max-tokens", "-m", type=COUNT, default=100, metavar="N", help="the most tokens to generate")
    add("--drafter", choices=DRAFTERS, nargs="+", help="each is tried, and plain decoding too (default: all that fit)")
    lengths = "tokens drafted per round, or auto; each is tried (default: 1 3 5 7 auto; with --slots auto)"
    add("--num-draft", type=word(abouts()["num_draft"].value), nargs="+", metavar="N", help=lengths)
    add(
        "--temperature", type=word(Number(0)), nargs="+", default=[0.0], metavar="T", help="each is tried; 0 with peers"
    )
    add("--slots", type=COUNT, nargs="+", metavar="N", help="decode so many prompts together; each is tried")
    add("--repeats", type=COUNT, default=5, metavar="N", help="of everything, in turns")
    add("--warm-ups", type=word(Whole(0)), default=1, metavar="N", help="repeats before those that count")
    names = f"other programs on the same weights, separated by commas: {', '.join(PEERS)}"
    add("--peers", type=several_of(PEERS), default=[], metavar="NAMES", help=names)
    add("--peer-python", metavar="PATH", help="the Python that has them (default: this one)")
    shapes = "plain decoding of 40-token sources to --max-tokens tokens by models of these shapes with random weights, "
    shapes += f"separated by commas: {', '.join(SHAPES)}"
    add("--random", type=several_of(SHAPES), metavar="NAMES", help=shapes)
    drafts = f"random drafts too: {HEAD}, or shapes, separated by commas; right as often as in --acceptance"
    add("--draft", type=several_of((HEAD, *SHAPES)), default=[], metavar="NAMES", help=drafts)
    add("--acceptance", type=Path, metavar="FILE", help="which drafts are right, from python -m benchmarks.record")
    add("--bits", type=int, choices=(4, 8), nargs="+", default=[], help="with --acceptance also quantised targets")
    growth = "how the cost grows with source, output and shape (all shapes, or --random)"
    add("--growth", action="store_true", default=False, help=growth)
    add("--output", type=Path, metavar="DIR", help="write runs.jsonl (each run as it ends), table.md and summary.json")
    add_flags(parser, "models", ModelNames)
    return parser


def check(chosen: argparse.Namespace) -> None:
    """Refuse what does not go together, before anything takes time. Raises `InputError`."""
    given, files = vars(chosen), ", ".join(map(str, chosen.prompts))
    assisted, has_assisted = f"--peers {ASSISTED}: does not go with", ASSISTED in chosen.peers
    wrong = {
        "--peers: compared at temperature 0; add 0 to --temperature": chosen.peers and 0 not in chosen.temperature,
        "--peer-python: is of no use without --peers": "peer_python" in given and not chosen.peers,
        f"{assisted} --slots: it decodes no batches": "slots" in given and has_assisted,
    }
    replays = "acceptance" in given
    if own := "--growth" if chosen.growth else "--random" if "random" in given else "":
        wrong[f"{assisted} {own}: no draft is like random weights"] = has_assisted
        wrong[f"prompts {files}: do not go with {own}, which makes its own sources"] = bool(files)
        refused = [
            "model",
            "draft_model",
            *("drafter", "num_draft") * (not replays),
            *("slots", "limit") * chosen.growth,
        ]
        for option in refused:
            wrong[f"--{option.replace('_', '-')}: does not go with {own}, which chooses its own"] = option in given
    others = set(given.get("drafter", ())) - {"model", "auto"} or "slots" in given or set(chosen.temperature) != {0}
    lengths = [n for n in given.get("num_draft", ()) if n != "auto" and n not in range(1, LONGEST + 1)]
    wrong |= {
        "--draft: goes with --random and --acceptance FILE": chosen.draft and not (replays and own == "--random"),
        "--acceptance: goes with --random and --draft": replays and not (chosen.draft and own == "--random"),
        "--bits: goes with --acceptance": chosen.bits and not replays,
        "--acceptance: has --drafter model or auto, temperature 0 and no --slots": replays and others,
        f"--num-draft {lengths}: with --acceptance auto, or 1 to {LONGEST}": replays and lengths,
    }
    for message, is_so in wrong.items():
        if is_so:
            raise InputError(message)
    if replays:
        read(chosen.acceptance, chosen.draft)
