"""Where a generation ends: at an end-of-sequence token or a stop string. Knows nothing of models and drafts."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence

from ..loading.tokenizer import StreamingDetokenizer, Tokenizer


class Ending:
    """Is shown a request's tokens one by one; says behind which it ends, and keeps the text of each until asked.

    eos_token_ids: end the text and are no part of it.
    stop: strings that end the text in front of them, wherever token borders fall. Nothing is given out that may yet
        turn out to be the beginning of one.
    prefix: ids that stand in front of the first token and are no part of the text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        eos_token_ids: Collection[int],
        stop: Sequence[str] = (),
        prefix: Sequence[int] = (),
    ) -> None:
        self._eos_token_ids = frozenset(eos_token_ids)
        self._stop, self._prefix, self._tokenizer = tuple(stop), tuple(prefix), tokenizer
        self._detokenizer = StreamingDetokenizer(tokenizer)
        for token in prefix:  # so that the first word comes with its space, and half a character is completed
            self._detokenizer.add(token)
        self._held = ""  # text that may be the beginning of a stop string
        self._stopped = False
        self._pieces: deque[str] = deque()

    def __call__(self, token: int) -> bool:
        """The next token: whether generation ends behind it."""
        ends = token in self._eos_token_ids
        self._pieces.append("" if ends else self._release(self._detokenizer.add(token)))
        return ends or self._stopped

    def text_of(self, tokens: Iterable[int]) -> str:
        """Of a whole output in place of this one."""
        other = Ending(self._tokenizer, self._eos_token_ids, self._stop, self._prefix)
        for token in tokens:
            other(token)
        return "".join(other._pieces) + other.finish()

    def next_text(self) -> str:
        """What the oldest token not yet asked for added to the text."""
        return self._pieces.popleft()

    def finish(self) -> str:
        """What was held back, when there is nothing to come."""
        text = self._release(self._detokenizer.finish())
        held, self._held = self._held, ""
        return text if self._stopped else text + held

    def _release(self, text: str) -> str:
        """Add text; return what can be given out."""
        if self._stopped:
            return ""
        self._held += text
        if (cut := first_stop(self._held, self._stop)) is not None:
            self._stopped = True
        else:
            cut = len(self._held) - longest_beginning(self._held, self._stop)
        released, self._held = self._held[:cut], self._held[cut:]
        return released


def first_stop(text: str, stop: Sequence[str]) -> int | None:
    """Where the stop string begins that is complete first, as if the text came letter by letter.

    Of several that are complete at the same letter it is the longest.
    """
    ends_and_starts = [(at + len(each), at) for each in stop if (at := text.find(each)) >= 0]
    return min(ends_and_starts)[1] if ends_and_starts else None


def longest_beginning(text: str, stop: Sequence[str]) -> int:
    """How many letters at the end of the text may be the beginning of a stop string."""
    sizes = (
        size for each in stop for size in range(min(len(each) - 1, len(text)), 0, -1) if each.startswith(text[-size:])
    )
    return max(sizes, default=0)
