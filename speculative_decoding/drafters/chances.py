"""How likely a copied token is right, estimated from the copies made so far. Knows nothing of texts."""

from __future__ import annotations

from collections.abc import Sequence

# The chance before anything was seen, for matches of 0, 1, 2-3, 4-7, 8 or more tokens.
PRIOR = (0.5, 0.5, 0.7, 0.8, 0.9)
PRIOR_WEIGHT = 5.0  # how many seen tokens the prior is worth
MEMORY = 60  # tokens after which old observations count half


class CopyChances:
    """For matches of each origin and class of length: the chance that the next token is right if those before it were.

    A match counts whether its tokens were drafted or not, so that copies that were given up are made again once they
    would be right again.
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


def reach(chance: float, least: float, most: int) -> int:
    """The longest draft, `most` tokens at most, that is right as a whole with a chance of at least `least`."""
    count, whole = 0, chance
    while count < most and whole >= least:
        count += 1
        whole *= chance
    return count
