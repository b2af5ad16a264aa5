"""The draft lengths that promise most tokens per second, for one row or many, by costs and the acceptance seen so far.

Host arithmetic, some microseconds a round; never waits for the device.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import accumulate

from ..drafters.base import MODEL
from ..errors import InputError
from ..models.compiled import WIDTHS
from .base import Choice, Drafted, DraftLength
from .costs import Costs, RoundTimes

PRIOR, PRIOR_WEIGHT = 0.6, 5.0  # acceptance before anything was seen; the weight is in drafts
MEMORY = 0.98  # of what was seen, per round that drafted
WORTHWHILE = 1.02  # the gain over regular decoding from which on it drafts; while it does, no loss is enough
PROBE_SHARE, FIRST_PROBES = 0.005, 3.0  # of the time, and rounds' worth of it at first, for probes
LEAST_WAIT = 16  # rounds between probes of a kind, and between looks whether one is due while parked
FIRST_GAP, LAST_GAP = 8, 64  # rounds between those that draft nothing only to be timed
TYPICAL_TOKENS, REQUEST_MEMORY = 24.0, 0.95  # of a request, written with the draft model's help


class Acceptance:
    """What one kind of draft is worth: how often there is one, and how likely each position is to be accepted, given
    that those before it were. A position that was seen little is expected to be like the one before it.

    expected: for each length, how many of its tokens will be accepted. last: the round of the last draft.
    """

    def __init__(self, longest: int) -> None:
        self._hits, self._seen = [0.0] * longest, [0.0] * longest
        self._asked = self._found = PRIOR_WEIGHT
        self.last = -LEAST_WAIT
        self._estimate()

    def observe(self, rows: Sequence[Drafted]) -> None:
        """Of rows that were asked for such a draft."""
        drafts = [row for row in rows if row.drafted]
        self._asked, self._found = MEMORY * self._asked + len(rows), MEMORY * self._found + len(drafts)
        if drafts:
            self._hits, self._seen = ([MEMORY * value for value in each] for each in (self._hits, self._seen))
        for row in drafts:
            for i in range(min(row.drafted, row.accepted + 1, len(self._seen))):  # nothing after a rejection was tested
                self._hits[i] += i < row.accepted
                self._seen[i] += 1.0
        self._estimate()

    def _estimate(self) -> None:
        self.found = survives = self._found / self._asked
        likely, gains = PRIOR, [0.0]
        for hits, seen in zip(self._hits, self._seen, strict=True):
            likely = (hits + PRIOR_WEIGHT * likely) / (seen + PRIOR_WEIGHT)
            survives *= likely
            gains.append(survives)
        self.expected = list(accumulate(gains))


class AdaptiveLength(DraftLength):
    """Lengths for all rows together, for the target's pass is as wide for all as the longest draft.

    A round whose longest draft has w tokens and whose draft model takes m steps costs t(w + 1) + s + m c + h, however
    few rows draft, and yields for each row 1 + a_1 + a_1 a_2 + ... tokens up to its draft (Leviathan et al. 2023,
    section 3.3, with an acceptance per position and a pass whose cost depends on its width). So copies, which cost
    nothing, are up to w tokens long, drafts of the model up to m <= w, and the best pair is chosen. Where the model
    drafts, every token bears its share of what reading a request costs it.

    Where the best pair gains nothing over regular decoding it parks: it drafts nothing. A kind that is not drafted is
    probed now and then with a single token, for `PROBE_SHARE` of the time.
    """

    def __init__(self, costs: Costs, *, most: int = 16) -> None:
        if most < 1:
            raise InputError(f"the longest draft must be >= 1, not {most}; num_draft 0 turns drafting off")
        self.most = most
        self._full = [width - 1 for width in WIDTHS if 1 < width <= most] + [most]  # lengths that fill a pass
        self._times = RoundTimes(costs)
        self._kinds = defaultdict[str, Acceptance](lambda: Acceptance(most))
        self._round = 0
        self._gain, self._lengths = 1.0, dict[str, int]()  # of the last choice
        self._tokens, self._readings = TYPICAL_TOKENS, 1.0  # written with the draft model's help, and requests it read
        self._unread = 0  # requests that it has not read
        self._parked_since: int | None = None
        self._look_at = 0  # the round in which, parked, it looks whether a probe is due
        self._saved = FIRST_PROBES  # rounds' worth of time, for probes
        self._probe: str | None = None  # the kind that is probed in this round
        self._plain_at, self._gap = 0, FIRST_GAP  # the last round without a draft, and how many until the next

    @property
    def parked(self) -> bool:
        return self._parked_since is not None

    def begin(self) -> None:
        self._unread += 1

    def skips_round(self) -> bool:
        """Parked, and now and then while it drafts: costs are compared with those of rounds without a draft."""
        self._round += 1
        self._saved += PROBE_SHARE
        self._probe = None
        if self.parked:
            return self._round < self._look_at
        self._saved = min(self._saved, FIRST_PROBES)
        if self._round - self._plain_at < self._gap:
            return False
        if self._times.plain_rounds:
            self._gap = min(2 * self._gap, LAST_GAP)
        return True

    def choose(self, rows: Sequence[Choice]) -> list[int]:
        if not any(row.room for row in rows):
            return [0] * len(rows)
        self._lengths, self._gain = self._best(rows)
        if self._gain >= (WORTHWHILE if self.parked else 1.0):
            self._parked_since = None
        else:
            self._lengths = {}
            if not self.parked and all(self._promise(kind, len(rows)) < 1.0 for kind in self._kinds):
                self._parked_since = self._round - 1
        self._look_at = self._round + LEAST_WAIT
        self._probe = self._due(rows)
        if self._probe is not None:
            self._lengths[self._probe] = 1
        return [min(row.room, self._lengths.get(row.kind, 0)) for row in rows]

    def observe(self, rows: Sequence[Drafted], seconds: float) -> None:
        width = min(self.most, max(row.drafted for row in rows))
        steps = min(self.most, max(row.drafted * (row.kind == MODEL) for row in rows))
        readings = min(self._unread, len(rows)) * (steps > 0)  # others came and went while nothing was drafted
        if not width:
            self._plain_at = self._round
        if seconds > 0:
            self._times.observe(len(rows), width, steps, readings, seconds)
        for kind in dict.fromkeys(row.kind for row in rows if row.asked):
            acceptance = self._kinds[kind]
            acceptance.observe([row for row in rows if row.asked and row.kind == kind])
            acceptance.last = self._round if width else acceptance.last
        if steps:
            self._unread = 0
            if self._probe is None:
                memory = REQUEST_MEMORY if readings else 1.0
                self._readings = memory * self._readings + readings
                self._tokens = memory * self._tokens + sum(row.accepted + 1 for row in rows if row.kind == MODEL)
        if self._probe is not None and width:
            price = self._price(width, steps, len(rows), sum(row.accepted + 1 for row in rows))
            if price < 0:  # a probe that paid is followed by another
                self._kinds[self._probe].last, self._look_at = -LEAST_WAIT, self._round + 1
            else:
                self._saved -= price + self._times.round_time(len(rows), 0, 0, readings) - 1.0

    def describe(self) -> str:
        if self._parked_since is not None:
            rounds = self._round - self._parked_since
            return f"parked for {rounds} rounds, for drafting promises {self._gain:.2f}x the speed"
        kinds = ", ".join(f"{kind or 'draft'} {length}" for kind, length in self._lengths.items())
        return f"{kinds or 'no'} tokens a round promise {self._gain:.2f}x the speed of regular decoding"

    def _promise(self, kind: str, rows: int) -> float:
        """The gain over regular decoding if all rows had this kind."""
        return self._best([Choice(self.most, kind)] * rows)[1]

    def _best(self, rows: Sequence[Choice]) -> tuple[dict[str, int], float]:
        """The length of each kind with which the rows have most tokens per second; the gain over regular decoding."""
        count, copied, modelled, none_found = len(rows), [0.0] * (self.most + 1), [0.0] * (self.most + 1), 1.0
        kinds = {row.kind for row in rows}
        for (kind, room), times in Counter((row.kind, min(row.room, self.most)) for row in rows).items():
            worth, gains = self._kinds[kind], modelled if kind == MODEL else copied
            none_found *= (1.0 - worth.found) ** times
            for i in range(self.most + 1):
                gains[i] += times * worth.expected[min(i, room)]
        if MODEL not in kinds:
            pairs = [(width, 0) for width in self._full]
        elif kinds == {MODEL}:
            pairs = [(width, width) for width in self._full]
        else:
            pairs = [(width, steps) for width in self._full for steps in (0, *self._full) if steps <= width]
        reading = (self._times.round_time(count, 0, 0, 1) - 1.0) * self._readings / self._tokens
        best, best_rate = (0, 0), 0.0
        for width, steps in pairs:
            tokens = count + copied[width] + modelled[steps]
            seconds = (1.0 - none_found) * self._times.round_time(count, width, steps) + none_found
            rate = tokens / (seconds + (tokens * reading if steps else 0.0))
            if rate > best_rate:
                best, best_rate = (width, steps), rate
        return {kind: best[kind == MODEL] for kind in kinds}, best_rate / count

    def _due(self, rows: Sequence[Choice]) -> str | None:
        """The kind that has not been drafted for longest, once what a probe of it may cost has been saved."""
        idle = [row.kind for row in rows if row.room and not self._lengths.get(row.kind)]
        if not idle:
            return None
        kind = min(idle, key=lambda kind: self._kinds[kind].last)
        others = {} if all(kind == row.kind for row in rows) else self._lengths
        width, steps = max([1, *others.values()]), max(others.get(MODEL, 0), kind == MODEL)
        price = self._price(width, steps, len(rows), len(rows), min(self._unread, len(rows)) * (steps > 0))
        return kind if self._round - self._kinds[kind].last >= LEAST_WAIT and self._saved >= price else None

    def _price(self, width: int, steps: int, rows: int, tokens: int, readings: int = 0) -> float:
        """Rounds' worth of time that is lost by a round that brings so many tokens."""
        return self._times.round_time(rows, width, steps, readings) - tokens / rows / max(self._gain, 1.0)
