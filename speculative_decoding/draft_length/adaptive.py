"""The draft lengths that promise most tokens per second, for one row or many, from costs and the acceptance seen so far.

Host arithmetic, some microseconds a round; never waits for the device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate

from ..drafters.base import MODEL
from ..errors import InputError
from ..models.base import EncoderDecoder
from ..models.compiled import WIDTHS
from .base import Choice, Drafted, DraftLength
from .costs import Costs, RoundTimes, predicted

PRIOR, PRIOR_WEIGHT = 0.6, 5.0  # acceptance before anything was seen; the weight is in drafts
MEMORY = 0.985  # of what was seen, per round that drafted
WORTHWHILE = 1.02  # the least gain over regular decoding for which it drafts
PROBE_SHARE = 0.005  # of the time, for drafts that only teach what they are worth
LEAST_WAIT = 16  # rounds between probes of a kind, and between looks whether one is due while parked
MOST_SAVED = 4.0  # rounds' worth of time, for probes
HOPE = 0.95  # the acceptance for which a probe must be long enough to pay
FIRST_GAP, SMALL_GAP, LARGE_GAP = 3, 16, 64  # rounds between those that draft nothing only to be timed
LARGE_GAIN = 1.15  # from which on the gap may become large
TYPICAL_TOKENS, REQUEST_MEMORY = 24.0, 0.95  # of a request that the draft model helps to write


def adaptive_length(
    target: EncoderDecoder, draft_model: EncoderDecoder | None = None, *, most: int = 16
) -> AdaptiveLength:
    """With costs predicted from the models' shapes; nothing is measured before the first round."""
    return AdaptiveLength(predicted(target, draft_model), most=most)


class Acceptance:
    """What one kind of draft is worth: how often there is one, and how likely each position is to be accepted, given
    that those before it were. A position that was seen little is expected to be like the one before it.

    expected: for each length, how many of its tokens will be accepted. last: the round of the last draft.
    """

    def __init__(self, longest: int) -> None:
        self._hits, self._seen = [0.0] * longest, [0.0] * longest
        self._asked = self._found = PRIOR_WEIGHT
        self.last, self.is_known = -LEAST_WAIT, False
        self._estimate()

    def observe(self, rows: Sequence[Drafted]) -> None:
        """Of rows that were asked for such a draft."""
        drafts = [row for row in rows if row.drafted]
        self._asked, self._found = MEMORY * self._asked + len(rows), MEMORY * self._found + len(drafts)
        if drafts:
            self.is_known = True
            self._hits = [MEMORY * hits for hits in self._hits]
            self._seen = [MEMORY * seen for seen in self._seen]
        for row in drafts:
            for i in range(min(row.drafted, row.accepted + 1, len(self._seen))):  # nothing after a rejection was tested
                self._hits[i] += i < row.accepted
                self._seen[i] += 1.0
        self._estimate()

    def _estimate(self) -> None:
        self.found = survives = self._found / self._asked
        likely, each = PRIOR, list[float]()
        for hits, seen in zip(self._hits, self._seen, strict=True):
            likely = (hits + PRIOR_WEIGHT * likely) / (seen + PRIOR_WEIGHT)
            survives *= likely
            each.append(survives)
        self.expected = [0.0, *accumulate(each)]


