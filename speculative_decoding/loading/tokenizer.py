"""Text to ids and back, and text that streams out as ids come in. Knows nothing of models."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from ..checkpoints.files import open_regular
from ..errors import InputError

# Every file a T5-like tokenizer may consist of; conversion copies those that are there.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "spiece.model",
    "sentencepiece.model",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
)
MAX_BYTES = 64 << 20  # of each; mT5's takes 16 MB
REPLACEMENT = "\ufffd"  # what decoding yields where a character's bytes are not all there yet
UNKNOWN = "<unk>"


class Tokenizer(Protocol):
    """What the package needs of a tokenizer. `encode` ends with the end-of-sequence token, as T5 was trained."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Text without special tokens."""

    @property
    def vocabulary(self) -> Vocabulary: ...


class Vocabulary:
    """Which piece each id stands for. A draft model must have the target's."""

    def __init__(self, pieces: Mapping[str, int]) -> None:
        by_id = {index: piece for piece, index in sorted(pieces.items(), key=lambda item: item[1])}
        self.pieces: Mapping[int, str] = MappingProxyType(by_id)  # read-only, for models share it

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.pieces)


def fingerprint(pieces: Mapping[int, str]) -> str:
    text = "\0".join(f"{index} {piece}" for index, piece in pieces.items())
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@contextmanager
def failing_in_one_line(what: str) -> Iterator[None]:
    """Packages of tokenizers raise whatever their parts raise, Rust's panics among it, which are no `Exception`."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InputError(f"{what} ({reason})") from error


class FastTokenizer:
    """A `tokenizer.json`, read by the `tokenizers` package: the same ids as transformers, without importing it."""

    def __init__(self, path: Path) -> None:
        import tokenizers

        with failing_in_one_line(f"{path}: not a readable tokenizer"):
            self._backend = tokenizers.Tokenizer.from_file(str(path))
            self._backend.no_truncation()
            self._backend.no_padding()
            self.vocabulary = Vocabulary(self._backend.get_vocab(with_added_tokens=True))

    def encode(self, text: str) -> list[int]:
        with failing_in_one_line("the tokenizer cannot cut this text"):
            return list(self._backend.encode(text).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        with failing_in_one_line("the tokenizer has no text for these tokens"):
            return str(self._backend.decode(list(tokens), skip_special_tokens=True))


class TransformersTokenizer:
    """Whatever transformers can load from the folder: a bare spiece.model, ByT5's bytes, CodeT5's BPE."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        with failing_in_one_line(f"{folder}: no tokenizer could be loaded from it"):
            self._backend = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            self.vocabulary = Vocabulary(self._backend.get_vocab())

    def encode(self, text: str) -> list[int]:
        with failing_in_one_line("the tokenizer cannot cut this text"):
            return list(self._backend(text).input_ids)

    def decode(self, tokens: Sequence[int]) -> str:
        with failing_in_one_line("the tokenizer has no text for these tokens"):
            return str(self._backend.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def load_tokenizer(folder: Path) -> Tokenizer:
    for name in TOKENIZER_FILES:
        if (folder / name).exists():
            open_regular(folder / name, MAX_BYTES).close()
    if (path := folder / "tokenizer.json").is_file():
        return FastTokenizer(path)
    if any((folder / name).is_file() for name in TOKENIZER_FILES):
        return TransformersTokenizer(folder)
    raise InputError(f"{folder}: no tokenizer found; it needs a tokenizer.json or the files that made it")


def unknown_characters(tokenizer: Tokenizer, text: str) -> list[str]:
    """Those that the vocabulary does not have: what it reads in their place is `UNKNOWN`."""

    def is_unknown(part: str) -> bool:
        return any(tokenizer.vocabulary.pieces.get(token) == UNKNOWN for token in tokenizer.encode(part))

    return [each for each in dict.fromkeys(text) if is_unknown(each)] if is_unknown(text) else []


class StreamingDetokenizer:
    """Ids in, text out, piece by piece: never half a character, and nothing already given is taken back.

    Decodes only the last few ids each time: the text of `ids[anchor:]` minus the text of `ids[anchor:done]`.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._anchor = 0  # decoding starts here: far enough back for spaces to come out right
        self._done = 0  # ids before this one have been given out as text

    def add(self, token: int) -> str:
        """The text that this id completes; empty while a character is incomplete."""
        self._tokens.append(token)
        text = self._pending()
        if text.endswith(REPLACEMENT):
            return ""
        if text:  # a special token has none, and would not keep the space in front of what follows it
            self._anchor = self._done
        self._done = len(self._tokens)
        return text

    def finish(self) -> str:
        """What is left, even if it ends in a broken character."""
        return self._pending()

    def _pending(self) -> str:
        before = self._tokenizer.decode(self._tokens[self._anchor : self._done])
        return self._tokenizer.decode(self._tokens[self._anchor :])[len(before) :]
