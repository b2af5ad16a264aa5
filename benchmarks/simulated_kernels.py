"""Tests exact mode on devices where the last bits of logits depend on the width of a pass.

The tiny model has simulated kernels: passes of different width classes round differently, as published for Metal
(devices.json, "agreement").
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import mlx.core as mx

from speculative_decoding.draft_length.exact_widths import ExactWidths
from speculative_decoding.draft_length.probe import Probe
from speculative_decoding.draft_length.store import CalibrationStore
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.cache import DecoderCache
from speculative_decoding.models.draft_head import DraftHead
from speculative_decoding.session import Session

from .models import random_draft, random_model
from .ours import Ids

ERROR = 0.03  # magnitude of the simulated rounding error; about 1 % of the tokens differ
SHAPE: dict[str, Any] = {
    "model_type": "t5",
    "vocab_size": 128,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "eos_token_id": [],
}
KERNELS: dict[str, Sequence[int]] = {  # the first width of each class
    "16 bits, M3 and later": (1, 2, 6, 16),
    "16 bits, M1 and M2": (1, 2),
    "4 bits, M3 and later": (1, 2, 11),
    "4 bits, M1 and M2": (1, 7),
}
SOURCES = [[(7 * i + j * j) % 120 + 3 for j in range(6 + i)] for i in range(6)]
TOKENS = 64


def model_with_kernels(first: Sequence[int]) -> EncoderDecoder:
    """Return a model that adds a different error in each width class. `first` holds the first width of each class."""
    model = random_model(SHAPE)
    errors = ERROR * mx.random.normal((len(first) + 1, SHAPE["d_model"]), key=mx.random.key(1))

    def states(self: EncoderDecoder, tokens: mx.array, cache: DecoderCache) -> mx.array:
        kind = sum(tokens.shape[1] >= width for width in first)
        return own(self, tokens, cache) + errors[kind]

    own = type(model).states
    model.__class__ = type("ModelWithKernels", (type(model),), {"states": states})
    return model


class CountedProbe(Probe):
    """Compares bits as usual, but takes costs from a formula instead of the clock."""

    def pass_seconds(self, rows: int, width: int) -> float:
        return 1e-3 * (1.0 + 0.05 * rows * width)

    def draft_seconds(self, rows: int) -> tuple[float, float, float]:
        return 1e-4, 1e-4, 0.0


def session_on(model: EncoderDecoder, draft: EncoderDecoder | DraftHead) -> Session:
    """Return a session with a separate calibration, which is not stored."""
    session = Session(model, Ids(SOURCES), draft)
    store = CalibrationStore({})
    store.clear()
    store.path = None
    store.is_read_only = False
    # Compares, although this machine's kernels give all widths the same bits
    planner = session.planner
    planner.probe, planner.store = cache(partial(CountedProbe, model)), lambda: store
    planner.exact_widths = ExactWidths(planner.probe, planner.store)
    return session


def outputs(session: Session, strict: bool, **options: Any) -> list[list[int]]:
    return [session.generate(str(i), strict=strict, max_tokens=TOKENS, **options).tokens for i in range(len(SOURCES))]


def differing_tokens(ours: Sequence[Sequence[int]], others: Sequence[Sequence[int]]) -> int:
    return sum(a != b for mine, theirs in zip(ours, others, strict=True) for a, b in zip(mine, theirs, strict=True))


def problems(say: Callable[[str], None] = lambda line: None) -> Iterator[str]:
    """Yield a line for each kernel, draft and length whose outputs in exact mode differ from the baseline.

    Outputs in inexact mode must differ somewhere; otherwise this check could not detect errors, which is also reported.
    """
    warnings.filterwarnings("ignore", "measuring this device")
    for name, first in KERNELS.items():
        model = model_with_kernels(first)
        session = session_on(model, random_draft("head", model))
        exact = outputs(session, True, drafter="none")
        fast = outputs(session, False, drafter="none")
        found = 0
        for drafter, num_draft_tokens in (("ngram", "auto"), ("auto", "auto"), ("model", 1), ("model", 3), ("auto", 4)):
            options: dict[str, Any] = {"drafter": drafter, "num_draft_tokens": num_draft_tokens}
            different = differing_tokens(outputs(session, True, **options), exact)
            if different:
                mode = f"drafter {drafter}, num_draft_tokens {num_draft_tokens}"
                yield f"{name}: {different} tokens differ in exact mode ({mode})"
            if not found:
                found = differing_tokens(outputs(session, False, **options), fast)
        say(f"{name}: {found} tokens differ in inexact mode")
        if not found:
            yield f"{name}: no token differs in inexact mode, so this check cannot find errors"
