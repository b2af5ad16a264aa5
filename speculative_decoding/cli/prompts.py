"""main.py without --input or --interactive: prompts in, text out as it is accepted, statistics behind it.

Says what all texts took together; how one is decoded is for ways.py, how it is shown for views.py and compare.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from ..decoding.request import check_token_ids, encode_prompt
from ..decoding.stats import GenerationStats
from ..errors import InputError
from ..session import Session
from ..verify import first_divergence, require_comparable
from . import common, drafting
from .common import Folders, Pair, say
from .compare import Comparison
from .trace import open_trace
from .views import lossy, make_console
from .watching import Run
from .ways import SPECULATIVE, TARGET, Audience, has_drafts, run_ways

DEFAULT_PROMPT = "translate English to German: The method returns the value of the property."


def decode_prompts(chosen: argparse.Namespace, folders: Folders, request: dict[str, Any]) -> int:
    """The exit status: 1 if --verify found a difference. request: what the options ask of `stream_generate`."""
    stats_file: Path | None = getattr(chosen, "stats_json", None)
    if chosen.verify:
        require_comparable(request, "--verify")
    for option in ("verify", "compare"):
        if getattr(chosen, option) and chosen.drafter == "none":
            raise InputError(
                f"--{option} compares with and without a draft: choose a --drafter, or name a --draft-model"
            )
    prompts = read_prompts(getattr(chosen, "prompt", None))
    first = next(prompts)
    pair = common.open_pair(folders, chosen, use_draft=drafting.needs_draft(chosen))
    say(drafting.describe(chosen, folders))
    check_token_ids(chosen.eos_token_id, pair.target.config.vocab_size)
    if first.strip():
        encode_prompt(pair.target, pair.tokenizer, first, chosen.allow_long_prompt)

    total, same = GenerationStats(), True
    with drafting.session(chosen, pair) as session, open_trace(getattr(chosen, "trace", None)) as trace:
        audience = Audience(make_console(), getattr(chosen, "show_draft", None), [] if trace is None else [trace])
        comparison = Comparison(session, request, audience) if chosen.compare else None
        audience.legend(session)
        for prompt in chain([first], prompts):
            if not prompt.strip():  # a blank line of input gives a blank line of output
                print(flush=True)
                continue
            run = decode_one(session, prompt, request, audience) if comparison is None else comparison.add(prompt)
            total.add(run.stats)
            if chosen.verify:
                same = compare(session, prompt, run.tokens, request) and same
        if comparison is not None:
            comparison.finish()
        say(summary(total, chosen))
        if isinstance(chosen.num_draft, str):
            say(f"--num-draft {chosen.num_draft}: {session.length.describe()}")
    if stats_file is not None:
        stats_file.write_text(json.dumps(settings(pair, chosen) | total.as_dict(), indent=2) + "\n", encoding="utf-8")
    return 0 if same else 1


def decode_one(session: Session, prompt: str, request: dict[str, Any], audience: Audience) -> Run:
    """Show the text of one prompt, and a line end."""
    way = SPECULATIVE if has_drafts(session) else TARGET
    return run_ways([way], session, prompt, request, audience)[way]


def compare(session: Session, prompt: str, tokens: list[int], request: dict[str, Any]) -> bool:
    """Decode once more without a draft; say and return whether that gives the same tokens."""
    regular = session.generate(prompt, drafter="none", **request).tokens
    difference = first_divergence(session.model, session.tokenizer, prompt, regular, tokens, request)
    say("verify: " + (f"identical, {len(tokens)} tokens" if difference is None else difference.text(session.tokenizer)))
    return difference is None


def read_prompts(prompt: str | None) -> Iterator[str]:
    """The --prompt, or standard input line by line as it comes, or at a terminal the example."""
    if prompt is not None:
        if not prompt.strip():
            raise InputError(f"--prompt {prompt!r}: is empty; give it some text")
        yield prompt
        return
    if sys.stdin is None or sys.stdin.isatty():
        say(f"no --prompt, so an example: {DEFAULT_PROMPT}")
        yield DEFAULT_PROMPT
        return
    is_empty = True
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise InputError(
                f"standard input, line {number}: not UTF-8 ({error.reason}); convert it to UTF-8"
            ) from error
        is_empty = is_empty and not text.strip()
        yield text
    if is_empty:
        raise InputError("standard input is empty; give it a prompt a line, or use --prompt")


def summary(stats: GenerationStats, chosen: argparse.Namespace) -> str:
    lines = [
        f"{stats.generated_tokens} tokens at {stats.generation_tps:.1f} tokens/s; "
        f"{stats.target_calls} target calls, {stats.tokens_per_target_call:.2f} tokens per call",
        f"accepted {stats.accepted_tokens} of {stats.drafted_tokens} drafted tokens ({stats.acceptance_rate:.1%})",
        f"encode {stats.encode_seconds:.3f} s, draft {stats.draft_seconds:.3f} s, verify {stats.verify_seconds:.3f} s; "
        f"peak memory {stats.peak_memory_bytes / 1e9:.2f} GB",
    ]
    if not stats.lossless:
        lines.append(lossy(stats, chosen.delta, is_greedy=chosen.temperature == 0))
    return "\n".join(lines)


def settings(pair: Pair, chosen: argparse.Namespace) -> dict[str, Any]:
    names = (
        "drafter",
        "num_draft",
        "acceptance",
        "delta",
        "max_tokens",
        "stop",
        "eos_token_id",
        "strict",
        "allow_long_prompt",
    )
    sampling = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
    return {
        "model": str(pair.opened_target.folder),
        "draft_model": None if pair.opened_draft is None else str(pair.opened_draft.folder),
    } | {name: getattr(chosen, name) for name in (*names, *sampling)}
