"""Stores against counting by hand, their files against damage."""

from __future__ import annotations

import os
import pickle
import random
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from speculative_decoding.drafters.ngram_store import NgramStore, Store, TextStore
from speculative_decoding.errors import InputError

STORES: dict[str, Callable[[], Store]] = {
    "multi-level": lambda: NgramStore(4, 2),
    "one-level": lambda: NgramStore(3, 3),
    "guesses on": lambda: NgramStore(3, 1, stop_if_unknown=False, filler_top_k=2),
    "texts": lambda: TextStore(5),
}


def random_texts(seed: int, count: int = 12, symbols: int = 4) -> list[list[int]]:
    generator = random.Random(seed)
    return [generator.choices(range(symbols), k=generator.randrange(1, 30)) for _ in range(count)]


def naive_next(texts: Sequence[Sequence[int]], context: Sequence[int], sizes: Sequence[int]) -> tuple[int, set[int]]:
    """(size of the longest known n-gram at the end of the context, its most frequent continuations)"""
    for size in sorted(sizes, reverse=True):
        if size > len(context):
            continue
        follow = Counter(
            text[end]
            for text in texts
            for end in range(size, len(text))
            if list(text[end - size : end]) == list(context[-size:])
        )
        if follow:
            most = max(follow.values())
            return size, {token for token, count in follow.items() if count == most}
    return 0, set()


@pytest.mark.parametrize(("most", "least"), [(4, 2), (3, 3), (2, 1), (1, 1)])
def test_the_longest_known_ngram_gives_its_most_frequent_continuation(most: int, least: int) -> None:
    texts = random_texts(most)
    store = NgramStore(most, least)
    for text in texts:
        store.learn(text)
    sizes = set()
    for context in random_texts(99, 200, 5):
        length, drafted = store.look_up(context, 6)
        for i, token in enumerate(drafted):
            size, best = naive_next(texts, context + drafted[:i], range(least, most + 1))
            assert token in best
            if i == 0:
                assert length == size
                sizes.add(size)
        if len(drafted) < 6:
            assert naive_next(texts, context + drafted, range(least, most + 1)) == (0, set())
    assert sizes >= set(range(least, most + 1))


def test_a_store_of_texts_copies_from_where_the_longest_context_stood() -> None:
    texts = random_texts(3)
    store = TextStore(5)
    for text in texts:
        store.learn(text)
    for context in random_texts(98, 200, 5):
        length, drafted = store.look_up(context, 4)
        matches = [
            (size, number, end)
            for number, text in enumerate(texts)
            for size in range(1, min(5, len(context)) + 1)
            for end in range(size, len(text))
            if text[end - size : end] == context[-size:]
        ]
        if matches:
            longest = max(size for size, _, _ in matches)
            last = sorted((number, end) for size, number, end in matches if size == longest)[-4:]
            number, end = max(last, key=lambda place: (len(texts[place[0]][place[1] : place[1] + 4]), place))
            assert (length, drafted) == (longest, texts[number][end : end + 4])
        else:
            assert (length, drafted) == (0, [])


def answers(store: Store) -> list[tuple[int, list[int]]]:
    return [store.look_up(context, 5) for context in random_texts(97, 150, 5)]


@pytest.mark.parametrize("name", STORES)
def test_learning_piece_by_piece_is_learning_at_once(name: str) -> None:
    generator = random.Random(1)
    whole, pieces = STORES[name](), STORES[name]()
    for text in random_texts(4):
        whole.learn(text)
        cuts = sorted({0, len(text), *generator.choices(range(len(text) + 1), k=3)})
        for start, end in pairwise(cuts):
            pieces.learn(text[:end], start)
    assert answers(whole) == answers(pieces) and len(whole) == len(pieces)


def test_two_requests_may_take_turns_in_one_store() -> None:
    one, other = [1, 2, 3, 4, 5, 6], [11, 12, 13, 14, 15, 16]
    for store in (TextStore(5), NgramStore(2, 2)):
        for end in (2, 4, 6):
            store.learn(one[:end], end - 2)
            store.learn(other[:end], end - 2)
        assert store.look_up([1, 2], 4) == (2, one[2:])
        assert store.look_up([2, 3, 4], 4)[1] == one[4:]
        assert store.look_up([12, 13, 14], 4)[1] == other[4:]


@pytest.mark.parametrize("name", STORES)
def test_reset_forgets_everything(name: str) -> None:
    store = STORES[name]()
    for text in random_texts(5):
        store.learn(text)
    assert len(store) > 0
    store.reset()
    assert len(store) == 0 and answers(store) == answers(STORES[name]())


def test_an_unknown_ngram_ends_the_draft_or_is_guessed_past() -> None:
    text = [7, 7, 7, 1, 2, 3]
    stopping, guessing = NgramStore(2, 2), NgramStore(2, 2, stop_if_unknown=False)
    for store in (stopping, guessing):
        store.learn(text)
    assert stopping.look_up([7, 1], 5) == (2, [2, 3])
    assert guessing.look_up([7, 1], 5) == (2, [2, 3, 7, 7, 7])  # (2, 3) is unknown, (3, 7) too; (7, 7) is not
    assert stopping.look_up([5, 5], 3) == (0, [])
    assert guessing.look_up([5, 5], 2) == (0, [7, 7])


