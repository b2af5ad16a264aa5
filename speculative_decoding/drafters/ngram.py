"""Drafts copied from text: the source, the output so far, what a session wrote before. No model, no device.

Prompt lookup that also reads the encoder's input, where the text to copy is in an encoder-decoder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace

from ..errors import InputError
from .alignment import Alignment, Pieces
from .base import COPY, Drafter, Likeliest
from .ngram_store import Store
from .suffix_index import SuffixIndex
from .trust import Trust

# The chance that a copied token is right, by origin and by how much text speaks for it (0, 1, 2-3, 4-7, 8 or more
# tokens), and how many tokens of experience this prior is worth. From held-out prompts of the bundled tasks.
CHANCES = {
    "opening": (0.6,) * 5,
    "resumed": (0.45,) * 5,
    "near": (0.5, 0.6, 0.8, 0.85, 0.9),
    "far": (0.3, 0.35, 0.55, 0.7, 0.8),
    "output": (0.2, 0.3, 0.6, 0.8, 0.9),
    "store": (0.2, 0.3, 0.5, 0.7, 0.8),
}
WEIGHT = 3.0
LOOKED_AHEAD = 16  # tokens of a match that nobody asked to draft
LONGEST = 4  # the last of these classes of length


@dataclass(frozen=True)
class Match:
    """What a text says comes next.

    length: how many of the last tokens stand in front of `continuation` there as well (0: a guess without a match).
    continuation: ids, as many as were asked for at most, less where the text ends.
    origin: "near", "far", "opening" or "resumed" (the source, see `Place`), "output" or "store"; "" if there is none.
    chance: how likely the first of them is right, in the experience of this drafter.
    """

    length: int = 0
    continuation: Sequence[int] = field(default_factory=list)
    origin: str = ""
    chance: float = 0.0


class NgramDrafter(Drafter):
    """Looks in the source, in the output so far, in a store, and copies behind what stands there as the last tokens do.

    In each text the longest match wins; among equally long ones in the source the one nearest to where the output is
    aligned, in the output the earliest (it has the longest continuation), in a store of texts the latest. Among the
    texts the one whose match, by its length, is right most often wins; at first sight the source before the output
    before the store.

    pieces: `tokenizer.vocabulary.pieces`; with it the same word with and without a leading space or a capital matches,
        copying begins behind a task prefix, and resumes behind a replaced word rather than a replaced token.
    search_input, search_output: where to look. Hugging Face's prompt lookup is the output only.
    store: is searched, and learns every request; it may be shared and outlive the drafter.
    max_ngram_size, min_ngram_size: the longest context looked up, and the shortest believed.
    min_chance: draft only as far as all tokens are right with this chance, in the experience of this drafter, by kind
        and length of match. 0 always copies as many as are asked for.

    It learns what its guesses are worth from request to request, so keep it for a session. Draws nothing, waits for
    nothing. Raises `InputError` that names the argument.
    """

    kind = COPY

    def __init__(
        self,
        *,
        pieces: Mapping[int, str] | Pieces | None = None,
        search_input: bool = True,
        search_output: bool = True,
        store: Store | None = None,
        max_ngram_size: int = 16,
        min_ngram_size: int = 1,
        min_chance: float = 0.15,
    ) -> None:
        if min_ngram_size < 1:
            raise InputError(f"min_ngram_size must be >= 1, not {min_ngram_size}")
        if max_ngram_size < min_ngram_size:
            raise InputError(
                f"max_ngram_size must be >= min_ngram_size ({min_ngram_size}), not {max_ngram_size}; change one of them"
            )
        if not 0 <= min_chance < 1:
            raise InputError(f"min_chance must be >= 0 and < 1, not {min_chance}")
        if not (search_input or search_output or store is not None):
            raise InputError("an n-gram drafter needs a text to search: the input, the output or a store")
        self._pieces = pieces if isinstance(pieces, Pieces) else Pieces.of(pieces or {})
        self._search_input, self._search_output, self._store = search_input, search_output, store
        self._max_size, self._min_size, self._min_chance = max_ngram_size, min_ngram_size, min_chance
        self._trust = Trust(
            {
                (origin, length): (chance, WEIGHT)
                for origin, chances in CHANCES.items()
                for length, chance in enumerate(chances)
            }
        )
        self._source: list[int] = []
        self._guess: Match | None = None  # the last one, until it is known what it was worth
        self._asked = 0  # how many tokens it might have had
        self._taught = 0  # how many of the request's tokens the store has learned
        self._restart()

    @property
    def top_k(self) -> int:
        """How many likeliest ids the store wants to learn; 0 if only what is written."""
        wanted = 0 if self._store is None else self._store.filler_top_k
        return wanted if wanted > 1 else 0

    def fresh(self) -> NgramDrafter:
        """Another one for another request at the same time: the store and the experience are shared."""
        other = copy(self)
        other._source = []
        other._restart()
        return other

    def end(self, tokens: Sequence[int]) -> None:
        self.learn(tokens)

    def begin(self, input_tokens: Sequence[int]) -> None:
        self.learn(self._output.tokens)
        self._source = list(input_tokens)
        self._restart()

    def propose(self, tokens: Sequence[int], num_draft_tokens: int) -> list[int]:
        if num_draft_tokens < 1:
            return []
        match = self.match(tokens, num_draft_tokens)
        return list(match.continuation[: self.reach(match)])

    def match(self, tokens: Sequence[int], num_draft_tokens: int = LOOKED_AHEAD) -> Match:
        """The best match for the committed decoder ids `tokens` (start token first), however unlikely."""
        self._synchronise(tokens)
        if self._guess is not None and num_draft_tokens <= self._asked:  # asked again
            return replace(self._guess, continuation=self._guess.continuation[:num_draft_tokens])
        best = Match()
        for length, continuation, origin in self._found(tokens, num_draft_tokens):
            if continuation:
                chance = self._trust.chance(class_of(origin, length))
                if not best.origin or chance > best.chance:
                    best = Match(length, continuation, origin, chance)
        if best.origin:
            self._guess, self._asked = best, num_draft_tokens
        return best

    def reach(self, match: Match) -> int:
        """How many tokens of it are worth proposing."""
        if not match.origin:
            return 0
        return self._trust.reach(class_of(match.origin, match.length), self._min_chance, len(match.continuation))

    def observe(self, tokens: Sequence[int], likeliest: Likeliest) -> None:
        if self.top_k:
            self.learn(tokens, likeliest(self.top_k))

    def learn(self, tokens: Sequence[int], likeliest: Sequence[Sequence[int]] = ()) -> None:
        """Teach the store the committed decoder ids of this request. To be called when it ends, or more often.

        likeliest: for each of the last tokens the target's most likely ids in that position, if the store wants them
            (`store.filler_top_k`).
        The next `begin` teaches it what it has been shown until then in any case.
        """
        if self._store is None:
            return
        if tokens:
            self._synchronise(tokens)
        if len(tokens) > max(self._taught, 1):  # more than the start token, and more than last time
            start = len(self._source) + self._taught if self._taught else 0
            self._store.learn([*self._source, *tokens], start, likeliest)
            self._taught = len(tokens)

    def _restart(self) -> None:
        self._alignment = Alignment(
            self._source if self._search_input else [], self._pieces, self._max_size, self._min_size
        )
        self._output = SuffixIndex(self._max_size)
        self._guess, self._taught = None, 0

    def _synchronise(self, tokens: Sequence[int]) -> None:
        seen = self._output.tokens
        if seen != tokens[: len(seen)]:  # not the same request any more
            self._restart()
            seen = self._output.tokens
        new = tokens[len(seen) :]
        if self._guess is not None and new:
            self._trust.learn(class_of(self._guess.origin, self._guess.length), self._guess.continuation, new)
            self._guess = None
        if self._search_input:
            for token in new if seen else new[1:]:
                self._alignment.read(token)
        self._output.extend(new)

    def _found(self, tokens: Sequence[int], count: int) -> Iterator[tuple[int, list[int], str]]:
        """(length, continuation, origin) of the match in each text, those with precedence first."""
        if self._search_input and (place := self._alignment.place()):
            yield place.length, self._source[place.start : place.start + count], place.origin
        if self._search_output:
            found = self._output.find(tokens)
            if len(found) >= self._min_size:
                earliest = found[-1][0]
                yield len(found), self._output.tokens[earliest : earliest + count], "output"
        if self._store is not None:
            length, continuation = self._store.look_up(self._recent(tokens), count)
            if length >= len(tokens):  # it reaches into the source: its end and the start token are in every request
                length = max(length - 2, 0)
            if length >= self._min_size or not self._store.stop_if_unknown:
                yield length, continuation, "store"

    def _recent(self, tokens: Sequence[int]) -> list[int]:
        """The last `max_ngram_size` tokens of the source and the output in one."""
        missing = self._max_size - len(tokens)
        return [*self._source[-missing:], *tokens] if missing > 0 else list(tokens[-self._max_size :])


def class_of(origin: str, length: int) -> tuple[str, int]:
    """What `Trust` tells apart: where a match is from, and the number of binary digits of its length."""
    return origin, min(length.bit_length(), LONGEST)
