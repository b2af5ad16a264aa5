"""In exact mode, drafts change no output, although passes of different widths round differently.

The model has simulated kernels: each class of widths has its own error, as published for Metal
(benchmarks/devices.json, "agreement").
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import mlx.core as mx
import pytest

from benchmarks.models import random_draft, random_model
from benchmarks.ours import Ids
from speculative_decoding.draft_length import FixedLength
from speculative_decoding.draft_length.exact_widths import ExactWidths
from speculative_decoding.draft_length.kernel_bits import Bits, Shape
from speculative_decoding.draft_length.passes import PassWidths, RoundCosts
from speculative_decoding.draft_length.probe import Probe
from speculative_decoding.draft_length.store import CALIBRATION_VARIABLE, CalibrationStore
from speculative_decoding.drafters import BatchDrafter, NoDrafter, SeparateDrafters
from speculative_decoding.engine import Engine, result_of
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.cache import DecoderCache
from speculative_decoding.sampling import GenerationOptions
from speculative_decoding.session import Session
from tests.support.tiny import head_drafter

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
ERROR = 0.03  # about 1 % of the tokens differ
KERNELS = {  # the first width of each class
    "16 bits, M3 and later": (1, 2, 6, 16),
    "4 bits, M1 and M2": (1, 7),
}
SOURCE = [(28 + j * j) % 120 + 3 for j in range(10)]
DRAFTS = [("ngram", "auto"), ("auto", "auto"), ("model", 1), ("model", 3), ("auto", 4), ("text", "auto"), ("text", 5)]


class CountedProbe(Probe):
    """Compares whole passes as usual, but not this machine's kernels, and takes costs from a formula."""

    def kernel_bits(self, shapes: Sequence[Shape]) -> dict[Shape, Bits]:
        return {shape: [] for shape in shapes}

    def borders(self, widths: Sequence[int]) -> tuple[list[int], list[int]]:
        return [], []

    def pass_seconds(self, rows: int, width: int) -> list[float]:
        return [1e-3 * (1.0 + 0.05 * rows * width)]

    def draft_seconds(self, rows: int) -> tuple[float, float, float]:
        return 1e-4, 1e-4, 0.0


def session_with_kernels(first: Sequence[int]) -> Session:
    """Return a session with its own calibration, and an error in each class of widths, which begin at `first`."""
    model = random_model(SHAPE)
    errors = ERROR * mx.random.normal((len(first) + 1, SHAPE["d_model"]), key=mx.random.key(1))
    usual = type(model).states

    def states(self: EncoderDecoder, tokens: mx.array, cache: DecoderCache) -> mx.array:
        return usual(self, tokens, cache) + errors[sum(tokens.shape[1] >= width for width in first)]

    model.__class__ = type("ModelWithKernels", (type(model),), {"states": states})
    session = Session(model, Ids([SOURCE]), random_draft("head", model))
    store = CalibrationStore(None)
    planner = session.planner  # compares, although this machine's kernels give all widths the same bits
    planner.probe, planner.store = cache(partial(CountedProbe, model)), lambda: store
    planner.exact_widths = ExactWidths(planner.probe, planner.store)
    return session


def outputs(session: Session, *, strict: bool) -> list[list[int]]:
    """Return the output without a draft, and with each of `DRAFTS`. Given texts are that output."""
    shared: dict[str, Any] = {"strict": strict, "max_tokens": 64}
    plain = session.generate("0", drafter="none", **shared).tokens
    texts = session.tokenizer.sources  # type: ignore[attr-defined]
    texts.append(plain)
    found = [plain]
    for drafter, length in DRAFTS:
        own = {"draft_text": str(len(texts) - 1)} if drafter == "text" else {}
        found.append(session.generate("0", drafter=drafter, num_draft_tokens=length, **own, **shared).tokens)  # type: ignore[arg-type]
    return found


@pytest.mark.usefixtures("device")
@pytest.mark.filterwarnings("ignore:measuring this device")
@pytest.mark.parametrize("first", KERNELS.values(), ids=KERNELS)
def test_drafts_change_no_token_in_exact_mode(first: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without exact mode they do; otherwise this test could not fail."""
    monkeypatch.delenv(CALIBRATION_VARIABLE)
    session = session_with_kernels(first)
    exact, *drafted = outputs(session, strict=True)
    assert drafted == [exact] * len(DRAFTS)
    fast, *drafted = outputs(session, strict=False)
    assert drafted != [fast] * len(DRAFTS)


BORDER = 64
WIDTHS = PassWidths(
    lambda rows: RoundCosts({1: 1.0, 4: 1.0, 8: 1.0}),
    exact=True,
    reserved=8,
    capacity_borders=[BORDER],
    source_borders=[BORDER],
)


def outputs_of(model: EncoderDecoder, slots: int, requests: Sequence[tuple[int, int]], drafter: str) -> list[list[int]]:
    """Decode requests (source tokens, max_tokens) with an engine for this number of slots."""
    own = head_drafter(model) if drafter == "head" else NoDrafter()
    batch_drafter = own if isinstance(own, BatchDrafter) else SeparateDrafters(NoDrafter, model.config.vocab_size)
    sources = [[(7 * i + 3 * length) % 100 + 3 for i in range(length)] for length, _ in requests]
    engine = Engine(model, Ids(sources), batch_drafter, slots=slots, widths=WIDTHS)
    submitted = [
        engine.submit(str(i), GenerationOptions(max_tokens=most), FixedLength(3 if drafter == "head" else 0))
        for i, (_, most) in enumerate(requests)
    ]
    while not engine.is_idle:
        engine.step()
    return [result_of([request]).tokens for request in submitted]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("drafter", ["none", "head"])
@pytest.mark.parametrize("changes", ["capacity", "source capacity"])
def test_a_row_whose_company_is_long_equals_a_single_row(changes: str, drafter: str) -> None:
    """The bits of simulated kernels change at a capacity, as those of fused attention on some chips of Macs do."""
    model = random_model(SHAPE)
    error = ERROR * mx.random.normal((SHAPE["d_model"],), key=mx.random.key(1))
    usual = type(model).states

    def states(self: EncoderDecoder, tokens: mx.array, cache: DecoderCache) -> mx.array:
        found = usual(self, tokens, cache)  # grows the cache
        size = cache.capacity if changes == "capacity" else cache.source_capacity
        return found + error * (size >= BORDER)

    model.__class__ = type("ModelWithKernels", (type(model),), {"states": states})
    requests = [(10, 12), (12, 70), (9, 14), (70, 12), (11, 40), (8, 13), (80, 60), (13, 12)]
    alone = [tokens for request in requests for tokens in outputs_of(model, 1, [request], "none")]
    assert outputs_of(model, 3, requests, drafter) == alone
    assert outputs_of(model, 1, requests, drafter) == alone