class AdaptiveLength(DraftLength):
    """A round whose longest draft has w tokens and whose draft model takes m steps costs t(w + 1) + s + m c + h, however
    few rows draft, and yields for each row 1 + a_1 + a_1 a_2 + ... tokens up to its draft (Leviathan et al. 2023,
    section 3.3, with an acceptance per position and a pass whose cost depends on its width). So copies, which cost
    nothing, are up to w tokens long, drafts of the model up to m <= w, and the best pair is chosen for all rows
    together. Where the model drafts, every token bears its share of what reading a request costs it.

    Where the best pair gains less than `WORTHWHILE` over regular decoding it parks: it drafts nothing. A kind that is
    not drafted is probed now and then, for `PROBE_SHARE` of the time.
    """

    def __init__(self, costs: Costs, *, most: int = 16) -> None:
        if most < 1:
            raise InputError(f"the longest draft must be >= 1, not {most}; num_draft 0 turns drafting off")
        self.most = most
        self._full = [width - 1 for width in WIDTHS if 1 < width <= most] + [most]  # lengths that fill a pass
        self._times = RoundTimes(costs)
        self._kinds: dict[str, Acceptance] = {}
        self._round = 0
        self._gain, self._lengths = 1.0, dict[str, int]()  # of the last choice
        self._tokens, self._readings = TYPICAL_TOKENS, 1.0  # written with the draft model's help, and requests it read
        self._unread = 0  # requests that it has not read
        self._parked_since: int | None = None
        self._look_at = 0  # the round in which, parked, it looks whether a probe is due
        self._saved, self._probe = 3.0, ""  # rounds' worth of time, for probes; the kind that this round probes
        self._timed_at, self._gap = 0, FIRST_GAP  # the last round without a draft, and how many until the next

    @property
    def parked(self) -> bool:
        return self._parked_since is not None

    @property
    def parked_rounds(self) -> int:
        """For how many rounds nothing but probes has been drafted."""
        return 0 if self._parked_since is None else self._round - self._parked_since

    def begin(self) -> None:
        self._unread += 1

    def skips_round(self) -> bool:
        """Parked, and now and then while it drafts, for costs are compared with those of rounds without a draft."""
        self._round += 1
        self._saved = min(self._saved + PROBE_SHARE, MOST_SAVED)
        self._probe = ""
        if self.parked:
            return self._round < self._look_at
        if self._round - self._timed_at < self._gap:
            return False
        if self._times.is_plain_known:
            self._gap = min(2 * self._gap, LARGE_GAP if self._gain > LARGE_GAIN else SMALL_GAP)
        return True

    def choose(self, rows: Sequence[Choice]) -> list[tuple[str, int]]:
        kinds = [self._better(row, len(rows)) for row in rows]
        if not any(kinds):
            return [("", 0)] * len(rows)
        best, self._gain = self._best(rows, kinds)
        if self._gain >= (WORTHWHILE if self.parked else 1.0):
            self._parked_since = None
        else:
            best = {}
            if not self.parked and all(self._promise(kind, len(rows)) < WORTHWHILE for kind in self._kinds):
                self._parked_since = self._round - 1
        self._look_at = self._round + LEAST_WAIT
        if due := self._due(rows, best):
            (self._probe,) = due
            best |= due
            kinds = [self._probe if self._probe in row.kinds else kind for kind, row in zip(kinds, rows, strict=True)]
        self._lengths = best
        chosen = []
        for kind, row in zip(kinds, rows, strict=True):
            if kind and not best.get(kind):  # the pass is as wide anyway
                kind = next((other for other in row.kinds if best.get(other)), kind)
            chosen.append((kind, min(row.room, best.get(kind, 0))))
        return chosen

    def observe(self, rows: Sequence[Drafted], seconds: float) -> None:
        width = min(self.most, max(row.drafted for row in rows))
        steps = min(self.most, max(row.drafted * (row.kind == MODEL) for row in rows))
        readings = min(self._unread, len(rows)) if steps else 0  # the others came and went while nothing was drafted
        if not width:
            self._timed_at = self._round
        if seconds > 0:
            self._times.observe(len(rows), width, steps, readings, seconds)
        asked: dict[str, list[Drafted]] = {}
        for row in rows:
            if row.asked:
                asked.setdefault(row.kind, []).append(row)
        for kind, each in asked.items():
            acceptance = self._acceptance(kind)
            acceptance.observe(each)
            acceptance.last = self._round if any(row.drafted for row in each) else acceptance.last
        if steps:
            self._unread = 0
            if readings:
                self._tokens, self._readings = REQUEST_MEMORY * self._tokens, REQUEST_MEMORY * self._readings
            if not self._probe:
                self._readings += readings
                self._tokens += sum(row.accepted + 1 for row in rows if row.kind == MODEL)
        if self._probe and width:
            self._judge_probe(rows, {MODEL: steps, "": width}, readings)

    def _judge_probe(self, rows: Sequence[Drafted], lengths: Mapping[str, int], readings: int) -> None:
        tokens = sum(row.accepted + 1 for row in rows)
        if self._price(lengths, len(rows), tokens, 0) < 0:  # a probe that paid is followed by another
            self._kinds[self._probe].last = -LEAST_WAIT
            self._look_at = self._round + 1
        else:
            self._saved -= self._price(lengths, len(rows), tokens, readings)

    def describe(self) -> str:
        if self.parked:
            return f"parked for {self.parked_rounds} rounds, for drafting promises {self._gain:.2f}x the speed"
        if not self._lengths:
            return "new"
        kinds = ", ".join(f"{kind or 'draft'} {length}" for kind, length in self._lengths.items())
        return f"{kinds} tokens a round promise {self._gain:.2f}x the speed of regular decoding"

    def _acceptance(self, kind: str) -> Acceptance:
        if kind not in self._kinds:
            self._kinds[kind] = Acceptance(self.most)
        return self._kinds[kind]

    def _better(self, row: Choice, count: int) -> str:
        """The kind that a row should have, "" if none; the first as long as one of them was never drafted."""
        if not row.room or not row.kinds:
            return ""
        known = [self._acceptance(kind).is_known for kind in row.kinds]
        return (
            max(row.kinds, key=lambda kind: self._promise(kind, count))
            if len(known) > 1 and all(known)
            else row.kinds[0]
        )

    def _promise(self, kind: str, count: int) -> float:
        """The gain over regular decoding if all rows had this kind."""
        return self._best([Choice(self.most, (kind,))] * count, [kind] * count)[1]

    def _best(self, rows: Sequence[Choice], kinds: Sequence[str]) -> tuple[dict[str, int], float]:
        """The length of each kind that promises most tokens per second, and the gain over regular decoding."""
        count, copied, modelled, nothing = len(rows), [0.0] * (self.most + 1), [0.0] * (self.most + 1), 1.0
        for (kind, room), times in Counter(zip(kinds, (min(row.room, self.most) for row in rows), strict=True)).items():
            if kind:
                worth = self._kinds[kind]
                nothing *= (1.0 - worth.found) ** times
                gains = modelled if kind == MODEL else copied
                for i, expected in enumerate(worth.expected):
                    gains[i] += times * (expected if i <= room else worth.expected[room])
        wide, step = self._times.by_width(count, self.most), self._times.step
        reading = self._times.reading(count) * self._readings / self._tokens
        if MODEL not in kinds:
            pairs = [(width, 0) for width in self._full]
        elif all(kind in ("", MODEL) for kind in kinds):
            pairs = [(steps, steps) for steps in range(1, self.most + 1)]
        else:
            pairs = [(width, steps) for width in self._full for steps in range(width + 1)]
        best, best_rate = (0, 0), 0.0
        for width, steps in pairs:
            tokens = count + copied[width] + modelled[steps]
            seconds = wide[width] - nothing * (wide[width] - wide[steps]) + steps * step
            rate = tokens / (seconds + (tokens * reading if steps else 0.0))
            if rate > best_rate:
                best, best_rate = (width, steps), rate
        return {kind: best[kind == MODEL] for kind in kinds if kind}, best_rate / count

    def _due(self, rows: Sequence[Choice], lengths: Mapping[str, int]) -> dict[str, int]:
        """The kind that has not been drafted for longest and the length that a probe of it should have, once what it
        may cost has been saved; nothing if none is due.
        """
        rooms = [(kind, row.room) for row in rows if row.room for kind in row.kinds if not lengths.get(kind)]
        idle = {kind: self._acceptance(kind).last for kind, _ in rooms}
        kind = min(idle, key=lambda kind: idle[kind], default="")
        if not idle or self._round - idle[kind] < LEAST_WAIT:
            return {}
        wide, step = self._times.by_width(len(rows), self.most), self._times.step * (kind == MODEL)
        tokens = list(accumulate(HOPE**i for i in range(self.most + 1)))
        pays = (i for i in range(1, self.most + 1) if tokens[i] >= WORTHWHILE * (wide[i] + i * step))
        length = min(next(pays, 1), max(room for other, room in rooms if other == kind))
        due = dict(lengths) | {kind: length}
        readings = min(self._unread, len(rows)) if kind == MODEL else 0
        return {kind: length} if self._saved >= self._price(due, len(rows), len(rows), readings) else {}

    def _price(self, lengths: Mapping[str, int], rows: int, tokens: float, readings: int) -> float:
        """Rounds' worth of time lost by a round of these lengths that brings so many tokens."""
        wide, steps = self._times.by_width(rows, self.most), lengths.get(MODEL, 0)
        spent = wide[max(lengths.values())] + self._times.step * steps + self._times.reading(rows) * readings
        return spent - tokens / rows / max(self._gain, 1.0)
