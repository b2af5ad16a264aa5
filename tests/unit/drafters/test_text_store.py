"""Text stores: lookups against naive search, and files against damage."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from speculative_decoding.drafters import TextStore
from speculative_decoding.drafters.text_store import header_of
from speculative_decoding.errors import InputError


def random_texts(seed: int, count: int = 12, symbols: int = 4) -> list[list[int]]:
    generator = random.Random(seed)
    return [generator.choices(range(symbols), k=generator.randrange(1, 30)) for _ in range(count)]


def test_the_continuation_of_the_longest_match_is_returned() -> None:
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


def answers(store: TextStore) -> list[tuple[int, list[int]]]:
    return [store.look_up(context, 5) for context in random_texts(97, 150, 5)]


def test_learning_in_pieces_equals_learning_at_once() -> None:
    generator = random.Random(1)
    whole, pieces = TextStore(5), TextStore(5)
    for text in random_texts(4):
        whole.learn(text)
        cuts = sorted({0, len(text), *generator.choices(range(len(text) + 1), k=3)})
        for start, end in pairwise(cuts):
            pieces.learn(text[:end], start)
    assert answers(whole) == answers(pieces) and len(whole) == len(pieces)


def test_two_requests_can_alternate_in_one_store() -> None:
    one, other = [1, 2, 3, 4, 5, 6], [11, 12, 13, 14, 15, 16]
    store = TextStore(5)
    for end in (2, 4, 6):
        store.learn(one[:end], end - 2)
        store.learn(other[:end], end - 2)
    assert store.look_up([1, 2], 4) == (2, one[2:])
    assert store.look_up([2, 3, 4], 4)[1] == one[4:]
    assert store.look_up([12, 13, 14], 4)[1] == other[4:]


def test_reset_removes_all_texts() -> None:
    store = TextStore(5)
    for text in random_texts(5):
        store.learn(text)
    assert len(store) > 0
    store.reset()
    assert len(store) == 0 and answers(store) == answers(TextStore(5))


@pytest.mark.parametrize("limit", [6, 50])
def test_a_full_store_keeps_the_newest_tokens(limit: int) -> None:
    store = TextStore(5, max_entries=limit)
    for number in range(200):
        store.learn([number, number + 1, number + 2])
        assert len(store) <= limit
    assert store.look_up([200], 1) == (1, [201])
    assert store.look_up([3], 1) == (0, [])


def test_a_saved_store_loads_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "store.json"
    store = TextStore(5)
    for text in random_texts(6):
        store.learn(text)
    store.save(path)
    loaded = TextStore.load(path)
    assert len(loaded) == len(store) and answers(loaded) == answers(store)
    for text in random_texts(7):
        store.learn(text)
        loaded.learn(text)
    assert answers(loaded) == answers(store)
    again = tmp_path / "again.json"
    loaded.save(again)
    store.save(path)
    assert again.read_bytes() == path.read_bytes()


def test_a_damaged_file_is_refused_with_one_line(tmp_path: Path) -> None:
    path, generator = tmp_path / "store.json", random.Random(0)
    store = TextStore(5)
    for text in random_texts(8, 4):
        store.learn(text)
    store.save(path)
    whole, refused = path.read_bytes(), 0
    damages = [whole[:cut] for cut in generator.sample(range(len(whole)), 40)]
    for _ in range(150):
        damaged = bytearray(whole)
        damaged[generator.randrange(len(damaged))] ^= 1 << generator.randrange(8)
        damages.append(bytes(damaged))
    for damaged in [*damages, b"", b"\n", b"{}\n{}\n", b"[]\n[]\n", pickle.dumps(print), b"[" * 100_000 + b"\n\n"]:
        path.write_bytes(damaged)
        try:
            loaded = TextStore.load(path)
        except InputError as error:
            assert str(path) in str(error) and "\n" not in str(error)
            refused += 1
        else:
            assert answers(loaded) == answers(store)  # the damage turned one kind of white space into another
    assert refused >= len(damages)


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": [1, "2"]},
        {"tokens": [1, -2]},
        {"tokens": [2**31]},
        {"tokens": 3},
        {"max_entries": 0},
        {"unknown": 1},
        {"vocabulary": 7},
        {"kind": "n-grams", "counts": [[[1], [[2, 1]]]], "totals": []},  # written by earlier versions
    ],
    ids=str,
)
def test_invalid_content_with_a_valid_checksum_is_refused(changes: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "store.json"
    TextStore(5).save(path)
    content = json.dumps(json.loads(path.read_text().split("\n")[1]) | changes)
    path.write_text(f"{json.dumps(header_of(content))}\n{content}\n")
    with pytest.raises(InputError, match="damaged or of another kind"):
        TextStore.load(path)


def test_a_store_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.json"
    TextStore(vocabulary="a").save(path)
    assert path.stat().st_mode & 0o777 == 0o600  # it holds prompts
    assert TextStore.load(path, "a").vocabulary == "a"
    assert TextStore.load(path).vocabulary == "a"
    with pytest.raises(InputError, match="the vocabulary is another model's"):
        TextStore.load(path, "b")


def test_errors_name_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    missing = tmp_path / "none" / "store.json"
    with pytest.raises(InputError, match="cannot be written"):
        TextStore().save(missing)
    with pytest.raises(InputError, match="cannot be read"):
        TextStore.load(missing)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: TextStore(0), "max_ngram_size"),
        (lambda: TextStore(max_entries=1), "max_entries"),
    ],
)
def test_errors_name_options_out_of_range(make: Callable[[], TextStore], name: str) -> None:
    with pytest.raises(InputError, match=name):
        make()
