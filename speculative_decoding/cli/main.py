"""main.py: prompts in, text out as it is accepted, statistics behind it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..generate import encode_prompt, stream_generate
from ..sampling import SamplingParams
from ..stats import GenerationStats
from . import common, options
from .common import Pair, say


def main(argv: Sequence[str] | None = None) -> int:
    chosen = options.main_parser().parse_args(argv)
    return common.run("main.py", lambda: decode(chosen))


def decode(chosen: argparse.Namespace) -> int:
    stats_file: Path | None = getattr(chosen, "stats_json", None)
    if stats_file is not None and (stats_file.is_dir() or not stats_file.resolve().parent.is_dir()):
        raise InputError(f"--stats-json {stats_file}: cannot be written; name a file in a folder that exists")
    prompts = read_prompts(getattr(chosen, "prompt", None))
    first = next(prompts)
    pair = common.open_pair(chosen, use_draft=not chosen.regular_decode and chosen.num_draft > 0)
    if first.strip():
        encode_prompt(pair.target.model, pair.target.tokenizer, first, chosen.allow_long_prompt)
    pair.load_weights()

    total = GenerationStats()
    for prompt in chain([first], prompts):
        total.add(decode_one(pair, prompt, chosen))
    say(summary(total, chosen.delta))
    if stats_file is not None:
        stats_file.write_text(json.dumps(settings(pair, chosen) | total.as_dict(), indent=2) + "\n", encoding="utf-8")
    return 0


def decode_one(pair: Pair, prompt: str, chosen: argparse.Namespace) -> GenerationStats:
    """Print the text of one prompt and a line end. A blank line of input gives a blank line of output."""
    stats = GenerationStats()
    if prompt.strip():
        for response in stream_generate(
            pair.target.model,
            pair.target.tokenizer,
            prompt,
            draft_model=pair.draft_model,
            num_draft=chosen.num_draft,
            delta=chosen.delta,
            sampling=SamplingParams(temperature=chosen.temperature, seed=chosen.seed),
            max_tokens=chosen.max_tokens,
            allow_long_prompt=chosen.allow_long_prompt,
        ):
            print(response.text, end="", flush=True)
            stats = response.stats
    print(flush=True)
    return stats


def read_prompts(prompt: str | None) -> Iterator[str]:
    """The --prompt, or standard input line by line as it comes, or at a terminal the example."""
    if prompt is not None:
        if not prompt.strip():
            raise InputError(f"--prompt {prompt!r}: is empty; give it some text")
        yield prompt
        return
    if sys.stdin is None or sys.stdin.isatty():
        say(f"no --prompt, so an example: {options.DEFAULT_PROMPT}")
        yield options.DEFAULT_PROMPT
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


def summary(stats: GenerationStats, delta: float) -> str:
    lines = [
        f"{stats.generated_tokens} tokens at {stats.generation_tps:.1f} tokens/s; "
        f"{stats.target_calls} target calls, {stats.tokens_per_target_call:.2f} tokens per call",
        f"accepted {stats.accepted_tokens} of {stats.drafted_tokens} drafted tokens ({stats.acceptance_rate:.1%})",
        f"encode {stats.encode_seconds:.3f} s, draft {stats.draft_seconds:.3f} s, verify {stats.verify_seconds:.3f} s; "
        f"peak memory {stats.peak_memory_bytes / 1e9:.2f} GB",
    ]
    if not stats.lossless:
        lines.append(f"LOSSY: --delta {delta:g} accepts tokens that the target alone would not write")
    return "\n".join(lines)


def settings(pair: Pair, chosen: argparse.Namespace) -> dict[str, Any]:
    names = ("num_draft", "delta", "max_tokens", "temperature", "seed")
    return {
        "model": str(pair.target.folder),
        "draft_model": None if pair.draft is None else str(pair.draft.folder),
    } | {name: getattr(chosen, name) for name in names}
