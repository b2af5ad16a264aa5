"""Drafts copied from text: the source, the output so far, what earlier requests wrote. No model, no device.

Prompt lookup that also searches the encoder's input, where the text to copy is in an encoder-decoder.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field

from ..errors import InputError
from ..sampling import GenerationOptions
from .alignment import Alignment, Pieces
from .base import COPY, Drafter
from .suffix_index import SuffixIndex
from .text_store import TextStore

LOOKAHEAD = 16  # ids of a match, also where fewer are to be drafted: what was not drafted is observed too

# The chance before anything was seen, for matches of 0, 1, 2-3, 4-7, 8 or more tokens.
PRIOR = (0.5, 0.5, 0.7, 0.8, 0.9)
PRIOR_WEIGHT = 5.0  # how many seen tokens the prior is worth
MEMORY = 60  # tokens after which old observations count half


@dataclass(frozen=True)
class Match:
    """What a text says comes next.

    origin: "source", "output" or "store"; "" if nothing was found.
    length: how many of the last tokens stand in front of `continuation` there as well (0: a guess without a match).
    continuation: ids, `LOOKAHEAD` at most unless more were to be drafted, less where the text ends.
    chance: how likely each of them is right if those before it are, by the experience of this drafter.
    """

    origin: str = ""
    length: int = 0
    continuation: Sequence[int] = field(default_factory=list)
    chance: float = 0.0


class NgramDrafter(Drafter):
    """Looks for the last tokens in the source, in the output so far and in a store, and copies what follows there.

    In each text the longest match wins; among equally long ones in the source the next one ahead of where the output is
    aligned, in the output the earliest (it has the longest continuation), in a store the latest. Among the
    texts the one whose match, by its length, is right most often wins; of equals the source, then the output.

    pieces: `tokenizer.vocabulary.pieces`; with it the same word with and without a leading space or a capital matches,
        copying begins behind a task prefix, and resumes behind a replaced word rather than a replaced token.
    search_input, search_output: where to look. Hugging Face's prompt lookup is the output only.
    store: is searched, and learns every request; it may be shared and outlive the drafter.
    max_ngram_size: the longest context looked up.
    min_chance: draft only as far as all tokens are right with this chance, in the experience of this drafter, by origin
        and length of match. 0 always copies as many as are to be drafted.

    It learns how often its copies are right from request to request, so keep it for a session. It is deterministic.
    Raises `InputError` that names the argument.
    """

    kind = COPY

    def __init__(
        self,
        *,
        pieces: Mapping[int, str] | Pieces | None = None,
        search_input: bool = True,
        search_output: bool = True,
        store: TextStore | None = None,
        max_ngram_size: int = 16,
        min_chance: float = 0.15,
    ) -> None:
        GenerationOptions(max_ngram_size=max_ngram_size)  # checks them
        if not 0 <= min_chance < 1:
            raise InputError(f"min_chance must be >= 0 and < 1, not {min_chance}")
        if not (search_input or search_output or store is not None):
            raise InputError("an n-gram drafter needs a text to search: the input, the output or a store")
        self._pieces = pieces if isinstance(pieces, Pieces) else Pieces.from_vocabulary(pieces or {})
        self._search_input, self._search_output, self._store = search_input, search_output, store
        self._max_size, self._min_chance = max_ngram_size, min_chance
        self.chances = CopyChances()
        self.begin(())

    def fresh(self) -> NgramDrafter:
        """Another drafter for another request at the same time: the store and the experience are shared."""
        other = copy(self)
        other.begin(())
        return other

    def begin(self, input_tokens: Sequence[int]) -> None:
        self._source = list(input_tokens)
        self._restart()

    def _restart(self) -> None:
        source = self._source if self._search_input else []
        self._alignment = Alignment(source, self._pieces, self._max_size)
        self._output = SuffixIndex(self._max_size)
        self._match: Match | None = None  # for the last tokens, until it is known whether it was right
        self._taught = 0  # how many of the request's tokens the store has learned

    def propose(self, tokens: Sequence[int], num_draft_tokens: int) -> list[int]:
        match = self.match(tokens, num_draft_tokens)
        return list(match.continuation[: likely_length(match.chance, self._min_chance, num_draft_tokens)])

    def longest(self, tokens: Sequence[int]) -> int:
        match = self.match(tokens)
        count = min(len(match.continuation), likely_length(match.chance, self._min_chance, LOOKAHEAD))
        return count if count < LOOKAHEAD else sys.maxsize  # it was not looked for more

    def match(self, tokens: Sequence[int], num_draft_tokens: int = LOOKAHEAD) -> Match:
        """The best match for the committed decoder ids `tokens`, however unlikely; `propose` copies from it."""
        self._synchronise(tokens)
        if self._match is None or num_draft_tokens > LOOKAHEAD:
            matches = (
                Match(origin, length, continuation, self.chances.chance(origin, length))
                for origin, length, continuation in self._found(tokens, max(num_draft_tokens, LOOKAHEAD))
                if continuation
            )
            self._match = max(matches, key=lambda match: match.chance, default=Match())
        return self._match

    def end(self, tokens: Sequence[int]) -> None:
        """Teach the store what it has not seen."""
        self._synchronise(tokens)
        if self._store is not None and len(tokens) > max(self._taught, 1):  # more than the start token or last time
            start = len(self._source) + self._taught if self._taught else 0
            self._store.learn([*self._source, *tokens], start)
            self._taught = len(tokens)

    def _synchronise(self, tokens: Sequence[int]) -> None:
        """Read what was committed since the last call, and observe whether the match for it was right."""
        if self._output.tokens != tokens[: len(self._output.tokens)]:  # not the same request any more
            self._restart()
        seen = len(self._output.tokens)
        if not (new := tokens[seen:]):
            return
        if self._match is not None:
            self.chances.observe(self._match.origin, self._match.length, self._match.continuation, new)
            self._match = None
        if self._search_input:
            for token in new if seen else new[1:]:
                self._alignment.read(token)
        self._output.extend(new)

    def _found(self, tokens: Sequence[int], count: int) -> Iterator[tuple[str, int, list[int]]]:
        """(origin, length, continuation) of the match in each text, those with precedence first."""
        if self._search_input and (place := self._alignment.place()):
            start, length = place
            yield "source", length, self._source[start : start + count]
        if self._search_output:
            found = self._output.find(tokens)
            if found:
                earliest = found[-1][0]
                yield "output", len(found), self._output.tokens[earliest : earliest + count]
        if self._store is not None:
            missing = max(self._max_size - len(tokens), 0)
            recent = [*self._source[len(self._source) - missing :], *tokens[-self._max_size :]]
            length, continuation = self._store.look_up(recent, count)
            if length >= len(tokens):  # it reaches into the source: its end and the start token are in every request
                length = max(length - 2, 0)
            if length:
                yield "store", length, continuation


class CopyChances:
    """For matches of each origin and class of length: the chance that the next token is right if those before it were.

    A match counts whether its tokens were drafted or not, so that copies that were given up are made again once they
    would be right again. `AutoDrafter` keeps what a draft model's tokens have been worth in the same way, as an origin.
    """

    def __init__(self, prior: Sequence[float] = PRIOR) -> None:
        """prior: by the number of binary digits of the match's length; the last holds for all longer ones."""
        self._prior = prior
        self._counts: dict[tuple[str, int], list[float]] = {}  # [tokens that were right, tokens seen]

    def chance(self, origin: str, length: int) -> float:
        right, seen = self._of(origin, length)
        return right / seen

    def observe(self, origin: str, length: int, copied: Sequence[int], written: Sequence[int]) -> None:
        """What a match offered and what the target wrote there. Behind the first wrong token nothing is learned."""
        counts = self._of(origin, length)
        for ours, theirs in zip(copied, written, strict=False):
            counts[1] += 1
            if ours != theirs:
                break
            counts[0] += 1
        if counts[1] > MEMORY:
            counts[:] = [value / 2 for value in counts]

    def _of(self, origin: str, length: int) -> list[float]:
        digits = min(length.bit_length(), len(self._prior) - 1)
        return self._counts.setdefault((origin, digits), [self._prior[digits] * PRIOR_WEIGHT, PRIOR_WEIGHT])


def likely_length(chance: float, least: float, most: int) -> int:
    """The longest draft, `most` tokens at most, that is right as a whole with a chance of at least `least`."""
    count, whole = 0, chance
    while count < most and whole >= least:
        count += 1
        whole *= chance
    return count
