"""Compares outputs with and without a draft, token by token.

`--drafter`, `--num-draft`, `--seed` and `--slots` take several values, and every combination is tested. Each output is
compared with the baseline output of the same prompt, which is decoded in a batch of one.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from ..drafters import with_default_drafter
from ..errors import InputError, Name
from ..sampling import GenerationOptions
from ..sampling.values import Int
from ..session import Session
from .common import PROMPTS, read_prompts, say, start_alone
from .divergence import first_divergence
from .flags import add_decoding_flags
from .modes import BASELINE, combine_modes
from .parser import Parser, argument_type, flags_from, given_options
from .progress import progress
from .run_config import MODEL_DRAFTERS, DraftFlags, ModelFlags, RunConfig, make_run_config


def verify_parser(program: str) -> Parser:
    parser = Parser(
        prog=program,
        usage="%(prog)s [FILE ...] [options]",
        description="Decode prompts with and without a draft and compare the outputs token by token.",
        argument_default=argparse.SUPPRESS,
        basic=("prompts", "slots", "drafter"),
    )
    parser.add_argument(
        "prompts", nargs="*", type=Path, metavar="FILE", help="files with one prompt per line (default: bundled files)"
    )
    add_decoding_flags(parser, lists=("drafter", "num_draft_tokens", "seed"))
    parser.add_argument(
        "--slots", type=argument_type(Int(1)), nargs="+", metavar="N", help="batch sizes to test (default: 1)"
    )
    return parser


def require_comparable(options: GenerationOptions, subject: str | None = None) -> None:
    """Raise `InputError` if outputs with and without a draft may differ."""
    if not options.is_comparable:
        name, value = ("acceptance", options.acceptance) if options.acceptance else ("delta", f"{options.delta:g}")
        raise InputError(
            ("independent samples differ (got ", Name("temperature"), f" {options.temperature:g}, expected 0)"),
            subject,
            ("use ", Name("temperature"), " 0, or leave out ", Name(name), f" {value}"),
        )


def verify_output(session: Session, prompt: str | Sequence[int], tokens: list[int]) -> bool:
    """Decode a prompt without a draft, and print and return whether the tokens are the same."""
    is_exact = session.planner.widths(session.options_with({})).exact
    baseline = session.generate(prompt, drafter="none", strict=is_exact or None).tokens
    difference = first_divergence(session.model, session.tokenizer, prompt, baseline, tokens, session.options)
    say("verify: " + (f"identical, {len(tokens)} tokens" if difference is None else difference.text(session.tokenizer)))
    return difference is None


def bundled_prompts() -> list[Path]:
    """Return the bundled files of prompts. Raises `InputError` if they are not installed."""
    if not (found := sorted(PROMPTS.glob("*.txt"))):
        raise InputError(
            "bundled files come only with the repository", "prompts", "name a file with one prompt per line"
        )
    return found


def verify(chosen: argparse.Namespace) -> int:
    """Test all combinations and return the exit status: 1 if an output differs."""
    given = given_options(chosen)
    paths = flags_from(ModelFlags, chosen).find()
    flags = flags_from(DraftFlags, chosen)
    drafters = given.pop("drafter", [with_default_drafter(GenerationOptions(), paths.draft_model).drafter])
    lengths = given.pop("num_draft_tokens", [GenerationOptions.num_draft_tokens])
    seeds = given.pop("seed", [0])
    slot_counts = getattr(chosen, "slots", [1])

    modes = combine_modes(drafters, lengths)
    if modes == [BASELINE] and slot_counts == [1] and lengths != [0]:
        raise InputError("none leaves nothing to compare", "drafter", "choose another")
    for mode in modes:
        make_run_config(paths, given | mode.keywords, flags)  # raises for options without effect
    options = flags.add_draft_texts(with_default_drafter(GenerationOptions(**given), paths.draft_model))
    config = RunConfig(paths, options, flags, given.keys())
    require_comparable(config.options)
    files = getattr(chosen, "prompts", []) or bundled_prompts()
    prompts = [prompt for path in files for prompt in read_prompts(path)]

    used_drafters = {mode.drafter for mode in modes}
    pair = config.open(use_draft=not used_drafters.isdisjoint(MODEL_DRAFTERS))
    trials = list(product(modes, slot_counts, seeds))
    total = len(prompts) * len(trials)
    num_done = num_identical = num_tokens = 0
    with config.session(pair) as session, progress() as show:

        @cache
        def baseline(prompt: str, **options: Any) -> list[int]:
            return session.generate(prompt, drafter="none", **options).tokens

        for mode, slots, seed in trials:
            name = f"drafter {mode.drafter}, num-draft {mode.num_draft_tokens}, seed {seed}, slots {slots}"
            if mode == BASELINE:
                name = f"baseline, seed {seed}, slots {slots}"
            say(f"{name}: {len(prompts)} prompts")
            options = session.options.override({"seed": seed})
            exact = session.planner.widths(options.override(mode.keywords), slots).exact
            expected = []
            identical_before = num_identical
            for prompt in prompts:
                expected.append(baseline(prompt, seed=seed, strict=exact or None))
                show(num_done, total, f"{name}: {len(expected)} of {len(prompts)} baseline outputs")
            for each in session.batch_as_completed(prompts, slots=slots, seed=seed, **mode.keywords):
                if each.result is None:
                    raise InputError(f"prompt {each.index + 1}: {each.error}")
                tokens = each.result.tokens
                difference = first_divergence(
                    session.model, session.tokenizer, prompts[each.index], expected[each.index], tokens, options
                )
                num_done += 1
                num_tokens += len(tokens)
                num_identical += difference is None
                if difference is not None:
                    print(f"prompt {each.index + 1}, {name}: {difference.text(session.tokenizer)}", flush=True)
                show(num_done, total, f"{name}: {num_identical} of {num_done} outputs identical")
            if len(trials) > 1:
                print(f"{name}: {num_identical - identical_before} of {len(prompts)} identical", flush=True)
    print(f"{num_identical} of {total} identical ({num_tokens} tokens)")
    return 0 if num_identical == total else 1


def main(argv: Sequence[str] | None = None, program: str = "python -m speculative_decoding.verify") -> int:
    return start_alone(verify_parser(program), argv, verify)
