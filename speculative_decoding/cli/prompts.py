"""main.py without --input or --interactive: prompts in, text out as it is accepted, statistics behind it.

How a prompt is decoded and shown is for compare.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain

from ..comparison.divergence import first_divergence
from ..decoding.prompt import encode_prompt
from ..decoding.stats import GenerationStats
from ..errors import InputError
from ..jobs.input import decode_line, read_lines
from ..session import Session
from .common import say, write_stats
from .compare import PromptRunner, decoding_modes, note_exactness, warm_up
from .flags import Views
from .parser import flag
from .run_config import RunConfig
from .summary import run_summary
from .verify import require_comparable

EXAMPLE = "translate English to German: The method returns the value of the property."


def decode_prompts(plan: RunConfig, views: Views) -> int:
    """The exit status: 1 if --verify found a difference."""
    if views.verify:
        require_comparable(plan.options, "--verify")
    for name, is_on in (("--verify", views.verify), ("--compare", views.compare)):
        if is_on and plan.is_baseline:
            raise InputError(f"{name} compares with and without a draft: choose a --drafter, or name a --draft-model")
    several = plan.options.num_return_sequences
    for name in ("verify", "compare", "show_draft", "trace"):
        if several > 1 and getattr(views, name):
            raise InputError(f"{flag(name)} is of one output, not of --num-return-sequences {several}; leave one out")
    prompts = read_prompts(views.prompt)
    first = next(prompts)
    pair = plan.open()
    say(plan.describe())
    if first.strip():
        encode_prompt(pair.target.model, pair.target.tokenizer, first, plan.options.allow_long_prompt)
    same = True
    with plan.session(pair) as session:
        runner = PromptRunner.from_views(views)
        modes = decoding_modes(session)
        answer = modes[0]
        note_exactness(session)
        for prompt in chain([first], prompts):
            if not prompt.strip():  # a blank line of input gives a blank line of output
                print(flush=True)
                continue
            if views.compare and not runner.num_prompts:
                warm_up(session, prompt)
            if several > 1:
                runner.run_several(session, prompt)
                continue
            run = runner.run(session, modes if views.compare else [answer], prompt)[answer]
            if views.verify:
                same = verify(session, prompt, run.tokens) and same
        if views.compare:
            runner.print_totals()
        total = runner.totals.get(answer, GenerationStats())
        say(run_summary(total, plan.options, runner.num_prompts, runner.num_cut))
        if views.show_draft and isinstance(plan.options.num_draft_tokens, str) and not plan.is_baseline:
            length = session.planner.draft_length(session.options)
            say(f"--num-draft {plan.options.num_draft_tokens}: {length.describe()}")
    if views.stats_json is not None:
        settings = asdict(plan.options) | {"drafter": plan.drafter}
        write_stats(views.stats_json, pair.folders | settings | total.as_dict())
    return 0 if same else 1


def verify(session: Session, prompt: str, tokens: list[int]) -> bool:
    """Decode once more without a draft; say and return whether that gives the same tokens."""
    exact = session.planner.widths(session.options_with({})).exact
    regular = session.generate(prompt, drafter="none", strict=exact or None).tokens
    difference = first_divergence(session.model, session.tokenizer, prompt, regular, tokens, session.options)
    say("verify: " + (f"identical, {len(tokens)} tokens" if difference is None else difference.text(session.tokenizer)))
    return difference is None


def read_prompts(prompt: str | None) -> Iterator[str]:
    """The --prompt, or standard input line by line as it comes, or at a terminal the example."""
    if prompt is not None:
        if not prompt.strip():
            raise InputError(f"--prompt {prompt!r}: is empty; give it some text")
        yield prompt
        return
    if sys.stdin.isatty():
        say(f"no --prompt, so an example: {EXAMPLE}")
        yield EXAMPLE
        return
    is_empty = True
    for line in read_lines(sys.stdin.buffer):
        try:
            text = decode_line(line)
        except InputError as error:
            raise InputError(f"standard input, line {line.number}: {error}") from error
        is_empty = is_empty and not text.strip()
        yield text
    if is_empty:
        raise InputError("standard input is empty; give it a prompt a line, or use --prompt")
