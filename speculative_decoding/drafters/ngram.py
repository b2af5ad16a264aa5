"""Drafts copied from text: given text, the source, the output so far, and a store of earlier requests.

No model runs.

A copy is chosen in three steps:

1. Each text is searched for the last n tokens of the output, with n as large as possible. The tokens that follow such
   an occurrence are a `Match` of length n.
2. From earlier matches of similar length in the same text, `CopyChances` estimates how likely a copied token is to be
   right. The match with the highest chance is copied.
3. The copy is truncated where the chance that all of its tokens are right falls below `min_chance`.

This is prompt lookup, extended to the encoder's input, which contains most of the text that can be copied.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from ..errors import InputError
from ..sampling.options import option_specs, validate
from .base import COPY, Drafter, Followable
from .draft_text import DraftText, TextFollower
from .suffix_index import SuffixIndex

if TYPE_CHECKING:
    from .text_store import TextStore

LOOKAHEAD = 16  # number of a match's tokens to keep, even if fewer are drafted: all are compared with the output later
PRIOR_WEIGHT = 5.0  # the prior has the weight of this many observed tokens
PRIORS = {  # by the end of an origin: the status of a `Place`, or "" for any other origin
    "unconfirmed difference": (0.0, 0.3, 0.1, 0.1, 0.1),
    "confirmed difference": (0.0, 0.6, 0.45, 0.45, 0.45),
    "unconfirmed": (0.8, 0.1, 0.35, 0.5, 0.8),
    "confirmed": (0.5, 0.6, 0.75, 0.8, 0.9),
    "": (0.5, 0.5, 0.7, 0.8, 0.9),
}
LEAST_TEXT_CHANCE = 0.4  # the minimum chance for a token to be drafted from a given text
MIN_TEXT_CHANCE = 0.03  # the minimum probability that all tokens in such a draft are right


@dataclass(frozen=True)
class Match:
    """The tokens that follow the output's last tokens in one of the texts.

    Args:
        kind: The kind of draft that copies the match.
        origin: The text: "source", "output", "store", or the kind and group of a `DraftText` and the status of its
            `Place`; "" if no text matches.
        length: How many of the output's last tokens precede `continuation` in the text. If it is 0, `continuation` is a
            guess: the text from the position that the output is expected to have reached.
        continuation: Up to `LOOKAHEAD` token ids, or more if a longer draft is requested.
        chance: The estimated probability that a token of `continuation` is right if all tokens before it are.
    """

    kind: str = COPY
    origin: str = ""
    length: int = 0
    continuation: Sequence[int] = field(default_factory=list)
    chance: float = 0.0


class NgramDrafter(Drafter):
    """Copies the tokens that follow the output's last tokens in the source, in the output itself, or in a store.

    In each text, the longest match wins. Equally long matches are ranked by position: in the source, the next position
    that the output has not reached yet; in the output, the earliest, because it has the longest continuation; in the
    store, the latest. If matches of several texts have the same chance, the source comes first, then the output.

    The drafter is deterministic. It learns across requests how often its copies are right, so use a single drafter for
    a whole session.

    Args:
        pieces: `tokenizer.vocabulary.pieces`. If given, words match regardless of case and a leading space, copying
            starts after a task prefix, and it resumes after a replaced word rather than after a replaced token.
        search_input: Whether to search the source.
        search_output: Whether to search the output. Hugging Face's prompt lookup searches only the output.
        store: A text store to search. Every request is added to it, and drafters may share it.
        max_ngram_size: The maximum number of output tokens to look up.
        min_chance: The minimum probability that all tokens of a draft are right. If 0, drafts have full length.

    Raises:
        InputError: An argument is out of range.
    """

    kind = COPY

    def __init__(
        self,
        *,
        pieces: Mapping[int, str] | None = None,
        search_input: bool = True,
        search_output: bool = True,
        store: TextStore | None = None,
        max_ngram_size: int = 16,
        min_chance: float = 0.15,
    ) -> None:
        max_ngram_size = validate("max_ngram_size", option_specs()["max_ngram_size"].type, max_ngram_size)
        if not 0 <= min_chance < 1:
            raise InputError(f"must be >= 0 and < 1, not {min_chance}", "min_chance")
        self._pieces = pieces or {}
        self._search_input = search_input
        self._search_output = search_output
        self.store = store
        self._max_size = max_ngram_size
        self._min_chance = min_chance
        self.chances = CopyChances()
        self.begin(())

    def fresh(self) -> NgramDrafter:
        """Create a drafter for a concurrent request. It shares the store and the learned chances."""
        other = copy(self)
        other.begin(())
        return other

    def for_given_texts(self) -> NgramDrafter:
        """Create a drafter that copies only from given texts. It shares the learned chances."""
        other = copy(self)
        other._search_input = other._search_output = False
        other.store = None
        other.begin(())
        return other

    def begin(
        self, input_tokens: Sequence[int], draft_texts: Sequence[Followable] = (), prefix: Sequence[int] = ()
    ) -> None:
        """Start a new request.

        Args:
            input_tokens: The source tokens.
            draft_texts: Texts that the output may resemble.
            prefix: The tokens of a forced prefix, after the start token.
        """
        self._source = list(input_tokens)
        text = DraftText(self._source if self._search_input else [], self._pieces, COPY, max_context=self._max_size)
        self._aligned = TextFollower(text, prefix, text.start)
        self._output = SuffixIndex(self._max_size)
        self._match: Match | None = None  # for the current tokens; it is later compared with the next tokens
        self._num_stored = 0  # number of output tokens that the store already contains
        self._draft_texts = draft_texts
        self._prefix = prefix
        self._followers = [text.follow(prefix) for text in draft_texts]

    def propose(self, tokens: Sequence[int], num_draft_tokens: int) -> list[int]:
        match = self.match(tokens, num_draft_tokens)
        return list(match.continuation[: self._likely_length(match, num_draft_tokens)])

    def longest(self, tokens: Sequence[int]) -> int:
        match = self.match(tokens)
        count = min(len(match.continuation), self._likely_length(match, LOOKAHEAD))
        return count if count < LOOKAHEAD else sys.maxsize  # the match may extend beyond LOOKAHEAD

    def _likely_length(self, match: Match, max_length: int) -> int:
        if match.kind == COPY or not self._min_chance:
            return likely_length(match.chance, self._min_chance, max_length)
        # The place in a given text is more certain than that of other copies, so drafts from it are longer, or not made
        # at all
        return likely_length(match.chance, MIN_TEXT_CHANCE, max_length) if match.chance >= LEAST_TEXT_CHANCE else 0

    def match(self, tokens: Sequence[int], num_draft_tokens: int = LOOKAHEAD) -> Match:
        """Return the best match for the committed decoder ids, no matter how low its chance is."""
        self._synchronize(tokens)
        if self._match is None or num_draft_tokens > LOOKAHEAD:
            best = Match()
            for kind, origin, length, continuation in self._find(tokens, max(num_draft_tokens, LOOKAHEAD)):
                chance = self.chances.chance(origin, length)
                if continuation and chance > best.chance:
                    best = Match(kind, origin, length, continuation, chance)
            self._match = best
        return self._match

    def end(self, tokens: Sequence[int]) -> None:
        """Add the tokens that the store does not contain yet."""
        self._synchronize(tokens)
        if self.store is not None and len(tokens) > max(self._num_stored, 1):  # more than the start token
            start = len(self._source) + self._num_stored if self._num_stored else 0
            self.store.learn([*self._source, *tokens], start)
            self._num_stored = len(tokens)

    def _synchronize(self, tokens: Sequence[int]) -> None:
        """Read the tokens that were committed since the last call, and compare them with the last match."""
        seen = len(self._output.tokens)
        if self._output.tokens != tokens[:seen]:  # another request
            self.begin(self._source, self._draft_texts, self._prefix)
            seen = 0
        new = tokens[seen:]
        if not new:
            return
        if self._match is not None:
            self.chances.observe(self._match.origin, self._match.length, self._match.continuation, new)
            self._match = None
        for token in new if seen else new[1 + len(self._prefix) :]:  # without the start token
            for follower in (self._aligned, *self._followers):
                follower.append(token)
        self._output.extend(new)

    def _find(self, tokens: Sequence[int], count: int) -> Iterator[tuple[str, str, int, list[int]]]:
        """Yield (kind, origin, length, continuation) for each text that matches, in order of precedence."""
        for follower in self._followers:
            if place := follower.find():
                text = follower.text
                origin = " ".join(filter(None, (text.kind, text.group, place.status)))
                yield text.kind, origin, place.length, follower.continuation(place, count)
        if (place := self._aligned.find()) and not (place.differs and place.length > 1):
            # One chance for all statuses: in a given task, either most outputs copy their source, or none do
            length = 0 if place.differs else place.length
            yield COPY, "source", length, self._aligned.text.ids[place.position : place.position + count]
        if self._search_output and (positions := self._output.find(tokens)):
            earliest = positions[-1][0]
            yield COPY, "output", len(positions), self._output.tokens[earliest : earliest + count]
        if self.store is not None:
            missing = max(self._max_size - len(tokens), 0)
            recent = [*self._source[len(self._source) - missing :], *tokens[-self._max_size :]]
            length, continuation = self.store.look_up(recent, count)
            if length >= len(tokens):  # the source's end token and the start token occur in every request
                length = max(length - 2, 0)
            if length:
                yield COPY, "store", length, continuation


class CopyChances:
    """The chance that a copied token is right if all copied tokens before it are, by the match's origin and length.

    A match is observed even if it was not drafted, so copying resumes once a text's copies are reliable again.
    `AutoDrafter` also counts the draft model's tokens here, under a separate origin.

    Args:
        priors: Initial chances by the end of the origin's name, indexed by the bit length of the match length. The last
            chance covers all longer matches. The defaults are for matches of 0, 1, 2-3, 4-7, and 8 or more tokens.
    """

    def __init__(self, priors: Mapping[str, Sequence[float]] = MappingProxyType(PRIORS)) -> None:
        self._priors = priors
        self._counts: dict[tuple[str, int], list[float]] = {}  # [right tokens, observed tokens]

    def chance(self, origin: str, length: int) -> float:
        right, observed = self._counts_of(origin, length)
        return right / observed

    def observe(self, origin: str, length: int, copied: Sequence[int], written: Sequence[int]) -> None:
        """Compare a match with the output. Tokens after the first wrong one do not count."""
        counts = self._counts_of(origin, length)
        for copied_token, written_token in zip(copied, written, strict=False):
            counts[1] += 1
            if copied_token != written_token:
                break
            counts[0] += 1
        if counts[1] > 60:  # halve the weight of older observations
            counts[:] = [value / 2 for value in counts]

    def _counts_of(self, origin: str, length: int) -> list[float]:
        group = min(length.bit_length(), len(self._priors[""]) - 1)
        if (origin, group) not in self._counts:
            prior = next(chances for status, chances in self._priors.items() if origin.endswith(status))[group]
            self._counts[origin, group] = [prior * PRIOR_WEIGHT, PRIOR_WEIGHT]
        return self._counts[origin, group]


def likely_length(chance: float, min_chance: float, max_length: int) -> int:
    """Return the length of the longest draft whose tokens are all right with a probability of at least `min_chance`."""
    length = 0
    all_right = chance
    while length < max_length and all_right >= min_chance:
        length += 1
        all_right *= chance
    return length
