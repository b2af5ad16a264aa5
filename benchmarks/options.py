"""Every option of the benchmark, and what does not go together. Of drafters, peers and shapes it knows the names."""

from __future__ import annotations

import argparse
from pathlib import Path

from speculative_decoding.cli.models import ModelNames
from speculative_decoding.cli.parser import Parser, add_flags, argument_type, comma_separated
from speculative_decoding.errors import InputError
from speculative_decoding.sampling.options import DRAFTERS, option_specs
from speculative_decoding.sampling.values import Int, Number

from .acceptance import read
from .models import HEAD, SHAPES
from .peers import ASSISTED, PEERS

COUNT = argument_type(Int(1))


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
    add(
        "--num-draft", type=argument_type(option_specs()["num_draft_tokens"].type), nargs="+", metavar="N", help=lengths
    )
    add("--temperature", type=argument_type(Number(0)), nargs="+", default=[0.0], metavar="T", help="each is tried")
    add("--slots", type=COUNT, nargs="+", metavar="N", help="decode so many prompts together; each is tried")
    beams = "search with so many beams, ours and --peers; without drafts"
    add("--num-beams", type=argument_type(option_specs()["num_beams"].type), default=1, metavar="N", help=beams)
    add("--repeats", type=COUNT, default=5, metavar="N", help="of everything, in turns")
    add("--warm-ups", type=argument_type(Int(0)), default=1, metavar="N", help="repeats before those that count")
    names = f"other programs on the same weights, separated by commas: {', '.join(PEERS)}"
    add("--peers", type=comma_separated(PEERS), default=[], metavar="NAMES", help=names)
    add("--peer-python", metavar="PATH", help="the Python that has them (default: this one)")
    assistant = f"the draft model of --peers {ASSISTED} (default: --draft-model), which knows no draft heads"
    add("--assistant", metavar="NAME", help=assistant)
    shapes = f"random weights and sources, plain decoding, of shapes separated by commas: {', '.join(SHAPES)}"
    add("--random", type=comma_separated(SHAPES), metavar="NAMES", help=shapes)
    add("--bits", type=int, choices=(4, 8), nargs="+", default=[None], help="with --random: quantised; each is tried")
    drafts = f"with --random: also with random drafts, {HEAD} or shapes, right as often as --acceptance says"
    add("--draft", type=comma_separated((HEAD, *SHAPES)), default=[], metavar="NAMES", help=drafts)
    add("--acceptance", type=Path, metavar="FILE", help="for --draft; written by python -m benchmarks.record")
    add_flags(parser, "models", ModelNames)
    return parser


def check(chosen: argparse.Namespace) -> None:
    """Refuse what does not go together, and read --acceptance, before anything takes time. Raises `InputError`."""
    given, files = vars(chosen), ", ".join(map(str, chosen.prompts))
    is_random, is_replay, has_assisted = "random" in given, "acceptance" in given, ASSISTED in chosen.peers
    is_other, orphan = "slots" in given or set(chosen.temperature) != {0}, is_replay and not is_random
    wrong = {
        "--peers: compared at temperature 0; add 0 to --temperature": chosen.peers and 0 not in chosen.temperature,
        "--peer-python: is of no use without --peers": "peer_python" in given and not chosen.peers,
        f"--assistant: is of no use without --peers {ASSISTED}": "assistant" in given and not has_assisted,
        f"--peers {ASSISTED}: does not go with --slots: it decodes no batches": "slots" in given and has_assisted,
        f"--peers {ASSISTED}: does not go with --random: no draft is like random weights": is_random and has_assisted,
        f"prompts {files}: do not go with --random, which makes its own sources": is_random and files,
        "--draft and --acceptance: go with each other, and with --random": is_replay != bool(chosen.draft) or orphan,
        "--acceptance: goes with temperature 0, and without --slots": is_replay and is_other,
        "--num-beams: goes with temperature 0, without drafts": chosen.num_beams > 1
        and (
            is_replay or has_assisted or set(chosen.temperature) != {0} or bool(given.keys() & {"drafter", "num_draft"})
        ),
        "--bits: goes with --random, and without --peers": any(chosen.bits) and (not is_random or chosen.peers),
    }
    for option in ("model", "draft_model", "drafter", "num_draft"):
        wrong[f"--{option.replace('_', '-')}: does not go with --random"] = is_random and option in given
    for message, is_so in wrong.items():
        if is_so:
            raise InputError(message)
    if is_replay:
        kinds = ["head" if name == HEAD else "model" for name in chosen.draft]
        chosen.acceptance = read(chosen.acceptance, [*kinds, "copy", "found"])
