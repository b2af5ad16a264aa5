"""Loads a folder's tokenizer, and decodes ids as they arrive. Independent of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoints.files import open_regular
from ..errors import CheckpointError
from . import manifest
from .tokenizer_base import MAX_FILE_BYTES, FastTokenizer, FolderTokenizer, Tokenizer, Vocabulary, read_backend

if TYPE_CHECKING:  # imported at run time only if a tokenizer needs it
    from .clean_up import StreamedCleanUp

UNKNOWN = ("<unk>", "[UNK]")
REPLACEMENT = "\ufffd"  # the result of decoding an incomplete character


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load a folder's tokenizer. Raises `InputError` if the folder contains no readable tokenizer.

    A tokenizer.json that conversion has checked against the original is read with `tokenizers` alone. Other tokenizers
    are read with the library that defines their format, and importing it may take seconds.
    """
    if (record := proven_record(folder)) is None:
        from .reference_tokenizer import read_reference

        return read_reference(folder)
    with open_regular(path := folder / "tokenizer.json", MAX_FILE_BYTES) as file:
        backend = read_backend(file.read(), path)
    languages = None
    if (languages_record := record.get("languages")) is not None:
        from .languages import Languages

        languages = Languages.from_record(languages_record, backend.get_added_tokens_decoder(), folder)
    match record:
        case {"cleans_up": bool(cleans_up), "strips": bool(strips), "ends_once": None | int() as ends_once}:
            return FastTokenizer(backend, languages, cleans_up, strips, ends_once)
    raise CheckpointError(f"{folder / manifest.MANIFEST}: its entry for the tokenizer is damaged; {manifest.WAY_OUT}")


def proven_record(folder: Path) -> Mapping[str, Any] | None:
    """Return the manifest entry for tokenizer.json, or None if conversion has not checked this file."""
    content = manifest.read(folder)
    record, path = content.get("tokenizer"), folder / "tokenizer.json"
    if not isinstance(record, Mapping) or not path.is_file():
        return None
    size = content["files"].get(path.name, {}).get("bytes")
    return record if size == path.stat().st_size else None


def unknown_characters(tokenizer: Tokenizer, text: str, tokens: Sequence[int]) -> list[str]:
    """Return the distinct characters in a text that the tokenizer encodes as `<unk>`. tokens: the text's ids."""
    pieces = tokenizer.vocabulary.pieces
    if not any(pieces.get(token) in UNKNOWN for token in tokens):
        return []
    encoded = {character: tokenizer.encode(character) for character in dict.fromkeys(text)}
    return [character for character, ids in encoded.items() if any(pieces.get(token) in UNKNOWN for token in ids)]


def continuation_text(tokenizer: Tokenizer, tokens: Sequence[int], more: Sequence[int]) -> str:
    """Return the text that `more` adds after `tokens`. Tokens without text are shown as their pieces."""
    decode = tokenizer.decode_as_written if isinstance(tokenizer, FolderTokenizer) else tokenizer.decode
    context = list(tokens[-8:])  # enough to decide whether the next piece adds a space
    text = ""
    for token in more:
        before = decode(context).rstrip(REPLACEMENT)
        context.append(token)
        piece = decode(context)[len(before) :]
        text += piece if piece.strip(REPLACEMENT) else str(tokenizer.vocabulary.pieces.get(token, token))
    return text


WINDOW = 8  # ids that are decoded together; each new window requires a second call to the tokenizer
MAX_WINDOW = 64  # the upper limit, for ids that have no complete text


class StreamingDetokenizer:
    """Decodes ids to text incrementally. Never returns incomplete characters and never revises text it has returned.

    Each call decodes a window of the last few ids, and returns the part of the window's text that is new. The window
    begins with ids that have visible text, because tokenizers drop spaces at the start of a text.

    prefix: Ids that precede the output. Their text is not returned.
    """

    def __init__(self, tokenizer: Tokenizer, prefix: Sequence[int] = ()) -> None:
        self._decode = tokenizer.decode
        self._byte_tokens = frozenset[int]()
        self._clean_up: StreamedCleanUp | None = None
        if isinstance(tokenizer, FolderTokenizer):
            self._decode = tokenizer.decode_as_written
            self._byte_tokens = tokenizer.byte_tokens
            if tokenizer.cleans_up:
                from .clean_up import StreamedCleanUp

                self._clean_up = StreamedCleanUp()
        self._window: list[int] = []
        self._done = 0  # number of ids in the window whose text has been returned
        self._returned = 0  # number of characters in that text
        self._anchor: list[int] = []  # the last ids with visible text
        self._in_bytes = False  # whether the last id with text is a byte; later bytes may make the run invalid
        for token in prefix:
            self._add(token)
        if prefix:  # skip the prefix's remaining text, except for an incomplete character
            self._returned += len(self._complete_text())

    def add(self, token: int) -> str:
        """Return the text that this id completes, or "" as long as later ids may change the text."""
        text = self._add(token)
        return text if self._clean_up is None else self._clean_up.add(text)

    def finish(self) -> str:
        """Return the remaining text, even if it ends with an incomplete character."""
        text = self._decode(self._window)[self._returned :]
        return text if self._clean_up is None else self._clean_up.add(text) + self._clean_up.finish()

    def _add(self, token: int) -> str:
        self._window.append(token)
        if self._byte_tokens:
            if token in self._byte_tokens:
                self._in_bytes = True
            elif self._in_bytes and self._decode([token]):
                self._in_bytes = False
            if self._in_bytes:
                return ""
        text = self._decode(self._window)[self._returned :]
        is_long = len(self._window) > MAX_WINDOW
        if text.endswith(REPLACEMENT):
            return self._text_of_invalid_bytes() if is_long else ""
        if not text:
            if is_long:  # many special tokens; an incomplete character may be among the last ids
                del self._window[self._done : -MAX_WINDOW // 2]
            return ""
        own = self._window[self._done :]
        if len(self._window) >= WINDOW:
            self._start_window(own)
        else:
            self._returned += len(text)
            if not text.isspace():
                self._anchor = own
        self._done = len(self._window)
        return text

    def _start_window(self, own: list[int]) -> None:
        """Start a new window with the ids of the last text, preceded by ids with visible text if the text is blank."""
        text = self._decode(own)
        if text and not text.isspace():
            self._anchor = self._window = own
        elif self._anchor:
            self._window = self._anchor + own
        self._returned = len(self._decode(self._window))

    def _complete_text(self) -> str:
        """Return the remaining text without an incomplete character at its end."""
        ends = range(len(self._window), self._done - 1, -1)
        texts = (self._decode(self._window[:end])[self._returned :] for end in ends)
        return next(text for text in texts if REPLACEMENT not in text)

    def _text_of_invalid_bytes(self) -> str:
        """Return the text of ids at the window's start that no later id can complete, and remove those ids."""
        old, recent = self._window[:-WINDOW], self._window[-WINDOW:]
        text = self._decode(old)
        if text + self._decode(recent) != self._decode(self._window):
            return ""  # a character begins in `old` and ends in `recent`
        text = text[self._returned :]
        self._window, self._done, self._returned = recent, 0, 0
        return text


__all__ = [
    "FastTokenizer",
    "StreamingDetokenizer",
    "Tokenizer",
    "Vocabulary",
    "continuation_text",
    "load_tokenizer",
    "unknown_characters",
]
