"""Text drafts: properties that hold for any way to find the place in a text.

The texts are random words of one to three tokens. Every other property of drafters is tested with texts, too
(`DRAFTERS` in tests/support/tiny.py).
"""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, islice

import pytest

from speculative_decoding.drafters import AutoDrafter, NgramDrafter, RequestView
from speculative_decoding.drafters.base import MEMORY, TEXT
from speculative_decoding.drafters.draft_text import DraftText
from speculative_decoding.sampling import GenerationOptions

START, EOS = 0, 1
LONGEST = 8  # tokens per draft
BOUND = 16  # output tokens after a difference, until the place in the text must be found again
Word = tuple[int, ...]

# 400 words of one to three pieces. Each piece has a twin with another capitalisation, which is CAPITAL later.
CAPITAL = 2000
PIECES: dict[int, str] = {START: "<pad>", EOS: "</s>"}
WORDS: list[Word] = []
for _number in range(400):
    _ids = range(len(PIECES), len(PIECES) + 1 + _number % 3)
    PIECES.update({each: f"p{each}" if i else f"▁p{each}" for i, each in enumerate(_ids)})
    WORDS.append((*_ids,))
PIECES.update({each + CAPITAL: piece.upper() for each, piece in [*PIECES.items()] if each > EOS})


def sentences(seed: int = 0, count: int = 40) -> list[list[Word]]:
    """Return random sentences of 8 to 20 words, some of which are much more frequent than others."""
    dice = random.Random(seed)
    chances = [1 / (1 + rank / 20) for rank in range(len(WORDS))]
    return [dice.choices(WORDS, chances, k=dice.randint(8, 20)) for _ in range(count)]


def ids_of(text: Sequence[Sequence[Word]]) -> list[int]:
    """Return the ids of sentences, with an end token."""
    return [*(token for sentence in text for word in sentence for token in word), EOS]


def given(ids: Sequence[int], pieces: Mapping[int, str] = PIECES, origin: str = TEXT) -> DraftText:
    return DraftText(ids, pieces, origin)


def follower(*texts: DraftText) -> NgramDrafter:
    """Return a drafter that has these texts only, and drafts `LONGEST` tokens whatever their chance."""
    drafter = NgramDrafter(search_input=False, search_output=False, min_chance=0.0)
    drafter.begin((), texts)
    return drafter


def is_right(output: Sequence[int], *texts: DraftText) -> list[bool]:
    """Return for each token of the output whether it is the first one drafted after the tokens before it."""
    drafter = follower(*texts)
    return [drafter.propose([START, *output[:i]], LONGEST)[:1] == [token] for i, token in enumerate(output)]


def accepted(output: Sequence[int], *texts: DraftText) -> list[int]:
    """Return the accepted tokens of each round that decodes the output."""
    drafter, done, found = follower(*texts), 0, []
    while done < len(output):
        draft = drafter.propose([START, *output[:done]], LONGEST)
        right = next(
            (i for i, (one, other) in enumerate(zip(draft, output[done:], strict=False)) if one != other), None
        )
        found.append(min(len(draft), len(output) - done) if right is None else right)
        done += found[-1] + 1
    return found


