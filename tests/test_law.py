"""Sampled whole outputs of real tiny models against their exact law, and planted faults that must show.

The law comes from the target alone, run over every possible output, and from an own, plain reading of the sampling
options in numpy; nothing of the code under test takes part but the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from speculative_decoding import SamplingParams
from speculative_decoding.decoding import acceptance
from speculative_decoding.decoding.acceptance import AcceptanceRule, Block, Coupled, Rejection
from speculative_decoding.decoding.loop import Row, Settings, speculate
from speculative_decoding.decoding.stats import Round
from speculative_decoding.draft_length.schedules import FixedLength
from speculative_decoding.drafters import (
    BatchDrafter,
    BatchModelDrafter,
    Draft,
    DraftModel,
    NgramDrafter,
    choose_drafter,
)
from speculative_decoding.drafters.batch import Asked
from speculative_decoding.drafters.vocabulary import DraftVocabulary
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.cache import DecoderCache
from tests.tiny import EOS, noisy_copy, tiny_model

VOCAB, LENGTH = 8, 3
SOURCE = [4, 3, 2, 1]


def with_memory(model: EncoderDecoder) -> EncoderDecoder:
    """Encodes once: there is but one source, and hundreds of runs."""
    memory = model.encode(mx.array([SOURCE]))
    mx.eval(memory)
    object.__setattr__(model, "encode", lambda tokens, mask=None: mx.repeat(memory, tokens.shape[0], axis=0))
    return model


TARGET = tiny_model(seed=8, scale=0.8, vocab_size=VOCAB, num_layers=1)
DRAFT = with_memory(noisy_copy(TARGET, noise=0.3, seed=10))
with_memory(TARGET)

Law = dict[tuple[int, ...], float]


def transformed(logits: NDArray[np.float64], history: Sequence[int], options: dict[str, Any]) -> NDArray[np.float64]:
    """The distribution as Hugging Face defines it, one position at a time."""
    x, penalty = logits.astype(np.float64), options.get("repetition_penalty", 1.0)
    for token in set(history):
        x[token] = x[token] * penalty if x[token] < 0 else x[token] / penalty
    p = np.exp((x - x.max()) / options["temperature"])
    p /= p.sum()
    order = np.argsort(-p)
    keep = np.ones(VOCAB, dtype=bool)
    if top_k := options.get("top_k"):
        keep[order[top_k:]] = False
    p = p * keep / (p * keep).sum()
    if (top_p := options.get("top_p", 1.0)) < 1:
        reached = np.cumsum(p[order]) - p[order] < top_p  # what stands before it is not enough
        keep[order] &= reached
    p = p * keep / (p * keep).sum()
    keep &= p >= options.get("min_p", 0.0) * p.max()
    return p * keep / (p * keep).sum()


def exact_law(options: dict[str, Any]) -> Law:
    prefixes = list(product(range(VOCAB), repeat=LENGTH - 1))
    memory = mx.repeat(TARGET.encode(mx.array([SOURCE])), len(prefixes), axis=0)
    logits = np.array(TARGET.decode(mx.array([[0, *row] for row in prefixes]), TARGET.make_cache(memory)))
    raw = {row[:i]: logits[n, i].astype(np.float64) for n, row in enumerate(prefixes) for i in range(LENGTH)}
    law: Law = {}

    def walk(written: tuple[int, ...], mass: float) -> None:
        if len(written) == LENGTH or EOS in written:
            law[written] = mass
            return
        for token, share in enumerate(transformed(raw[written], [0, *written], options)):
            if share > 0:
                walk((*written, token), mass * share)

    walk((), 1.0)
    return law


def check_law(
    rule: AcceptanceRule,
    options: dict[str, Any],
    samples: int = 300,
    draft: EncoderDecoder | DraftModel = DRAFT,
    rows: int = 25,
) -> None:
    """Fails if the outputs of `samples` seeds do not follow the law. Looks every 150, so that a fault shows early.

    rows: so many seeds are decoded side by side; what they share are the passes.
    """
    law = exact_law(options)
    counts = dict.fromkeys(law, 0)
    for start in range(0, samples, rows):
        seats = [SamplingParams(seed=seed, **options) for seed in range(start, start + rows)]
        for outcome in outcomes(rule, BatchModelDrafter(draft, TARGET, rows), seats, [2] * rows):
            assert outcome in law, "an output that cannot be"
            counts[outcome] += 1
        if (start + rows) % 150 == 0:
            check_counts(counts, law, start + rows)


def outcomes(
    rule: AcceptanceRule, drafters: BatchDrafter, seats: Sequence[SamplingParams], lengths: Sequence[int]
) -> list[tuple[int, ...]]:
    """What the readers of a batch get, whose rows draft so many tokens a round."""
    cache = TARGET.make_cache(mx.repeat(TARGET.encode(mx.array([SOURCE])), len(seats), axis=0))
    ends, waiting = {EOS}.__contains__, []
    readings = drafters.read([SOURCE] * len(seats))
    for slot, (sampling, reading, length) in enumerate(zip(seats, readings, lengths, strict=True)):
        drafters.begin(slot, SOURCE, reading, sampling, coupled=isinstance(rule, Coupled))
        waiting.append(Row(Settings(FixedLength(length), LENGTH, sampling, rule), ends, [0]))
    found: list[tuple[int, ...]] = [()] * len(seats)
    for rounds in speculate(TARGET, cache, drafters, waiting):
        for slot, event in rounds.items():
            found[slot] += tuple(event.tokens)
    return found


def check_counts(counts: dict[tuple[int, ...], int], law: Law, samples: int) -> None:
    """The chi-square statistic must be below its 1 - 1e-4 quantile (Wilson and Hilferty's approximation)."""
    cells = [(counts[outcome], mass * samples) for outcome, mass in law.items() if mass * samples >= 5]
    rare = samples - sum(found for found, _ in cells), samples - sum(count for _, count in cells)
    if rare[1] >= 1:
        cells.append(rare)
    freedom = len(cells) - 1
    assert freedom >= 4
    statistic = sum((found - count) ** 2 / count for found, count in cells)
    assert statistic < freedom * (1 - 2 / (9 * freedom) + 3.72 * (2 / (9 * freedom)) ** 0.5) ** 3


OPTIONS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 1.6},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 1.0, "repetition_penalty": 1.2},
    {"temperature": 1.0, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2},
]
RULES = [Rejection(), Block()]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_sampled_outputs_follow_the_targets_law(rule: AcceptanceRule, options: dict[str, Any]) -> None:
    check_law(rule, options, rows=1 if options == OPTIONS[-1] else 25)