def test_the_likeliest_ids_count_where_they_stood() -> None:
    store = NgramStore(1, 1, filler_top_k=2)
    store.learn([1, 2, 3, 4], 1, [[8, 9, 6], [4, 5, 6]])  # beside 3 and 4
    assert len(store) == 1 + 3 + 2  # 1: 2; 2: 3, 8, 9; 3: 4 (twice), 5; but no third likeliest
    store.learn([2, 8], 0)
    assert store.look_up([2], 1) == (1, [8])
    one = NgramStore(1, 1)
    one.learn([1, 2, 3, 4], 1, [[8, 9, 6], [4, 5, 6]])
    assert len(one) == 3


def test_texts_refuse_likeliest_ids() -> None:
    with pytest.raises(InputError, match="filler_top_k"):
        TextStore().learn([1, 2], 0, [[3]])


@pytest.mark.parametrize("limit", [6, 10, 50])
def test_a_store_keeps_to_its_size_and_to_the_newest(limit: int) -> None:
    for store in (NgramStore(3, 1, max_entries=limit), TextStore(5, max_entries=limit)):
        for number in range(200):
            store.learn([number, number + 1, number + 2])
            assert len(store) <= limit
        assert store.look_up([200], 1) == (1, [201])
        assert store.look_up([3], 1) == (0, [])


@pytest.mark.parametrize("name", STORES)
def test_a_store_comes_back_from_its_file(name: str, tmp_path: Path) -> None:
    path = tmp_path / "store.json"
    store = STORES[name]()
    for text in random_texts(6):
        store.learn(text)
    store.save(path)
    loaded = Store.load(path)
    assert type(loaded) is type(store) and len(loaded) == len(store) and answers(loaded) == answers(store)
    for text in random_texts(7):
        store.learn(text)
        loaded.learn(text)
    assert answers(loaded) == answers(store)
    again = tmp_path / "again.json"
    loaded.save(again)
    store.save(path)
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", STORES)
def test_a_damaged_file_is_one_clear_error(name: str, tmp_path: Path) -> None:
    path, generator = tmp_path / "store.json", random.Random(0)
    store = STORES[name]()
    for text in random_texts(8, 4):
        store.learn(text)
    store.save(path)
    whole, refused = path.read_bytes(), 0
    damages = [whole[:cut] for cut in generator.sample(range(len(whole)), 40)]
    for _ in range(150):
        damaged = bytearray(whole)
        damaged[generator.randrange(len(damaged))] ^= 1 << generator.randrange(8)
        damages.append(bytes(damaged))
    for damaged in [
        *damages,
        b"",
        b"\n",
        b"{}\n{}\n",
        b"[]\n[]\n",
        b"1\n",
        pickle.dumps(print),
        b"[" * 100_000 + b"\n\n",
    ]:
        path.write_bytes(damaged)
        try:
            loaded = Store.load(path)
        except InputError as error:
            assert str(path) in str(error) and "\n" not in str(error)
            refused += 1
        else:
            assert answers(loaded) == answers(store)  # a space that became another kind of space
    assert refused >= len(damages)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("texts", "tokens", [1, "2"]),
        ("texts", "tokens", [1, -2]),
        ("texts", "tokens", [1, True]),
        ("texts", "max_ngram_size", 2.5),
        ("texts", "max_entries", 0),
        ("texts", "unheard_of", 1),
        ("texts", "vocabulary", 7),
        ("multi-level", "counts", [[[1], [[2]]]]),
        ("multi-level", "counts", [[["a"], [[2, 1]]]]),
        ("multi-level", "counts", 3),
        ("multi-level", "filler_top_k", "2"),
    ],
)
def test_a_file_with_a_right_checksum_and_wrong_content_is_refused(
    name: str, key: str, value: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, path = STORES[name](), tmp_path / "store.json"
    content = store._content() | {key: value}
    monkeypatch.setattr(store, "_content", lambda: content)
    store.save(path)
    with pytest.raises(InputError, match="damaged"):
        Store.load(path)


def test_a_store_of_other_tokens_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.json"
    TextStore(vocabulary="a").save(path)
    assert Store.load(path, "a").vocabulary == "a"
    assert Store.load(path).vocabulary == "a"
    with pytest.raises(InputError, match="other tokens"):
        Store.load(path, "b")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_interrupted_save_leaves_the_old_file(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store.json"
    TextStore().save(path)
    old = path.read_bytes()

    def fail(descriptor: int) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(InputError if isinstance(error, OSError) else KeyboardInterrupt):
        NgramStore().save(path)
    assert path.read_bytes() == old and list(tmp_path.iterdir()) == [path]


def test_files_that_cannot_be_read_or_written_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "none" / "store.json"
    with pytest.raises(InputError, match="cannot be written"):
        TextStore().save(missing)
    with pytest.raises(InputError, match="cannot be read"):
        Store.load(missing)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: NgramStore(2, 3), "min_ngram_size"),
        (lambda: NgramStore(2, 0), "min_ngram_size"),
        (lambda: NgramStore(filler_top_k=0), "filler_top_k"),
        (lambda: NgramStore(max_entries=0), "max_entries"),
        (lambda: TextStore(0), "max_ngram_size"),
        (lambda: TextStore(max_entries=1), "max_entries"),
    ],
)
def test_options_out_of_range_are_named(make: Callable[[], Store], name: str) -> None:
    with pytest.raises(InputError, match=name):
        make()