def test_a_text_that_equals_the_output_is_drafted_from_its_first_token_to_the_end_token() -> None:
    for seed in range(3):
        output = ids_of(sentences(seed))
        assert all(is_right(output, given(output)))
        rounds = accepted(output, given(output))
        assert all(count == LONGEST for count in rounds[:-1]) and len(rounds) == -(-len(output) // (LONGEST + 1))


@pytest.mark.parametrize("output", [[EOS], [5, EOS], [5, 5, 5, 5, EOS], [5, 6] * 30 + [EOS]], ids=len)
def test_short_and_repetitive_outputs_are_drafted_completely_too(output: list[int]) -> None:
    assert all(is_right(output, given(output)))


def substituted(text: list[list[Word]], at: int) -> None:
    text[at][3] = WORDS[7] if text[at][3] != WORDS[7] else WORDS[8]


def inserted(text: list[list[Word]], at: int) -> None:
    text[at].insert(3, WORDS[7])


def deleted(text: list[list[Word]], at: int) -> None:
    del text[at][3]


def three_words_differ(text: list[list[Word]], at: int) -> None:
    text[at][2:5] = [WORDS[11], WORDS[300], WORDS[12], WORDS[13]]


def split_otherwise(text: list[list[Word]], at: int) -> None:
    """The same letters as other pieces, which the text never has."""
    text[at][3] = (CAPITAL * 2, CAPITAL * 2 + 1)


def a_sentence_more(text: list[list[Word]], at: int) -> None:
    text.insert(at, sentences(99, 1)[0])


def a_sentence_less(text: list[list[Word]], at: int) -> None:
    del text[at]


EDITS = (
    substituted, inserted, deleted, three_words_differ, split_otherwise, a_sentence_more, a_sentence_less
)  # fmt: skip


@pytest.mark.parametrize("origin", [TEXT, MEMORY])
@pytest.mark.parametrize("edit", EDITS)
def test_after_a_difference_the_place_in_the_text_is_found_again(
    edit: Callable[[list[list[Word]], int], None], origin: str
) -> None:
    """The output is edited, so it has or lacks words of the text. Away from the edit, every token is right."""
    for seed in range(4):
        text = sentences(seed)
        revised = [[*sentence] for sentence in text]
        edit(revised, 20)
        ids, output = ids_of(text), ids_of(revised)
        first = next(i for i, (one, other) in enumerate(zip(ids, output, strict=False)) if one != other)
        back = next(i for i in range(1, 999) if ids[-i] != output[-i])  # tokens after the last difference
        last = len(output) - back + 1
        right = is_right(output, given(ids, origin=origin))
        assert all(right[:first]) and not all(right)
        assert all(right[last + BOUND :]), (edit, seed)


def test_sentences_in_another_order_are_found_again() -> None:
    for seed in range(4):
        text = sentences(seed)
        moved = [*text[25:30], *text[:10], *text[15:25], *text[10:15], *text[30:]]
        right = is_right(ids_of(moved), given(ids_of(text)))
        starts = [len(ids_of(moved[:count])) - 1 for count in (0, 5, 15, 25, 30)]
        ends = [*starts[1:], len(right)]
        for start, end in zip(starts, ends, strict=True):
            assert all(right[start + BOUND : end]), (seed, start)


@pytest.mark.parametrize("place", [5, 16, 32])
def test_a_passage_that_occurs_several_times_is_continued_at_the_nearest_place(place: int) -> None:
    """The word before it differs, so only the place before that tells which of the passages is repeated."""
    for seed in range(4):
        text, passage = sentences(seed), sentences(seed + 50, 1)[0]
        for each in (30, 15, 5):
            text.insert(each, passage)
        assert text[place] == passage
        revised = [*text[: place - 1], [*text[place - 1][:-1], (CAPITAL * 2,)], *text[place:]]
        right = is_right(ids_of(revised), given(ids_of(text)))
        assert all(right[len(ids_of(revised[: place + 1])) - 1 :])


def test_differences_everywhere_leave_most_of_the_text_usable() -> None:
    """Every tenth word is another one, in another place for each seed."""
    for seed in range(4):
        dice, text = random.Random(seed), sentences(seed)
        output = ids_of([[dice.choice(WORDS) if dice.random() < 0.1 else word for word in each] for each in text])
        rounds = accepted(output, given(ids_of(text)))
        assert len(output) / len(rounds) > 3


def test_words_compare_regardless_of_capitals_and_leading_spaces() -> None:
    """The place is kept: the token after another spelling of a word is right, as if the spelling were the text's."""
    text = sentences()
    bare = {each: piece for each, piece in PIECES.items() if each < CAPITAL}
    bare |= {each + CAPITAL: piece.removeprefix("▁").capitalize() for each, piece in bare.items() if each > EOS}
    for pieces in (PIECES, bare):
        output = [token + CAPITAL * (i % 5 == 3) for i, token in enumerate(ids_of(text)[:-1])]
        right = is_right(output, given(ids_of(text), pieces))
        assert right == [i % 5 != 3 for i in range(len(output))]


def test_without_pieces_ids_are_compared() -> None:
    text = sentences()
    output = ids_of([*text[:20], *text[21:]])
    right = is_right(output, given(ids_of(text), {}))
    assert all(right[len(ids_of(text[:20])) + BOUND :])


def test_a_text_that_never_fits_is_hardly_drafted() -> None:
    """Its chances are learned, so that a copy or the model drafts instead."""
    output = [token + CAPITAL * 2 for token in ids_of(sentences())]
    drafter = NgramDrafter(search_input=False, search_output=False)
    drafter.begin((), [given(ids_of(sentences()))])
    drafts = [drafter.propose([START, *output[:i]], LONGEST) for i in range(len(output))]
    assert drafts[0] and sum(map(bool, drafts)) < BOUND < len(output) / 20


@pytest.mark.parametrize("ids", [[], [EOS]], ids=str)
def test_an_empty_text_drafts_at_most_the_end(ids: list[int]) -> None:
    output = ids_of(sentences(count=3))
    drafter = follower(given(ids))
    assert all(drafter.propose([START, *output[:i]], LONGEST) in ([], ids) for i in range(len(output)))


def test_after_its_last_token_a_text_drafts_nothing() -> None:
    text = ids_of(sentences(count=2))
    assert follower(given(text)).propose([START, *text], LONGEST) == []


def test_requests_that_share_a_text_do_not_affect_each_other() -> None:
    """Each has its own place in it: the drafts are those of separate texts."""
    text = sentences()
    shared = given(ids_of(text))
    outputs = [ids_of(text), ids_of(text[::-1]), ids_of([each[1:] for each in text]), ids_of(sentences(9))]
    together, alone = ([follower(shared) for _ in outputs], [follower(given(ids_of(text))) for _ in outputs])
    for i in range(max(map(len, outputs))):
        for output, one, other in zip(outputs, together, alone, strict=True):
            tokens = [START, *output[:i]]
            assert one.propose(tokens, LONGEST) == other.propose(tokens, LONGEST)


def test_a_fresh_drafter_and_another_request_have_no_text_of_the_last_one() -> None:
    output = ids_of(sentences(count=3))
    drafter = follower(given(output))
    assert drafter.propose([START], LONGEST) == output[:LONGEST]
    assert drafter.fresh().propose([START], LONGEST) == []
    drafter.begin(())
    assert drafter.propose([START, *output[:9]], LONGEST) == []
    drafter.begin((), [given(output)])
    assert drafter.propose([START], LONGEST) == output[:LONGEST]  # from the start again


@pytest.mark.parametrize("place", [0, 1, 2])
def test_of_several_texts_the_one_that_fits_is_followed(place: int) -> None:
    """The others are of other sentences. Chances are learned, so a few rounds may try another text."""
    output = ids_of(sentences(5))
    texts = [given(ids_of(sentences(seed))) for seed in (6, 7)]
    texts.insert(place, given(output))
    assert sum(is_right(output, *texts)) > 0.9 * len(output)


def test_the_text_that_fits_may_change_within_an_output() -> None:
    first, second = sentences(5), sentences(6)
    output = ids_of([*first[:20], *second[20:]])
    right = is_right(output, given(ids_of(first)), given(ids_of(second)))
    assert sum(right) > 0.9 * len(output)


def test_the_same_text_twice_drafts_as_one() -> None:
    output = ids_of([each[2:] for each in sentences(5)])
    text = given(ids_of(sentences(5)))
    assert is_right(output, text) == is_right(output, text, text) == is_right(output, text, given(text.ids))


def test_ids_beyond_the_vocabulary_are_never_proposed() -> None:
    size = 30
    ids = [5, 6, size, 7, 8, size + 9, 9, EOS]
    row = RequestView(GenerationOptions(), [5, EOS], [START], draft_texts=[given(ids, {})])
    drafter = AutoDrafter(NgramDrafter(min_chance=0.0), None, size)
    drafter.begin(row)
    for token in (*ids[:2], 2, 7, 8, 3, 9):
        _, limit = drafter.kind_and_limit(row)
        if limit:
            draft = drafter.propose({row: min(limit, LONGEST)}, 1)
            assert all(each < size for each in draft.to_lists()[0])
        row.decoder_tokens.append(token)


# Time and memory. Operations are counted, so that no test depends on the clock.


class CountedId(int):
    """An id that counts how often it is compared or looked up."""

    operations = 0

    def __eq__(self, other: object) -> bool:
        CountedId.operations += 1
        return int(self) == other

    def __hash__(self) -> int:
        CountedId.operations += 1
        return int.__hash__(self)


def words_twice(count: int) -> list[int]:
    return [token for word in islice(cycle(WORDS), count) for token in (*word, *word)][:count]


def random_ids(count: int, seed: int = 1) -> list[int]:
    return random.Random(seed).choices(range(2, 60), k=count)


INSIDE = [token for token, piece in PIECES.items() if piece[0] != "▁" and EOS < token < CAPITAL]
TEXTS: dict[str, Callable[[int], list[int]]] = {
    "random": random_ids,
    "without spaces": lambda count: random.Random(1).choices(INSIDE, k=count),
    "one word": lambda count: [*islice(cycle(WORDS[0]), count)],
    "two words": lambda count: [*islice(cycle(WORDS[0] + WORDS[3]), count)],
    "almost one word": lambda count: [*islice(cycle(WORDS[0] * 49 + WORDS[3]), count)],
    "every word twice": words_twice,
    "one sentence": lambda count: [*islice(cycle(ids_of(sentences(count=1))[:-1]), count)],
}
OUTPUTS: dict[str, Callable[[Sequence[int]], list[int]]] = {
    "equal": lambda text: [*text],
    "backwards": lambda text: [*text[::-1]],
    "every other token of another text": lambda text: [5000 + i if i % 2 else each for i, each in enumerate(text)],
    "random": lambda text: random_ids(len(text), 2),
}


def operations(text: Callable[[int], list[int]], output: Callable[[Sequence[int]], list[int]], size: int) -> int:
    """Count the operations on ids that follow an output of size / 10 tokens through a text of `size` tokens."""
    ids = [CountedId(each) for each in text(size)]
    tokens = [CountedId(each) for each in output(ids[: size // 10])]
    follow = follower(given(ids))
    CountedId.operations = 0
    committed: list[int] = [START]
    for token in tokens:
        follow.propose(committed, LONGEST)
        committed.append(token)
    return CountedId.operations


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("text", TEXTS)
def test_time_is_linear_in_the_text_and_the_output(text: str, output: str) -> None:
    """Four times the size may take six times the operations; quadratic time would take sixteen times."""
    few, many = (operations(TEXTS[text], OUTPUTS[output], size) for size in (1000, 4000))
    assert 1000 <= few <= 300 * 1100 and many <= 6 * few, (few, many)


def test_no_draft_copies_the_text() -> None:
    """The index takes a constant number of bytes per token of the text. One copy per draft would exceed it."""
    size, count = 20_000, 1000
    ids = random_ids(size)
    tokens = [START, *random_ids(count, 2)]
    drafter = follower(given(ids))
    tracemalloc.start()
    try:
        total = 0
        for i in range(count):
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            drafter.propose(tokens[: i + 1], LONGEST)
            total += tracemalloc.get_traced_memory()[1] - before
        assert total < 1000 * size + 50_000 * count < 8 * size * count
    finally:
        tracemalloc.stop()