def test_coupled_outputs_follow_the_targets_law() -> None:
    check_law(Coupled(), OPTIONS[-1])


SPEAKERS = {
    "trimmed": DraftModel(DRAFT, DraftVocabulary((EOS, 2, 6))),  # and 3 and 4, from the source: never 0, 5, 7
    "hesitant": DraftModel(DRAFT, confidence_threshold=0.5),
}


@pytest.mark.parametrize("draft", SPEAKERS.values(), ids=SPEAKERS)
@pytest.mark.parametrize("rule", [*RULES, Coupled()], ids=str)
def test_the_law_is_the_targets_however_a_draft_model_speaks(rule: AcceptanceRule, draft: DraftModel) -> None:
    check_law(rule, OPTIONS[1], draft=draft)


def batches(
    rule: AcceptanceRule, options: dict[str, Any], drafter: str, samples: int = 300, rows: int = 10
) -> Counter[tuple[int, ...]]:
    """Outcomes of batches whose rows have their own seeds and drafts of 0, 1 or 2 tokens: they do not keep step."""
    counts: Counter[tuple[int, ...]] = Counter()
    for start in range(0, samples, rows):
        source = choose_drafter(drafter, TARGET, DRAFT, NgramDrafter(min_chance=0.0), rows)
        seats = [SamplingParams(seed=seed, **options) for seed in range(start, start + rows)]
        counts.update(outcomes(rule, source, seats, [sampling.seed % 3 for sampling in seats]))
    return counts


@pytest.mark.parametrize("drafter", ["model", "ngram", "auto"])
@pytest.mark.parametrize("rule", [*RULES, Coupled()], ids=str)
def test_the_rows_of_ragged_batches_follow_the_targets_law(rule: AcceptanceRule, drafter: str) -> None:
    """Every drafter; also what a single request does, for it is a batch of one."""
    law = exact_law(OPTIONS[1])
    found = batches(rule, OPTIONS[1], drafter)
    assert found.keys() <= law.keys()
    check_counts({outcome: found[outcome] for outcome in law}, law, 300)


def test_a_planted_fault_breaks_the_law_of_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row's samples are judged by the distribution behind its neighbour's tokens."""
    judge = Row.judge
    last: list[mx.array] = []

    def neighbours(self: Row, draft: Draft, logits: mx.array) -> Any:
        theirs = last.pop() if last else logits
        last.append(logits)
        return judge(self, draft, theirs)

    monkeypatch.setattr(Row, "judge", neighbours)
    law = exact_law(OPTIONS[1])
    found = batches(RULES[0], OPTIONS[1], "model", samples=900)
    with pytest.raises(AssertionError):
        assert found.keys() <= law.keys()
        check_counts({outcome: found[outcome] for outcome in law}, law, 900)


def plant_in_drafts(monkeypatch: pytest.MonkeyPatch, change: Callable[[Draft, Asked, SamplingParams], Draft]) -> None:
    """What each row's draft that is not empty becomes before anyone sees it."""
    propose = BatchModelDrafter.propose

    def planted(self: BatchModelDrafter, asked: Sequence[Asked]) -> list[Draft]:
        rows = [self._rows[each.slot] for each in asked]
        return [
            change(draft, each, row._sampling) if row is not None and draft.num_tokens else draft
            for each, row, draft in zip(asked, rows, propose(self, asked), strict=True)
        ]

    monkeypatch.setattr(BatchModelDrafter, "propose", planted)


