"""When to copy and when to ask the draft model."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import pytest

from speculative_decoding import InputError
from speculative_decoding.drafters import (
    Asked,
    AutoDrafter,
    Draft,
    Drafter,
    NgramDrafter,
    SeparateDrafters,
    choose_drafter,
)
from speculative_decoding.drafters.base import COPY, GUESS, MODEL
from speculative_decoding.sampling import SamplingParams
from tests.tiny import noisy_copy, run, tiny_model, tokens_of

SOURCE = [5, 9, 3, 7, 11, 13, 4, 8, 1]


class Speaker(Drafter):
    """A draft model as far as anyone can see: always says 2."""

    def begin(self, input_tokens: Sequence[int]) -> None:
        self.asked = 0

    def propose(self, tokens: Sequence[int], num_draft_tokens: int) -> Draft:
        self.asked += 1
        return Draft(mx.full((1, num_draft_tokens), 2, mx.uint32))


def auto(speaker: Drafter, sure: float) -> AutoDrafter:
    drafter = AutoDrafter(NgramDrafter(), SeparateDrafters(lambda sampling, coupled: speaker), sure)
    drafter.begin(0, SOURCE, None, SamplingParams(), coupled=False)
    return drafter


def proposed(drafter: AutoDrafter, tokens: list[int], count: int = 3) -> tuple[str, list[int]]:
    kind = drafter.kinds(0, tokens)[0]
    (draft,) = drafter.propose([Asked(0, tokens, count, kind)])
    return kind, draft.tokens.tolist()[0]  # type: ignore[index, return-value]


def test_a_sure_copy_is_taken_and_the_model_is_not_asked() -> None:
    speaker = Speaker()
    drafter = auto(speaker, 0.7)
    assert proposed(drafter, [0, 5, 9, 3, 7]) == (COPY, [11, 13, 4])
    assert speaker.asked == 0


def test_where_nothing_matches_the_model_speaks() -> None:
    speaker = Speaker()
    drafter = auto(speaker, 0.7)
    assert proposed(drafter, [0, 20, 21, 22, 23]) == (MODEL, [2, 2, 2])
    assert speaker.asked == 1


def test_copies_that_proved_wrong_are_trusted_less() -> None:
    """The same kind of match, again and again followed by something else, ends up with the model."""
    drafter, kinds = auto(Speaker(), 0.7), []
    for _ in range(40):
        drafter.begin(0, SOURCE, None, SamplingParams(), coupled=False)
        kinds.append(proposed(drafter, [0, 5, 9, 3, 7])[0])
        drafter.kinds(0, [0, 5, 9, 3, 7, 20])  # so much for the copy
    assert kinds[0] == COPY and kinds[-1] == MODEL


def test_an_unlikely_copy_may_be_tried_instead_of_the_model() -> None:
    speaker = Speaker()
    drafter, tokens = auto(speaker, 0.99), [0, 5, 9, 3, 7]
    assert drafter.kinds(0, tokens) == (MODEL, GUESS)
    (draft,) = drafter.propose([Asked(0, tokens, 3, GUESS)])
    assert draft.tokens.tolist() == [[11, 13, 4]] and speaker.asked == 0
    assert drafter.kinds(0, [0, 20, 21, 22, 23]) == (MODEL,)  # nothing to copy


def test_a_mixed_batch_gets_its_drafts_in_order() -> None:
    drafter = auto(Speaker(), 0.7)
    drafter.begin(1, SOURCE, None, SamplingParams(), coupled=False)
    rows = [(0, [0, 20, 21, 22]), (1, [0, 5, 9, 3, 7])]
    drafts = drafter.propose([Asked(slot, tokens, 2, drafter.kinds(slot, tokens)[0]) for slot, tokens in rows])
    assert [draft.tokens.tolist() for draft in drafts] == [[[2, 2]], [[11, 13]]]


def test_a_session_may_have_only_one_of_the_two() -> None:
    target = tiny_model()
    copies = choose_drafter("auto", target)
    copies.begin(0, SOURCE, None, SamplingParams(), coupled=False)
    assert copies.kinds(0, [0, 20, 21]) == (COPY,)
    assert isinstance(choose_drafter("auto", target, noisy_copy(target)), AutoDrafter)


def test_any_object_with_begin_and_propose_drafts() -> None:
    class Plain:
        def begin(self, input_tokens: Sequence[int]) -> None: ...

        def propose(self, tokens: Sequence[int], num_draft_tokens: int) -> Draft:
            return Draft(mx.full((1, num_draft_tokens), 2, mx.uint32))

    target = tiny_model()
    brought = choose_drafter(Plain(), target)  # type: ignore[arg-type]
    rounds = run(target, SOURCE, brought, max_tokens=12)
    assert tokens_of(rounds) == tokens_of(run(target, SOURCE, max_tokens=12)) and rounds[0].drafted == 4
    with pytest.raises(InputError, match="begin and propose"):
        choose_drafter(object(), target)  # type: ignore[arg-type]
