"""Draft models: output heads over a trimmed vocabulary, and rows of a batch that equal single rows.

test_generate.py and test_sampling_distribution.py test the output of every drafter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from speculative_decoding import InputError, Session
from speculative_decoding.drafters import BatchModelDrafter, Draft, DraftModel, RequestView
from speculative_decoding.drafters.draft_model import DraftVocabulary
from speculative_decoding.drafters.draft_sampler import OutputHead
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.sampling import GenerationOptions
from tests.parity.test_t5 import load_golden
from tests.support.device import within
from tests.support.paths import GOLDENS
from tests.support.tiny import EOS, SOURCES, VOCAB, noisy_copy, run, tiny_model, tokens_of

TARGET = tiny_model()
DRAFT = noisy_copy(TARGET)
FREQUENT = (EOS, 2, 6, 12, 20)
TRIMMED = DraftModel(DRAFT, DraftVocabulary(FREQUENT))
SIZES = {"d_model": 64, "d_kv": 32, "d_ff": 64}


def proposed(
    draft: DraftModel, source: list[int], count: int, tokens: Sequence[int] = (0,), **options: Any
) -> tuple[list[int], Draft]:
    """Return the tokens of a first draft, and the draft."""
    row, drafter = RequestView(GenerationOptions(**options), source, list(tokens)), BatchModelDrafter(draft, VOCAB)
    drafter.begin(row)
    found = drafter.propose({row: count}, 1)
    return np.array(found.tokens)[0, : found.length(0)].tolist(), found


def head_for(sources: Sequence[Sequence[int]], *arguments: Any) -> OutputHead:
    head = OutputHead(*arguments)
    head.use_sources(sources)
    return head


def ids_of(head: OutputHead) -> list[int]:
    assert head.ids is not None
    return head.ids.tolist()  # type: ignore[return-value]


def quantized(model: EncoderDecoder, bits: int) -> EncoderDecoder:
    nn.quantize(model, group_size=32, bits=bits)
    return model


# A separate head, or the tied embedding, which T5 scales; in float32 or quantized; and the heads of other families.
HEADS = {
    "separate": tiny_model(),
    "tied": tiny_model(tie_word_embeddings=True),
    "separate, 8 bits": quantized(tiny_model(**SIZES), 8),
    "tied, 4 bits": quantized(tiny_model(tie_word_embeddings=True, **SIZES), 4),
    "with a bias": load_golden(GOLDENS / "marian")[0],
    "with a soft cap": load_golden(GOLDENS / "t5gemma")[0],
}


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("model", HEADS.values(), ids=HEADS)
def test_logits_of_a_partial_head_equal_those_of_the_full_head(model: EncoderDecoder) -> None:
    ids = [EOS, 9, 2, 23, 14]
    encoder_output = model.encode(mx.array([SOURCES[0]]))
    tokens = mx.array([[0, 5, 7, 3]])
    whole = np.array(model.decode(tokens, model.make_cache(encoder_output)))
    some = np.array(model.head_of(mx.array(ids))(model.states(tokens, model.make_cache(encoder_output))))
    assert some.shape == (1, 4, len(ids))
    np.testing.assert_allclose(some, whole[..., ids], rtol=within(1e-5), atol=within(1e-5))
    assert np.ptp(whole) > 1


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("options", [{"temperature": 1.5}, {"temperature": 1.5, "acceptance": "rejection"}], ids=str)
def test_every_proposed_token_is_in_the_vocabulary_or_the_source(options: dict[str, Any]) -> None:
    seen = set()
    for seed, source in enumerate(SOURCES * 4):
        own = options | {"seed": seed, "repetition_penalty": 1.5 if seed % 2 else 1.0}
        tokens, draft = proposed(TRIMMED, source, 8, [0, *range(2, 2 + seed % 3)], **own)
        assert {*tokens} <= {*FREQUENT, *source}
        assert (draft.probs is not None) == ("acceptance" in options)
        if draft.probs is not None:
            probs = np.array(draft.probs)
            assert (np.delete(probs, sorted({*FREQUENT, *source}), axis=-1) == 0).all()
            np.testing.assert_allclose(probs.sum(axis=-1), 1, rtol=1e-5)
        seen.update(tokens)
    assert len(seen) > 5


@pytest.mark.usefixtures("device")
def test_the_most_likely_token_of_the_vocabulary_is_drafted() -> None:
    """Compare with the full head's arg-max over the allowed ids, without a cache."""
    for source in SOURCES:
        allowed = sorted({*FREQUENT, *source})
        tokens, encoder_output = [0], DRAFT.encode(mx.array([source]))
        for token in proposed(TRIMMED, source, 6)[0]:
            logits = np.array(DRAFT.decode(mx.array([tokens]), DRAFT.make_cache(encoder_output)))[0, -1]
            assert token == max(allowed, key=lambda each: logits[each])
            tokens.append(token)


