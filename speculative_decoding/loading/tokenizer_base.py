"""The tokenizer interface, and the base classes of tokenizers loaded from model folders. Independent of models."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import InputError
from .tokenizer_checks import check_tokenizer_json

if TYPE_CHECKING:  # imported at run time only for tokenizers with language tokens
    from .languages import Languages

# Every file that a tokenizer may use.
SENTENCEPIECE = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "source.spm", "target.spm")
CTRANSLATE2 = ("shared_vocabulary.json", "shared_vocabulary.txt")  # defines the ids of a SentencePiece model's pieces
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    *SENTENCEPIECE,
    "sentencepiece.model",
    "bpe.model",  # of Argos Translate packages
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "dict.txt",
    *CTRANSLATE2,
)
MAX_IDS = 1 << 24
SIDE_FILES = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
MAX_FILE_BYTES = 64 << 20  # Gemma's tokenizer.json is 34 MB


class Tokenizer(Protocol):
    """The interface that a tokenizer must implement."""

    @property
    def languages(self) -> Mapping[str, int]:
        """Language code, such as `deu_Latn`, -> token id. Empty for models without language tokens."""

    def encode(self, text: str, language: str | None = None) -> list[int]:
        """Return the encoder's token ids, including the family's special tokens (T5 appends its end token).

        language: one of `languages`, or None for the default in the tokenizer's files.
        """

    def encode_output(self, text: str) -> list[int]:
        """Return the decoder's output ids for this text, without a language token."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text without special tokens."""

    @property
    def vocabulary(self) -> Vocabulary: ...


class Vocabulary:
    """The piece of each token id."""

    def __init__(self, pieces: Mapping[str, int]) -> None:
        by_id = {index: piece for piece, index in sorted(pieces.items(), key=lambda item: item[1])}
        self.pieces: Mapping[int, str] = MappingProxyType(by_id)  # read-only, because models share it

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.pieces)


def fingerprint(pieces: Mapping[int, str]) -> str:
    text = "\0".join(f"{index} {piece}" for index, piece in pieces.items())
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@contextmanager
def tokenizer_errors(problem: str) -> Iterator[None]:
    """Convert a tokenizer library's errors to one-line `InputError`s.

    They include Rust panics, which do not derive from `Exception`.
    """
    try:
        yield
    except InputError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InputError(f"{problem} ({reason})") from error


class FolderTokenizer(ABC):
    """The tokenizer in a model's folder. Subclasses wrap the library that loads it.

    Args:
        pieces: Piece -> id, for all tokens.
        languages: Adds language tokens; None for most models, which have none.
        cleans_up: Whether `decode` cleans up spaces.

    Attributes:
        waits_for_end: Whether later tokens may change the text of any earlier token.
    """

    waits_for_end = False

    def __init__(self, pieces: Mapping[str, int], languages: Languages | None, cleans_up: bool) -> None:
        if (last := max(pieces.values(), default=0)) >= MAX_IDS:  # `tokenizers` allocates memory for all lower ids
            raise InputError(f"tokenizer: the id {last} is too large (expected < {MAX_IDS}); restore its files")
        self.vocabulary = Vocabulary(pieces)
        self.language_rules = languages
        self.languages: Mapping[str, int] = {} if languages is None else languages.ids
        self.cleans_up = cleans_up
        bytes_ = (pieces.get(f"<0x{byte:02X}>") for byte in range(256))
        self.byte_tokens = frozenset(token for token in bytes_ if token is not None)

    def encode(self, text: str, language: str | None = None) -> list[int]:
        with tokenizer_errors("tokenizer: cannot encode this text"):
            ids = self._encode(text, add_special_tokens=not self.languages)
        if self.language_rules is not None:
            return self.language_rules.wrap_source(ids, language)
        if language is not None:
            raise InputError(f"language {language!r}: this model has no language tokens; leave the language out")
        return ids

    def encode_output(self, text: str) -> list[int]:
        with tokenizer_errors("tokenizer: cannot encode this text"):
            ids = self._encode(text, add_special_tokens=not self.languages, as_output=not self.languages)
        return ids if self.language_rules is None else self.language_rules.wrap_output(ids)

    def decode(self, tokens: Sequence[int]) -> str:
        text = self.decode_as_written(tokens)
        if not self.cleans_up:
            return text
        from .clean_up import clean_up

        return clean_up(text)

    def decode_as_written(self, tokens: Sequence[int]) -> str:
        """Return the text without cleaning up spaces."""
        try:
            return self._decode(list(tokens))
        except BaseException:
            with tokenizer_errors(
                "tokenizer: cannot decode these tokens"
            ):  # entered only after an error, because entering takes 2 us
                raise

    @abstractmethod
    def _encode(self, text: str, *, add_special_tokens: bool, as_output: bool = False) -> list[int]: ...

    @abstractmethod
    def _decode(self, tokens: list[int]) -> str: ...


class FastTokenizer(FolderTokenizer):
    """A tokenizer from the `tokenizers` package, with additional steps that tokenizer.json cannot express.

    Args:
        backend: A `tokenizers.Tokenizer`.
        languages: Adds language tokens; None for most models.
        cleans_up: Whether to clean up spaces in decoded text.
        strips: Whether to remove spaces at both ends of decoded text.
        ends_once: The end token, if it must not be appended to ids that already end with it; else None.
    """

    def __init__(
        self,
        backend: Any,
        languages: Languages | None = None,
        cleans_up: bool = False,
        strips: bool = False,
        ends_once: int | None = None,
    ) -> None:
        super().__init__(backend.get_vocab(with_added_tokens=True), languages, cleans_up)
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.strips = strips
        self.ends_once = ends_once

    def _encode(self, text: str, *, add_special_tokens: bool, as_output: bool = False) -> list[int]:
        ids = list(self.backend.encode(text, add_special_tokens=add_special_tokens).ids)
        end = self.ends_once
        return ids[:-1] if add_special_tokens and end is not None and ids[-2:] == [end, end] else ids

    def _decode(self, tokens: list[int]) -> str:
        text = str(self.backend.decode(tokens, skip_special_tokens=True))
        return text.strip() if self.strips else text

    def record(self) -> dict[str, Any]:
        """Return the manifest entry that `load_tokenizer` needs to read tokenizer.json again."""
        return {
            "cleans_up": self.cleans_up,
            "strips": self.strips,
            "ends_once": self.ends_once,
            "languages": None if self.language_rules is None else self.language_rules.record(),
        }


def read_backend(data: bytes, path: Path) -> Any:
    """Load a tokenizer.json as a `tokenizers.Tokenizer`."""
    import tokenizers

    with tokenizer_errors(f"{path}: not a readable tokenizer"):
        check_tokenizer_json(data)
        return tokenizers.Tokenizer.from_buffer(data.removeprefix(BOM_UTF8))
