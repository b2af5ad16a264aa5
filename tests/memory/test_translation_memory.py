"""Lookup in a translation memory, compared with rapidfuzz over all pairs."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from rapidfuzz.distance import Indel

from speculative_decoding import InputError, TextStore
from speculative_decoding.memory import TranslationMemory, index
from speculative_decoding.memory.index import words_of
from speculative_decoding.memory.translation_memory import LEAST_SIMILARITY, MAX_FOUND
from tests.support.paths import ROOT

TWO_THIRDS = pytest.approx(2 / 3)


def oracle(query: str, pairs: Sequence[tuple[str, str]]) -> list[tuple[float, str]]:
    """Compare a query with all sources. Equal sources come first, then similar ones, and later ones before earlier."""
    words = words_of(query)
    found = []
    for number, (source, target) in enumerate(pairs):
        if similarity := Indel.normalized_similarity(words, words_of(source), score_cutoff=LEAST_SIMILARITY):
            found.append((similarity, source.strip() == query.strip(), number, target))
    best: dict[str, float] = {}
    for similarity, _, _, target in sorted(found, reverse=True):
        best.setdefault(target, similarity)
    return [(similarity, target) for target, similarity in [*best.items()][:MAX_FOUND]]


def changed(text: str, rng: random.Random, others: Sequence[str], share: float = 0.2) -> str:
    """Replace, remove and insert words."""
    words = text.split()
    for _ in range(max(1, int(len(words) * share))):
        place = rng.randrange(len(words))
        words[place : place + rng.randrange(2)] = rng.choice([[], [rng.choice(rng.choice(others).split())]])
        words = words or ["word"]
    return " ".join(words)


def sentences(count: int, seed: int = 0) -> list[str]:
    """Sentences of the repository's data, and variations of these sentences."""
    rng = random.Random(seed)
    lines = [
        line for path in sorted((ROOT / "data").glob("*.txt")) for line in path.read_text().splitlines() if line.strip()
    ]
    while len(lines) < count:
        lines.append(changed(rng.choice(lines), rng, lines, rng.choice([0.1, 0.3])))
    rng.shuffle(lines)
    return lines[:count]


def pairs_of(sources: Sequence[str]) -> list[tuple[str, str]]:
    return [(source, f"target {number % (len(sources) - 10)}") for number, source in enumerate(sources)]


def test_lookup_equals_rapidfuzz_over_all_pairs() -> None:
    sources = sentences(4000)
    pairs = pairs_of(sources)
    memory = TranslationMemory.from_pairs(pairs)
    rng = random.Random(1)
    queries = [changed(rng.choice(sources), rng, sources, rng.choice([0.1, 0.2, 0.4])) for _ in range(45)]
    queries += rng.sample(sources, 15)
    found = [memory.similar(query) for query in queries]
    assert found == [oracle(query, pairs) for query in queries]
    assert sum(map(len, found)) > 100


@pytest.mark.parametrize("alphabet", ["ab", "abc de", "日本語の文", "a. ,b", "ä ß ẞ"])
def test_lookup_equals_rapidfuzz_for_short_and_repetitive_texts(alphabet: str) -> None:
    rng = random.Random(2)
    texts = ["".join(rng.choices(alphabet + " ", k=rng.randrange(1, 14))) for _ in range(600)]
    pairs = [(text, f"target {number}") for number, text in enumerate(texts) if text.strip()]
    memory = TranslationMemory.from_pairs(pairs)
    for query in texts[:200]:
        assert memory.similar(query) == (oracle(query, pairs) if query.strip() else [])


def test_lookup_equals_rapidfuzz_for_texts_of_many_words() -> None:
    """A query of over 255 different words is compared as text instead of bytes."""
    rng = random.Random(3)
    sources = [" ".join(f"w{rng.randrange(900)}" for _ in range(700)) for _ in range(30)]
    sources += [changed(source, rng, sources, 0.3) for source in sources]
    pairs = pairs_of(sources)
    memory = TranslationMemory.from_pairs(pairs)
    for source in sources[::6]:
        query = changed(source, rng, sources, 0.2)
        assert len({*words_of(query)}) > 255 and memory.similar(query) == oracle(query, pairs) != []