def test_the_end_token_can_be_drafted_with_any_vocabulary() -> None:
    baseline = tokens_of(run(TARGET, SOURCES[0]))
    assert baseline[-1] == EOS
    vocabulary = DraftVocabulary.most_frequent(1, [[3, 3, 3]], [EOS])
    assert proposed(DraftModel(TARGET, vocabulary), SOURCES[0], 1, [0, *baseline[:-1]])[0] == [EOS]


@pytest.mark.usefixtures("device")
def test_ids_beyond_the_drafts_embedding_are_left_out() -> None:
    """Some families pad the target's vocabulary to a larger size than the draft's."""
    small = tiny_model(vocab_size=20)
    head = head_for([[3, 22, EOS]], small, VOCAB, (EOS, 19, 20, 23))
    assert ids_of(head) == [EOS, 19, 3]
    model = DraftModel(small, DraftVocabulary((EOS, 19, 23)))
    probs = proposed(model, [3, 22, EOS], 2, [0, 23], temperature=1.0, acceptance="rejection")[1].probs
    assert probs is not None and probs.shape == (1, 2, VOCAB)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("accepted", range(4))
def test_a_draft_does_not_depend_on_earlier_drafts(accepted: int) -> None:
    draft, source = DraftModel(DRAFT), SOURCES[0]
    row, drafter = RequestView(GenerationOptions(), source, [0]), BatchModelDrafter(draft, VOCAB)
    drafter.begin(row)
    for token in (7, 8, 9):
        proposal = np.array(drafter.propose({row: 3}, 1).tokens)[0].tolist()
        assert proposal == proposed(draft, source, 3, row.decoder_tokens)[0]
        row.decoder_tokens += [*proposal[:accepted], token]


