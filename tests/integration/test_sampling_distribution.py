"""Sampled outputs of tiny models follow the target's exact distribution, and no other.

The exact distribution is enumerated with the target over all possible outputs. The sampling options are implemented
again in numpy, so only the model is shared with the package.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from speculative_decoding.decoding.request import Request
from speculative_decoding.decoding.round import Batch, speculate
from speculative_decoding.draft_length import FixedLength
from speculative_decoding.drafters import (
    BatchDrafter,
    BatchModelDrafter,
    DraftModel,
    NgramDrafter,
    choose_drafter,
    model_drafter,
)
from speculative_decoding.drafters.base import TEXT, RequestView
from speculative_decoding.drafters.draft_model import DraftVocabulary
from speculative_decoding.drafters.draft_text import DraftText
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.sampling import ACCEPTANCE, Constraints, GenerationOptions
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


def check_distribution(
    options: dict[str, Any],
    samples: int = 450,
    draft: DraftModel = DRAFT,
) -> None:
    """Fail if the outputs of `samples` seeds do not follow the exact distribution. Checked after every 150 seeds."""
    exact, counts = exact_distribution(options), Counter[tuple[int, ...]]()
    own = dict(options)
    constraints = own.pop("constraints", Constraints())
    for start in range(0, samples, 150):
        batch = [seeded(seed, **own) for seed in range(start, start + 150)]
        counts.update(outcomes(BatchModelDrafter(draft, VOCAB), batch, [2] * 150, constraints))
        check_counts(counts, exact, start + 150)


def outcomes(
    drafter: BatchDrafter,
    options: Sequence[GenerationOptions],
    lengths: Sequence[int],
    constraints: Constraints = Constraints(),  # noqa: B008
    texts: Sequence[Sequence[int]] = (),
) -> list[tuple[int, ...]]:
    """Return the outputs of a batch whose rows have these draft lengths.

    Args:
        options: Made by `seeded`.
        texts: The ids of texts that each row may follow.
    """
    draft_texts = [DraftText(ids, {}, TEXT) for ids in texts]
    decoder_cache = TARGET.make_cache(mx.repeat(TARGET.encode(mx.array([SOURCE])), len(options), axis=0))
    fixed = {length: FixedLength(length) for length in lengths}
    rows: list[Request | None] = []
    for slot, (own, length) in enumerate(zip(options, lengths, strict=True)):
        ends = NoText({EOS}.__contains__)
        row = Request(own, SOURCE, [0], slot, constraints, draft_texts, draft_length=fixed[length], streamer=ends)
        rows.append(row)
        drafter.begin(row)
    batch = Batch(TARGET, drafter, decoder_cache, rows)
    found: list[tuple[int, ...]] = [()] * len(rows)
    while batch.requests:
        for request, event in speculate(batch).items():
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
    {"temperature": 1.6},
    {"temperature": 1.0, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2},
]
RULES = [name for name, facts in ACCEPTANCE.items() if "lossless" in facts and "comparable" not in facts]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("rule", [*RULES, None])
def test_sampled_outputs_follow_the_target_distribution(rule: str | None, options: dict[str, Any]) -> None:
    """None is the default, "coupled". Outputs of single requests are those of a batch (test_batch.py)."""
    check_distribution(options | {"acceptance": rule})


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


@pytest.mark.parametrize(("options", "draft"), [(REPEATS, TRIMMED), (FORCED, DRAFT)], ids=["repeats", "forced"])
@pytest.mark.parametrize("rule", [*RULES, "coupled"])
def test_constrained_outputs_follow_the_target_distribution(
    rule: str, options: dict[str, Any], draft: DraftModel
) -> None:
    check_distribution(options | {"acceptance": rule}, draft=draft)


@pytest.mark.parametrize("rule", [*RULES, "coupled"])
def test_draft_without_allowed_tokens_keeps_the_target_distribution(rule: str) -> None:
    """After an allowed token the draft model has none. NaN there would bias the block rule at the first token."""
    only = DraftModel(DRAFT.model, DraftVocabulary((EOS,)))  # the source adds 2, 3 and 4
    banned = Constraints(banned=tuple(product((2, 3, 4), (1, 2, 3, 4))))
    check_distribution(OPTIONS[0] | {"acceptance": rule, "constraints": banned}, draft=only)


TEXTS = ((3, 2, 6, EOS), (), (6, 6, 3, 0, 5, EOS))  # a text is a draft whose tokens have probability 1


@pytest.mark.parametrize(
    ("drafter", "texts"),
    [("model", ()), ("ngram", ()), ("auto", ()), ("text", TEXTS), ("text", TEXTS[:1]), ("auto", TEXTS)],
)
def test_ragged_batches_of_all_rules_follow_the_target_distribution(
    drafter: str, texts: Sequence[Sequence[int]]
) -> None:
    """Rows have different seeds, rules and draft lengths (0 to 2), so offsets differ."""
    names, counts = [*RULES, "coupled"], Counter[tuple[int, ...]]()
    for start in range(0, 450, 150):
        batch = [
            seeded(seed, acceptance=names[seed % len(names)], drafter=drafter, **OPTIONS[0])
            for seed in range(start, start + 150)
        ]
        source = choose_drafter(batch[0], TARGET, lambda: model_drafter(DRAFT, TARGET), NgramDrafter(min_chance=0.0))
        counts.update(outcomes(source, batch, [own.seed // len(names) % 3 for own in batch], texts=texts))
    check_counts(counts, exact_distribution(OPTIONS[0]), 450)


@pytest.mark.parametrize("rule", RULES)
def test_the_tokens_of_a_draft_have_independent_noise(rule: str) -> None:
    """All tokens are about equally likely at this temperature, so that equal noise would give equal tokens."""
    rows = [RequestView(seeded(seed, temperature=50.0, acceptance=rule), SOURCE, [0], seed) for seed in range(150)]
    drafter = BatchModelDrafter(DRAFT, VOCAB)
    for row in rows:
        drafter.begin(row)
    first, second = np.array(drafter.propose(dict.fromkeys(rows, 2), len(rows)).tokens).T
    assert 5 < (first == second).sum() < 40  # 150 / 8 on average


def test_lossy_rule_changes_the_distribution() -> None:
    """The other tests can fail, too: `python -m tools.planted_faults` plants faults in the rules and in a draft."""
    with pytest.raises(AssertionError, match=BROKEN):
        check_distribution(OPTIONS[0] | {"delta": 0.5}, 900)
