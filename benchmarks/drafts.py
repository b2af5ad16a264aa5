"""Measures the gain and the cost of a draft: `python -m benchmarks.drafts [FILE ...] [--draft-model NAME]`.

The command prints the tokens per target call for each file, with drafts of seven tokens. Then it decodes prompts one at
a time with drafts of 1, 3 and 7 tokens, and estimates the cost of a source, of starting a draft and of a draft token
with a least-squares fit. Costs are relative to a target pass over one position; the cost of a draft token is c in
Leviathan et al. 2023, section 3.3. With `--host`, the command instead measures the host work of a round (host_time.py),
with random weights.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from speculative_decoding import Session
from speculative_decoding.cli.common import run, say
from speculative_decoding.cli.parser import Parser, add_flags, flags_from
from speculative_decoding.cli.run_config import ModelFlags
from speculative_decoding.drafters import draft_sampler
from speculative_decoding.errors import InputError
from speculative_decoding.loading.load import BUNDLED, ModelHandle
from speculative_decoding.loading.pair import require_same_tokens
from speculative_decoding.loading.tokenizer import load_tokenizer
from speculative_decoding.models.draft_head import DraftHead

from . import host_time
from .machine import described, environment
from .models import Models
from .options import COUNT
from .ours import Ids
from .tasks import Task, tasks_from_files

LENGTHS = (1, 3, 7)  # draft tokens
MAX_TOKENS = 100
SLOTS = 8
TIMED_PROMPTS = 5  # for each file


def tokens_per_call(models: Models, task: Task) -> float:
    """Return the tokens per target call over all outputs of the task, with drafts of the longest length."""
    session = Session(models.target, Ids(task.sources), models.draft, slots=SLOTS)
    numbers = [str(number) for number in range(len(task.sources))]
    found = session.batch(
        numbers, drafter="model", num_draft_tokens=LENGTHS[-1], max_tokens=MAX_TOKENS, allow_long_prompt=True
    )
    stats = [each.result.stats for each in found if each.result]
    return sum(each.generated_tokens for each in stats) / sum(each.target_calls for each in stats)


def timed(session: Session, number: int, num_draft_tokens: int) -> tuple[float, float, int, int]:
    """Decode a prompt. Returns the seconds for drafts and passes, and the numbers of target calls and draft tokens."""
    drafter = (
        {"drafter": "model", "num_draft_tokens": num_draft_tokens}
        if num_draft_tokens
        else {"drafter": "none", "strict": False}
    )
    options: dict[str, Any] = {"max_tokens": MAX_TOKENS, "allow_long_prompt": True, "timed": True, **drafter}
    stats = session.generate(str(number), **options).stats
    return stats.draft_seconds or 0.0, stats.verify_seconds or 0.0, stats.target_calls, stats.drafted_tokens


def lines(models: Models, tasks: Sequence[Task], repeats: int) -> Iterator[str]:
    for task in tasks:
        found = f"{tokens_per_call(models, task):.2f}"
        if isinstance(models.draft, DraftHead) and models.draft.config.frequent:
            unrestricted = Models(models.target, models.draft.with_frequent(()))
            found += f" ({tokens_per_call(unrestricted, task):.2f} with the full vocabulary)"
        yield f"{task.name}: {found} tokens per target call, {len(task.sources)} prompts, drafts of {LENGTHS[-1]}"

    sources = [source for task in tasks for source in task.sources[:TIMED_PROMPTS]]
    session = Session(models.target, Ids(sources), models.draft)
    runs = [[[timed(session, i, k) for i in range(len(sources))] for k in (0, *LENGTHS)] for _ in range(repeats + 1)]
    medians = np.median(np.array(runs[1:]), axis=0)  # (lengths, sources, 4); the first run is a warm-up

    passes = medians[:, :, 1].sum(axis=1) / medians[:, :, 2].sum(axis=1)
    seconds, _, calls, drafted = medians[1:].reshape(-1, 4).T
    costs, *_ = np.linalg.lstsq(np.stack([np.ones_like(calls), calls, drafted], axis=1), seconds, rcond=None)
    widths = " / ".join(str(k + 1) for k in (0, *LENGTHS))
    yield f"target pass over {widths} positions: {' / '.join(f'{1e6 * each:.0f}' for each in passes)} us"
    parts = zip(("source", "start of a draft", "draft token"), costs / passes[0], strict=True)
    yield "relative to a pass over one position: " + ", ".join(f"{name} {share:.2f}" for name, share in parts)


def measure(chosen: argparse.Namespace) -> int:
    if chosen.early_steps is not None:
        draft_sampler.EARLY_STEPS = chosen.early_steps
    if chosen.host:
        for line in host_time.table(chosen.rows, chosen.rounds, load_tokenizer(BUNDLED / "t5-web-docs")):
            print(line, flush=True)
        return 0
    folders = flags_from(ModelFlags, chosen).find()
    if folders.draft_model is None:
        raise InputError("--draft-model: this target has no default draft; specify one")
    pair = folders.open()
    assert pair.draft is not None
    if isinstance(pair.draft, ModelHandle):  # tasks contain only ids, so such a draft would have no text
        require_same_tokens(pair.target.model, pair.draft.model)
    say(f"target {folders.model}, draft {folders.draft_model}; {described(environment())}")
    tasks = tasks_from_files(chosen.prompts, chosen.limit, MAX_TOKENS, pair.target.model, pair.target.tokenizer)
    pair.load_weights()
    for line in lines(Models(pair.target.model, pair.draft.model), tasks, chosen.repeats):
        print(line, flush=True)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m benchmarks.drafts", description=__doc__)
    parser.add_argument(
        "prompts", nargs="*", type=Path, help="files with one prompt per line (default: the bundled files)"
    )
    parser.add_argument("--limit", type=COUNT, default=25, metavar="N", help="prompts per file (default: 25)")
    parser.add_argument("--repeats", type=COUNT, default=5, metavar="N", help="timed repeats (default: 5)")
    parser.add_argument("--host", action="store_true", help="measure the host's work in a round instead")
    rows = "rows with --host (default: 1 8 32)"
    parser.add_argument("--rows", type=COUNT, nargs="+", default=[1, 8, 32], metavar="N", help=rows)
    rounds = "rounds of each line with --host (default: 100)"
    parser.add_argument("--rounds", type=COUNT, default=100, metavar="N", help=rounds)
    steps = "start only the first N steps of a draft early: a GPU then gets fewer command buffers (default: all steps)"
    parser.add_argument("--early-steps", type=COUNT, metavar="N", help=steps)
    add_flags(parser, "models", ModelFlags)
    chosen = parser.parse_args(argv)
    return run("benchmarks.drafts", lambda: measure(chosen))


if __name__ == "__main__":
    sys.exit(main())
