"""Exact matches: pieces whose output is the target of an equal source in a translation memory. They are not decoded.

A match is complete if the target passes every check of an output: it contains all required parts, numbers and symbols,
and there is a place for all markup. Only complete matches are used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ..errors import InputError
from .pieces import Piece, around_tokens, divide
from .places import find_places
from .required_parts import lost_characters, lost_parts, required_parts
from .results import DecodedPiece, DecodedText
from .splitting import Span
from .survival import lost_numbers, lost_signs

LINE_ENDS = re.compile(r"[\r\n]+")

FindMatch = Callable[[str], str | None]  # returns the target of an equal source


def match_finder(memory: Any, source: str | None, target: str | None) -> FindMatch:
    """Return the function that finds exact matches in a `TranslationMemory`, which may be None.

    source, target: The names of the languages, each None if unknown.

    Raises:
        InputError: There is no memory, or it is for other languages.
    """
    if memory is None:
        raise InputError("has no effect without a translation memory", "use_matches", "load one, or leave it out")
    if not memory.is_for(source, target):
        of_memory = " and ".join(memory.languages)
        wanted = " and ".join(each or "any language" for each in (source, target))
        problem = f"the memory is for {of_memory}, not for {wanted}"
        raise InputError(problem, "use_matches", "load another memory, or leave it out")
    find: FindMatch = memory.exact
    return find


def matched_piece(piece: Piece, target: str, known: Mapping[str, str]) -> DecodedPiece:
    """Return a piece whose output is a target from a memory. known: see `find_places`."""
    text = LINE_ENDS.sub(" ", target).strip()
    places = find_places(whole_part(piece), text, known)
    return DecodedPiece(piece.text, whole_span(piece), [DecodedText(text, places)], from_memory=True)


def whole_span(piece: Piece) -> list[Span]:
    """Return the span of a piece's text without leading and trailing white space."""
    return around_tokens(piece, [(0, len(piece.text))])


def whole_part(piece: Piece) -> Piece:
    """Return the part of a piece that its output replaces."""
    (part,) = (each for each in divide(piece, whole_span(piece)) if isinstance(each, Piece))
    return part


def unplaced_markup(piece: Piece, matched: DecodedPiece) -> list[str]:
    """Return the markup for which the output of a match has no place."""
    part = whole_part(piece)
    unplaced = [mark for mark, place in zip(part.marks, matched.outputs[0].places, strict=True) if place is None]
    indices = (index for mark in unplaced for index in (mark.opening, mark.closing) if index is not None)
    return [part.tokens[index].raw for index in indices]


def lacking(piece: Piece, matched: DecodedPiece, terms: Collection[str]) -> list[str]:
    """Return what the output of a match lacks, without duplicates. Empty for a complete match. terms: see `Rules`."""
    required = [each for each in required_parts(piece, terms) if each.span]  # the others need places for their markup
    lost = [piece.text[each.start : each.end] for each in lost_parts(piece, required, matched)]
    numbers = [*lost_numbers(piece.text, matched.text), *lost_signs(piece.text, matched.text)]
    found = [*lost, *unplaced_markup(piece, matched), *numbers, *lost_characters(piece, matched.text)]
    return [*dict.fromkeys(filter(None, found))]
