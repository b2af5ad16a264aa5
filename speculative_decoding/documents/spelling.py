"""Spells decoded texts with the references and escapes of their document, such as "&amp;" for "&"."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise, repeat

from .pieces import Piece
from .tokens import Text


def spelled(runs: Sequence[str], piece: Piece) -> list[str]:
    """Return texts with the character spellings of the document.

    A piece may spell a character in a special way, such as "&amp;" for "&". If the texts contain the character as often
    as the piece, the n-th occurrence gets the spelling of the piece's n-th occurrence. Otherwise, every occurrence gets
    the piece's most frequent special spelling. A bare "&" is kept only in the first case, and only before the same
    character, because it could become markup elsewhere.
    """
    count = Counter("".join(runs))
    next_of: dict[str, Iterator[tuple[str, str]]] = {}
    for character, found in spellings(piece).items():
        special = Counter(each for each in found if each[0] != character)
        if count[character] == len(found):
            next_of[character] = iter(found)
        elif special:
            next_of[character] = repeat(special.most_common(1)[0][0])
    if not next_of:
        return [piece.write(run) for run in runs]
    pattern = re.compile(f"[{re.escape(''.join(next_of))}]")

    def spell(run: str) -> Iterator[str]:
        position = 0
        for match in pattern.finditer(run):
            yield piece.write(run[position : match.start()])
            position = match.end()
            raw, before = next(next_of[match[0]])
            is_same = raw != match[0] or before == run[position : position + 1].casefold()
            yield raw if is_same else piece.write(match[0])
        yield piece.write(run[position:])

    return ["".join(spell(run)) for run in runs]


def spellings(piece: Piece) -> dict[str, list[tuple[str, str]]]:
    """Return the spellings of all characters that the piece spells in a special way, or that `write` would change.

    Returns:
        Character -> the spelling of each occurrence in order, with the next character ("" before markup).
    """
    special = {token.text for token in piece.tokens if isinstance(token, Text) and token.raw != token.text}
    special |= {character for character in set(piece.text) if piece.write(character) != character}
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for token, other in zip(piece.tokens, [*piece.tokens[1:], None], strict=True) if special else ():
        following = other.text[:1] if isinstance(other, Text) else ""
        for character, after in pairwise([*token.text, following] if isinstance(token, Text) else []):
            if character in special:
                found[character].append((token.raw if len(token.text) == 1 else character, after.casefold()))
    return found