def test_a_word_may_be_repeated_any_number_of_times() -> None:
    memory = TranslationMemory.from_pairs([("a b", "1"), ("a " * 39_000, "2"), ("a " * 3, "3")])
    assert memory.similar("a " * 40_000) == [(pytest.approx(2 * 39 / 79), "2")]
    assert memory.similar("a " * 4) == [(pytest.approx(6 / 7), "3")]


def test_case_and_white_space_do_not_count() -> None:
    memory = TranslationMemory.from_pairs([("The  method\treturns.", "a"), ("the method returns !", "b")])
    assert memory.similar("THE METHOD RETURNS .") == [(1.0, "a"), (0.75, "b")]


def test_an_equal_source_comes_first_then_the_latest_of_equally_similar_ones() -> None:
    pairs = [("a b c", "1"), ("A b c", "2"), ("a b c", "3"), ("a b d", "4"), ("a b e", "5")]
    assert TranslationMemory.from_pairs(pairs).similar(" a b c ") == [(1.0, "3"), (1.0, "1"), (1.0, "2")]
    assert TranslationMemory.from_pairs(pairs[2:]).similar("a b c") == [
        (1.0, "3"),
        (TWO_THIRDS, "5"),
        (TWO_THIRDS, "4"),
    ]


def test_targets_that_are_equal_count_once() -> None:
    memory = TranslationMemory.from_pairs([("a b c", "x"), ("a b d", "y")] + [("a b c", "z")] * 2000)
    assert memory.similar("a b c") == [(1.0, "z"), (1.0, "x"), (TWO_THIRDS, "y")]
    memory = TranslationMemory.from_pairs([("a b c", "x")] * 5 + [("a b d", "y")])
    assert memory.similar("a b c") == [(1.0, "x"), (TWO_THIRDS, "y")]


@pytest.mark.parametrize("limit", ["MAX_ENTRIES", "MAX_COUNTED", "MAX_WORDS", "MAX_COMPARED"])
def test_an_equal_source_is_found_among_more_near_duplicates_than_a_search_compares(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, limit, 50)
    sources = [f"Item {number % 7} of the list, part {number}." for number in range(3000)]
    memory = TranslationMemory.from_pairs([(source, source.upper()) for source in sources])
    for number in (0, 1234, 2999):
        found = memory.similar(sources[number])
        assert found[0] == (1.0, sources[number].upper()) and len(found) == MAX_FOUND
        assert all(similarity > 0.8 for similarity, _ in found)
        assert memory.similar(sources[number]) == found


def test_a_rare_word_decides_among_more_near_duplicates_than_a_search_compares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "MAX_COUNTED", 50)
    memory = TranslationMemory.from_pairs(
        [(f"Part {number} of the list is ready.", f"{number}") for number in range(999)]
    )
    for number in (0, 500, 998):
        assert memory.similar(f"Part {number} of the page is ready.")[0] == (0.875, f"{number}")


def test_the_parts_of_a_search_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = sentences(500)
    memory = TranslationMemory.from_pairs(pairs_of(sources))
    expected = [memory.similar(source) for source in sources[:50]]
    for name in ("PART", "SCANNED", "COMPARED_TOGETHER"):
        monkeypatch.setattr(index, name, 3)
    assert [memory.similar(source) for source in sources[:50]] == expected


def test_nothing_is_found_for_blank_unknown_and_huge_texts() -> None:
    memory = TranslationMemory.from_pairs([("a b c", "x"), ("", "y"), ("z", " ")])
    assert len(memory) == 1
    for query in ("", " \n", "q r s", "a " * 1_000_000):
        assert memory.similar(query) == []
    huge = "a b " * 100_000
    assert TranslationMemory.from_pairs([(huge, "x")]).similar(huge) == [(1.0, "x")]
    assert TranslationMemory.from_pairs([]).similar("a") == []


