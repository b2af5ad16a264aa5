"""Does speculation change anything? Decode prompts both ways and compare token by token.

`--drafter`, `--num-draft`, `--seed` and `--slots` take several values here, and every combination is tried; with slots,
rows of batches are compared with regular decoding of each prompt alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from ..decoding.divergence import first_divergence
from ..decoding.ways import PLAIN, Way, ways
from ..errors import InputError
from ..sampling import GenerationOptions
from ..sampling.values import Whole
from ..session import Session
from . import common
from .draft_flags import DraftFlags
from .drafting import COPIES, USES_MODEL, Plan, make_plan, usual_drafter
from .main_flags import FOR_PYTHON
from .models import ModelNames
from .parser import Parser, add_flags, chosen_as, given_options, word

PROMPTS = Path(__file__).resolve().parents[2] / "data"


def verify_parser() -> Parser:
    parser = Parser(
        prog="python -m speculative_decoding.verify",
        description="Decode prompts with and without a draft and compare the outputs token by token.",
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("prompts", nargs="*", type=Path, help="a prompt a line (default: the bundled files)")
    add_flags(parser, "models", ModelNames)
    add_flags(parser, "decoding", GenerationOptions, without=FOR_PYTHON, lists=("drafter", "num_draft", "seed"))
    add_flags(parser, "draft vocabulary and n-gram stores", DraftFlags)
    slots = "decode so many prompts together (several: each is tried; default: one at a time)"
    parser.add_argument("--slots", type=word(Whole(1)), nargs="+", metavar="N", help=slots)
    return parser


def require_comparable(options: GenerationOptions, who: str) -> None:
    if not options.is_comparable:
        raise InputError(
            f"{who} needs --temperature 0 or --acceptance coupled, not --temperature {options.temperature:g}: "
            "two samples of the same law need not be the same text"
        )


def read_prompt_files(paths: Sequence[Path]) -> Iterator[str]:
    for path in paths or sorted(PROMPTS.glob("*.txt")):
        try:
            yield from path.read_text(encoding="utf-8").split("\n")  # other line breaks may be text
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"prompts {path}: not readable as UTF-8 text ({error})") from error


@dataclass(frozen=True)
class Trial:
    """A way of decoding that is compared with regular decoding. slots: of a batch; None: one prompt at a time."""

    way: Way
    seed: int
    slots: int | None

    @property
    def name(self) -> str:
        at_once = "" if self.slots is None else f", slots {self.slots}"
        return f"drafter {self.way.drafter}, num-draft {self.way.num_draft}, seed {self.seed}{at_once}"

    def outputs(self, session: Session, prompts: Sequence[str]) -> Iterator[tuple[int, list[int]]]:
        """(a prompt's index, its tokens), as they are finished."""
        keywords: dict[str, Any] = self.way.keywords | {"seed": self.seed}
        if self.slots is None:
            yield from ((i, session.generate(prompt, **keywords).tokens) for i, prompt in enumerate(prompts))
            return
        for each in session.batch(prompts, slots=self.slots, **keywords):
            if each.result is None:
                raise InputError(f"prompt {each.index + 1}: {each.error}")
            yield each.index, each.result.tokens


def trials(chosen: argparse.Namespace) -> tuple[Plan, list[Trial]]:
    """All combinations of --drafter, --num-draft, --seed and --slots, and a plan of what they share."""
    given, folders = given_options(chosen), chosen_as(ModelNames, chosen).find()
    flags = chosen_as(DraftFlags, chosen)
    drafters, lengths = given.pop("drafter", [usual_drafter(folders)]), given.pop("num_draft", [5])
    tried, seeds, slots = ways(drafters, lengths), given.pop("seed", [0]), getattr(chosen, "slots", [None])
    if tried == [PLAIN] and slots == [None] and lengths != [0]:
        raise InputError(
            "verify: there is nothing to compare without a draft; choose a --drafter, or name a --draft-model"
        )
    for way in tried:
        make_plan(folders, given | way.keywords, flags)  # raises for what has no effect
    plan = Plan(folders, GenerationOptions(**given), flags)
    return plan, [Trial(way, seed, count) for way, count, seed in product(tried, slots, seeds)]


def verify(chosen: argparse.Namespace) -> int:
    """Exit status 0 if all outputs are identical, 1 if not."""
    plan, tried = trials(chosen)
    require_comparable(plan.options, "verify")
    prompts = [prompt for prompt in read_prompt_files(getattr(chosen, "prompts", [])) if prompt.strip()]
    drafters = {trial.way.drafter for trial in tried}
    pair = plan.open(use_draft=not drafters.isdisjoint(USES_MODEL))
    identical = tokens = 0
    with plan.session(pair, copies=not drafters.isdisjoint(COPIES)) as session:

        @cache
        def regular(prompt: str, **options: Any) -> list[int]:
            return session.generate(prompt, drafter="none", **options).tokens

        for trial in tried:
            common.say(f"{trial.name}: {len(prompts)} prompts")
            options = session.options.changed({"seed": trial.seed})
            # regular decoding knows nothing of num_draft, but for the width of strict passes
            width = {"num_draft": trial.way.num_draft} if options.strict else {}
            expected = [regular(prompt, seed=trial.seed, **width) for prompt in prompts]
            for index, found in trial.outputs(session, prompts):
                tokens += len(found)
                difference = first_divergence(
                    session.model, session.tokenizer, prompts[index], expected[index], found, options
                )
                identical += difference is None
                if difference is not None:
                    print(f"prompt {index + 1}, {trial.name}: {difference.text(session.tokenizer)}", flush=True)
    total = len(prompts) * len(tried)
    print(f"{identical} of {total} identical ({tokens} tokens)")
    return 0 if identical == total else 1


def main(argv: Sequence[str] | None = None) -> int:
    chosen = verify_parser().parse_args(argv)
    return common.run("verify", lambda: verify(chosen))
