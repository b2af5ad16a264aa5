"""Measures the host's work in a round: `python -m benchmarks.drafts --host`.

On a GPU, host work between two host syncs delays the next pass. The model has the decoder layers of T5-base but narrow
matrices, so its graphs are as large as those of T5-base. All times are CPU times of the Python thread. They exclude
waiting and other threads, so they are nearly independent of the device:

- Python: building graphs, choosing draft lengths, searching for copies, decoding text and counting statistics
- evaluation: `mx.eval` and `mx.async_eval`, which submit the graph to the device
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import numpy as np

from speculative_decoding import Session
from speculative_decoding.loading.tokenizer import Tokenizer
from speculative_decoding.sampling import GenerationOptions

from .models import HEAD, random_draft, random_model

SHAPE = {
    "model_type": "t5",
    "vocab_size": 4096,
    "d_model": 48,
    "d_kv": 4,
    "d_ff": 64,
    "num_layers": 12,
    "num_heads": 12,
    "eos_token_id": [],
}
MODES = {"baseline": ("none", 0), "5 tokens of a draft head": ("model", 5), "5 copied tokens": ("ngram", 5)}
PARTS = ("Python", "evaluation")
WARM_UP_ROUNDS = 5


def host_times(session: Session, rows: int, rounds: int) -> tuple[dict[str, float], Counter[str]]:
    """Return the seconds spent in each part, and the numbers of `mx.eval` and `mx.async_eval` calls in the last round.

    The times are 10th percentiles over the rounds, because other programs can slow down individual rounds.
    """
    options = session.options_with({})
    engine = session.engine(options, rows)
    rng = random.Random(0)
    for _ in range(rows):
        source = [rng.randrange(3, session.model.config.vocab_size) for _ in range(30)]
        engine.submit(source, options, session.planner.draft_length(options, rows))
    for _ in range(WARM_UP_ROUNDS):
        engine.step()
    calls = Counter[str]()
    spent = 0.0
    functions = {name: getattr(mx, name) for name in ("eval", "async_eval")}

    def timed(name: str, *arrays: Any) -> None:
        nonlocal spent
        started = time.thread_time()
        functions[name](*arrays)
        spent += time.thread_time() - started
        calls[name] += 1

    found = []
    replaced: dict[str, Any] = {name: partial(timed, name) for name in functions}
    with patch.multiple(mx, **replaced):
        for _ in range(rounds):
            spent = 0.0
            calls.clear()
            started = time.thread_time()
            engine.step()
            found.append((time.thread_time() - started - spent, spent))
    return dict(zip(PARTS, np.quantile(found, 0.1, axis=0).tolist(), strict=True)), calls


def sessions(tokenizer: Tokenizer, max_tokens: int, shape: Mapping[str, Any] = SHAPE) -> Iterator[tuple[str, Session]]:
    """Yield each mode with a session that has random weights."""
    target = random_model(shape)
    head = random_draft(HEAD, target)
    for name, (drafter, num_draft_tokens) in MODES.items():
        options = GenerationOptions(
            drafter=drafter, num_draft_tokens=num_draft_tokens, strict=False, max_tokens=max_tokens
        )
        yield name, Session(target, tokenizer, head if drafter == "model" else None, options)


def table(rows: Sequence[int], rounds: int, tokenizer: Tokenizer) -> Iterator[str]:
    """Measure each mode with each number of rows, and yield the lines of a table."""
    yield f"| rows | mode | {' | '.join(PARTS)} | total | mx.eval | mx.async_eval |"
    yield "|---|---|" + "---|" * (len(PARTS) + 3)
    max_tokens = (rounds + WARM_UP_ROUNDS + 1) * 6  # so that no output ends before the last round
    for name, session in sessions(tokenizer, max_tokens):
        for count in rows:
            seconds, calls = host_times(session, count, rounds)
            cells = [f"{1e6 * each:.0f} us" for each in (*seconds.values(), sum(seconds.values()))]
            yield f"| {count} | {name} | {' | '.join(cells)} | {calls['eval']} | {calls['async_eval']} |"
