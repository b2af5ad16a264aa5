"""Converts tokens to text one by one, and finds the end of the output: an end-of-sequence token or a stop string."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from ..loading.tokenizer import StreamingDetokenizer, Tokenizer

if TYPE_CHECKING:  # imported at run time only if a tokenizer needs it
    from ..loading.whole_text import WholeTextDetokenizer

Replace = Callable[[Sequence[int], int], int]  # the output so far, and its next token -> the token to decode


class TextStreamer:
    """Converts the tokens of one output to text.

    Args:
        tokenizer: The tokenizer that decodes the tokens.
        eos_token_ids: Tokens that end the output; they add no text.
        stop: Strings that end the output, regardless of token boundaries. The text ends before the string, and text
            that may be the start of a stop string is held back.
        prefix: Ids before the first token; they add no text.
        replace: Replaces unknown tokens; see `decoding/unknowns.py`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        eos_token_ids: Collection[int],
        stop: Sequence[str] = (),
        prefix: Sequence[int] = (),
        replace: Replace | None = None,
    ) -> None:
        self._replace = replace
        self._tokens: list[int] = []  # the output so far, if tokens may be replaced
        self._tokenizer = tokenizer
        self.eos_token_ids = frozenset(eos_token_ids)
        self._stop = tuple(stop)
        self._prefix = tuple(prefix)
        # The prefix determines leading spaces, and the first token may complete its last character.
        self._detokenizer: StreamingDetokenizer | WholeTextDetokenizer
        if getattr(tokenizer, "waits_for_end", False):
            from ..loading.whole_text import WholeTextDetokenizer

            self._detokenizer = WholeTextDetokenizer(tokenizer, self._prefix)
        else:
            self._detokenizer = StreamingDetokenizer(tokenizer, self._prefix)
        self._held = ""  # text that may be the start of a stop string
        self._found_stop = False
        self.has_ended = False

    def add(self, token: int) -> str:
        """Add the next token and return the text that it releases. Sets `has_ended` if this token ends the output."""
        if token in self.eos_token_ids:
            self.has_ended = True
            return ""
        if self._replace is None:
            text = self._detokenizer.add(token)
        else:
            text = self._detokenizer.add(self._replace(self._tokens, token))
            self._tokens.append(token)
        return self._release(text) if self._stop else text

    def finish(self) -> str:
        """Return the text that was held back; no more tokens follow."""
        text = self._detokenizer.finish()
        if not self._stop:
            return text
        text = self._release(text)
        held, self._held = self._held, ""
        return text if self._found_stop else text + held

    def text_of(self, tokens: Iterable[int]) -> str:
        """Return the text of another output, decoded with the same settings."""
        other = TextStreamer(self._tokenizer, self.eos_token_ids, self._stop, self._prefix, self._replace)
        return "".join([other.add(token) for token in tokens]) + other.finish()

    def _release(self, text: str) -> str:
        """Add text to the held-back text, and return the part that cannot belong to a stop string."""
        if self._found_stop:
            return ""
        self._held += text
        if (end := first_stop(self._held, self._stop)) is not None:
            self._found_stop = self.has_ended = True
        else:
            end = len(self._held) - longest_partial_stop(self._held, self._stop)
        released, self._held = self._held[:end], self._held[end:]
        return released


def first_stop(text: str, stop: Sequence[str]) -> int | None:
    """The start of the stop string that ends first in `text`, or of the longest one if several end at that position."""
    ends_and_starts = [(at + len(each), at) for each in stop if (at := text.find(each)) >= 0]
    return min(ends_and_starts)[1] if ends_and_starts else None


def longest_partial_stop(text: str, stop: Sequence[str]) -> int:
    """The length of the longest suffix of `text` that may be the start of a stop string."""
    sizes = (
        size for each in stop for size in range(min(len(each) - 1, len(text)), 0, -1) if each.startswith(text[-size:])
    )
    return max(sizes, default=0)
