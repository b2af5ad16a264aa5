"""Breaks text into as many lines as its source has. Independent of formats and tokens.

Lines break at white space, or between the characters of scripts without spaces. Dynamic programming over the places
near each break minimizes the total cost of the lines.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import ceil, isqrt

SPACE = r"[^\S\u00a0\u2007\u202f]"  # white space at which a line may break
# Thai, Lao, Myanmar, Khmer; Chinese and Japanese, with their punctuation and full-width forms
UNSPACED = (
    r"[\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff"
    r"\u2e80-\u2fff\u3001-\u312f\u31a0-\u31ff\u3400-\u9fff\uf900-\ufaff\uff01-\uff9f\U00020000-\U0003ffff]"
)
PLACE = re.compile(rf"{SPACE}+|(?<={UNSPACED})(?!{SPACE})|(?={UNSPACED})(?<!{SPACE})")
NEVER_FIRST = frozenset("ーぁぃぅぇぉっゃゅょゎゕゖァィゥェォッャュョヮヵヶ々〻〜\uff5e\u2010\u2013—ะาำๅๆຯະາຳໆ")
NEVER_LAST = frozenset("เแโใไເແໂໃໄ\u1039\u17d2")  # vowels that precede their consonant; signs that join two consonants
COMPARISONS = 1 << 17  # limit on the line costs computed for one layout, unless windows would be too small
MIN_WINDOW = 16  # minimum number of places to choose from at each break

Place = tuple[int, int]
Cost = tuple[int, float]


def line_break_text(before: str, after: str) -> str:
    """Return the text for a line break: nothing between characters of scripts without spaces, otherwise a space."""
    is_unspaced = re.match(UNSPACED, before[-1:]) and re.match(UNSPACED, after[:1])
    return "" if is_unspaced else " "


def break_places(
    text: str,
    widths: Sequence[int],
    may_start: Callable[[str], bool] | None = None,
    *,
    limit: int = 0,
    column: int = 0,
) -> list[Place]:
    """Return the places at which to break a text into lines.

    Each line's share of the text is close to its share of the source. No line is wider than the limit, if such a layout
    exists. If the text can be broken into lines of exactly the source's widths, these lines are chosen.

    Args:
        text: One line, without surrounding white space.
        widths: The width of each line of the source, in characters.
        may_start: Whether a word may start a line (default: every word).
        limit: The maximum width of a line. The widest line of the source is always allowed.
        column: The number of characters before the text on its first line.

    Returns:
        For each break in order, the range of white space that it replaces. The range is empty between characters of
        scripts without spaces. There are fewer than `len(widths) - 1` ranges if the text has too few places.
    """
    lines = len(widths)
    if lines == 1:
        return []
    places = [each for each in all_places(text) if may_start is None or may_start(first_word(text, each[1]))]
    if (same := source_places(text, widths, places)) is not None:
        return same
    places = [each for each in places if is_allowed(text, each)]
    if len(places) < lines:
        return places
    gap = sum(end - start for start, end in places) / len(places)
    limit = max(limit, *widths)
    shares = shares_of(max(len(text) - gap * (lines - 1), 1), widths, limit)
    wanted = accumulate(share + gap for share in shares[:-1])
    around = windows(places, [each - gap for each in wanted])
    return best_places(text, places, around, shares, limit, column)


def all_places(text: str) -> list[Place]:
    """Return every place within the text at which a line could break."""
    spans = (match.span() for match in PLACE.finditer(text))
    return [(start, end) for start, end in spans if start > 0 and end < len(text)]


def first_word(text: str, start: int) -> str:
    """Return the text from a position to the next place."""
    found = PLACE.search(text, start + 1)
    return text[start : found.start() if found else len(text)]


def is_allowed(text: str, place: Place) -> bool:
    """Return whether a line may break at a place: at white space, or where no punctuation forbids a break."""
    start, end = place
    if start < end:
        return True
    before, after = text[start - 1], text[end]
    is_last = before in NEVER_LAST or unicodedata.category(before) in ("Ps", "Pi")
    is_first = after in NEVER_FIRST or unicodedata.category(after) in ("Pe", "Pf", "Po", "Mn", "Mc", "Me", "Cf")
    return not is_last and not is_first


def source_places(text: str, widths: Sequence[int], places: Sequence[Place]) -> list[Place] | None:
    """Return the places that yield lines of exactly these widths, or None. Each place covers at most one space."""
    ends = {i: min(i + 1, end) for start, end in places for i in range(start, max(end, start + 1))}
    found, position = [], 0
    for width in widths[:-1]:
        start = position + width
        if start not in ends:
            return None
        position = ends[start]
        found.append((start, position))
    return found if position + widths[-1] == len(text) else None


def shares_of(length: float, widths: Sequence[int], limit: int) -> list[float]:
    """Return the target width of each line: proportional to the source, and at most the limit if possible."""
    limit = max(limit, ceil(length / len(widths)))
    rest, parts = length, sum(max(width, 1) for width in widths)
    for width in sorted((max(width, 1) for width in widths), reverse=True):
        if width * rest <= limit * parts:
            break
        rest, parts = rest - limit, parts - width
    scale = rest / parts if parts else 0
    return [min(max(width, 1) * scale, limit) if parts else limit for width in widths]


def windows(places: Sequence[Place], wanted: Sequence[float]) -> list[range]:
    """Return the indices of the places near each break. There is always a distinct place for every break."""
    count, starts = len(wanted), [start for start, _ in places]
    reach = max(MIN_WINDOW, isqrt(COMPARISONS // count)) // 2
    middle, found = -1, []
    for i, position in enumerate(wanted):
        last = len(places) - count + i  # leaves a place for each later break
        middle = min(max(bisect_left(starts, position), middle + 1), last)
        found.append(range(max(middle - reach, i), min(middle + reach, last) + 1))
    return found


def best_places(
    text: str, places: Sequence[Place], around: Sequence[range], shares: Sequence[float], limit: int, column: int
) -> list[Place]:
    """Return the places of the layout with the lowest cost. Ties are resolved in favor of the earliest breaks."""
    ends = [0, *(end for _, end in places)]  # index 0 is the start of the text
    best: dict[int, Cost] = {0: (0, 0.0)}
    origins: list[dict[int, int]] = []
    for share, window in zip(shares, [*around, range(len(places), len(places) + 1)], strict=True):
        reached: dict[int, Cost] = {}
        origins.append({})
        for j in window:
            start = places[j][0] if j < len(places) else len(text)
            extra = penalty(text, places[j], limit) if j < len(places) else 0.0
            before = [
                (add(cost, line_cost(start - ends[i], share, limit - column * (i == 0))), i)
                for i, cost in best.items()
                if i <= j
            ]
            if before:
                cost, origins[-1][j + 1] = min(before)
                reached[j + 1] = add(cost, (0, extra))
        best = reached
    path = [len(places) + 1]
    for origin in reversed(origins[1:]):
        path.append(origin[path[-1]])
    return [places[i - 1] for i in reversed(path[1:])]


def line_cost(length: int, share: float, limit: int) -> Cost:
    """Return the cost of a line: the squared excess over the limit, then the squared difference from its share."""
    return max(length - limit, 0) ** 2, (length - share) ** 2


def penalty(text: str, place: Place, limit: int) -> float:
    """Return the cost of a break between two letters, which may divide a word."""
    start, end = place
    is_between = start == end and unicodedata.category(text[start - 1])[0] != "P"
    return (limit / 4) ** 2 if is_between else 0.0


def add(one: Cost, other: Cost) -> Cost:
    return one[0] + other[0], one[1] + other[1]
