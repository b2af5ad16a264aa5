"""Defines the options of `python -m benchmarks` and rejects contradictory combinations."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from pathlib import Path

from speculative_decoding.cli.parser import Parser, add_flags, argument_type
from speculative_decoding.cli.run_config import ModelFlags
from speculative_decoding.errors import InputError
from speculative_decoding.runs.places import require_writable
from speculative_decoding.sampling import DRAFTERS
from speculative_decoding.sampling.options import ACCEPTANCE, option_specs
from speculative_decoding.sampling.values import Int, Number, Text

from .models import HEAD, SHAPES
from .peers import ASSISTED, PEERS
from .record import read

COUNT = argument_type(Int(1))


def benchmark_parser() -> Parser:
    """Return the parser. An option without a default sets an attribute of the result only if it was given."""
    description = "Measure decoding speed. Prints tables and the fastest flags."
    parser = Parser(prog="python -m benchmarks", description=description, argument_default=argparse.SUPPRESS)
    add = parser.add_argument
    add("prompts", nargs="*", type=Path, default=[], help="files with one prompt per line (default: the bundled files)")
    add("--limit", type=COUNT, metavar="N", help="prompts per file (default: 25), or random sources (default: 2)")
    add("--max-tokens", "-m", type=COUNT, default=100, metavar="N", help="maximum tokens per output (default: 100)")
    add("--drafter", choices=DRAFTERS, nargs="+", help="drafters to test (default: all supported ones)")
    lengths = "draft lengths to test, or auto (default: 1 3 5 7 auto; with --slots: auto)"
    add(
        "--num-draft", type=argument_type(option_specs()["num_draft_tokens"].type), nargs="+", metavar="N", help=lengths
    )
    add(
        "--temperature",
        type=argument_type(Number(0)),
        nargs="+",
        default=[0.0],
        metavar="T",
        help="temperatures to test (default: 0)",
    )
    rules = "acceptance rules to test, above temperature 0 (default: the same as main.py)"
    add("--acceptance", choices=ACCEPTANCE, nargs="+", default=[None], metavar="RULE", help=rules)
    add("--slots", type=COUNT, nargs="+", metavar="N", help="batch sizes to test (default: one prompt at a time)")
    beams = "beam search with N beams, for this package and --peers; excludes drafts (default: 1)"
    add("--num-beams", type=argument_type(option_specs()["num_beams"].type), default=1, metavar="N", help=beams)
    add("--repeats", type=COUNT, default=5, metavar="N", help="measured repeats (default: 5)")
    add(
        "--warm-ups",
        type=argument_type(Int(0)),
        default=1,
        metavar="N",
        help="repeats before the measured ones (default: 1)",
    )
    names = f"other programs to compare with, separated by commas: {', '.join(PEERS)}"
    add("--peers", type=comma_separated(PEERS), default=[], metavar="NAMES", help=names)
    add("--peer-python", metavar="PATH", help="Python interpreter in which the peers are installed (default: this one)")
    assistant = f"draft model for --peers {ASSISTED}, which does not support draft heads (default: --draft-model)"
    add("--assistant", metavar="NAME", help=assistant)
    shapes = f"baseline decoding with random weights of these shapes, separated by commas: {', '.join(SHAPES)}"
    add("--random", type=comma_separated(SHAPES), metavar="NAMES", help=shapes)
    add("--bits", type=int, choices=(4, 8), nargs="+", default=[None], help="with --random: quantized weights to test")
    drafts = f"with --random: also random drafts ({HEAD} or shapes), accepted as recorded in --replay"
    add("--draft", type=comma_separated((HEAD, *SHAPES)), default=[], metavar="NAMES", help=drafts)
    replay = "recorded acceptance for --draft, written by python -m benchmarks.record"
    add("--replay", type=Path, metavar="FILE", help=replay)
    add("--json", metavar="FILE", help="also write the figures as JSON; - writes to standard output")
    add_flags(parser, "models", ModelFlags)
    return parser


def check(chosen: argparse.Namespace) -> None:
    """Reject contradictory options, and read the file of --replay. Raises `InputError`."""
    given = vars(chosen)
    files = ", ".join(map(str, chosen.prompts))
    is_random = "random" in given
    is_replay = "replay" in given
    has_assisted = ASSISTED in chosen.peers
    has_slots = "slots" in given
    is_greedy = set(chosen.temperature) == {0}
    has_drafts = is_replay or has_assisted or bool(given.keys() & {"drafter", "num_draft"})
    conflicts = {
        "--peers: requires temperature 0; add 0 to --temperature": chosen.peers and 0 not in chosen.temperature,
        "--peer-python: no effect without --peers": "peer_python" in given and not chosen.peers,
        f"--assistant: no effect without --peers {ASSISTED}": "assistant" in given and not has_assisted,
        f"--peers {ASSISTED}: cannot be combined with --slots (it has no batches)": has_slots and has_assisted,
        f"--peers {ASSISTED}: cannot be combined with --random (no draft matches)": is_random and has_assisted,
        f"prompts {files}: cannot be combined with --random, which uses random sources": is_random and files,
        "--draft, --replay: need each other and --random": is_replay != bool(chosen.draft)
        or (is_replay and not is_random),
        "--replay: needs temperature 0 and excludes --slots": is_replay and (has_slots or not is_greedy),
        "--num-beams: needs temperature 0 and excludes drafts": chosen.num_beams > 1 and (has_drafts or not is_greedy),
        "--acceptance: no effect at temperature 0": any(chosen.acceptance) and is_greedy,
        "--bits: needs --random and excludes --peers": any(chosen.bits) and (not is_random or chosen.peers),
    }
    for option in ("model", "draft_model", "adapter", "tokenizer", "drafter", "num_draft"):
        conflicts[f"--{option.replace('_', '-')}: cannot be combined with --random"] = is_random and option in given
    for message, applies in conflicts.items():
        if applies:
            raise InputError(message)
    require_writable(json_path(chosen), "json")
    if is_replay:
        kinds = ["head" if name == HEAD else "model" for name in chosen.draft]
        chosen.replay = read(chosen.replay, [*kinds, "copy", "found"])


def json_path(chosen: argparse.Namespace) -> Path | None:
    """Return the file of --json, or None if the option is missing or means standard output."""
    file = getattr(chosen, "json", "-")
    return None if file == "-" else Path(file)


def comma_separated(choices: Collection[str]) -> Callable[[str], list[str]]:
    """Return an argparse `type` that parses distinct, comma-separated names."""
    parse = argument_type(Text(tuple(choices)))
    return lambda text: list(dict.fromkeys(map(parse, text.split(","))))
