"""Sampled outputs of tiny models follow the target's exact distribution; planted faults are detected.

The exact distribution is enumerated with the target over all possible outputs. The sampling options are implemented
again in numpy, so only the model is shared with the package.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from speculative_decoding.decoding import acceptance
from speculative_decoding.decoding import round as loop
from speculative_decoding.decoding.acceptance import Coupled
from speculative_decoding.decoding.request import Request
from speculative_decoding.decoding.round import Batch, Verified
from speculative_decoding.draft_length import FixedLength
from speculative_decoding.drafters import (
    BatchDrafter,
    BatchModelDrafter,
    Draft,
    DraftModel,
    NgramDrafter,
    choose_drafter,
    draft_sampler,
    model_drafter,
)
from speculative_decoding.drafters.base import RequestView, history_of
from speculative_decoding.drafters.draft_model import DraftVocabulary
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.cache import DecoderCache
from speculative_decoding.sampling import ACCEPTANCE, Constraints, GenerationOptions, History, distribution, logprobs
from speculative_decoding.sampling.random import random_keys
from tests.integration.test_generate import drop_the_bonus_token
from tests.support.tiny import EOS, NoText, noisy_copy, tiny_model

VOCAB, LENGTH = 8, 3
SOURCE = [4, 3, 2, 1]


def with_encoder_output(model: EncoderDecoder) -> EncoderDecoder:
    """Cache the encoder output: hundreds of runs have the same source."""
    encoder_output = model.encode(mx.array([SOURCE]))
    mx.eval(encoder_output)
    object.__setattr__(model, "encode", lambda tokens, mask=None: mx.repeat(encoder_output, tokens.shape[0], axis=0))
    return model


TARGET = tiny_model(seed=8, scale=0.8, vocab_size=VOCAB, num_layers=1)
DRAFT = DraftModel(with_encoder_output(noisy_copy(TARGET, noise=0.3, seed=10)))
with_encoder_output(TARGET)

Distribution = dict[tuple[int, ...], float]


def is_allowed(token: int, history: Sequence[int], own: Constraints) -> bool:
    """Return whether an id is allowed. Written independently of the package."""
    after, size = [*history, token], own.no_repeat_ngram_size
    stretches = [after[i : i + size] for i in range(len(after) - size + 1)] if size else []
    is_never = any(tuple(after[-len(ids) :]) == ids for ids in own.banned)
    is_early = any(token == each and len(history) < place for each, place in own.not_before)
    return not (is_never or is_early or (stretches and stretches[-1] in stretches[:-1]))


def transformed(logits: NDArray[np.float64], history: Sequence[int], options: dict[str, Any]) -> NDArray[np.float64]:
    """Compute the distribution of one position as Hugging Face defines it."""
    x, penalty = logits.astype(np.float64), options.get("repetition_penalty", 1.0)
    for token in set(history):
        x[token] = x[token] * penalty if x[token] < 0 else x[token] / penalty
    own = options.get("constraints", Constraints())
    for token in range(VOCAB):
        if not is_allowed(token, history, own):
            x[token] = -np.inf
    for place, ids in own.forced:
        if place == len(history):
            x = np.array([0.0 if token in ids else -np.inf for token in range(VOCAB)])
    p = np.exp((x - x.max()) / options["temperature"])
    p /= p.sum()
    order = np.argsort(-p)
    keep = np.ones(VOCAB, dtype=bool)
    if top_k := options.get("top_k"):
        keep[order[top_k:]] = False
    p = p * keep / (p * keep).sum()
    if (top_p := options.get("top_p", 1.0)) < 1:
        reached = np.cumsum(p[order]) - p[order] < top_p  # kept while the tokens before it do not reach top_p
        keep[order] &= reached
    p = p * keep / (p * keep).sum()
    keep &= p >= options.get("min_p", 0.0) * p.max()
    return p * keep / (p * keep).sum()


def exact_distribution(options: dict[str, Any]) -> Distribution:
    prefixes = list(product(range(VOCAB), repeat=LENGTH - 1))
    encoder_output = mx.repeat(TARGET.encode(mx.array([SOURCE])), len(prefixes), axis=0)
    logits = np.array(TARGET.decode(mx.array([[0, *row] for row in prefixes]), TARGET.make_cache(encoder_output)))
    raw = {row[:i]: logits[n, i].astype(np.float64) for n, row in enumerate(prefixes) for i in range(LENGTH)}
    exact: Distribution = {}

    def walk(written: tuple[int, ...], mass: float) -> None:
        if len(written) == LENGTH or EOS in written:
            exact[written] = mass
            return
        for token, share in enumerate(transformed(raw[written], [0, *written], options)):
            if share > 0:
                walk((*written, token), mass * share)

    walk((), 1.0)
    return exact


@cache
def seeded(seed: int, **options: Any) -> GenerationOptions:
    """Return the options of an output of `LENGTH` tokens. Cached: validation takes longer than decoding such a row."""
    return GenerationOptions(seed=seed, max_tokens=LENGTH, **options)


def check_distribution(options: dict[str, Any], samples: int = 450, draft: DraftModel = DRAFT, rows: int = 150) -> None:
    """Fail if the outputs of `samples` seeds do not follow the exact distribution. Checked after every 150 seeds.

    rows: the number of seeds in a batch.
    """
    exact, counts = exact_distribution(options), Counter[tuple[int, ...]]()
    own = dict(options)
    constraints = own.pop("constraints", Constraints())
    for start in range(0, samples, rows):
        batch = [seeded(seed, **own) for seed in range(start, start + rows)]
        counts.update(outcomes(BatchModelDrafter(draft, VOCAB), batch, [2] * rows, constraints))
        if (start + rows) % 150 == 0:
            check_counts(counts, exact, start + rows)


def outcomes(
    drafter: BatchDrafter,
    options: Sequence[GenerationOptions],
    lengths: Sequence[int],
    constraints: Constraints = Constraints(),  # noqa: B008
) -> list[tuple[int, ...]]:
    """Return the outputs of a batch whose rows have these draft lengths. options: made by `seeded`."""
    decoder_cache = TARGET.make_cache(mx.repeat(TARGET.encode(mx.array([SOURCE])), len(options), axis=0))
    fixed = {length: FixedLength(length) for length in lengths}
    rows: list[Request | None] = []
    for slot, (own, length) in enumerate(zip(options, lengths, strict=True)):
        ends = NoText({EOS}.__contains__)
        row = Request(own, SOURCE, [0], slot, constraints, draft_length=fixed[length], streamer=ends)
        rows.append(row)
        drafter.begin(row)
    batch = Batch(TARGET, drafter, decoder_cache, rows)
    found: list[tuple[int, ...]] = [()] * len(rows)
    while batch.requests:
        for request, event in loop.speculate(batch).items():
            found[request.slot] += tuple(event.tokens)
            if event.finish_reason is not None:
                drafter.end(request)
                rows[request.slot] = None
    return found


BROKEN = "cannot be|too far"  # messages of `check_counts` only


def check_counts(counts: Counter[tuple[int, ...]], exact: Distribution, samples: int) -> None:
    """The chi-square statistic must be below its 1 - 1e-4 quantile (Wilson and Hilferty's approximation)."""
    assert counts.keys() <= exact.keys(), "an output that cannot be"
    cells = [(counts[outcome], mass * samples) for outcome, mass in exact.items() if mass * samples >= 5]
    rare = samples - sum(found for found, _ in cells), samples - sum(count for _, count in cells)
    if rare[1] >= 1:
        cells.append(rare)
    if (freedom := len(cells) - 1) < 4:
        raise ValueError("too few samples to tell")
    statistic = sum((found - count) ** 2 / count for found, count in cells)
    most = freedom * (1 - 2 / (9 * freedom) + 3.72 * (2 / (9 * freedom)) ** 0.5) ** 3
    assert statistic < most, f"too far from the exact distribution: {statistic:.1f}, at most {most:.1f}"


OPTIONS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 1.6},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 1.0, "repetition_penalty": 1.2},
    {"temperature": 1.0, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2},
]
RULES = [name for name, facts in ACCEPTANCE.items() if "lossless" in facts and "comparable" not in facts]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_sampled_outputs_follow_the_target_distribution(rule: str, options: dict[str, Any]) -> None:
    check_distribution(options | {"acceptance": rule})


