"""Measures the host's work in a round: `python -m benchmarks.drafts --host`.

On a GPU, the host's work between two host syncs delays the next pass. The model has the decoder layers of T5-base but
narrow matrices, so its graphs have the size of T5-base's. All times are processor time of the Python thread, without
waiting and without other threads, so they hardly depend on the device:

- graph: building the graphs of the draft, the target's pass and the verification
- evaluation: `mx.eval` and `mx.async_eval`, which hand the graph to the device
- bookkeeping: everything else, such as draft lengths, copies, text and statistics
"""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import numpy as np

from speculative_decoding import Session
from speculative_decoding.decoding import round as round_module
from speculative_decoding.drafters.draft_sampler import OutputHead
from speculative_decoding.loading.tokenizer import Tokenizer
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.draft_head import DraftHead
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
PARTS = ("bookkeeping", "graph", "evaluation")
TIMED = (
    (mx, "eval", "evaluation"),
    (mx, "async_eval", "evaluation"),
    (EncoderDecoder, "states", "graph"),
    (EncoderDecoder, "logits", "graph"),
    (DraftHead, "features_at", "graph"),
    (DraftHead, "compiled_step", "graph"),
    (OutputHead, "__call__", "graph"),
    (OutputHead, "likeliest", "graph"),
    (round_module, "target_inputs", "graph"),
    (round_module, "verify", "graph"),
)
WARM_UP_ROUNDS = 5


class PartTimer:
    """Adds up the processor time of this thread by part. A call within another part's call counts for its own part."""

    def __init__(self) -> None:
        self.seconds = defaultdict[str, float](float)
        self.calls = Counter[str]()
        self._part = PARTS[0]
        self._since = time.thread_time()

    def switch(self, part: str) -> str:
        """Enter a part, and return the previous one."""
        now = time.thread_time()
        self.seconds[self._part] += now - self._since
        self._since = now
        previous, self._part = self._part, part
        return previous

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Time the functions in `TIMED`."""
        with ExitStack() as stack:
            for owner, name, part in TIMED:
                stack.enter_context(patch.object(owner, name, self._timed(getattr(owner, name), part, name)))
            yield

    def _timed(self, function: Callable[..., Any], part: str, name: str) -> Callable[..., Any]:
        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] += 1
            previous = self.switch(part)
            try:
                return function(*args, **kwargs)
            finally:
                self.switch(previous)

        return timed


def host_times(session: Session, rows: int, rounds: int) -> tuple[dict[str, float], Counter[str]]:
    """Return the seconds of each part, and the calls of each timed function in the last round.

    The seconds are the 10th percentile over the rounds, because other programs make rounds slower.
    """
    options = session.options_with({})
    engine = session.engine(options, rows)
    rng = random.Random(0)
    for _ in range(rows):
        source = [rng.randrange(3, session.model.config.vocab_size) for _ in range(30)]
        engine.submit(source, options, session.planner.draft_length(options, rows))
    for _ in range(WARM_UP_ROUNDS):
        engine.step()
    timer = PartTimer()
    found = []
    with timer.installed():
        for _ in range(rounds):
            timer.switch(PARTS[0])
            timer.seconds.clear()
            timer.calls.clear()
            engine.step()
            timer.switch(PARTS[0])
            found.append([timer.seconds[part] for part in PARTS])
    return dict(zip(PARTS, np.quantile(found, 0.1, axis=0).tolist(), strict=True)), timer.calls


def sessions(tokenizer: Tokenizer, max_tokens: int, shape: Mapping[str, Any] = SHAPE) -> Iterator[tuple[str, Session]]:
    """Yield a session with random weights for each mode."""
    target = random_model(shape)
    head = random_draft(HEAD, target)
    for name, (drafter, num_draft_tokens) in MODES.items():
        options = GenerationOptions(
            drafter=drafter, num_draft_tokens=num_draft_tokens, strict=False, max_tokens=max_tokens
        )
        yield name, Session(target, tokenizer, head if drafter == "model" else None, options)


def table(rows: Sequence[int], rounds: int, tokenizer: Tokenizer) -> Iterator[str]:
    """Measure each mode with each number of rows. Yields the lines of a table."""
    yield f"| rows | mode | {' | '.join(PARTS)} | total | mx.eval | mx.async_eval |"
    yield "|---|---|" + "---|" * (len(PARTS) + 3)
    max_tokens = (rounds + WARM_UP_ROUNDS + 1) * 6  # no output ends earlier
    for name, session in sessions(tokenizer, max_tokens):
        for count in rows:
            seconds, calls = host_times(session, count, rounds)
            cells = [f"{1e6 * each:.0f} us" for each in (*seconds.values(), sum(seconds.values()))]
            yield f"| {count} | {name} | {' | '.join(cells)} | {calls['eval']} | {calls['async_eval']} |"
