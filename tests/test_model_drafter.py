"""A draft model's head over some ids, and a draft model that knows when to stop. Identity and law: test_generate.py
and test_law.py, over every drafter.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from speculative_decoding import InputError, SamplingParams, load
from speculative_decoding.drafters import DraftModel, ModelDrafter
from speculative_decoding.drafters.vocabulary import DraftVocabulary
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.models.base import EncoderDecoder
from tests.tiny import EOS, SOURCES, VOCAB, noisy_copy, run, tiny_model, tokens_of

TARGET = tiny_model()
DRAFT = noisy_copy(TARGET)
FREQUENT = (EOS, 2, 6, 12, 20)
GREEDY = SamplingParams()
SIZES = {"d_model": 64, "d_kv": 32, "d_ff": 64}


def quantised(model: EncoderDecoder, bits: int) -> EncoderDecoder:
    nn.quantize(model, group_size=32, bits=bits)
    return model


# A head of its own or the embedding; with T5's scaling of it or without; as it is, or quantised.
HEADS = {
    "own": tiny_model(),
    "tied": tiny_model(tie_word_embeddings=True),
    "own, 8 bits": quantised(tiny_model(**SIZES), 8),
    "own, 4 bits": quantised(tiny_model(**SIZES), 4),
    "tied, 8 bits": quantised(tiny_model(tie_word_embeddings=True, **SIZES), 8),
    "tied, 4 bits": quantised(tiny_model(tie_word_embeddings=True, **SIZES), 4),
}


@pytest.mark.parametrize("model", HEADS.values(), ids=HEADS)
def test_logits_of_a_partial_head_are_the_whole_heads_at_its_ids(model: EncoderDecoder) -> None:
    ids = [EOS, 9, 2, 23, 14]
    memory = model.encode(mx.array([SOURCES[0]]))
    tokens = mx.array([[0, 5, 7, 3]])
    whole = np.array(model.decode(tokens, model.make_cache(memory)))
    some = np.array(model.head_of(mx.array(ids))(model.states(tokens, model.make_cache(memory))))
    assert some.shape == (1, 4, len(ids))
    np.testing.assert_allclose(some, whole[..., ids], rtol=1e-5, atol=1e-5)
    assert np.ptp(whole) > 1


def test_a_partial_head_of_real_weights_in_every_type() -> None:
    for options in ({}, {"dtype": "bfloat16"}, {"quantize": 8}):
        model, tokenizer = load(BUNDLED / "t5-web-docs-draft", **options)
        source = tokenizer.encode("grammar: It were a cod business.")
        head = DraftModel(model, DraftVocabulary((1, 5, 100, 31))).head_for(source, model.config.vocab_size)
        assert head is not None and set(head.ids.tolist()) == {1, 5, 100, 31, *source}  # type: ignore[arg-type]
        memory = model.encode(mx.array([source]))
        whole = model.decode(mx.array([[0, 5]]), model.make_cache(memory)).astype(mx.float32)
        some = head(model.states(mx.array([[0, 5]]), model.make_cache(memory))).astype(mx.float32)
        tolerance = 0.1 if options.get("dtype") else 1e-3
        np.testing.assert_allclose(np.array(some), np.array(whole[..., head.ids]), atol=tolerance)


def test_spread_puts_every_logit_at_its_id_and_nothing_elsewhere() -> None:
    head = DraftModel(DRAFT, DraftVocabulary(FREQUENT)).head_for([3, 12, 3, EOS], VOCAB)
    assert head is not None
    logits = mx.random.normal((1, 2, len(FREQUENT) + 1), key=mx.random.key(3))
    spread = np.array(head.spread(logits))
    assert spread.shape == (1, 2, VOCAB)
    for i, token in enumerate([*FREQUENT, 3]):
        np.testing.assert_array_equal(spread[..., token], np.array(logits)[..., i])
    assert np.isneginf(np.delete(spread, [*FREQUENT, 3], axis=-1)).all()


@pytest.mark.parametrize("temperature", [0.0, 1.5])
@pytest.mark.parametrize("coupled", [False, True])
def test_every_proposed_token_is_in_the_vocabulary_or_the_source(temperature: float, coupled: bool) -> None:
    seen = set()
    for seed, source in enumerate(SOURCES * 4):
        sampling = SamplingParams(temperature, seed=seed, repetition_penalty=1.5 if seed % 2 else 1.0)
        drafter = ModelDrafter(
            DraftModel(DRAFT, DraftVocabulary(FREQUENT)), TARGET, sampling, coupled=coupled and temperature > 0
        )
        drafter.begin(source)
        draft = drafter.propose([0, *range(2, 2 + seed % 3)], 8)
        tokens = set(np.array(draft.tokens)[0].tolist())
        assert tokens <= {*FREQUENT, *source}
        if draft.probs is not None:
            probs = np.array(draft.probs)
            assert (np.delete(probs, sorted({*FREQUENT, *source}), axis=-1) == 0).all()
            np.testing.assert_allclose(probs.sum(axis=-1), 1, rtol=1e-5)
        seen |= tokens
    assert len(seen) > 5


def test_the_best_token_within_the_vocabulary_is_drafted() -> None:
    """Brute force: the whole head's arg-max over the allowed ids, without a cache."""
    for source in SOURCES:
        allowed = sorted({*FREQUENT, *source})
        drafter = ModelDrafter(DraftModel(DRAFT, DraftVocabulary(FREQUENT)), TARGET, GREEDY)
        drafter.begin(source)
        tokens, memory = [0], DRAFT.encode(mx.array([source]))
        for token in np.array(drafter.propose([0], 6).tokens)[0].tolist():
            logits = np.array(DRAFT.decode(mx.array([tokens]), DRAFT.make_cache(memory)))[0, -1]
            assert token == max(allowed, key=lambda each: logits[each])
            tokens.append(token)