@pytest.mark.parametrize("rule", RULES)
def test_single_requests_follow_the_target_distribution(rule: str) -> None:
    check_distribution(OPTIONS[-1] | {"acceptance": rule}, samples=150, rows=1)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_outputs_follow_the_target_distribution_by_default(options: dict[str, Any]) -> None:
    assert GenerationOptions(**options).rule == "coupled"
    check_distribution(options)


def test_single_requests_follow_the_target_distribution_by_default() -> None:
    check_distribution(OPTIONS[-1], samples=150, rows=1)


# A draft model that never proposes 0, 5 or 7 (3 and 4 are in the source).
TRIMMED = DraftModel(DRAFT.model, DraftVocabulary((EOS, 2, 6)))
# For outputs of three tokens: banned n-grams, tokens that are too early, and forced tokens.
REPEATS = {
    "temperature": 1.6,
    "constraints": Constraints(no_repeat_ngram_size=1, banned=((4,), (5, 6)), not_before=((EOS, 3),)),
}
FORCED = {
    "temperature": 1.6,
    "constraints": Constraints(2, not_before=((EOS, 2), (3, 3)), forced=((1, (0,)), (3, (2, 6)))),
}


@pytest.mark.parametrize("options", [REPEATS, FORCED], ids=["repeats", "forced"])
@pytest.mark.parametrize("rule", [*RULES, "coupled"])
def test_constrained_outputs_follow_the_target_distribution(rule: str, options: dict[str, Any]) -> None:
    check_distribution(options | {"acceptance": rule})
    check_distribution(options | {"acceptance": rule}, draft=TRIMMED)


