"""Finds the texts whose words are most similar to a query's. Independent of pairs, files and translation.

The similarity of two texts of m and n words is the normalized Indel similarity 2 L / (m + n), where L is the length of
their longest common subsequence of words. A similar text shares so many words with the query that it must contain at
least one of the query's rarest words (prefix filtering: Chaudhuri et al., "A primitive operator for similarity joins in
data cleaning", ICDE 2006). Only the postings of these rare words are read, and a text is compared with the query only
if they share enough words for a sufficient similarity.

Long NumPy and rapidfuzz operations release the GIL or are divided into parts, so that other threads can run.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import count

import numpy as np
from rapidfuzz.distance import Indel
from rapidfuzz.process import cdist

# Scripts without spaces between words, where each character counts as a word: Thai, Lao, Myanmar, Khmer, kana,
# Chinese characters
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
WORD = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+|[^\w\s]")

# Search limits. They cause missed results only in a memory with many near-duplicates.
MAX_ENTRIES = 1_000_000  # postings that are read
MAX_COUNTED = 8192  # texts whose common words are counted
MAX_WORDS = 300_000  # words in these texts, approximately
MAX_COMPARED = 4096  # texts that are compared
MAX_QUERY = 100_000  # characters; a longer query has no results
PART = 1 << 16  # postings or words processed by one call that may hold the GIL
SCANNED = 1 << 16  # texts whose bounds are computed in one call
COMPARED_TOGETHER = 128
LEVELS = 1000  # levels to which similarity bounds are rounded when only the best texts are kept
MARGIN = np.float32(1e-6)  # for rounding errors in bounds

Indices = np.ndarray


class WordIndex:
    """An inverted index of texts by their words.

    Call `add` for each text, then `finish`, then `search`. Several threads may search at the same time.
    """

    def __init__(self) -> None:
        self._numbers: defaultdict[str, int] = defaultdict(count().__next__)  # word -> number; deleted by `finish`
        self._added = array("i")
        self._lengths = array("i")

    def add(self, text: str) -> bool:
        """Add a text if it contains words, and return whether it does."""
        words = words_of(text)
        if words:
            self._added.extend(map(self._numbers.__getitem__, words))
            self._lengths.append(len(words))
        return bool(words)

    def finish(self) -> None:
        self._words = np.frombuffer(self._added, np.int32)  # word numbers of all texts, concatenated
        self._lengths_of = np.frombuffer(self._lengths, np.int32) if self._lengths else np.zeros(0, np.int32)
        self._starts = starts_of(self._lengths_of)
        hashes = np.fromiter(map(hash, self._numbers), np.int64, len(self._numbers))
        self._numbers_by_hash = np.argsort(hashes, kind="stable").astype(np.int32)
        self._hashes = hashes[self._numbers_by_hash]
        vocabulary = len(self._numbers)
        del self._numbers, self._added, self._lengths

        order = np.argsort(self._words, kind="stable").astype(np.int32)
        texts = np.repeat(np.arange(len(self._lengths_of), dtype=np.int32), self._lengths_of)[order]
        words = self._words[order]
        is_first = np.ones(len(words), bool)  # whether an occurrence is the first of its word in its text
        is_first[1:] = (words[1:] != words[:-1]) | (texts[1:] != texts[:-1])
        self._texts = texts[is_first]  # postings of all words, concatenated; ascending for each word
        self._postings = starts_of(np.bincount(words[is_first], minlength=vocabulary))

    def __len__(self) -> int:
        return len(self._lengths_of)

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in vars(self).values() if isinstance(each, np.ndarray))

    def search(self, query: str, least: float) -> Iterator[tuple[float, int]]:
        """Yield the similarity and number of texts with at least this similarity, best first, then latest first."""
        words = words_of(query) if len(query) <= MAX_QUERY else []
        if not words:
            return
        codes = {word: code for code, word in enumerate(dict.fromkeys(words), 1)}
        numbers = {word: number for word in codes if (number := self._number(word)) is not None}
        if not numbers:
            return
        found, bounds = self._candidates(words, numbers, least)
        code_of = np.zeros(len(self._postings) - 1, np.uint32)  # by word number; 0 for words not in the query
        for word, number in numbers.items():
            code_of[number] = codes[word]
        found, bounds, texts = self._counted(found, bounds, code_of, len(words), least)
        as_text = text_type(len(codes))
        yield from ordered(
            found, bounds, texts, as_text(np.array([codes[word] for word in words], np.uint32)), least, as_text
        )

    def _number(self, word: str) -> int | None:
        """Return a word's number, or None if no text contains the word."""
        position = int(np.searchsorted(self._hashes, hash(word)))
        if position < len(self._hashes) and self._hashes[position] == hash(word):
            return int(self._numbers_by_hash[position])
        return None

    def _texts_with(self, number: int) -> Indices:
        """Return the texts that contain a word."""
        return self._texts[self._postings[number] : self._postings[number + 1]]

    def _candidates(self, words: Sequence[str], numbers: dict[str, int], least: float) -> tuple[Indices, np.ndarray]:
        """Return the texts that share rare words with the query, and upper bounds on their similarity."""
        size = len(words)
        times = Counter(words)
        by_frequency = sorted(numbers, key=lambda word: len(self._texts_with(numbers[word])))
        remaining = sum(times[word] for word in numbers)  # words of the query that are not counted yet
        required = math.ceil(size * least / (2 - least) - 1e-9)  # because L <= n
        common = np.zeros(len(self), np.int16 if size < 1 << 15 else np.int32)
        entries = 0
        for word in by_frequency:
            if remaining < required or entries == MAX_ENTRIES:
                break
            texts = self._texts_with(numbers[word])
            read = texts[-(MAX_ENTRIES - entries) :]  # the latest ones
            entries += len(read)
            if len(read) == len(texts):
                remaining -= times[word]
            for start in range(0, len(read), PART):
                common[read[start : start + PART]] += times[word]
        return self._best(common, remaining, size, least)

    def _best(self, common: np.ndarray, remaining: int, size: int, least: float) -> tuple[Indices, np.ndarray]:
        """Return the texts whose bounds are sufficient, and the bounds. If there are too many, only the best are kept.

        Args:
            common: The number of query words that were counted in each text; 0 excludes a text.
            remaining: The number of query words that were not counted.
            size: The number of words in the query.
            least: The minimum similarity.
        """
        parts = []
        for start in range(0, len(common), SCANNED):
            texts = np.flatnonzero(common[start : start + SCANNED]) + start
            bounds = self._bound(common[texts] + remaining, texts, size)
            is_sufficient = bounds >= np.float32(least) - MARGIN
            parts.append((texts[is_sufficient], bounds[is_sufficient]))
        most = max(1, min(MAX_COUNTED, MAX_WORDS // size))
        if sum(len(texts) for texts, _ in parts) > most:
            values = [self._bound(common[texts], texts, size) for texts, _ in parts]
            chosen = [*latest_of_best(values, most)]
            parts = [(texts[own], bounds[own]) for (texts, bounds), own in zip(parts, chosen, strict=True)]
        found, bounds = zip(*parts, strict=True)
        return np.concatenate(found), np.concatenate(bounds)

    def _bound(self, common: np.ndarray, texts: Indices, size: int) -> np.ndarray:
        """Return upper bounds on the similarity to a query of `size` words, given upper bounds on the common words."""
        lengths = self._lengths_of[texts]
        return np.minimum(common, np.minimum(lengths, size)) * np.float32(2) / (lengths + np.float32(size))

    def _counted(
        self, found: Indices, bounds: np.ndarray, code_of: np.ndarray, size: int, least: float
    ) -> tuple[Indices, np.ndarray, list[np.ndarray]]:
        """Count all common words. Returns the texts that may still be similar, best bound first, and their codes."""
        kept: list[tuple[Indices, np.ndarray]] = []
        codes: list[np.ndarray] = []
        for part in parts_of(self._lengths_of[found]):
            texts = found[part]
            lengths = self._lengths_of[texts]
            starts = starts_of(lengths)
            positions = np.repeat(self._starts[texts] - starts[:-1], lengths) + np.arange(starts[-1])
            own = code_of[self._words[positions]]
            common = np.add.reduceat(own != 0, starts[:-1], dtype=np.int32)
            bound = np.minimum(self._bound(common, texts, size), bounds[part])
            chosen = np.flatnonzero(bound >= np.float32(least) - MARGIN)
            kept.append((texts[chosen], bound[chosen]))
            codes += [own[starts[each] : starts[each + 1]] for each in chosen]
        found = concatenated([texts for texts, _ in kept], np.int32)
        bounds = concatenated([bound for _, bound in kept], np.float32)
        order = np.lexsort((-found, -bounds))[:MAX_COMPARED]
        return found[order], bounds[order], [codes[each] for each in order]


def ordered(
    found: Indices,
    bounds: np.ndarray,
    texts: Sequence[np.ndarray],
    query: str | bytes,
    least: float,
    as_text: Callable[[np.ndarray], str | bytes],
) -> Iterator[tuple[float, int]]:
    """Compare texts in descending order of their bounds. Yields a text as soon as no later text can precede it."""
    waiting: list[tuple[float, int]] = []  # similarity and number, both negative
    for start in range(0, len(found), COMPARED_TOGETHER):
        end = start + COMPARED_TOGETHER
        choices = [as_text(each) for each in texts[start:end]]
        found_here = cdist([query], choices, scorer=Indel.normalized_similarity, dtype=np.float64)[0]
        waiting += [
            (-similarity, -number)
            for similarity, number in zip(found_here.tolist(), found[start:end].tolist(), strict=True)
            if similarity >= least
        ]
        waiting.sort(reverse=True)  # the best ones last
        later = float(bounds[end] + MARGIN) if end < len(found) else 0.0
        while waiting and -waiting[-1][0] > later:
            similarity, number = waiting.pop()
            yield -similarity, -number


def text_type(size: int) -> Callable[[np.ndarray], str | bytes]:
    """Return a function that converts codes up to `size` to the type (bytes or str) that rapidfuzz compares fastest."""
    if size < 256:
        return lambda codes: codes.astype(np.uint8).tobytes()
    first = 0x10000  # above the surrogates
    return lambda codes: (codes + np.uint32(first)).astype("<u4").tobytes().decode("utf-32-le")


def words_of(text: str) -> list[str]:
    """Return a text's words and punctuation marks, case-folded. White space only separates words."""
    return WORD.findall(text.casefold())


def starts_of(lengths: np.ndarray) -> Indices:
    """Return the start of each consecutive part, and the end of the last part."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def concatenated(parts: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, dtype)


def latest_of_best(parts: Sequence[np.ndarray], most: int) -> list[Indices]:
    """Return, for each part, the indices of its values among the `most` largest overall. Prefers later equal values.

    Values must be between 0 and 1. Nearly equal values count as equal.
    """
    levels = [(part * np.float32(LEVELS)).astype(np.int16) for part in parts]
    at_level = np.sum([np.bincount(level, minlength=LEVELS + 1) for level in levels], axis=0)
    above = at_level[::-1].cumsum()[::-1] - at_level  # number of values at higher levels
    border = int(np.argmax(above < most))  # some values at this level and all above it are kept
    left = most - int(above[border])
    kept = []
    for level in reversed(levels):
        at_border = np.flatnonzero(level == border)
        last = at_border[max(0, len(at_border) - left) :]
        left -= len(last)
        kept.append(np.union1d(last, np.flatnonzero(level > border)))
    return kept[::-1]


def parts_of(lengths: np.ndarray) -> Iterator[slice]:
    """Divide texts into parts of about `PART` words."""
    ends = np.cumsum(lengths)
    start = 0
    while start < len(lengths):
        before = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + PART)))
        yield slice(start, end)
        start = end
