"""How often a kind of guess has been right, and how far ahead it is worth guessing. Knows nothing of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

MEMORY = 60  # tokens after which old experience counts half


class Trust:
    """For each kind of guess the chance that its next token is right, given that those before it were.

    priors: kind -> (chance, how many tokens of experience it is worth).
    Seen tokens update it whether they had been drafted or only would have been, so that a kind that was given up comes
    back when it is right again.
    """

    def __init__(self, priors: Mapping[tuple[str, int], tuple[float, float]]) -> None:
        self._right_and_seen = {kind: [chance * weight, weight] for kind, (chance, weight) in priors.items()}

    def chance(self, kind: tuple[str, int]) -> float:
        right, seen = self._right_and_seen[kind]
        return right / seen

    def reach(self, kind: tuple[str, int], least: float, most: int) -> int:
        """How many tokens to draft: as long as the chance that all so far are right is at least `least`."""
        chance = self.chance(kind)
        count, survival = 0, chance
        while count < most and survival >= least:
            count += 1
            survival *= chance
        return count

    def learn(self, kind: tuple[str, int], guessed: Sequence[int], written: Sequence[int]) -> None:
        """The guess and what the target wrote there. What stands behind the first wrong token says nothing."""
        experience = self._right_and_seen[kind]
        for ours, theirs in zip(guessed, written, strict=False):
            experience[1] += 1
            if ours != theirs:
                break
            experience[0] += 1
        if experience[1] > MEMORY:
            experience[:] = [value / 2 for value in experience]
