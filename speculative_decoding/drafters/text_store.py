"""What earlier requests read and wrote, for a session or longer in a file. Knows token ids, nothing of models.

A request is stored as one text: the ids of its source, the start token, the ids of its output. So the end of a source
that was seen before already calls up the output it had.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError, writing
from ..loading.atomic_io import atomic_write
from ..sampling.options import accepted
from ..sampling.values import Whole
from .suffix_index import BOUNDARY, SuffixIndex

FORMAT = "speculative-decoding n-gram store"
FORMAT_VERSION = 1
KIND = "texts"  # earlier versions also wrote counts of n-grams
MAX_ID = 2**31


@dataclass(eq=False)
class TextStore:
    """Keeps whole texts and copies from where the longest context stood.

    Of the last such places it takes the one with the longest continuation, and of equals the latest.

    max_ngram_size: the longest context looked up.
    max_entries: the most tokens kept; when there are more, the older half is forgotten.
    vocabulary: `tokenizer.vocabulary.fingerprint`, kept in the file so that no other model's ids are read as ours.
    """

    max_ngram_size: int = 16
    _: KW_ONLY
    max_entries: int = 200_000
    vocabulary: str | None = None

    def __post_init__(self) -> None:
        for name, least in (("max_ngram_size", 1), ("max_entries", 2)):
            setattr(self, name, accepted(name, Whole(least), getattr(self, name)))
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._index = SuffixIndex(self.max_ngram_size)

    def __len__(self) -> int:
        """How many tokens it keeps."""
        return len(self._index.tokens)

    def learn(self, text: Sequence[int], start: int = 0) -> None:
        """Learn `text[start:]` in the context of `text[:start]`, which is known from earlier calls."""
        known = self._index.tokens
        before = list(text[max(start - self.max_ngram_size, 0) : start])
        if known and not (before and known[-len(before) :] == before):  # another text was learned in between
            self._index.extend([BOUNDARY, *before])
        self._index.extend(text[start:])
        if len(known) > self.max_entries:
            self._index = SuffixIndex(self.max_ngram_size, known[-(self.max_entries // 2) :])

    def look_up(self, text: Sequence[int], count: int) -> tuple[int, list[int]]:
        """(how many of the last tokens of `text` are known as a context, up to `count` ids that follow it)."""
        found = self._index.find(text)
        latest = reversed(found[-1][-count:] if found else ())  # the longest is among them if a text repeats itself
        return len(found), max((self._continuation(end, count) for end in latest), key=len, default=[])

    def _continuation(self, end: int, count: int) -> list[int]:
        continuation = self._index.tokens[end : end + count]
        return continuation[: continuation.index(BOUNDARY)] if BOUNDARY in continuation else continuation

    def save(self, path: str | Path) -> None:
        """Write a JSON file that appears whole or not at all. Raises `InputError` if it cannot be written."""
        content = json.dumps({"kind": KIND, **asdict(self), "tokens": self._index.tokens})
        with writing("n-gram store", Path(path)):
            atomic_write(Path(path), f"{json.dumps(header_of(content))}\n{content}\n")

    @classmethod
    def load(cls, path: str | Path, expected_vocabulary: str | None = None) -> TextStore:
        """Read what `save` wrote.

        expected_vocabulary: refuse a store that was made with another one.
        Raises `InputError` for that, and for a missing or damaged file.
        """
        try:
            head, content, end = Path(path).read_text(encoding="utf-8").split("\n")
            if end or json.loads(head) != header_of(content):
                raise ValueError(f"its first line is not {FORMAT!r}, version {FORMAT_VERSION}, with the right checksum")
            store = cls._restored(json.loads(content))
        except OSError as error:
            raise InputError(f"n-gram store {path}: cannot be read ({error.strerror}); name another file") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(f"n-gram store {path}: damaged or of another kind ({error}); delete it") from error
        if None not in (store.vocabulary, expected_vocabulary) and store.vocabulary != expected_vocabulary:
            raise InputError(f"n-gram store {path}: made with other tokens than this model's; name another file")
        return store

    @classmethod
    def _restored(cls, content: dict[str, Any]) -> TextStore:
        """Raises KeyError, TypeError or ValueError for what `save` cannot have written."""
        if content.pop("kind") != KIND:
            raise ValueError("it keeps counts of n-grams, not texts")
        tokens = content.pop("tokens")
        if not isinstance(content["vocabulary"], str | None):
            raise ValueError(f"vocabulary is {content['vocabulary']!r}")
        if not all(type(token) is int and BOUNDARY <= token < MAX_ID for token in tokens):
            raise ValueError("not a list of ids")
        store = cls(**content)
        store._index.extend(tokens)
        return store


def header_of(content: str) -> dict[str, Any]:
    """The first line of a file."""
    digest = hashlib.sha256(content.encode()).hexdigest()
    return {"format": FORMAT, "format_version": FORMAT_VERSION, "sha256": digest}