# The options of the rows of a batch. Any two differ in seed, penalty or acceptance rule.
ROW_OPTIONS: list[dict[str, Any]] = [
    {"repetition_penalty": 8.0},
    {"temperature": 1.5, "seed": 3, "top_k": 6},
    {"temperature": 1.0, "acceptance": "coupled", "seed": 4},
    {"temperature": 1.2, "seed": 5, "repetition_penalty": 0.7, "acceptance": "block"},
    {},
]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("kinds", [ROW_OPTIONS, ROW_OPTIONS[:1] + ROW_OPTIONS[4:]], ids=["all", "greedy"])
@pytest.mark.parametrize("model", [DraftModel(DRAFT), TRIMMED], ids=["whole", "trimmed"])
def test_a_batch_row_gets_the_draft_of_a_single_row(model: DraftModel, kinds: Sequence[dict[str, Any]]) -> None:
    """Compare a batch with single rows for five rounds with ragged drafts, which are partly accepted."""
    options = [GenerationOptions(**own) for own in kinds]
    together = BatchModelDrafter(model, VOCAB)
    rows = [RequestView(own, SOURCES[slot], [0], slot) for slot, own in enumerate(options)]
    alone = [(BatchModelDrafter(model, VOCAB), RequestView(row.options, row.source_tokens, [0])) for row in rows]
    for row, (drafter, copy) in zip(rows, alone, strict=True):
        together.begin(row)
        drafter.begin(copy)
    for turn in range(5):
        counts = [(3 * turn + 2 * slot) % 7 for slot in range(len(rows))]  # 0: the row skips this round
        draft = together.propose({rows[i]: n for i, n in enumerate(counts) if n}, len(rows))
        for slot, count in enumerate(counts):
            assert draft.length(slot) <= count
            if count:
                drafter, copy = alone[slot]
                own = drafter.propose({copy: count}, 1)
                assert draft.length(slot) == own.length(0) > 0
                size = own.length(0)
                assert draft.tokens[slot, :size].tolist() == own.tokens[0, :size].tolist()
                if own.probs is not None:
                    assert draft.probs is not None and mx.allclose(
                        draft.probs[slot, :size], own.probs[0], atol=within(1e-5)
                    )
                elif draft.probs is not None:
                    assert draft.probs[slot, :size].max(axis=-1).tolist() == [1.0] * size
        kept = np.array(draft.tokens).tolist()
        for slot, row in enumerate(rows):
            row.decoder_tokens += [*kept[slot][: draft.length(slot) // 2], 5 + turn]
            alone[slot][1].decoder_tokens[:] = row.decoder_tokens


# Trimmed vocabularies: the most frequent ids, and always the end tokens.


OUTPUTS = [[5, 5, 5, 1], [7, 7, 5, 1], [7, 9, 1], [3, 1]]


@pytest.mark.parametrize("size", [1, 3, 5, 7])
def test_vocabulary_has_the_ends_and_the_most_frequent_ids(size: int) -> None:
    ids = DraftVocabulary.most_frequent(size, OUTPUTS, [1]).ids
    assert ids == (1, 5, 7, 9, 3)[:size]  # ties keep the order of first occurrence
    assert DraftVocabulary.most_frequent(size, OUTPUTS, [1, 2]).ids[:2] == (1, 2)


def test_ids_that_accompany_a_source_id_are_learned() -> None:
    """Each output contains 100 + s for every source id s, shuffled, and also frequent ids and a copied id."""
    rng, pairs = np.random.default_rng(0), []
    for _ in range(200):
        source = [*map(int, rng.permutation(40)[:6] + 10)]
        output = [2, 3, source[0], *(100 + token for token in rng.permutation(source)), 1]
        pairs.append((source, [*map(int, output)]))
    pairs.append(([10, 11], [999, 1]))  # too rare to be learned
    vocabulary = DraftVocabulary.learned(3, pairs, [1])
    assert vocabulary.ids == (1, 2, 3)
    assert vocabulary.by_source == {token: [100 + token] for token in range(10, 50)}
    head = head_for([[12, 3, 40, 77]], tiny_model(vocab_size=150), 150, vocabulary.ids, vocabulary.by_source)
    assert {*ids_of(head)} == {1, 2, 3, 12, 40, 77, 112, 140}


def test_lines_are_counted_by_the_tokens_of_the_tokenizer(pair: Session) -> None:
    tokenizer = pair.tokenizer
    lines = ["Die Methode gibt den Wert zurück.", "", "Die Eigenschaft.", "  "]
    counts = Counter(token for line in lines if line.strip() for token in tokenizer.encode(line))
    ids = DraftVocabulary.from_lines(4, lines, tokenizer, [1]).ids
    assert ids[0] == 1 and [counts[token] for token in ids[1:]] == sorted(counts.values(), reverse=True)[1:4]


@pytest.mark.parametrize(
    ("size", "outputs", "named"),
    [
        (0, OUTPUTS, "draft_vocab: must be >= 1, not 0"),
        (5, [], "draft_vocab_text: contains no tokens"),
        (5, [[1], [1]], "draft_vocab_text: contains no tokens"),
    ],
)
def test_invalid_vocabularies_are_named(size: int, outputs: list[list[int]], named: str) -> None:
    with pytest.raises(InputError, match=named):
        DraftVocabulary.most_frequent(size, outputs, [1])