def test_what_is_not_a_pair_of_texts_is_refused() -> None:
    for pairs in (3, None, ["ab"], [("a",)], [("a", 1)], [("a", "b", "c")], [None]):
        with pytest.raises(InputError, match="pairs: must be pairs of a source and a target"):
            TranslationMemory.from_pairs(pairs)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="pairs: a text is not valid Unicode"):
        TranslationMemory.from_pairs([("a", "\ud800")])
    memory = TranslationMemory.from_pairs([("a", "b")])
    for source in (None, 3, b"a", ["a"]):
        with pytest.raises(InputError, match="source: must be text, not "):
            memory.similar(source)  # type: ignore[arg-type]


def test_a_text_store_of_pairs_is_a_memory() -> None:
    memory = TextStore.from_pairs(iter([("a", "b")]))
    assert isinstance(memory, TranslationMemory) and memory.similar("a") == [(1.0, "b")] and memory.sha256 is None


def test_a_file_has_a_hash_and_a_description_with_its_size(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("one\teins\ntwo\tzwei\n")
    memory = TranslationMemory.open(path)
    assert memory.sha256 == hashlib.sha256(path.read_bytes()).hexdigest() and len(memory) == 2
    assert (
        memory.describe() == "memory of 2 pairs, 0 kB" and repr(memory) == f"<TranslationMemory: {memory.describe()}>"
    )
    many = TranslationMemory.from_pairs(pairs_of(sentences(20_000)))
    assert many.nbytes / len(many) < 400 and many.describe() == f"memory of 20,000 pairs, {many.nbytes / 1e6:.0f} MB"


def test_searches_in_several_threads_find_the_same() -> None:
    sources = sentences(2000)
    memory = TranslationMemory.from_pairs(pairs_of(sources))
    expected = [memory.similar(source) for source in sources[:100]]
    found: list[list[list[tuple[float, str]]]] = [[] for _ in range(4)]
    threads = [threading.Thread(target=lambda own=own: own.extend(map(memory.similar, sources[:100]))) for own in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4


@pytest.mark.slow
def test_a_search_among_a_million_near_duplicates_is_fast_and_lets_other_threads_run() -> None:
    """CPU times of this thread are measured, because other programs may be running. The best of five tries counts.

    A second thread measures the CPU time of this thread between two of its own turns. This is an upper bound of the
    time for which this thread held the GIL.
    """
    count = 1_000_000
    memory = TranslationMemory((f"Item {i} of the list is ready in the window {i % 9}.", f"{i}") for i in range(count))
    clock = time.pthread_getcpuclockid(threading.get_ident())
    turns: list[float] = []
    has_ended = threading.Event()

    def tick() -> None:
        while not has_ended.is_set():
            time.sleep(0.0001)
            turns.append(time.clock_gettime(clock))

    thread = threading.Thread(target=tick)
    thread.start()
    for number in (17, 555_555, 999_999):
        found, seconds, held = [], [], []
        for _ in range(5):
            time.sleep(0.01)
            turns.clear()
            started = time.thread_time()
            found = memory.similar(f"Item {number} of the list is not ready in the window.")
            seconds.append(time.thread_time() - started)
            time.sleep(0.01)
            held.append(max((after - before for before, after in pairwise(turns)), default=1.0))
        assert found[0] == (max(each for each, _ in found), str(number)) and len(found) == MAX_FOUND
        assert min(seconds) < 0.1 and min(held) < 0.01
        assert memory.similar(f"Item {number} of the list is ready in the window {number % 9}.")[0] == (
            1.0,
            str(number),
        )
    has_ended.set()
    thread.join()


def test_an_exact_match_is_the_latest_target_of_an_equal_source() -> None:
    sources = sentences(200)
    rng = random.Random(1)
    sources += [f" {rng.choice(sources)}\n" for _ in range(100)]
    pairs = [(source, f"target {number}") for number, source in enumerate(sources)]
    memory = TranslationMemory(pairs)
    latest = {source.strip(): target for source, target in pairs}
    for source in sources:
        assert memory.exact(f"\t{source} ") == latest[source.strip()]
        for other in (source.swapcase(), source.replace(" ", "  "), f"{source.strip()}!", ""):
            assert memory.exact(other) == latest.get(other.strip())
    with pytest.raises(InputError, match="source: must be"):
        memory.exact(3)  # type: ignore[arg-type]
