"""main.py: decodes a prompt, or each line of standard input."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Annotated as A
from typing import Any

from ..decoding.prompt import build_decoder_prompt, encode_prompt
from ..errors import InputError, Message
from ..sampling import GenerationOptions
from ..sampling.values import BASIC, Bool, Flag, Text
from ..session import Session
from ..subpackages import has_subpackage
from .common import PROMPTS, read_prompts, say, write_stats
from .flags import RunFlags, add_decoding_flags, check_files
from .parser import File, Parser, add_flags, flags_from
from .run_config import run_config_from
from .runner import PromptRunner, note_exactness
from .start import start

EXAMPLE = "translate English to German: The method returns the value of the property."
PROMPT = "text to decode (default: each line of standard input, or an example at a terminal)"
COMPARE = "also decode without a draft and with only the draft model, and compare"
VERIFY = "also decode without a draft, and compare; exit with status 1 if the tokens differ"
# The end of a sentence and the next letter. The last word must be longer than abbreviations such as "Prof.".
SENTENCE_END = re.compile(r"\w{5}[.!?]\W{0,2}\s\W{0,2}([^\W\d_])|[\u3002\uff01\uff1f]\s*(\w)")
DOCUMENTS = (
    "note: a prompt has several sentences, and models for translation are trained on single ones; to decode each of "
    "them, use python -m speculative_decoding document"
)
SHOW_DRAFT = "show accepted, rejected and corrected tokens, in the text or in one line per round"


@dataclass(frozen=True)
class PromptFlags(RunFlags):
    """How prompts are specified, and what is shown in addition to the text."""

    prompt: A[str | None, Text(may_be_empty=True), PROMPT] = None
    compare: A[bool, Bool(), COMPARE, BASIC] = False
    verify: A[bool, Bool(), VERIFY, BASIC] = False
    show_draft: A[str | None, Text(("text", "rounds")), SHOW_DRAFT, BASIC, Flag(bare="text")] = None
    trace: A[Path | None, File(), "write one JSON line per round to this file"] = None


def prompt_parser(program: str = "main.py") -> Parser:
    parser = Parser(
        prog=program,
        usage="%(prog)s [options] [PROMPT]",
        description="Decode prompts: a draft proposes tokens, and the target verifies them. The text goes to standard "
        "output, everything else to standard error.",
        epilog="python -m speculative_decoding --help lists the other commands, such as console and convert.",
        basic=("prompt",),
    )
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("prompt", nargs="?", default=argparse.SUPPRESS, metavar="PROMPT", help=PROMPT)
    prompt.add_argument("--prompt", default=argparse.SUPPRESS, metavar="TEXT", help="another way to give the prompt")
    add_flags(parser, "prompt and output", PromptFlags, without=("prompt",))
    add_decoding_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None, program: str = "main.py") -> int:
    return start(prompt_parser(program), argv, decode_prompts)


def decode_prompts(chosen: argparse.Namespace, processes: Any = None) -> int:
    """Decode each prompt and return the exit status: 1 if --verify finds a difference.

    processes: the group of processes that share the target; None if there is only one.
    """
    flags = flags_from(PromptFlags, chosen)
    check_files(vars(chosen))
    config = run_config_from(chosen, processes=processes)
    if views := [name for name in ("verify", "compare", "show_draft", "trace") if getattr(flags, name)]:
        require_suitable(config.options, views)
    prompts = given_prompts(flags)
    first = next(prompts)
    pair = config.open()
    say(config.describe(pair))
    config = config.with_memory(pair)
    model, tokenizer, options = pair.target.model, pair.target.tokenizer, config.options
    build_decoder_prompt(model, tokenizer, options)  # raises before the weights are read, like the next line
    tokens = encode_prompt(model, tokenizer, first, options.allow_long_prompt, options.src_lang, options.tgt_lang)
    runner = make_runner(flags, options)
    with config.session(pair) as session:
        note_exactness(session)
        if flags.compare:
            from .compare import warm_up

            warm_up(session, tokens)
        note = config.demonstration_note()
        is_same = decode_each(chain([first], prompts), tokens, session, runner, note, verify=flags.verify)
        stats = runner.finish(session)
    if flags.stats_json is not None:
        write_stats(flags.stats_json, pair.folders | config.settings() | stats.as_dict())
    return 0 if is_same else 1


def require_suitable(options: GenerationOptions, views: Sequence[str]) -> None:
    """Raise `InputError` for views and comparisons (fields of `PromptFlags`) that the options do not support."""
    if "verify" in views:
        from .divergence import require_comparable

        require_comparable(options, "verify")
    for name in views:
        if name in ("verify", "compare") and options.draft_tokens == 0:
            raise InputError(
                "compares with and without a draft",
                name,
                Message("choose a {drafter}, or name a {draft_model}"),
            )
    count = options.num_return_sequences
    if count > 1:
        raise InputError(
            Message("needs a single output, not {num_return_sequences} {count}", count=count), views[0], "leave one out"
        )


def given_prompts(flags: PromptFlags) -> Iterator[str]:
    """Yield the prompt, or each line of standard input, after the prefix. At a terminal, yield an example instead.

    For a blank line of standard input, a blank line is printed.
    """
    if flags.prompt is not None:
        if not flags.prompt.strip():
            raise InputError("is empty", "prompt", "give it some text")
        if os.path.isfile(name := flags.prompt):
            say(
                f"note: the prompt is the name of a file; did you mean its content? For its lines, use < {name} or "
                f"speculative-decoding batch {name}; for a recording, speculative-decoding transcribe {name}"
            )
        elif flags.prompt.startswith(("http://", "https://")) and len(flags.prompt.split()) == 1:
            say("note: the prompt is an address, whose content is not read; give the text itself")
        yield flags.prefix + flags.prompt
        return
    if sys.stdin.isatty():
        say(f"no prompt given; decoding an example: {EXAMPLE}")
        yield EXAMPLE
        return
    from .lines import decode_line, read_lines

    is_empty = True
    for line in read_lines(sys.stdin.buffer):
        try:
            text = decode_line(line)
        except InputError as error:
            raise error.at(f"standard input, line {line.number}") from error
        if text.strip():
            is_empty = False
            yield flags.prefix + text
        else:
            print(flush=True)
    if is_empty:
        raise InputError("standard input is empty; write one prompt per line, or give the prompt as an argument")


def make_runner(flags: PromptFlags, options: GenerationOptions) -> PromptRunner:
    in_one_line = flags.prompt is None or options.num_return_sequences > 1
    if flags.compare:
        from .compare import Comparison

        return Comparison(flags.show_draft, flags.trace, in_one_line=in_one_line)
    return PromptRunner(flags.show_draft, flags.trace, in_one_line=in_one_line)


def decode_each(
    prompts: Iterable[str],
    tokens: Sequence[int] | None,
    session: Session,
    runner: PromptRunner,
    note: str | None,
    *,
    verify: bool,
) -> bool:
    """Decode each prompt. Returns False if `verify` is set and the tokens of an output differ from the baseline's.

    Before the first prompt with several sentences to translate, a note suggests the `document` command.

    tokens: the source tokens of the first prompt.
    note: a text to print before the first prompt that is not in `demonstration_prompts`.
    """
    is_same = True
    knows_documents = has_subpackage("documents")
    for prompt in prompts:
        translates = session.tokenizer.languages or "" in session.model.task_prefixes.values()
        is_translation = prompt.lower().startswith("translate ") or translates
        ends = SENTENCE_END.finditer(prompt) if knows_documents and is_translation else ()
        if any(end[2] or end[1].isupper() for end in ends):
            say(DOCUMENTS)
            knows_documents = False
        if note and prompt != EXAMPLE and prompt not in demonstration_prompts():
            say(note)
            note = None
        result = runner.run(session, prompt, tokens=tokens)
        if verify:
            assert result is not None
            is_same = verify_output(session, tokens or prompt, result.tokens) and is_same
        tokens = None
    return is_same


def verify_output(session: Session, prompt: str | Sequence[int], tokens: Sequence[int]) -> bool:
    """Decode a prompt without a draft. Print and return whether this yields the same tokens."""
    from .divergence import compare_output

    divergence = compare_output(session, prompt, tokens)
    identical = f"identical, {len(tokens)} tokens"
    say(f"verify: {identical if divergence is None else divergence.with_tokens(session.tokenizer)}")
    return divergence is None


@cache
def demonstration_prompts() -> set[str]:
    """Return the prompts in the repository's data folder, which the bundled target can answer."""
    return set().union(*(read_prompts(path) for path in PROMPTS.glob("*.txt")))
