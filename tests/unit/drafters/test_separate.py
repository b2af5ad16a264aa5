"""Drafters that users write: one for each row of a batch, counted by kind, and checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import pytest

from speculative_decoding import Draft, GenerationOptions, InputError, batch_generate, generate
from speculative_decoding.drafters import BatchDrafter, Drafter, RequestView, SeparateDrafters
from speculative_decoding.drafters.none import NoDrafter
from tests.support.tiny import VOCAB, tiny_model
from tests.support.together import Letters

MODEL = tiny_model()
ENDLESS = tiny_model(eos_token_id=[])
PROMPTS = ["abc", "hgfedcba", "b", "cabbage"]


class Repeats(Drafter):
    """Drafts the last token again, which is often right, and more tokens than it should."""

    kind = "repeats"

    def __init__(self, also: Sequence[int] = ()) -> None:
        self.also = also
        self.source: Sequence[int] | None = None

    def begin(self, input_tokens: Sequence[int]) -> None:
        assert self.source is None  # each object gets one request
        self.source = input_tokens

    def propose(self, tokens: Sequence[int], num_draft_tokens: int) -> Sequence[int]:
        return [tokens[-1]] * (num_draft_tokens + 5) + [*self.also]


class NoBase:
    """Drafts without a base class."""

    def begin(self, input_tokens: Sequence[int]) -> None:
        pass

    def propose(self, tokens: Sequence[int], num_draft_tokens: int) -> Draft:
        return Draft(mx.array([[tokens[-1]] * (num_draft_tokens + 2)], mx.uint32))


@pytest.mark.parametrize(
    ("drafter", "kind"), [(Repeats, "repeats"), (lambda: Repeats([VOCAB]), "repeats"), (NoBase, "custom")]
)
def test_a_class_or_function_makes_a_drafter_for_each_row(drafter: Callable[[], Any], kind: str) -> None:
    accepted = 0
    for each in batch_generate(MODEL, Letters(), PROMPTS, drafter=drafter, num_draft_tokens=3, slots=2, max_tokens=9):
        assert each.result is not None
        baseline = generate(MODEL, Letters(), PROMPTS[each.index], drafter="none", max_tokens=9)
        assert each.result.tokens == baseline.tokens
        stats = each.result.stats
        assert stats.drafted_by_kind == {kind: stats.drafted_tokens} and stats.drafted_tokens > 0
        accepted += stats.accepted_by_kind[kind]
    assert accepted > 0


@pytest.mark.parametrize("drafter", [Repeats, Repeats(), NoBase()], ids=["class", "object", "no base"])
def test_a_single_prompt_takes_an_object_or_a_class(drafter: Any) -> None:
    found = generate(MODEL, Letters(), "abc", drafter=drafter, num_draft_tokens=3, max_tokens=9)
    assert found.tokens == generate(MODEL, Letters(), "abc", drafter="none", max_tokens=9).tokens
    assert found.stats.drafted_tokens > 0


def test_samples_of_a_prompt_have_separate_drafters() -> None:
    options: dict[str, Any] = {"temperature": 1.0, "num_return_sequences": 3, "max_tokens": 9}
    found = generate(MODEL, Letters(), "abc", drafter=Repeats, num_draft_tokens=3, **options)
    expected = generate(MODEL, Letters(), "abc", drafter="none", **options)
    assert [each.tokens for each in found.sequences] == [each.tokens for each in expected.sequences]


def test_the_class_of_a_batch_drafter_drafts_for_all_rows() -> None:
    class Observing(NoDrafter):
        def kind_and_limit(self, request: Any) -> tuple[str, int]:
            return BatchDrafter.kind_and_limit(self, request)

    found = [*batch_generate(MODEL, Letters(), PROMPTS, drafter=Observing, num_draft_tokens=3, max_tokens=5)]
    assert len(found) == len(PROMPTS) and all(each.result is not None for each in found)


@pytest.mark.parametrize("drafter", [dict, 3, Ellipsis], ids=repr)
def test_other_values_are_refused(drafter: Any) -> None:
    with pytest.raises(InputError, match="drafter: must be one of model, text"):
        generate(MODEL, Letters(), "abc", drafter=drafter)


@pytest.mark.parametrize("made", [3, Repeats], ids=str)
def test_a_function_that_makes_no_drafter_is_named(made: Any) -> None:
    with pytest.raises(InputError, match="drafter: must return an object that has begin and propose, not "):
        generate(MODEL, Letters(), "abc", drafter=lambda: made, max_tokens=3)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"tokens": [[1, 2]]}, r"Draft: tokens must be an mlx array of shape \(rows, K\), not \[\[1, 2\]\]"),
        ({"tokens": mx.array([1, 2])}, "Draft: tokens must be"),
        ({"tokens": None}, "Draft: tokens must be"),
        ({"tokens": mx.array([[1]]), "probs": [[[1.0]]]}, "Draft: probs must be an mlx array"),
    ],
)
def test_a_draft_of_something_else_than_arrays_is_one_line(values: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named) as error:
        Draft(**values)
    assert "\n" not in str(error.value) and "list of ids" in str(error.value)


@pytest.mark.parametrize(("ids", "drafted"), [([3, 4, 5], [3, 4]), ([3, VOCAB, 4], [3]), ([-1, 3], [])])
def test_a_draft_ends_before_an_unknown_id_and_at_the_length_that_was_asked_for(
    ids: list[int], drafted: list[int]
) -> None:
    class Fixed(Repeats):
        def propose(self, tokens: Sequence[int], num_draft_tokens: int) -> Sequence[int]:
            return ids

    request, drafter = RequestView(GenerationOptions(), [5, 1], [0]), SeparateDrafters(Fixed, VOCAB)
    drafter.begin(request)
    assert drafter.propose({request: 2}, 1).to_lists() == [drafted]


def test_a_draft_that_is_too_long_does_not_pass_the_end_of_the_output() -> None:
    baseline = generate(ENDLESS, Letters(), "abc", drafter="none", max_tokens=20).tokens
    for make in (list, lambda ids: Draft(mx.array([ids], mx.uint32))):

        class Whole(Repeats):
            def propose(self, tokens: Sequence[int], num_draft_tokens: int) -> Any:
                return make(baseline[len(tokens) - 1 :])  # noqa: B023

        found = generate(ENDLESS, Letters(), "abc", drafter=Whole, num_draft_tokens=3, max_tokens=9)
        assert (found.tokens, found.finish_reason) == (baseline[:9], "length")