def test_the_end_can_be_drafted_with_any_vocabulary() -> None:
    regular = tokens_of(run(TARGET, SOURCES[3]))
    assert regular[-1] == EOS
    vocabulary = DraftVocabulary.most_frequent(1, [[3, 3, 3]], [EOS])
    drafter = ModelDrafter(DraftModel(TARGET, vocabulary), TARGET, GREEDY)
    drafter.begin(SOURCES[3])
    assert np.array(drafter.propose([0, *regular[:-1]], 1).tokens).tolist() == [[EOS]]


def test_ids_beyond_the_drafts_table_are_left_out() -> None:
    """Some families pad the target's table further than the draft's."""
    small = tiny_model(vocab_size=20)
    head = DraftModel(small, DraftVocabulary((EOS, 19, 20, 23))).head_for([3, 22, EOS], VOCAB)
    assert head is not None and head.ids.tolist() == [EOS, 19, 3]
    drafter = ModelDrafter(DraftModel(small, DraftVocabulary((EOS, 19, 23))), TARGET, SamplingParams(1.0))
    drafter.begin([3, 22, EOS])
    probs = drafter.propose([0, 23], 2).probs
    assert probs is not None and probs.shape == (1, 2, VOCAB)


def confidences(source: Sequence[int], draft: Sequence[int]) -> list[float]:
    """What the draft model gave each token, computed at once over the whole draft."""
    memory = DRAFT.encode(mx.array([list(source)]))
    logits = np.array(DRAFT.decode(mx.array([[0, *draft]]), DRAFT.make_cache(memory)))[0].astype(np.float64)
    probs = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    return [float(probs[i, token]) for i, token in enumerate(draft)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("threshold", [0.0, 0.15, 0.25, 0.5, 1.0])
def test_a_draft_stops_behind_the_first_token_below_the_threshold(temperature: float, threshold: float) -> None:
    for seed, source in enumerate(SOURCES):
        sampling = SamplingParams(temperature, seed=seed)
        whole = ModelDrafter(DRAFT, TARGET, sampling)
        hesitant = ModelDrafter(DraftModel(DRAFT, confidence_threshold=threshold), TARGET, sampling)
        for drafter in (whole, hesitant):
            drafter.begin(source)
        all_tokens, tokens = (np.array(each.propose([0], 8).tokens)[0].tolist() for each in (whole, hesitant))
        below = [i for i, chance in enumerate(confidences(source, all_tokens)) if chance < threshold]
        assert tokens == all_tokens[: below[0] + 1 if below else 8]


def test_thresholds_shorten_drafts_and_a_draft_goes_on_where_it_stopped() -> None:
    drafted = []
    for threshold in (0.0, 0.2, 0.4):
        speaker = DraftModel(DRAFT, confidence_threshold=threshold)
        rounds = [event for source in SOURCES for event in run(TARGET, source, ModelDrafter(speaker, TARGET, GREEDY))]
        assert tokens_of(rounds) == [token for source in SOURCES for token in tokens_of(run(TARGET, source))]
        drafted.append(sum(event.drafted for event in rounds) / len(rounds))
    assert all(more > fewer for more, fewer in pairwise(drafted))


@pytest.mark.parametrize("threshold", [-0.1, 1.5, float("nan")])
def test_an_impossible_threshold_is_refused(threshold: float) -> None:
    with pytest.raises(InputError, match="confidence_threshold must be between 0"):
        DraftModel(DRAFT, confidence_threshold=threshold)
