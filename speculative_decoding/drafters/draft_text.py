"""Follows an output through a text that it may repeat: the source, or a given text such as an earlier version.

For the source, this is input-guided drafting (Sun et al. 2021, "Instantaneous Grammatical Error Correction"; Ge et al.
2022, arXiv 2205.10350). OpenAI calls a given text a prediction ("predicted outputs"). The text may differ from the
output anywhere. After a difference, the output's last tokens are looked up in the text to find the place again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from .suffix_index import SuffixIndex

SPACES = ("▁", "Ġ")  # how SentencePiece and byte-level BPE write a leading space
MAX_CONTEXT = 8  # maximum number of the output's last tokens that are looked up in the text
MAX_DIFFERENCE = 3  # number of differing tokens after which nothing is drafted until the place is found again
MAX_PIECES = 16  # maximum pieces in a word; in languages without spaces, the text between two spaces may be longer
CONFIRMED = 4  # number of agreeing tokens in a row after which the text is considered a version of the output


class Place(NamedTuple):
    """Where an output is in a text.

    Args:
        position: The position in the text of the token expected next.
        length: How many tokens before this position agree with the output or, after a difference, how many differ.
        status: "confirmed" or "unconfirmed", followed by "difference" if the last tokens differ.
    """

    position: int
    length: int
    status: str

    @property
    def differs(self) -> bool:
        return self.status.endswith("difference")


class DraftText:
    """A text that the outputs of any number of requests can follow.

    Args:
        ids: The text as output ids, including an end token.
        pieces: The vocabulary's pieces by id, which allow words to be compared regardless of case and a leading space.
        kind: The kind of draft: `TEXT` or `MEMORY`; `COPY` for the source.
        group: Texts of one kind and group are expected to be equally good.
        max_context: The maximum number of output tokens to look up.
    """

    def __init__(
        self,
        ids: Iterable[int],
        pieces: Mapping[int, str],
        kind: str,
        group: str = "",
        max_context: int = MAX_CONTEXT,
    ) -> None:
        self.ids = [*ids]
        self.kind = kind
        self.group = group
        self.max_context = max_context
        self._pieces = pieces
        self._classes: dict[int, int] = {}  # the class of each token seen
        self._words: dict[str, int] = {}  # the class of each word seen
        self.classes = [*map(self.class_of, self.ids)]

    @cached_property
    def index(self) -> SuffixIndex:
        """An index of the classes, needed only after a difference."""
        return SuffixIndex(self.max_context, self.classes)

    def update(self, ids: Sequence[int]) -> None:
        """Replace the text, possibly while it is being followed. Usually, `ids` begins with the present ids."""
        held = len(self.ids)
        if list(ids[:held]) != self.ids:
            held = 0
            self.ids = []
            self.classes = []
            vars(self).pop("index", None)
        self.extend(ids[held:])

    def extend(self, ids: Sequence[int]) -> None:
        """Append to the text."""
        classes = [*map(self.class_of, ids)]
        self.ids += ids
        self.classes += classes
        if "index" in vars(self):
            self.index.extend(classes)

    def class_of(self, token: int) -> int:
        """Return the first token seen that represents the same word, regardless of case and a leading space."""
        if (known := self._classes.get(token)) is not None:
            return known
        piece = self._pieces.get(token)
        found = token
        if piece is not None:
            bare = piece[1:] if piece[:1] in SPACES else piece
            found = self._words.setdefault((bare or piece).casefold(), token)
        self._classes[token] = found
        return found

    def follow(self, prefix: Iterable[int] = ()) -> TextFollower:
        """Return a follower for one output. prefix: see `TextFollower`."""
        return TextFollower(self, prefix)

    def after_word(self, position: int) -> int:
        """Return the position after the word at `position`; without pieces, after the token."""
        last = min(position + MAX_PIECES, len(self.ids))
        position += 1
        while position < last and not self._pieces.get(self.ids[position], SPACES[0]).startswith(SPACES):
            position += 1
        return position

    @property
    def start(self) -> int:
        """The position after a task prefix ("grammar: "), if one of the first tokens ends with a colon."""
        first = (self._pieces.get(token, "") for token in self.ids[:12])
        return next((i + 1 for i, piece in enumerate(first) if piece.endswith(":")), 0)


class TextFollower:
    """Follows one output through a text: `append` each output token, then `find` the place from which to continue.

    Args:
        text: The text, which may grow while it is followed.
        prefix: The tokens of a forced prefix, with which the text may begin.
        start: The position at which the text begins.
    """

    def __init__(self, text: DraftText, prefix: Iterable[int] = (), start: int = 0) -> None:
        self.text = text
        self._position = start  # index in the text of the token expected next
        self._agreed = 0  # number of last tokens in a row that agree
        self._differing = 0  # number of tokens since the last one that agreed
        self._is_confirmed = False
        self._output: list[int] = []  # the classes of the last tokens
        for token in prefix:
            self.append(token)
        self._differing = 0

    def append(self, token: int) -> None:
        """Add an output token. The start token is not part of the output."""
        text = self.text
        token_class = text.class_of(token)
        self._output = [*self._output[-text.max_context :], token_class]
        if self._position < len(text.classes) and text.classes[self._position] == token_class:
            self._agree(self._position + 1, self._agreed + 1)
            return
        self._agreed = 0
        self._differing += 1
        if found := text.index.find(self._output):
            ends = found[-1]  # of the longest match; choose the next end ahead, or else the nearest one behind
            self._agree(ends[min(bisect_left(ends, self._position), len(ends) - 1)], len(found))

    def find(self) -> Place | None:
        """Return the place from which to continue: after a few differing tokens, the start of the text's next word."""
        status = "confirmed" if self._is_confirmed else "unconfirmed"
        if not self._differing:
            return Place(self._position, self._agreed, status)
        if self._differing > MAX_DIFFERENCE:
            return None
        return Place(self.text.after_word(self._position), self._differing, f"{status} difference")

    def continuation(self, place: Place, count: int) -> list[int]:
        """Return up to `count` ids to draft at a place."""
        return self.text.ids[place.position : place.position + count]

    def _agree(self, position: int, length: int) -> None:
        self._position = position
        self._agreed = length
        self._differing = 0
        self._is_confirmed = self._is_confirmed or length >= CONFIRMED
