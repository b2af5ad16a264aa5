"""Decodes ids of a tokenizer whose text may change until the last one (`FolderTokenizer.waits_for_end`)."""

from __future__ import annotations

from collections.abc import Sequence

from .tokenizer_base import Tokenizer


class WholeTextDetokenizer:
    """Replaces `StreamingDetokenizer`. The text is returned at the end."""

    def __init__(self, tokenizer: Tokenizer, prefix: Sequence[int] = ()) -> None:
        self._decode = tokenizer.decode
        self._ids = [*prefix]
        self._start = self._decode(self._ids)

    def add(self, token: int) -> str:
        self._ids.append(token)
        return ""

    def finish(self) -> str:
        return without_start(self._decode(self._ids), self._start)


def without_start(text: str, start: str) -> str:
    """Return the text after the part in which it agrees with `start`."""
    same = next((i for i, (one, other) in enumerate(zip(text, start, strict=False)) if one != other), len(start))
    return text[same:]
