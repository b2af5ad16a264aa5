"""Stores of what earlier requests wrote, for a session or longer in a file. They know token ids, nothing of models.

A request is stored as one text: the ids of its source, the start token, the ids of its output. So the end of a source
that was seen before already calls up the output it had.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..loading.safe_folder import write_file
from .suffix_index import BOUNDARY, SuffixIndex

STORAGES = ("texts", "multilevel", "onelevel")  # by their names for users, see `make_store`
FORMAT = "speculative-decoding n-gram store"
FORMAT_VERSION = 1
MAX_ID = 2**31


class Store(ABC):
    """Texts that were written before, or counts of their n-grams, to look up how a text probably goes on.

    kind: names the class in a file.
    vocabulary: `tokenizer.vocabulary.fingerprint`, kept in the file so that no other model's ids are read as ours.
    filler_top_k: how many of the target's likeliest ids `learn` wants per position; 1 is the written one alone.
    stop_if_unknown: if False, `look_up` goes on with a guess where nothing is known.
    """

    kind: str
    filler_top_k = 1
    stop_if_unknown = True
    vocabulary: str | None

    @abstractmethod
    def learn(self, text: Sequence[int], start: int = 0, likeliest: Sequence[Sequence[int]] = ()) -> None:
        """Learn `text[start:]` in the context of `text[:start]`, which is known from earlier calls.

        likeliest: for each of the last tokens of `text`, the target's most likely ids in that position.
        """

    @abstractmethod
    def look_up(self, text: Sequence[int], count: int) -> tuple[int, list[int]]:
        """(how many of the last tokens of `text` are known as a context, up to `count` ids that follow it)."""

    @abstractmethod
    def reset(self) -> None:
        """Forget everything."""

    @abstractmethod
    def __len__(self) -> int:
        """What the bound on the size counts."""

    @abstractmethod
    def _content(self) -> dict[str, Any]:
        """For `save`: the options, which are the fields of the dataclass, and what was learned."""

    @abstractmethod
    def _restore(self, learned: dict[str, Any]) -> None:
        """Take out of it what `_content` has besides the options. Raises KeyError, TypeError or ValueError."""

    def save(self, path: str | Path) -> None:
        """Write a JSON file that appears whole or not at all. Raises `InputError` if it cannot be written."""
        content = json.dumps({"kind": self.kind, **self._content()})
        head = json.dumps({"format": FORMAT, "format_version": FORMAT_VERSION, "sha256": digest(content)})
        try:
            write_file(Path(path), f"{head}\n{content}\n")
        except OSError as error:
            raise InputError(f"n-gram store {path}: cannot be written ({error.strerror}); name another file") from error

    @staticmethod
    def load(path: str | Path, expected_vocabulary: str | None = None) -> Store:
        """Read what `save` wrote, whichever kind it is.

        expected_vocabulary: refuse a store that was made with another one.
        Raises `InputError` for that, and for a missing or damaged file.
        """
        try:
            head, content, end = Path(path).read_text(encoding="utf-8").split("\n")
            written = json.loads(head)
            if end or written != {"format": FORMAT, "format_version": FORMAT_VERSION, "sha256": digest(content)}:
                raise ValueError(f"its first line is not {FORMAT!r}, version {FORMAT_VERSION}, with the right checksum")
            learned = json.loads(content)
            kind = KINDS[learned.pop("kind")]
            options = {option.name: learned.pop(option.name) for option in fields(kind)}
            for option in fields(kind):
                value = options[option.name]
                if type(value) is not type(option.default) and (option.name, type(value)) != ("vocabulary", str):
                    raise ValueError(f"{option.name} is {value!r}")
            store = kind(**options)
            store._restore(learned)
            if learned:
                raise ValueError(f"{next(iter(learned))} is unknown")
        except OSError as error:
            raise InputError(f"n-gram store {path}: cannot be read ({error.strerror}); name another file") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(f"n-gram store {path}: damaged or of another kind ({error}); delete it") from error
        if None not in (store.vocabulary, expected_vocabulary) and store.vocabulary != expected_vocabulary:
            raise InputError(f"n-gram store {path}: made with other tokens than this model's; name another file")
        return store


def digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


@dataclass(eq=False)
class NgramStore(Store):
    """Counts what follows each n-gram; drafts the most frequent continuation of the longest one known, token by token.

    Multi-level: all n from `min_ngram_size` to `max_ngram_size`; one-level: both the same. (Here an n-gram is the
    context alone. In romsto's Speculative-Decoding, whose stores these are, n counts the token behind it as well.)

    filler_top_k: above 1, count besides what was written also the ids that the target found so many likeliest.
    stop_if_unknown: draft nothing behind an unknown n-gram; else the most frequent token of all.
    max_entries: the most pairs of an n-gram and a token behind it; n-grams not met for longest go first.
    """

    kind = "n-grams"
    max_ngram_size: int = 3
    min_ngram_size: int = 2
    _: KW_ONLY
    filler_top_k: int = 1
    stop_if_unknown: bool = True
    max_entries: int = 200_000
    vocabulary: str | None = None

    def __post_init__(self) -> None:
        most, least = self.max_ngram_size, self.min_ngram_size
        if not 1 <= least <= most:
            raise InputError(f"min_ngram_size must be 1 to max_ngram_size ({most}), not {least}")
        if self.filler_top_k < 1:
            raise InputError(f"filler_top_k must be >= 1, not {self.filler_top_k}; 1 counts only what was written")
        if self.max_entries < 1:
            raise InputError(f"max_entries must be >= 1, not {self.max_entries}")
        self.reset()

    def reset(self) -> None:
        self._counts: dict[tuple[int, ...], dict[int, int]] = {}  # n-gram -> {token: count}, last met last
        self._totals = Counter[int]()  # how often each token was written, to guess where nothing is known
        self._entries = 0

    def __len__(self) -> int:
        return self._entries

    def learn(self, text: Sequence[int], start: int = 0, likeliest: Sequence[Sequence[int]] = ()) -> None:
        first = len(text) - (len(likeliest) if self.filler_top_k > 1 else 0)
        for end in range(start, len(text)):
            following = [text[end], *(likeliest[end - first][: self.filler_top_k] if end >= first else ())]
            for size in range(self.min_ngram_size, min(self.max_ngram_size, end) + 1):
                ngram = tuple(text[end - size : end])
                counts = self._counts[ngram] = self._counts.pop(ngram, {})
                self._entries -= len(counts)
                for token in following:
                    counts[token] = counts.get(token, 0) + 1
                self._entries += len(counts)
        while self._entries > self.max_entries:
            self._entries -= len(self._counts.pop(next(iter(self._counts))))
        if not self.stop_if_unknown:
            self._totals.update(text[start:])

    def look_up(self, text: Sequence[int], count: int) -> tuple[int, list[int]]:
        recent = list(text[-self.max_ngram_size :])
        lengths: list[int] = []
        while len(lengths) < count:
            length, counts = self._counts_behind(recent)
            if not counts:
                break
            lengths.append(length)
            recent.append(max(counts, key=counts.__getitem__))
        return next(iter(lengths), 0), recent[len(recent) - len(lengths) :]

    def _counts_behind(self, text: Sequence[int]) -> tuple[int, Mapping[int, int]]:
        """(size of the longest known n-gram at the end of `text`, what followed it how often)"""
        for size in range(min(self.max_ngram_size, len(text)), self.min_ngram_size - 1, -1):
            if counts := self._counts.get(tuple(text[len(text) - size :])):
                return size, counts
        return 0, self._totals

    def _content(self) -> dict[str, Any]:
        counts = [[ngram, list(counts.items())] for ngram, counts in self._counts.items()]
        return asdict(self) | {"counts": counts, "totals": list(self._totals.items())}

    def _restore(self, learned: dict[str, Any]) -> None:
        self._counts = {tuple(checked(ngram)): checked_counts(pairs) for ngram, pairs in learned.pop("counts")}
        self._totals = Counter(checked_counts(learned.pop("totals")))
        self._entries = sum(map(len, self._counts.values()))


@dataclass(eq=False)
class TextStore(Store):
    """Keeps whole texts and copies from where the longest context stood: best for repetitions.

    Of the last such places it takes the one with the longest continuation, and of equals the latest.

    max_ngram_size: the longest context looked up.
    max_entries: the most tokens kept; when there are more, the older half is forgotten.
    """

    kind = "texts"
    max_ngram_size: int = 16
    _: KW_ONLY
    max_entries: int = 200_000
    vocabulary: str | None = None

    def __post_init__(self) -> None:
        if self.max_ngram_size < 1:
            raise InputError(f"max_ngram_size must be >= 1, not {self.max_ngram_size}")
        if self.max_entries < 2:
            raise InputError(f"max_entries must be >= 2, not {self.max_entries}")
        self.reset()

    def reset(self) -> None:
        self._index = SuffixIndex(self.max_ngram_size)

    def __len__(self) -> int:
        return len(self._index.tokens)

    def learn(self, text: Sequence[int], start: int = 0, likeliest: Sequence[Sequence[int]] = ()) -> None:
        if likeliest:
            raise InputError("a store of texts cannot learn likeliest ids (filler_top_k); use one of n-grams")
        known = self._index.tokens
        before = list(text[max(start - self.max_ngram_size, 0) : start])
        if known and not (before and known[-len(before) :] == before):  # another text was learned in between
            self._index.extend([BOUNDARY, *before])
        self._index.extend(text[start:])
        if len(known) > self.max_entries:
            self._index = SuffixIndex(self.max_ngram_size, known[-(self.max_entries // 2) :])

    def look_up(self, text: Sequence[int], count: int) -> tuple[int, list[int]]:
        found = self._index.find(text)
        latest = reversed(found[-1][-count:] if found else ())  # the longest is among them if a text repeats itself
        return len(found), max((self._continuation(end, count) for end in latest), key=len, default=[])

    def _continuation(self, end: int, count: int) -> list[int]:
        continuation = self._index.tokens[end : end + count]
        return continuation[: continuation.index(BOUNDARY)] if BOUNDARY in continuation else continuation

    def _content(self) -> dict[str, Any]:
        return asdict(self) | {"tokens": self._index.tokens}

    def _restore(self, learned: dict[str, Any]) -> None:
        self._index.extend(checked(learned.pop("tokens"), least=BOUNDARY))


KINDS: dict[str, type[NgramStore] | type[TextStore]] = {store.kind: store for store in (NgramStore, TextStore)}


def make_store(storage: str, max_ngram_size: int, vocabulary: str, filler_top_k: int, stop_if_unknown: bool) -> Store:
    """An empty store: whole texts, counts of all n-grams up to a size, or of those of that size alone."""
    if storage == "texts":
        return TextStore(max_ngram_size, vocabulary=vocabulary)
    return NgramStore(
        max_ngram_size,
        max_ngram_size if storage == "onelevel" else 1,
        filler_top_k=filler_top_k,
        stop_if_unknown=stop_if_unknown,
        vocabulary=vocabulary,
    )


def checked(values: Any, least: int = 0) -> list[int]:
    """The values as a list. Raises ValueError unless they are whole numbers such as ids and counts are."""
    numbers = list(values)
    if not all(type(number) is int and least <= number < MAX_ID for number in numbers):
        raise ValueError("not a list of ids")
    return numbers


def checked_counts(pairs: Any) -> dict[int, int]:
    return {token: number for token, number in map(checked, pairs)}
