"""What a draft brings and what it costs: `python -m benchmarks.drafts [FILE ...] [--draft-model NAME]`.

For each file the tokens per target call with drafts of seven. Then, by least squares over the times of whole outputs,
one prompt at a time with drafts of 1, 3 and 7 tokens: what it takes to begin with a source, to begin a draft, and for
each token of it, as shares of the target's pass over one position (the last is c in Leviathan et al. 2023, 3.3).
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
from speculative_decoding.cli.models import ModelNames
from speculative_decoding.cli.parser import Parser, add_flags, flags_from
from speculative_decoding.errors import InputError
from speculative_decoding.models.draft_head import DraftHead

from .machine import environment
from .models import Models
from .options import COUNT
from .ours import Ids
from .tasks import Task, tasks_from_files

LENGTHS, MOST, SLOTS = (1, 3, 7), 100, 8
TIMED = 5  # prompts of each file


def tokens_per_call(models: Models, task: Task) -> float:
    """Over all outputs of the task, with drafts of the longest length."""
    session = Session(models.target, Ids(task.sources), models.draft, slots=SLOTS)
    numbers = [str(number) for number in range(len(task.sources))]
    found = session.batch(
        numbers, drafter="model", num_draft_tokens=LENGTHS[-1], max_tokens=MOST, allow_long_prompt=True
    )
    stats = [each.result.stats for each in found if each.result]
    return sum(each.generated_tokens for each in stats) / sum(each.target_calls for each in stats)


def timed(session: Session, number: int, num_draft_tokens: int) -> tuple[float, float, int, int]:
    """Of a prompt: seconds of all its drafts and of all its passes, target calls, drafted tokens."""
    drafter = (
        {"drafter": "model", "num_draft_tokens": num_draft_tokens}
        if num_draft_tokens
        else {"drafter": "none", "strict": False}
    )
    options: dict[str, Any] = {"max_tokens": MOST, "allow_long_prompt": True, "timed": True, **drafter}
    stats = session.generate(str(number), **options).stats
    return stats.draft_seconds or 0.0, stats.verify_seconds or 0.0, stats.target_calls, stats.drafted_tokens


def lines(models: Models, tasks: Sequence[Task], repeats: int) -> Iterator[str]:
    for task in tasks:
        found = f"{tokens_per_call(models, task):.2f}"
        if isinstance(models.draft, DraftHead) and models.draft.config.frequent:
            whole = Models(models.target, models.draft.with_frequent(()))
            found += f" ({tokens_per_call(whole, task):.2f} with the whole vocabulary)"
        yield f"{task.name}: {found} tokens per target call, {len(task.sources)} prompts, drafts of {LENGTHS[-1]}"
    sources = [source for task in tasks for source in task.sources[:TIMED]]
    session = Session(models.target, Ids(sources), models.draft)
    runs = [[[timed(session, i, k) for i in range(len(sources))] for k in (0, *LENGTHS)] for _ in range(repeats + 1)]
    medians = np.median(np.array(runs[1:]), axis=0)  # (lengths, sources, 4); the first run warms up
    passes = medians[:, :, 1].sum(axis=1) / medians[:, :, 2].sum(axis=1)
    seconds, _, calls, drafted = medians[1:].reshape(-1, 4).T
    costs, *_ = np.linalg.lstsq(np.stack([np.ones_like(calls), calls, drafted], axis=1), seconds, rcond=None)
    widths = " / ".join(str(k + 1) for k in (0, *LENGTHS))
    yield f"the target's pass over {widths} positions: {' / '.join(f'{1e6 * each:.0f}' for each in passes)} us"
    parts = zip(("a source", "a draft of it", "each token of a draft"), costs / passes[0], strict=True)
    yield "of a pass over one position: " + ", ".join(f"{name} {share:.2f}" for name, share in parts)


def measure(chosen: argparse.Namespace) -> int:
    folders = flags_from(ModelNames, chosen).find()
    if folders.draft is None:
        raise InputError("--draft-model: there is none for this target; name one")
    pair = folders.open()
    say(f"target {folders.target}, draft {folders.draft}; {environment()}")
    tasks = tasks_from_files(chosen.prompts, chosen.limit, MOST, pair.target, pair.tokenizer)
    pair.load_weights()
    for line in lines(Models(pair.target, pair.draft), tasks, chosen.repeats):
        print(line, flush=True)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m benchmarks.drafts", description=__doc__)
    parser.add_argument("prompts", nargs="*", type=Path, help="files with a prompt a line (default: the bundled ones)")
    parser.add_argument("--limit", type=COUNT, default=25, metavar="N", help="prompts of each file")
    parser.add_argument("--repeats", type=COUNT, default=5, metavar="N", help="of what is timed, in turns")
    add_flags(parser, "models", ModelNames)
    chosen = parser.parse_args(argv)
    return run("benchmarks.drafts", lambda: measure(chosen))


if __name__ == "__main__":
    sys.exit(main())