@pytest.mark.parametrize("rule", [*RULES, "coupled"])
def test_draft_without_allowed_tokens_keeps_the_target_distribution(rule: str) -> None:
    """After an allowed token the draft model has none. NaN there would bias the block rule at the first token."""
    only = DraftModel(DRAFT.model, DraftVocabulary((EOS,)))  # the source adds 2, 3 and 4
    banned = Constraints(banned=tuple(product((2, 3, 4), (1, 2, 3, 4))))
    check_distribution(OPTIONS[1] | {"acceptance": rule, "constraints": banned}, draft=only)


@pytest.mark.parametrize("rule", [*RULES, "coupled"])
def test_trimmed_draft_vocabulary_keeps_the_target_distribution(rule: str) -> None:
    check_distribution(OPTIONS[1] | {"acceptance": rule}, draft=TRIMMED)


def in_batches(
    names: Sequence[str | None], drafter: str, samples: int = 450, rows: int = 150
) -> Counter[tuple[int, ...]]:
    """Return the outputs of batches whose rows have different seeds and draft lengths (0 to 2), so offsets differ.

    names: the acceptance rules of the rows, in turn.
    """
    counts: Counter[tuple[int, ...]] = Counter()
    for start in range(0, samples, rows):
        batch = [
            seeded(seed, acceptance=names[seed % len(names)], drafter=drafter, **OPTIONS[1])
            for seed in range(start, start + rows)
        ]
        source = choose_drafter(batch[0], TARGET, lambda: model_drafter(DRAFT, TARGET), NgramDrafter(min_chance=0.0))
        counts.update(outcomes(source, batch, [own.seed // len(names) % 3 for own in batch]))
    return counts


@pytest.mark.parametrize("drafter", ["model", "ngram", "auto"])
@pytest.mark.parametrize("names", [["rejection"], ["block"], ["coupled"], [*RULES, "coupled"]], ids=" ".join)
def test_ragged_batches_follow_the_target_distribution(names: list[str], drafter: str) -> None:
    """Every drafter is tested, and one batch mixes all rules."""
    check_counts(in_batches(names, drafter), exact_distribution(OPTIONS[1]), 450)


def neighbors_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are verified with the logits of their neighbors."""
    verify = loop.verify

    def shifted(batch: Batch, draft: Draft, logits: mx.array) -> list[Verified]:
        return verify(batch, draft, mx.roll(logits, 1, axis=0))

    monkeypatch.setattr(loop, "verify", shifted)


def neighbors_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """In batches with several acceptance rules, rows are verified with the draft of their neighbors."""
    select = Draft.select
    monkeypatch.setattr(Draft, "select", lambda self, slots: select(self, [*slots[1:], slots[0]]))


@pytest.mark.parametrize(
    ("plant", "names"), [(neighbors_logits, ["rejection"]), (neighbors_draft, [*RULES, "coupled"])]
)
def test_planted_faults_in_batches_are_detected(
    plant: Callable[[pytest.MonkeyPatch], None], names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=BROKEN):
        check_counts(in_batches(names, "model", 900), exact_distribution(OPTIONS[1]), 900)


def same_noise_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise does not depend on the position."""
    for module in (distribution, draft_sampler):
        monkeypatch.setattr(
            module, "random_keys", lambda draws: random_keys([(seed, 0, use) for seed, _, use in draws])
        )


def lenient_with_the_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target takes the draft's token if it is among its two best."""
    decide = Coupled.decide

    def lenient(self: Coupled, draft: Draft, logits: mx.array, rows: Sequence[RequestView]) -> Any:
        likely = mx.argsort(-logits, axis=-1)[:, : draft.num_tokens, :2]
        keep = (likely == draft.tokens[..., None]).any(axis=-1, keepdims=True)
        drafted = mx.arange(logits.shape[-1]) == draft.tokens[..., None]
        pushed = logits[:, : draft.num_tokens] + mx.where(keep & drafted, 50.0, 0.0)
        return decide(self, draft, mx.concatenate([pushed, logits[:, draft.num_tokens :]], axis=1), rows)

    monkeypatch.setattr(Coupled, "decide", lenient)


MARIAN = {"model_type": "marian", "d_model": 16, "pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": EOS}
MARIAN |= {"activation_function": "swish", "scale_embedding": True, "vocab_size": VOCAB}
MARIAN |= {f"{stack}_{of}": 2 for stack in ("encoder", "decoder") for of in ("layers", "attention_heads", "ffn_dim")}


def test_samples_of_another_family_follow_its_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_model(seed=8, scale=0.25, **MARIAN)
    monkeypatch.setattr(sys.modules[__name__], "TARGET", with_encoder_output(target))
    options, draft = (
        OPTIONS[0] | {"acceptance": "block"},
        DraftModel(with_encoder_output(noisy_copy(target, noise=0.3))),
    )
    check_distribution(options, draft=draft, rows=450)
    neighbors_logits(monkeypatch)
    with pytest.raises(AssertionError, match=BROKEN):
        check_distribution(options, draft=draft, rows=450)


def plant_in_drafts(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Draft, mx.array, Mapping[RequestView, int]], Draft]
) -> None:
    """Change sampled drafts. `change` gets the draft, its probs, and the requested lengths."""
    propose = BatchModelDrafter.propose

    def planted(self: BatchModelDrafter, counts: Mapping[RequestView, int], slots: int) -> Draft:
        draft = propose(self, counts, slots)
        if draft.probs is None:
            raise TypeError("not sampled")
        return change(draft, draft.probs, counts)

    monkeypatch.setattr(BatchModelDrafter, "propose", planted)


def report_the_whole_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draft of a trimmed vocabulary reports the distribution over the whole vocabulary."""
    plant_in_drafts(
        monkeypatch, lambda draft, probs, counts: Draft(draft.tokens, 0.6 * probs + 0.4 / VOCAB, draft.lengths)
    )


def test_planted_fault_of_a_draft_model_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    report_the_whole_vocabulary(monkeypatch)
    with pytest.raises(AssertionError, match=BROKEN):
        check_distribution(OPTIONS[1] | {"acceptance": "rejection"}, 900, TRIMMED)


def test_options_change_the_distribution() -> None:
    """Otherwise the tests above could not fail."""
    laws = [exact_distribution(options) for options in OPTIONS]
    for i, one in enumerate(laws):
        for other in laws[:i]:
            assert 0.5 * sum(abs(one.get(k, 0) - other.get(k, 0)) for k in one | other) > 0.01


def raw_logits_for_probs(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((acceptance, "logprobs"), (draft_sampler, "shifted_logprobs")):
        monkeypatch.setattr(module, name, lambda logits, rows, history: mx.log(mx.maximum(logits, 0)))


def unadjusted_residual(monkeypatch: pytest.MonkeyPatch) -> None:
    def unadjusted(draft, probs, weights, accepted):  # type: ignore[no-untyped-def]
        return mx.take_along_axis(probs, accepted[:, None, None], axis=1)[:, 0]

    monkeypatch.setattr(acceptance, "residual", unadjusted)


def dropped_sampled_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The drafter withdraws sampled tokens that are not its arg-max."""

    def withdrawing(draft: Draft, probs: mx.array, counts: Mapping[RequestView, int]) -> Draft:
        is_arg_max = (draft.tokens == mx.argmax(probs, axis=-1)).astype(mx.int32)
        kept: list[int] = mx.cumprod(is_arg_max, axis=1).sum(axis=1).tolist()  # type: ignore[assignment]
        return Draft(draft.tokens, probs, [min(count, draft.length(slot)) for slot, count in enumerate(kept)])

    plant_in_drafts(monkeypatch, withdrawing)


def penalty_on_the_wrong_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every verified position sees only the committed tokens."""

    monkeypatch.setattr(acceptance, "history_of", lambda rows, drafted: history_of(rows))


def history_one_token_too_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every verified position misses the draft token before it."""

    def too_short(rows: Sequence[RequestView], drafted: mx.array) -> History:
        hidden = 0 * drafted[:, -1:]  # the start token, which is in every history
        return history_of(rows, mx.concatenate([drafted[:, :-1], hidden], axis=1))

    monkeypatch.setattr(acceptance, "history_of", too_short)


def temperature_on_one_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target ignores the temperature."""

    def at_one(logits: mx.array, rows: Sequence[GenerationOptions], history: History) -> mx.array:
        return logprobs(logits, [replace(row, temperature=1.0) for row in rows], history)

    monkeypatch.setattr(acceptance, "logprobs", at_one)


def draft_reports_another_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draft reports probabilities at temperature 1."""

    def misreporting(draft: Draft, probs: mx.array, counts: Mapping[RequestView, int]) -> Draft:
        untempered = probs ** next(iter(counts)).options.temperature
        return Draft(draft.tokens, untempered / untempered.sum(axis=-1, keepdims=True), draft.lengths)

    plant_in_drafts(monkeypatch, misreporting)


def rewind_one_too_far(monkeypatch: pytest.MonkeyPatch) -> None:
    trim = DecoderCache.trim_to
    monkeypatch.setattr(
        DecoderCache, "trim_to", lambda self, offsets: trim(self, [max(0, each - 1) for each in offsets])
    )


FAULTS: list[tuple[Callable[[pytest.MonkeyPatch], None], dict[str, Any]]] = [
    (raw_logits_for_probs, OPTIONS[0]),
    (unadjusted_residual, OPTIONS[0]),
    (dropped_sampled_token, OPTIONS[1]),
    (rewind_one_too_far, OPTIONS[0]),
    (drop_the_bonus_token, OPTIONS[0]),
    (temperature_on_one_side, OPTIONS[1]),
    (draft_reports_another_temperature, OPTIONS[1]),
    (penalty_on_the_wrong_prefix, OPTIONS[5]),
    (penalty_on_the_wrong_prefix, REPEATS),
    (history_one_token_too_short, REPEATS),
]


@pytest.mark.parametrize(("plant", "options"), FAULTS)
@pytest.mark.parametrize("rule", RULES)
def test_planted_faults_are_detected(
    rule: str,
    plant: Callable[[pytest.MonkeyPatch], None],
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=BROKEN):
        check_distribution(options | {"acceptance": rule}, 900)


@pytest.mark.parametrize(
    ("plant", "options"),
    [
        (same_noise_everywhere, OPTIONS[1]),
        (lenient_with_the_draft, OPTIONS[1]),
        (neighbors_logits, OPTIONS[1]),
        (history_one_token_too_short, REPEATS),
    ],
)
def test_planted_faults_are_detected_with_the_default_rule(
    plant: Callable[[pytest.MonkeyPatch], None], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=BROKEN):
        check_distribution(options, 900)


def test_lossy_rule_changes_the_distribution() -> None:
    with pytest.raises(AssertionError, match=BROKEN):
        check_distribution(OPTIONS[0] | {"delta": 0.5}, 900)
