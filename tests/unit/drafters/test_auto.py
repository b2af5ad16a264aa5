"""The choice between copying and the draft model."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import pytest

from speculative_decoding import InputError
from speculative_decoding.drafters import (
    AutoDrafter,
    Draft,
    Drafter,
    DraftModel,
    NgramDrafter,
    RequestView,
    SeparateDrafters,
    choose_drafter,
    model_drafter,
)
from speculative_decoding.drafters.base import COPY, MODEL
from speculative_decoding.sampling import GenerationOptions
from tests.support.tiny import VOCAB, noisy_copy, run, tiny_model, tokens_of

SOURCE = [5, 9, 3, 7, 11, 13, 4, 8, 1]
KNOWN = [0, 5, 9, 3, 7]  # occurs in the source
UNKNOWN = [0, 20, 21, 22, 23]  # does not occur in the source


class Twos(Drafter):
    """Replaces the draft model and always proposes 2."""

    def begin(self, input_tokens: Sequence[int]) -> None:
        self.calls = 0

    def propose(self, tokens: Sequence[int], num_draft_tokens: int) -> Draft:
        self.calls += 1
        return Draft(mx.full((1, num_draft_tokens), 2, mx.uint32))


def request_with(tokens: list[int], slot: int = 0) -> RequestView:
    return RequestView(GenerationOptions(), SOURCE, tokens, slot)


def auto(model: Drafter, sure: float = 0.7) -> AutoDrafter:
    drafter = AutoDrafter(NgramDrafter(), SeparateDrafters(lambda: model), VOCAB, sure)
    drafter.begin(request_with([0]))
    return drafter


def proposed(drafter: AutoDrafter, tokens: list[int], count: int = 3) -> tuple[str, list[int]]:
    row = request_with(tokens)
    kind, _ = drafter.kind_and_limit(row)
    draft = drafter.propose({row: count}, 1)
    return kind, draft.tokens.tolist()[0]  # type: ignore[index, return-value]


def test_a_likely_copy_is_drafted_without_the_model() -> None:
    model = Twos()
    drafter = auto(model)
    assert proposed(drafter, KNOWN) == (COPY, [11, 13, 4])
    assert model.calls == 0


def test_the_model_drafts_if_a_copy_is_not_likely_enough() -> None:
    chance = NgramDrafter()
    chance.begin(SOURCE)
    sure = chance.match(KNOWN).chance
    assert proposed(auto(Twos(), sure), KNOWN)[0] == COPY
    assert proposed(auto(Twos(), sure + 0.01), KNOWN) == (MODEL, [2, 2, 2])


def test_the_model_drafts_after_copies_were_rejected() -> None:
    """Matches of the same kind are followed by other tokens until the model drafts instead."""
    drafter, kinds = auto(Twos()), []
    for _ in range(40):
        drafter.begin(request_with([0]))
        kinds.append(proposed(drafter, KNOWN)[0])
        drafter.kind_and_limit(request_with([*KNOWN, 20]))  # the copy was wrong
    assert kinds[0] == COPY and kinds[-1] == MODEL


def test_a_copy_must_be_nearly_as_likely_to_be_accepted_as_the_model() -> None:
    """The acceptance rate of the model carries over to later requests, until newer results outweigh it."""
    ngram, model = NgramDrafter(), Twos()
    drafter = AutoDrafter(ngram, SeparateDrafters(lambda: model), VOCAB)
    drafter.begin(request_with([0]))
    assert ngram.chances.chance("source", 1) == 0.5  # a match of one token
    seen = []
    for token in [2] * 20 + [3] * 20:  # the model is right 20 times, then wrong
        proposed(drafter, UNKNOWN)
        drafter.observe([request_with([*UNKNOWN, token])], [1])
        later = AutoDrafter(ngram, SeparateDrafters(lambda: model), VOCAB)
        later.begin(request_with([0]))
        seen.append(later.kind_and_limit(request_with([0, 9]))[0])
    assert seen[0] == COPY and seen[19] == MODEL and seen[-1] == COPY


def mixed(drafter: AutoDrafter) -> Draft:
    """Draft three tokens of the model in slot 0, none in slot 1, and two copied tokens in slot 2."""
    rows = [request_with(UNKNOWN), request_with(KNOWN, 2)]
    for row in rows:
        drafter.kind_and_limit(row)
    return drafter.propose({row: 3 - row.slot // 2 for row in rows}, 3)


@pytest.mark.usefixtures("device")
def test_drafts_of_a_mixed_batch_are_in_their_slots() -> None:
    drafter = auto(Twos())
    drafter.begin(request_with([0], 2))
    draft = mixed(drafter)
    assert draft.to_lists() == [[2, 2, 2], [], [11, 13]]
    drafter.select([2, 0])  # the rows move
    rows = request_with(KNOWN), request_with(UNKNOWN, 1)
    assert [drafter.kind_and_limit(row)[0] for row in rows] == [COPY, MODEL]


@pytest.mark.usefixtures("device")
def test_a_copied_token_has_probability_1_in_a_batch_with_sampled_ones() -> None:
    class Sampled(Twos):
        def propose(self, tokens: Sequence[int], num_draft_tokens: int) -> Draft:
            return Draft(super().propose(tokens, num_draft_tokens).tokens, mx.full((1, num_draft_tokens, VOCAB), 0.25))

    drafter = AutoDrafter(NgramDrafter(), SeparateDrafters(Sampled, VOCAB), VOCAB, 0.7)
    for slot in (0, 2):
        drafter.begin(request_with([0], slot))
    draft = mixed(drafter)
    assert draft.probs is not None and draft.probs.shape == (3, 3, VOCAB)
    assert (draft.probs[0] == 0.25).all()
    assert mx.argmax(draft.probs[2], axis=-1).tolist()[:2] == [11, 13] and draft.probs[2].sum().item() <= 3


def test_auto_without_a_draft_model_only_drafts_copies() -> None:
    target, options = tiny_model(), GenerationOptions(drafter="auto")
    copies = choose_drafter(options, target)
    copies.begin(request_with([0]))
    assert copies.kind_and_limit(request_with([0, 20, 21]))[0] == COPY
    both = choose_drafter(options, target, lambda: model_drafter(DraftModel(noisy_copy(target)), target))
    assert isinstance(both, AutoDrafter)


def test_any_object_with_begin_and_propose_drafts() -> None:
    class Plain:
        def begin(self, input_tokens: Sequence[int]) -> None: ...

        def propose(self, tokens: Sequence[int], num_draft_tokens: int) -> Draft:
            return Draft(mx.full((1, num_draft_tokens), 2, mx.uint32))

    target = tiny_model()
    brought = choose_drafter(GenerationOptions(drafter=Plain()), target)
    rounds = run(target, SOURCE, brought, max_tokens=12)
    assert tokens_of(rounds) == tokens_of(run(target, SOURCE, max_tokens=12)) and rounds[0].drafted == 4
    with pytest.raises(InputError, match="begin and propose"):
        choose_drafter(GenerationOptions(drafter=object()), target)
