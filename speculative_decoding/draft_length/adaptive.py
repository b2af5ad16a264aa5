"""The draft lengths with the most expected tokens per second, from measured costs and the acceptance seen so far.

Host arithmetic, some microseconds a round; never waits for the device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from ..drafters.base import MODEL
from ..errors import InputError
from .base import Choice, Drafted, DraftLength
from .costs import TYPICAL_TOKENS, RoundCosts

LONGEST = 16
PRIOR = 0.93  # acceptance where nothing is known: hopeful, so that drafts are tried
HOPE = 0.7  # by so much of what is missing to 1 an acceptance that was measured on other text is raised
PRIOR_WEIGHT = 4.0  # of the prior, in drafts
POSITION_WEIGHT = 15.0  # of what a position says of the next one, in drafts
MEMORY = 0.994  # of what was seen, per round
IDLE_MEMORY = 0.9965  # likewise, of a kind that is not drafted: the sooner this fades, the more often it is tried
WORTHWHILE = 1.05  # the least predicted speedup for which it drafts, because measured costs have an error
LOOK = 4  # rounds until it is decided again, where nothing is worth drafting


class Acceptance:
    """What one kind of draft is worth: how likely each position is to be accepted, given that those before it were.

    prior: the acceptance of each position on held-out text, where it is known. A position that was seen little is
    expected to be like the one before it, as far as the prior says that these are alike.
    """

    def __init__(self, prior: Sequence[float] = (), longest: int = LONGEST) -> None:
        known = [each + HOPE * (1.0 - each) for each in prior[:longest]] or [PRIOR]
        self._prior = known + known[-1:] * (longest - len(known))
        self._hits, self._seen = [0.0] * longest, [0.0] * longest
        self._faded = 1.0  # by how much both have faded since

    def fade(self, memory: float) -> None:
        """A round later: what was seen counts less, so drafts that were not worth it are tried again in time."""
        self._faded *= memory

    def observe(self, rows: Sequence[Drafted]) -> None:
        """Of rows that were asked for such a draft."""
        self._hits, self._seen = ([self._faded * value for value in each] for each in (self._hits, self._seen))
        self._faded = 1.0
        for row in rows:
            for i in range(min(row.drafted, row.accepted + 1, len(self._seen))):  # nothing after a rejection was tested
                self._hits[i] += i < row.accepted
                self._seen[i] += 1.0

    def expected(self) -> list[float]:
        """For each length, how many of its tokens will be accepted."""
        survives, expected, faded = 1.0, [0.0], self._faded
        likely, before, weight = self._prior[0], self._prior[0], PRIOR_WEIGHT
        for prior, hits, seen in zip(self._prior, self._hits, self._seen, strict=True):
            likely = (faded * hits + weight * min(1.0, likely * prior / before)) / (faded * seen + weight)
            before, weight = max(prior, 1e-3), POSITION_WEIGHT
            survives *= likely
            expected.append(expected[-1] + survives)
        return expected


class AdaptiveLength(DraftLength):
    """Lengths for all rows together, for the target's pass is as wide for all as the longest draft needs.

    A round whose longest draft has w tokens, after m steps of a draft model, takes pass(w + 1) + start + m step
    seconds and yields for each row 1 + a_1 + a_1 a_2 + ... tokens up to its draft (Leviathan et al. 2023, section 3.3,
    with an acceptance per position and a pass of measured cost). Copies cost no step, so the pair (w, m) with the most
    tokens per second is chosen.

    Where no draft promises a gain over a round without one, nothing is drafted until what was seen has faded so far
    that the prior promises one. The worse a draft was and the more it costs, the longer that takes.

    costs: of a round with so many rows. prior: see `Acceptance`, of a draft model or head.
    """

    def __init__(self, costs: Callable[[int], RoundCosts], *, prior: Sequence[float] = (), most: int = LONGEST) -> None:
        if most < 1:
            raise InputError(f"the longest draft must be >= 1, not {most}; num_draft_tokens 0 turns drafting off")
        self.most = most
        self._costs, self._prior = costs, prior
        self._kinds: dict[str, Acceptance] = {}
        self._gain, self._lengths = 1.0, dict[str, int]()  # of the last choice
        self._idle = 0  # rounds until drafters are asked again

    def skips_round(self) -> bool:
        for kind, acceptance in self._kinds.items():
            acceptance.fade(MEMORY if self._lengths.get(kind) else IDLE_MEMORY)
        self._idle -= 1
        return self._idle >= 0

    def choose(self, rows: Sequence[Choice]) -> list[int]:
        if not any(row.room for row in rows):
            return [0] * len(rows)
        costs = self._costs(len(rows))
        lengths, self._gain = self._best(rows, costs)
        self._gain *= (costs.fastest_baseline or costs.baseline) / costs.baseline
        self._lengths |= lengths
        self._idle = 0 if any(self._lengths.values()) else LOOK
        return [min(row.room, self._lengths[row.kind]) for row in rows]

    def observe(self, rows: Sequence[Drafted]) -> None:
        for kind in dict.fromkeys(row.kind for row in rows if row.asked):
            self._of(kind).observe([row for row in rows if row.asked and row.kind == kind])

    def describe(self) -> str:
        drafting = ", ".join(f"{kind or 'draft'} {length}" for kind, length in self._lengths.items() if length)
        if not drafting:
            return "drafts nothing, because no draft length promises a speedup"
        return f"{drafting} tokens a round, a predicted speedup of {self._gain:.2f}x"

    def _of(self, kind: str) -> Acceptance:
        if kind not in self._kinds:
            self._kinds[kind] = Acceptance(self._prior if kind == MODEL else (), self.most)
        return self._kinds[kind]

    def _best(self, rows: Sequence[Choice], costs: RoundCosts) -> tuple[dict[str, int], float]:
        """The length of each kind with which the rows have the most tokens per second, and the speedup it promises."""
        count = len(rows)
        copied, modelled = [0.0] * (self.most + 1), [0.0] * (self.most + 1)
        kinds = {row.kind for row in rows}
        expected = {kind: self._of(kind).expected() for kind in kinds}
        for (kind, room), times in Counter((row.kind, min(row.room, self.most)) for row in rows).items():
            gains = modelled if kind == MODEL else copied
            for i in range(self.most + 1):
                gains[i] += times * expected[kind][min(i, room)]
        if MODEL not in kinds:
            pairs = [(width, 0) for width in range(1, self.most + 1)]
        elif kinds == {MODEL}:
            pairs = [(width, width) for width in range(1, self.most + 1)]
        else:
            pairs = [(width, steps) for width in range(1, self.most + 1) for steps in range(width + 1)]
        baseline, source = costs.baseline, costs.prefill / TYPICAL_TOKENS
        unread = 0.0 if self._lengths.get(MODEL) else costs.prefill  # it has read no source while it was not asked
        best, best_rate = (0, 0), WORTHWHILE * count / baseline
        for width, steps in pairs:
            tokens = count + copied[width] + modelled[steps]
            rate = tokens / (costs.round_seconds(width, steps) + (tokens * source + unread if steps else 0.0))
            if rate > best_rate:
                best, best_rate = (width, steps), rate
        return {kind: best[kind == MODEL] for kind in kinds}, best_rate * baseline / count if best[0] else 1.0
