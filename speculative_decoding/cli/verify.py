"""Does speculation change anything? Decode prompts both ways and compare token by token.

`--drafter`, `--num-draft`, `--seed` and `--slots` take several values here, and every combination is tried. With any of
them, what comes is compared with regular decoding of each prompt alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from ..decoding.divergence import first_divergence
from ..decoding.ways import PLAIN, ways
from ..drafters import usual_drafter
from ..errors import InputError
from ..sampling import GenerationOptions
from ..sampling.options import default
from ..sampling.values import Whole
from . import common
from .drafting import COPIES, USES_MODEL, Plan, make_plan
from .flags import DraftFlags, add_decoding_flags
from .models import ModelNames
from .parser import Parser, chosen_as, given_options, word

PROMPTS = Path(__file__).resolve().parents[2] / "data"


def verify_parser(program: str) -> Parser:
    parser = Parser(
        prog=program,
        description="Decode prompts with and without a draft and compare the outputs token by token.",
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("prompts", nargs="*", type=Path, help="a prompt a line (default: the bundled files)")
    add_decoding_flags(parser, lists=("drafter", "num_draft_tokens", "seed"))
    slots = "decode so many prompts together (several: each is tried; default: 1)"
    parser.add_argument("--slots", type=word(Whole(1)), nargs="+", metavar="N", help=slots)
    return parser


def require_comparable(options: GenerationOptions, who: str) -> None:
    if not options.is_comparable:
        raise InputError(
            f"{who} needs --temperature 0 or --acceptance coupled, not --temperature {options.temperature:g}: "
            "two samples of the same law need not be the same text"
        )


def bundled_prompts() -> list[Path]:
    """Their files. Raises `InputError` where they are not installed."""
    if not (found := sorted(PROMPTS.glob("*.txt"))):
        raise InputError("the bundled prompts come with the repository alone; name a file with a prompt a line")
    return found


def verify(chosen: argparse.Namespace) -> int:
    """The exit status: 0 if all outputs are identical, with all combinations of what takes several values; 1 if not."""
    given, folders = given_options(chosen), chosen_as(ModelNames, chosen).find()
    flags = chosen_as(DraftFlags, chosen)
    drafters = given.pop("drafter", [usual_drafter(folders.draft)])
    lengths = given.pop("num_draft_tokens", [default("num_draft_tokens")])
    tried, slots, seeds = ways(drafters, lengths), getattr(chosen, "slots", [1]), given.pop("seed", [0])
    if tried == [PLAIN] and slots == [1] and lengths != [0]:
        raise InputError("verify: there is nothing to compare without a draft; choose another --drafter")
    for way in tried:
        make_plan(folders, given | way.keywords, flags)  # raises for what has no effect
    plan = Plan(folders, GenerationOptions(**given), flags)
    require_comparable(plan.options, "verify")
    files = getattr(chosen, "prompts", []) or bundled_prompts()
    prompts = [prompt for path in files for prompt in common.read_prompts(path)]
    used = {way.drafter for way in tried}
    pair = plan.open(use_draft=not used.isdisjoint(USES_MODEL))
    identical = tokens = 0
    trials = list(product(tried, slots, seeds))
    with plan.session(pair, copies=not used.isdisjoint(COPIES)) as session:

        @cache
        def regular(prompt: str, **options: Any) -> list[int]:
            return session.generate(prompt, drafter="none", **options).tokens

        for way, together, seed in trials:
            name = f"drafter {way.drafter}, num-draft {way.num_draft_tokens}, seed {seed}, slots {together}"
            common.say(f"{name}: {len(prompts)} prompts")
            options = session.options.changed({"seed": seed})
            exact = session.planner.widths(options.changed(way.keywords), together).exact
            expected = [regular(prompt, seed=seed, strict=exact or None) for prompt in prompts]
            for each in session.batch(prompts, slots=together, seed=seed, **way.keywords):
                if each.result is None:
                    raise InputError(f"prompt {each.index + 1}: {each.error}")
                found, both = each.result.tokens, (session.model, session.tokenizer)
                difference = first_divergence(*both, prompts[each.index], expected[each.index], found, options)
                tokens, identical = tokens + len(found), identical + (difference is None)
                if difference is not None:
                    print(f"prompt {each.index + 1}, {name}: {difference.text(session.tokenizer)}", flush=True)
    total = len(prompts) * len(trials)
    print(f"{identical} of {total} identical ({tokens} tokens)")
    return 0 if identical == total else 1


def main(argv: Sequence[str] | None = None, program: str = "python -m speculative_decoding.verify") -> int:
    chosen = verify_parser(program).parse_args(argv)
    return common.run("verify", lambda: verify(chosen))