def drop_the_unsure_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft stops in front of a token that it sampled and was unsure of, not behind it."""

    def without_last(draft: Draft, asked: Asked, sampling: SamplingParams) -> Draft:
        assert draft.probs is not None
        stopped = draft.num_tokens < asked.num_draft_tokens
        return Draft(draft.tokens[:, :-1], draft.probs[:, :-1]) if stopped else draft

    plant_in_drafts(monkeypatch, without_last)


def report_the_whole_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens of a trimmed vocabulary are passed off as sampled from all of it."""

    def smoothed(draft: Draft, asked: Asked, sampling: SamplingParams) -> Draft:
        assert draft.probs is not None
        return Draft(draft.tokens, 0.6 * draft.probs + 0.4 / VOCAB)

    plant_in_drafts(monkeypatch, smoothed)


@pytest.mark.parametrize(
    ("speaker", "plant"), [("hesitant", drop_the_unsure_token), ("trimmed", report_the_whole_vocabulary)]
)
def test_a_planted_fault_of_a_draft_model_breaks_the_law(
    speaker: str, plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check_law(Rejection(), OPTIONS[1], samples=900, draft=SPEAKERS[speaker])


def test_options_change_the_law() -> None:
    """What the tests above tell apart."""
    laws = [exact_law(options) for options in OPTIONS]
    for i, one in enumerate(laws):
        for other in laws[:i]:
            assert 0.5 * sum(abs(one.get(k, 0) - other.get(k, 0)) for k in one | other) > 0.01


def raw_logits_for_probs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SamplingParams, "probs", lambda self, logits, preceding: mx.maximum(logits, 0))


def unadjusted_residual(monkeypatch: pytest.MonkeyPatch) -> None:
    def unadjusted(draft, probs, weights, accepted):  # type: ignore[no-untyped-def]
        return mx.take_along_axis(probs, accepted[:, None, None], axis=1)[:, 0]

    monkeypatch.setattr(acceptance, "residual", unadjusted)


def dropped_sampled_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The drafter withdraws a token that it sampled where that was not its favourite."""

    def withdrawing(draft: Draft, asked: Asked, sampling: SamplingParams) -> Draft:
        assert draft.probs is not None
        favourite = (draft.tokens == mx.argmax(draft.probs, axis=-1)).astype(mx.int32)
        return Draft(draft.tokens, draft.probs, mx.cumprod(favourite, axis=1).sum(axis=1))

    plant_in_drafts(monkeypatch, withdrawing)


def penalty_on_the_wrong_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every verified position sees the committed tokens alone."""

    def committed(self, tokens):  # type: ignore[no-untyped-def]
        return mx.array([[*tokens, *[tokens[-1]] * self.num_tokens]])

    monkeypatch.setattr(Draft, "behind", committed)


def temperature_on_one_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draft samples at the temperature, the target is taken as it is."""
    probs = SamplingParams.probs

    def at_one(self, logits, preceding):  # type: ignore[no-untyped-def]
        return probs(SamplingParams(temperature=1.0), logits, preceding)

    monkeypatch.setattr(SamplingParams, "probs", at_one)


def draft_reports_another_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draft says that it sampled at temperature 1."""

    def misreporting(draft: Draft, asked: Asked, sampling: SamplingParams) -> Draft:
        assert draft.probs is not None
        untempered = draft.probs**sampling.temperature
        return Draft(draft.tokens, untempered / untempered.sum(axis=-1, keepdims=True))

    plant_in_drafts(monkeypatch, misreporting)


def rewind_one_too_far(monkeypatch: pytest.MonkeyPatch) -> None:
    trim = DecoderCache.trim_to
    monkeypatch.setattr(
        DecoderCache, "trim_to", lambda self, offsets: trim(self, [max(0, each - 1) for each in offsets])
    )


def drop_the_bonus_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop goes on behind the token that follows a whole draft, but the reader never sees it."""

    def without_bonus(tokens: list[int], drafted: int, accepted: int, *rest: Any) -> Round:
        return Round(tokens[:-1] if accepted == drafted else tokens, drafted, accepted, *rest)

    monkeypatch.setattr(import_module("speculative_decoding.decoding.loop"), "Round", without_bonus)


FAULTS: list[tuple[Callable[[pytest.MonkeyPatch], None], dict[str, Any]]] = [
    (raw_logits_for_probs, OPTIONS[0]),
    (unadjusted_residual, OPTIONS[0]),
    (dropped_sampled_token, OPTIONS[1]),
    (rewind_one_too_far, OPTIONS[0]),
    (drop_the_bonus_token, OPTIONS[0]),
    (temperature_on_one_side, OPTIONS[1]),
    (draft_reports_another_temperature, OPTIONS[1]),
    (penalty_on_the_wrong_prefix, OPTIONS[5]),
]


@pytest.mark.parametrize(("plant", "options"), FAULTS)
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_planted_fault_breaks_the_law(
    rule: AcceptanceRule,
    plant: Callable[[pytest.MonkeyPatch], None],
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check_law(rule, options, samples=900)


@pytest.mark.parametrize("rule", [Rejection(0.5), Rejection(skip_sample_adjustment=True)], ids=str)
def test_a_lossy_rule_breaks_the_law(rule: AcceptanceRule) -> None:
    with pytest.raises(AssertionError):
        check_law(rule, OPTIONS[0], samples=900)
