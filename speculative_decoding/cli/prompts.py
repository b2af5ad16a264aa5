"""main.py without --input or --interactive: decodes prompts, and prints statistics at the end."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cache
from itertools import chain

from ..decoding.prompt import build_decoder_prompt, encode_prompt
from ..decoding.stats import GenerationStats
from ..errors import InputError, Name
from ..jobs.input import decode_line, read_lines
from ..session import Session
from .common import read_prompts, say, write_stats
from .compare import PromptRunner, decoding_modes, note_exactness, warm_up
from .divergence import first_divergence
from .flags import Views
from .run_config import RunConfig
from .summary import run_summary
from .verify import PROMPTS, require_comparable

EXAMPLE = "translate English to German: The method returns the value of the property."


def decode_prompts(config: RunConfig, views: Views) -> int:
    """Decode each prompt and return the exit status: 1 if --verify finds a difference."""
    require_suitable(config, views)
    prompts = given_prompts(views)
    first = next(prompts)
    pair = config.open()
    say(config.describe())
    options, tokens = config.options, None
    if first.strip():  # reject unsuitable options and prompts before loading weights
        build_decoder_prompt(pair.target.model, pair.target.tokenizer, options)
        tokens = encode_prompt(
            pair.target.model, pair.target.tokenizer, first, options.allow_long_prompt, options.src_lang
        )
    is_same = True
    with config.session(pair) as session:
        runner = PromptRunner.from_views(views)
        runner.in_one_line = views.prompt is None or options.num_return_sequences > 1
        modes = decoding_modes(session)
        answer = modes[0]
        note = config.demonstration_note()
        for prompt in chain([first], prompts):
            if not prompt.strip():
                print(flush=True)  # print one output line per input line
                continue
            if not runner.num_prompts:
                note_exactness(session)
            if note and prompt not in demonstration_prompts():
                say(note)
                note = None
            if views.compare and not runner.num_prompts:
                warm_up(session, tokens or prompt)
            if options.num_return_sequences > 1:
                runner.run_several(session, prompt, tokens=tokens)
            else:
                result = runner.run(session, modes if views.compare else [answer], prompt, tokens=tokens)[answer]
                if views.verify:
                    is_same = verify(session, tokens or prompt, result.tokens) and is_same
            tokens = None  # known for the first prompt only
        if views.compare:
            runner.print_totals()
        total = runner.totals.get(answer, GenerationStats())
        say(run_summary(total, options, runner.num_prompts, runner.num_cut))
        if views.show_draft and isinstance(options.num_draft_tokens, str) and not config.is_baseline:
            length = session.planner.draft_length(session.options)
            say(f"--num-draft {options.num_draft_tokens}: {length.describe()}")
    if views.stats_json is not None:
        settings = asdict(options) | {"acceptance": options.rule}
        write_stats(views.stats_json, pair.folders | settings | total.as_dict())
    return 0 if is_same else 1


def require_suitable(config: RunConfig, views: Views) -> None:
    """Raise `InputError` for views that cannot be combined with the options."""
    if views.verify:
        require_comparable(config.options, "verify")
    for name, is_on in (("verify", views.verify), ("compare", views.compare)):
        if is_on and config.is_baseline:
            raise InputError(
                "compares with and without a draft",
                name,
                ("choose a ", Name("drafter"), ", or name a ", Name("draft_model")),
            )
    count = config.options.num_return_sequences
    for name in ("verify", "compare", "show_draft", "trace"):
        if count > 1 and getattr(views, name):
            raise InputError(
                ("needs a single output, not ", Name("num_return_sequences"), f" {count}"), name, "leave one out"
            )


@cache
def demonstration_prompts() -> set[str]:
    """Return the prompts of the repository's data and the example, which the bundled target can answer."""
    return {EXAMPLE}.union(*(read_prompts(path) for path in PROMPTS.glob("*.txt")))


def verify(session: Session, prompt: str | Sequence[int], tokens: list[int]) -> bool:
    """Decode the prompt without a draft, and print and return whether the tokens are the same."""
    is_exact = session.planner.widths(session.options_with({})).exact
    baseline = session.generate(prompt, drafter="none", strict=is_exact or None).tokens
    difference = first_divergence(session.model, session.tokenizer, prompt, baseline, tokens, session.options)
    say("verify: " + (f"identical, {len(tokens)} tokens" if difference is None else difference.text(session.tokenizer)))
    return difference is None


def given_prompts(views: Views) -> Iterator[str]:
    """Yield the prompt from the command line or the lines of standard input; at a terminal, yield an example."""
    if views.prompt is not None:
        if not views.prompt.strip():
            raise InputError("is empty", "prompt", "give it some text")
        if os.path.isfile(views.prompt):
            say(
                f"note: the prompt is the name of a file; did you mean its content? For its lines, use --input "
                f"{views.prompt} or < {views.prompt}; for a recording, --audio {views.prompt}"
            )
        yield views.prompt
        return
    if sys.stdin.isatty():
        say(f"no prompt given; decoding an example: {EXAMPLE}")
        yield EXAMPLE
        return
    is_empty = True
    for line in read_lines(sys.stdin.buffer):
        try:
            text = decode_line(line)
        except InputError as error:
            raise error.at(f"standard input, line {line.number}") from error
        is_empty = is_empty and not text.strip()
        yield text
    if is_empty:
        raise InputError("standard input is empty; write one prompt per line, or give the prompt as an argument")
