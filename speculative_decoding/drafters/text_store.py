"""Keeps the text of earlier requests, in memory or in a file, for n-gram drafts. Stores only token ids.

A request is stored as one text: its source ids, the start token, and its output ids. If the same source occurs again,
its last tokens already match, and their continuation is the earlier output.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoints.files import open_if_regular
from ..errors import InputError, writing
from ..runs.places import atomic_write
from ..sampling.options import validate
from ..sampling.values import Int
from ..subpackages import require_subpackage
from .suffix_index import BOUNDARY, SuffixIndex

if TYPE_CHECKING:
    from ..memory import TranslationMemory

FORMAT = "speculative-decoding n-gram store"
FORMAT_VERSION = 1
KIND = "texts"


@dataclass(eq=False)
class TextStore:
    """Stores whole texts and finds the continuation of a text's last tokens.

    Among the latest occurrences, the one with the longest continuation wins. If several are equally long, the latest
    wins.

    Args:
        max_ngram_size: The maximum number of tokens to look up.
        max_entries: The maximum number of tokens kept. When it is exceeded, the older half is dropped.
        vocabulary: `tokenizer.vocabulary.fingerprint`. It is saved in the file, so that a store is never used with
            another model's ids.

    Attributes:
        changes: How many times the texts have changed.
    """

    max_ngram_size: int = 16
    _: KW_ONLY
    max_entries: int = 200_000
    vocabulary: str | None = None

    def __post_init__(self) -> None:
        for name, least in (("max_ngram_size", 1), ("max_entries", 2)):
            setattr(self, name, validate(name, Int(least), getattr(self, name)))
        self.changes = 0
        self.reset()

    @staticmethod
    def from_pairs(pairs: Iterable[tuple[str, str]]) -> TranslationMemory:
        """Return a translation memory of pairs (source, target), for `load(..., memory=)` and `Session(memory=)`.

        Unlike a store, a memory is searched by prompt similarity, contains strings, and does not learn from requests.

        Raises:
            InputError: An element is not a pair of strings.
        """
        require_subpackage("memory", "pairs")
        from ..memory import TranslationMemory

        return TranslationMemory.from_pairs(pairs)

    def reset(self) -> None:
        """Remove all texts."""
        self.changes += 1
        self._index = SuffixIndex(self.max_ngram_size)

    def __len__(self) -> int:
        """The number of tokens kept."""
        return len(self._index.tokens)

    def learn(self, text: Sequence[int], start: int = 0) -> None:
        """Add `text[start:]`. Earlier calls must have added `text[:start]`."""
        self.changes += 1
        known = self._index.tokens
        context = list(text[max(start - self.max_ngram_size, 0) : start])
        if known and not (context and known[-len(context) :] == context):  # another text has been added in the meantime
            self._index.extend([BOUNDARY, *context])
        self._index.extend(text[start:])
        if len(known) > self.max_entries:
            self._index = SuffixIndex(self.max_ngram_size, known[-(self.max_entries // 2) :])

    def look_up(self, text: Sequence[int], count: int) -> tuple[int, list[int]]:
        """Return how many of `text`'s last tokens match, and up to `count` ids that follow them in the store."""
        found = self._index.find(text)
        if not found:
            return 0, []
        latest = reversed(found[-1][-count:])  # in repetitive text, one of these ends is followed by `count` tokens
        return len(found), max((self._continuation(end, count) for end in latest), key=len, default=[])

    def _continuation(self, end: int, count: int) -> list[int]:
        continuation = self._index.tokens[end : end + count]
        return continuation[: continuation.index(BOUNDARY)] if BOUNDARY in continuation else continuation

    def save(self, path: str | Path) -> None:
        """Atomically write a JSON file that only its owner can read. Other threads may add text at the same time.

        Raises:
            InputError: The file cannot be written.
        """
        content = json.dumps({"kind": KIND, **asdict(self), "tokens": [*self._index.tokens]})
        with writing("n-gram store", Path(path)):
            atomic_write(Path(path), f"{json.dumps(header_of(content))}\n{content}\n", mode=0o600)

    @classmethod
    def open(cls, path: Path, vocabulary: str, max_ngram_size: int) -> TextStore:
        """Read a file that `save` wrote, or return a new store if there is none. See `load`."""
        return cls.load(path, vocabulary) if path.exists() else cls(max_ngram_size, vocabulary=vocabulary)

    @classmethod
    def load(cls, path: str | Path, expected_vocabulary: str | None = None) -> TextStore:
        """Read a file that `save` wrote.

        Args:
            expected_vocabulary: The fingerprint that a store with a vocabulary must have.

        Raises:
            InputError: The file is missing or damaged, or belongs to another vocabulary.
        """
        try:
            with open_if_regular(Path(path)) as file:
                header, content, rest = file.read().decode().split("\n")
            if rest or json.loads(header) != header_of(content):
                raise ValueError(f"header does not match (expected {FORMAT!r}, version {FORMAT_VERSION}, and checksum)")
            store = cls._from_json(json.loads(content))
        except OSError as error:
            raise InputError(f"n-gram store {path}: cannot be read ({error.strerror}); name another file") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(f"n-gram store {path}: damaged or of another kind ({error}); delete it") from error
        if None not in (store.vocabulary, expected_vocabulary) and store.vocabulary != expected_vocabulary:
            raise InputError(f"n-gram store {path}: the vocabulary is another model's; name another file")
        return store

    @classmethod
    def _from_json(cls, content: dict[str, Any]) -> TextStore:
        """Build a store from a file's content. Raises KeyError, TypeError or ValueError if the content is invalid."""
        if content.pop("kind") != KIND:
            raise ValueError("it does not hold texts")
        tokens = content.pop("tokens")
        if not isinstance(content["vocabulary"], str | None):
            raise ValueError(f"invalid vocabulary {content['vocabulary']!r}")
        if not all(type(token) is int and BOUNDARY <= token < 2**31 for token in tokens):
            raise ValueError("the tokens are not a list of ids")
        store = cls(**content)
        store._index.extend(tokens)
        return store


def header_of(content: str) -> dict[str, Any]:
    """Return the header for a file's first line, given the content of its second line."""
    digest = hashlib.sha256(content.encode()).hexdigest()
    return {"format": FORMAT, "format_version": FORMAT_VERSION, "sha256": digest}
