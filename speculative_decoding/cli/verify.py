"""Compares outputs with and without a draft, token by token.

`--drafter`, `--num-draft`, `--seed` and `--slots` take several values, and every combination is tested. Each output is
compared with the baseline output of the same prompt, which is decoded in a batch of one.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InputError
from ..sampling import GenerationOptions
from ..sampling.values import Int
from ..session import Session
from .common import PROMPTS, read_prompts, say, start_alone
from .divergence import baseline_tokens, compare_outputs, require_comparable
from .flags import add_decoding_flags
from .modes import BASELINE, DecodingMode, combine_modes
from .parser import Parser, argument_type, flags_from, given_options
from .progress import progress
from .run_config import MODEL_DRAFTERS, DraftFlags, ModelFlags, RunConfig, make_run_config


class Trial(NamedTuple):
    """A combination to test. Its outputs are compared with the baseline outputs for the same seed."""

    mode: DecodingMode
    slots: int
    seed: int

    def __str__(self) -> str:
        mode = f"drafter {self.mode.drafter}, num-draft {self.mode.num_draft_tokens}"
        return f"{'baseline' if self.mode == BASELINE else mode}, seed {self.seed}, slots {self.slots}"


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


def bundled_prompts() -> list[Path]:
    """Return the bundled prompt files. Raises `InputError` if they are not installed."""
    if not (found := sorted(PROMPTS.glob("*.txt"))):
        raise InputError(
            "bundled files come only with the repository", "prompts", "name a file with one prompt per line"
        )
    return found


def verify(chosen: argparse.Namespace) -> int:
    """Test all combinations and return the exit status: 1 if an output differs."""
    config, trials = chosen_trials(chosen)
    files = getattr(chosen, "prompts", []) or bundled_prompts()
    prompts = [prompt for path in files for prompt in read_prompts(path)]
    pair = config.open(use_draft=any(trial.mode.drafter in MODEL_DRAFTERS for trial in trials))
    config = config.with_memory(pair)
    with config.session(pair) as session:
        return run_trials(session, prompts, trials)


def chosen_trials(chosen: argparse.Namespace) -> tuple[RunConfig, list[Trial]]:
    """Return the session's configuration and all combinations. Raises `InputError` if one is invalid."""
    given = given_options(chosen)
    paths = flags_from(ModelFlags, chosen).find()
    flags = flags_from(DraftFlags, chosen)
    drafters = given.pop("drafter", [RunConfig(paths, GenerationOptions(), flags).options.drafter])
    lengths = given.pop("num_draft_tokens", [GenerationOptions.num_draft_tokens])
    seeds = given.pop("seed", [0])
    slot_counts = getattr(chosen, "slots", [1])

    modes = combine_modes(drafters, lengths)
    if modes == [BASELINE] and slot_counts == [1] and lengths != [0]:
        raise InputError("none leaves nothing to compare", "drafter", "choose another")
    for mode in modes:
        make_run_config(paths, given | mode.keywords, flags)  # raises for options that have no effect
    config = RunConfig(paths, flags.add_draft_texts(GenerationOptions(**given)), flags, given.keys())
    require_comparable(config.options)
    return config, [Trial(*each) for each in product(modes, slot_counts, seeds)]


def run_trials(session: Session, prompts: Sequence[str], trials: Sequence[Trial]) -> int:
    """Decode all prompts in each trial, print each difference, and return the exit status."""
    baseline = cache(partial(baseline_tokens, session))
    total = len(prompts) * len(trials)
    num_done = num_identical = num_tokens = 0
    with progress() as show:
        for trial in trials:
            say(f"{trial}: {len(prompts)} prompts")
            identical_before = num_identical
            options: dict[str, Any] = {"slots": trial.slots, "baseline": baseline, "seed": trial.seed}
            for output, divergence in compare_outputs(session, prompts, trial.mode.keywords, **options):
                if output.result is None:
                    raise InputError(f"prompt {output.index + 1}: {output.error}")
                num_done += 1
                num_tokens += len(output.result.tokens)
                num_identical += divergence is None
                if divergence is not None:
                    difference = divergence.with_tokens(session.tokenizer)
                    print(f"prompt {output.index + 1}, {trial}: {difference}", flush=True)
                show(num_done, total, f"{trial}: {num_identical} of {num_done} outputs identical")
            if len(trials) > 1:
                print(f"{trial}: {num_identical - identical_before} of {len(prompts)} identical", flush=True)
    print(f"{num_identical} of {total} identical ({num_tokens} tokens)")
    return 0 if num_identical == total else 1


def main(argv: Sequence[str] | None = None, program: str = "python -m speculative_decoding.verify") -> int:
    return start_alone(verify_parser(program), argv, verify)
