"""A translation memory: text pairs, retrieved by the similarity of their sources."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ..errors import InputError
from ..sampling.options import short_repr, validate
from ..sampling.values import Text
from .index import WordIndex

LEAST_SIMILARITY = 0.6
MAX_FOUND = 3
MAX_SCANNED = 1000  # pairs with the same source to consider; most may also have the same target


class TranslationMemory:
    """Pairs of source and target. `similar` returns the targets of the most similar sources.

    Sources are compared by their words and punctuation marks, ignoring case; see `index.py`. The memory stores targets
    in full, but sources only as word numbers.

    Attributes:
        languages: The source and target languages, as named in the file, or None if they are unknown.
        sha256: The hash of the file, or None for pairs that were not read from a file.
    """

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self.languages: tuple[str, str] | None = None
        self.sha256: str | None = None
        self._index = WordIndex()
        self._targets = bytearray()
        ends = array("q", [0])
        hashes = array("q")
        for source, target in pairs:
            if target.strip() and self._index.add(source):
                self._targets += target.strip().encode()
                ends.append(len(self._targets))
                hashes.append(hash(source.strip()))
        self._ends = np.frombuffer(ends, np.int64)
        self._index.finish()
        by_hash = np.frombuffer(hashes, np.int64) if hashes else np.zeros(0, np.int64)
        self._by_hash = np.argsort(by_hash, kind="stable").astype(np.int32)  # keeps the order of equal sources
        self._hashes = by_hash[self._by_hash]

    @classmethod
    def from_pairs(cls, pairs: Iterable[tuple[str, str]]) -> TranslationMemory:
        """Build a memory from pairs (source, target). Pairs with a blank text are left out.

        Raises:
            InputError: An item is not a pair of strings.
        """
        if not isinstance(pairs, Iterable):
            raise InputError(f"must be pairs of a source and a target, not {short_repr(pairs)}", "pairs")
        return cls(map(checked_pair, pairs))

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
    ) -> TranslationMemory:
        """Read a memory from a file: tab-separated columns (.tsv), TMX (.tmx), or an earlier job's records (.jsonl).

        Args:
            path: The file.
            src_lang: The source language in a TMX file, such as en, en-US or eng_Latn. Both languages may be omitted if
                the file contains two languages and its header names the source language.
            tgt_lang: The target language in a TMX file.

        Raises:
            InputError: The file cannot be read, or contains no pairs in these languages.
        """
        from .pairs import PairFile

        with PairFile(Path(path), src_lang, tgt_lang) as file:
            memory = cls(file)
            file.finish(len(memory))
            memory.languages = file.languages
            memory.sha256 = file.sha256
        return memory

    def __len__(self) -> int:
        """The number of pairs."""
        return len(self._index)

    def __repr__(self) -> str:
        return f"<TranslationMemory: {self.describe()}>"

    @property
    def nbytes(self) -> int:
        """The size in memory, in bytes."""
        arrays = (self._ends, self._hashes, self._by_hash)
        return self._index.nbytes + len(self._targets) + sum(each.nbytes for each in arrays)

    def describe(self) -> str:
        count = len(self)
        size = f"{self.nbytes / 1e6:,.0f} MB" if self.nbytes >= 1e6 else f"{self.nbytes / 1e3:,.0f} kB"
        return f"memory of {count:,} {'pair' if count == 1 else 'pairs'}, {size}"

    def is_for(self, src_lang: str | None, tgt_lang: str | None) -> bool:
        """Return whether the memory can be used for these languages. An unknown language matches any language."""
        if self.languages is None:
            return True
        from .languages import closeness

        pairs = zip((src_lang, tgt_lang), self.languages, strict=True)
        return all(wanted is None or closeness(wanted, language) > 0 for wanted, language in pairs)

    def similar(self, source: str) -> list[tuple[float, str]]:
        """Return the similarity and target of each of the most similar sources.

        Returns at most `MAX_FOUND` different targets with a similarity of at least `LEAST_SIMILARITY`, best first.
        Sources that equal the query, apart from leading and trailing white space, come first. Among equally similar
        sources, the latest comes first.

        Raises:
            InputError: The source is not a string.
        """
        source = validate("source", Text(may_be_empty=True), source)
        found: dict[str, float] = {}
        for number in self._equal(source):
            found.setdefault(self._target(number), 1.0)
            if len(found) == MAX_FOUND:
                break
        else:
            for similarity, number in self._index.search(source, LEAST_SIMILARITY):
                found.setdefault(self._target(number), similarity)
                if len(found) == MAX_FOUND:
                    break
        return [(similarity, target) for target, similarity in found.items()]

    def exact(self, source: str) -> str | None:
        """Return the latest target of an equal source, or None if there is none.

        Sources are equal if they are the same string, apart from leading and trailing white space. They are compared by
        their 64-bit hashes. Raises `InputError` if the source is not a string.
        """
        source = validate("source", Text(may_be_empty=True), source)
        return next(map(self._target, self._equal(source)), None)

    def _equal(self, source: str) -> list[int]:
        """Return the numbers of the latest pairs with this source, in descending order."""
        wanted = hash(source.strip())
        start, end = (int(np.searchsorted(self._hashes, wanted, side)) for side in ("left", "right"))
        return [*map(int, self._by_hash[max(start, end - MAX_SCANNED) : end][::-1])]

    def _target(self, number: int) -> str:
        return self._targets[self._ends[number] : self._ends[number + 1]].decode()


def checked_pair(pair: object) -> tuple[str, str]:
    """Return `pair` if it is a pair of strings. Raises `InputError` for anything else."""
    if isinstance(pair, tuple | list) and len(pair) == 2 and all(isinstance(text, str) for text in pair):
        for text in pair:
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise InputError(f"a text is not valid Unicode ({error.reason})", "pairs", "repair it") from error
        return pair[0], pair[1]
    raise InputError(f"must be pairs of a source and a target, not {short_repr(pair)}", "pairs")
