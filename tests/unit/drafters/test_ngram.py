"""N-gram drafts: the text and position of each copy, for any sequence of calls. test_generate.py decodes with them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks.copies import RecordedRequest, replay
from speculative_decoding.drafters import NgramDrafter, TextStore
from speculative_decoding.drafters.ngram import LOOKAHEAD, PRIOR_WEIGHT, CopyChances, likely_length
from speculative_decoding.errors import InputError
from tests.support.tiny import SOURCES, run, tiny_model, tokens_of

START, EOS = 0, 1


def drafter(source: Sequence[int] = (), **options: Any) -> NgramDrafter:
    made = NgramDrafter(**options)
    made.begin(source)
    return made


def proposed(made: NgramDrafter, tokens: Sequence[int], count: int = 8) -> list[int]:
    draft = made.propose(tokens, count)
    assert len(draft) <= count
    return draft


def naive_output_match(tokens: Sequence[int], max_size: int, count: int) -> list[int]:
    for size in range(min(max_size, len(tokens)), 0, -1):
        for end in range(size, len(tokens)):
            if tokens[end - size : end] == tokens[-size:]:
                return list(tokens[end : end + count])
    return []


@pytest.mark.parametrize("max_size", [1, 3, 16])
def test_the_output_is_copied_from_its_earliest_longest_match(max_size: int) -> None:
    generator = random.Random(max_size)
    drafted = 0
    for _ in range(20):
        made = drafter([3, 4, 5, 1], search_input=False, max_ngram_size=max_size, min_chance=0.0)
        tokens = [START]
        while len(tokens) < 60:
            expected = naive_output_match(tokens, max_size, 6)
            assert proposed(made, tokens, 6) == expected
            drafted += len(expected)
            tokens += generator.choices(range(2, 5), k=generator.randrange(1, 4))
    assert drafted


def test_a_copy_is_drafted_to_the_end_of_the_text() -> None:
    source = [*range(10, 40), EOS]
    requests = [RecordedRequest(source, source)] * 3
    assert replay(drafter(search_output=False), requests, 8).tokens_per_call > 6
    assert (
        replay(drafter(search_output=False, min_chance=0.0), requests, 8).calls == 3 * 4
    )  # 31 tokens, at most 9 per round
    assert replay(drafter(search_input=False), requests, 8).drafted == 0


def test_the_texts_to_search_can_be_chosen() -> None:
    source, tokens = [5, 6, 7, 8, EOS], [START, 5, 6, 9, 5, 6]
    assert proposed(drafter(source, search_output=False, min_chance=0.0), tokens) == [7, 8, EOS]
    assert proposed(drafter(source, search_input=False, min_chance=0.0), tokens) == [9, 5, 6]
    store = TextStore()
    store.learn([4, 5, 6, 2, 2])
    only_store = drafter(source, search_input=False, search_output=False, store=store, min_chance=0.0)
    assert proposed(only_store, tokens) == [2, 2]


def test_a_match_has_its_length_and_repeated_calls_return_it() -> None:
    source = [*range(10, 20), 30, 31, 32, EOS]
    made = drafter(source, search_output=False)
    match = made.match([START, 10, 11, 12])
    assert (match.origin, match.length, match.continuation) == ("source", 3, source[3:])
    assert 0 < match.chance < 1
    far = made.match([START, 10, 11, 12, 2, 2, 2, 30, 31])
    assert (far.origin, far.length, far.continuation) == ("source", 2, [32, EOS])
    assert made.match([START, 10, 11, 12, 2, 2, 2, 30, 31]) == far
    assert made.propose([START, 10, 11, 12, 2, 2, 2, 30, 31], 1) == [32]
    assert made.match([START, 10, 11, 12, 2, 2, 2, 30, 31]) == far
    assert drafter([], search_output=False).match([START, 3]).origin == ""


def test_a_draft_can_be_longer_than_the_lookahead() -> None:
    source = [*range(10, 60), EOS]
    made = drafter(source, min_chance=0.0)
    assert len(made.match([START, 10, 11]).continuation) == LOOKAHEAD
    assert made.propose([START, 10, 11], 40) == source[2:42]


@pytest.mark.parametrize("options", [{"search_input": False}, {"search_output": False}])
def test_unrelated_tokens_start_a_new_request(options: dict[str, Any]) -> None:
    """The tokens may be shorter, longer, or changed; the previous request need not have ended."""
    generator = random.Random(0)
    source = generator.choices(range(2, 6), k=30)
    used = drafter(source, min_chance=0.0, **options)
    last = [START]
    for _ in range(300):
        tokens = [START, *generator.choices(range(2, 6), k=generator.randrange(25))]
        if tokens[: len(last)] == last:
            continue
        last = tokens
        assert proposed(used, tokens) == proposed(drafter(source, min_chance=0.0, **options), tokens)


def test_copies_that_are_rarely_accepted_are_no_longer_drafted() -> None:
    """Copying stops for sources that are never copied, and resumes for one that is."""
    made, generator = NgramDrafter(search_output=False), random.Random(0)
    wrong = [
        RecordedRequest(generator.choices(range(2, 9), k=30), generator.choices(range(2, 90), k=30)) for _ in range(30)
    ]
    first, last = replay(made, wrong[:3], 5), replay(made, wrong[3:], 5)
    assert last.drafted / last.calls < 0.2 * first.drafted / first.calls
    copied = [RecordedRequest(source, source) for source in (list(range(10, 60)),) * 6]
    replay(made, copied, 5)
    assert replay(made, copied, 5).tokens_per_call > 4


def test_a_store_drafts_repeated_requests() -> None:
    generator = random.Random(2)
    document = [
        RecordedRequest([*generator.choices(range(2, 400), k=12), EOS], [*generator.choices(range(2, 400), k=24), EOS])
        for _ in range(20)
    ]
    store = TextStore()
    made = NgramDrafter(store=store, search_input=False, search_output=False)
    assert replay(made, document, 8).tokens_per_call < 1.1
    replay(made, document, 8)
    assert replay(made, document, 8).tokens_per_call > 4
    another = NgramDrafter(store=store, search_input=False, search_output=False, min_chance=0.0)
    assert replay(another, document, 24).tokens_per_call > 9
    store.reset()
    assert replay(another, document[:1], 24).tokens_per_call < 1.1


def test_a_store_learns_every_token_once() -> None:
    store, expected = TextStore(), TextStore()
    made = drafter([5, 6, EOS], store=store)
    made.propose([START], 3)
    made.propose([START, 7], 3)
    assert len(store) == 0  # the output of the current request is searched directly
    made.end([START, 7, 8])
    made.propose([START, 7, 8, 4, EOS], 3)
    made.end([START, 7, 8, 4, EOS])
    made.begin([3, EOS])
    made.propose([START], 3)
    made.end([START])  # this request has no output
    expected.learn([5, 6, EOS, START, 7, 8, 4, EOS])
    assert len(store) == len(expected)
    assert store.look_up([7, 8], 3) == expected.look_up([7, 8], 3) == (2, [4, EOS])


def test_the_end_of_a_source_does_not_match_other_sources() -> None:
    """The end token and the start token separate every source from its output."""
    store = TextStore()
    store.learn([5, 6, EOS, START, 7, 8])
    made = drafter([3, 4, EOS], store=store, search_input=False, search_output=False, min_chance=0.0)
    assert proposed(made, [START]) == []
    made.begin([3, 6, EOS])
    assert made.match([START]).length == 1
    assert proposed(made, [START], 4) == [7, 8]


def test_a_word_matches_with_and_without_its_leading_space() -> None:
    pieces = {0: "<pad>", 1: "</s>", 2: ":", 3: "▁grammar", 4: "▁HTML", 5: "HTML", 6: "▁file", 7: "html", 8: "x"}
    source = [3, 2, 4, 6, 8, EOS]
    for start in (4, 5, 7):
        made = drafter(source, pieces=pieces, search_output=False, min_chance=0.0)
        assert proposed(made, [START]) == [4, 6, 8, EOS]
        assert proposed(made, [START, start]) == [6, 8, EOS]
    assert proposed(drafter(source, search_output=False, min_chance=0.0), [START, 8, 8, 7]) == []


def test_a_replay_counts_the_rounds_of_decoding() -> None:
    """benchmarks.copies reports the same counts as decoding."""
    model = tiny_model()
    for options in ({}, {"search_input": False}, {"min_chance": 0.0}):
        for source in SOURCES:
            baseline = tokens_of(run(model, source))
            rounds = run(model, source, NgramDrafter(**options), num_draft_tokens=4)
            sums = replay(NgramDrafter(**options), [RecordedRequest(list(source), baseline)], 4, 30)
            assert sums.calls == len(rounds)
            assert sums.tokens == len(tokens_of(rounds))
            assert sums.drafted == sum(event.drafted for event in rounds)
            assert sums.accepted == sum(event.accepted for event in rounds)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"max_ngram_size": 0}, "max_ngram_size"),
        ({"min_chance": 1.0}, "min_chance"),
    ],
)
def test_errors_name_options_out_of_range(options: dict[str, Any], name: str) -> None:
    with pytest.raises(InputError, match=name):
        NgramDrafter(**options)


# Chances of copies.


MATCH = ("source", 1)  # origin, length


def chances_of(chance: float) -> CopyChances:
    return CopyChances({"": [chance]})


def test_likely_length_is_the_longest_draft_with_the_required_probability() -> None:
    for chance in (0.0, 0.1, 0.3, 0.5, 0.77, 0.9, 1.0):
        for min_chance in (0.0, 0.15, 0.5, 0.9):
            expected = max((n for n in range(13) if n == 0 or chance**n >= min_chance - 1e-12), default=0)
            assert likely_length(chance, min_chance, 12) == expected


def test_the_chance_approaches_the_rate_of_correct_tokens() -> None:
    generator = random.Random(0)
    for share in (0.2, 0.5, 0.9):
        chances = chances_of(0.5)
        recent = []
        for _ in range(400):
            right = generator.random() < share
            chances.observe(*MATCH, [1], [1 if right else 2])
            recent.append(chances.chance(*MATCH))
        assert abs(sum(recent[200:]) / 200 - share) < 0.08


def test_tokens_after_the_first_wrong_one_do_not_count() -> None:
    one, other = chances_of(0.5), chances_of(0.5)
    one.observe(*MATCH, [1, 2, 3, 4], [1, 9, 3, 4])
    other.observe(*MATCH, [1, 2], [1, 9])
    assert one.chance(*MATCH) == other.chance(*MATCH) == (PRIOR_WEIGHT / 2 + 1) / (PRIOR_WEIGHT + 2)


def test_copied_tokens_beyond_the_output_do_not_count() -> None:
    chances = chances_of(0.5)
    chances.observe(*MATCH, [1, 2, 3], [1])
    assert chances.chance(*MATCH) == (PRIOR_WEIGHT / 2 + 1) / (PRIOR_WEIGHT + 1)


def test_origins_and_groups_of_lengths_have_separate_chances() -> None:
    chances = CopyChances()
    before = {
        (origin, length): chances.chance(origin, length) for origin in ("source", "output") for length in range(20)
    }
    chances.observe("source", 2, [1], [2])
    changed = {match for match, chance in before.items() if chances.chance(*match) != chance}
    assert changed == {("source", 2), ("source", 3)}
