"""Draft lengths for the rows of a batch, decided together: the target's pass is as wide for all as its longest draft.

Knows counts and seconds, as every `DraftLength`; a single row has adaptive_length.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from ..errors import InputError
from .adaptive import FIRST_WAIT, PROBE_SHARE, WORTHWHILE, cheapest_probe
from .costs import Costs
from .experience import RoundClock, SharedReading
from .schedules import Drafted, DraftLength

PRIOR, PRIOR_WEIGHT = 0.6, 5.0  # acceptance before anything was seen; the weight is in drafts
MEMORY = 0.998  # of what was seen, per draft: the rows of a round bring many
REST = 64  # rounds at most for which, parked, it asks nobody what there is to draft


class JointLength(DraftLength):
    """Chooses for each round the lengths that promise most tokens per second, of all its rows.

    A round with a pass over w + 1 positions and m chained steps of the draft model takes t(w + 1) + s + m c + h
    seconds, however few rows draft, and yields for each row 1 + a_1 + a_1 a_2 + ... up to its draft. So whoever drafts
    for nothing does so up to w, and all rows of the draft model up to the same m <= w. Where that model speaks, every
    token takes its share of what reading a request costs it. Where the best pair gains less than `WORTHWHILE`, nothing
    is drafted. A kind that is not drafted is probed now and then, for `PROBE_SHARE` of the time.

    costs, kinds: as `AdaptiveLength` takes them, measured with as many rows as are decoded together.
    """

    def __init__(self, costs: Costs, *, most: int = 16, kinds: Mapping[str, Costs] | None = None) -> None:
        if most < 1:
            raise InputError(f"the longest draft must be >= 1, not {most}; num_draft 0 turns drafting off")
        self.most = most
        self._costs, self._costs_of_kinds = costs, dict(kinds or {})
        self._clock = RoundClock([costs.with_free_draft().round_seconds(width) for width in range(most + 1)])
        self._reading = SharedReading(max(each.reading for each in (costs, *(kinds or {}).values())))
        self._kinds: dict[str, Kind] = {}
        self._gain = 1.0  # expected of the best lengths, over regular decoding
        self._parked_rounds = 0
        self._saved = 0.0  # rounds' worth of time, for probes
        self._width = 0  # of the best
        self._rest = 0  # rounds to come in which nobody is asked

    @property
    def parked(self) -> bool:
        return self._parked_rounds > 0

    def begin(self) -> None:
        self._reading.begin()

    def next(self, most: int, kind: str = "") -> int:
        return self.next_of_rows([(most, kind)])[0]

    def rests(self) -> bool:
        """Parked, and now and then while it drafts: what a round takes without a draft, and without looking for one, is
        what drafting is compared with.
        """
        if self._rest:
            self._rest -= 1
            self._parked_rounds += 1
        elif self.parked or not self._clock.wants_plain(self._width, self._gain):
            return False
        self._saved += PROBE_SHARE
        for kind in self._kinds.values():
            kind.waited += 1
        return True

    def next_of_rows(self, rows: Sequence[tuple[int, str]]) -> list[int]:
        rooms: dict[str, list[int]] = {}
        for most, kind in rows:
            rooms.setdefault(kind, []).append(min(most, self.most))
        self._saved += PROBE_SHARE
        width, steps = self._best(rooms)
        self._width = width
        lengths = {kind: width if self._is_free(kind) else steps for kind in rooms}
        if self._gain < WORTHWHILE:
            lengths = dict.fromkeys(lengths, 0)
            self._parked_rounds += 1
        else:
            self._parked_rounds = 0
        self._probe(lengths, rooms)
        if not any(lengths.values()):
            self._rest = min(REST, self._parked_rounds // 4)  # the next rows may have what these had not
        return [min(most, lengths[kind]) for most, kind in rows]

    def choose(self, rows: Sequence[tuple[int, Sequence[str]]]) -> list[tuple[str, int]]:
        """A row whose first kind drafts nothing tries its last, as far as the pass is wide anyway."""
        first = super().choose(rows)
        width = max(length for _, length in first)
        return [
            choice if choice[1] or len(kinds) < 2 or not self._is_free(kinds[-1]) else (kinds[-1], min(most, width))
            for choice, (most, kinds) in zip(first, rows, strict=True)
        ]

    def observe(self, drafted: int, accepted: int, seconds: float, kind: str = "") -> None:
        self.observe_rows([Drafted(drafted, drafted, accepted, kind)], seconds)

    def observe_rows(self, rows: Sequence[Drafted], seconds: float) -> None:
        width = max(each.drafted for each in rows)
        spoken = max(self._draft_seconds(each.kind, each.drafted) for each in rows)
        excess = self._clock.excess(width, seconds - spoken) if seconds else None
        if not self._reading.observe(len(rows), sum(each.accepted + 1 for each in rows), spoken > 0, excess):
            self._clock.observe(width, seconds - spoken)
        for each in rows:
            if each.asked:
                self._kind(each.kind).observe(each.drafted, each.accepted)

    def describe(self) -> str:
        if self.parked:
            return f"parked for {self._parked_rounds} rounds, for drafting promises {self._gain:.2f}x the speed"
        kinds = ", ".join(f"{kind or 'draft'} {each.lately}" for kind, each in self._kinds.items())
        return f"drafting promises {self._gain:.2f}x the speed of regular decoding" + (
            f" ({kinds} tokens)" * bool(kinds)
        )

    def _best(self, rooms: Mapping[str, Sequence[int]]) -> tuple[int, int]:
        """(w, m), and their gain is noted. A pass is no wider than plain decoding's if no row finds anything."""
        free = {kind: each for kind, each in rooms.items() if self._is_free(kind)}
        paid = {kind: each for kind, each in rooms.items() if kind not in free}
        from_free, from_paid = self._expected(free), self._expected(paid)
        nothing, reading = 1.0, self._reading.seconds_per_token
        for kind, each in free.items():
            nothing *= (1.0 - self._kind(kind).found) ** len(each)
        count, seconds = sum(map(len, rooms.values())), self._clock.seconds
        spoken = [max(self._draft_seconds(kind, steps) for kind in rooms) for steps in range(self.most + 1)]
        best, best_rate = (0, 0), 0.0
        for width in range(1, self.most + 1):
            for steps in range(width + 1 if paid else 1):
                narrow = seconds[steps] + spoken[steps]
                wide = seconds[width] + spoken[steps]
                tokens = count + from_free[width] + from_paid[steps]
                rate = tokens / (wide + nothing * (narrow - wide) + (tokens * reading if steps else 0.0))
                if rate > best_rate:
                    best, best_rate = (width, steps), rate
        self._gain = best_rate * seconds[0] / count
        return best

    def _expected(self, rooms: Mapping[str, Sequence[int]]) -> list[float]:
        """For each length, how many drafted tokens of these rows will be accepted."""
        gains = [0.0] * (self.most + 1)
        for kind, each in rooms.items():
            survives = self._kind(kind).found
            for i, right in enumerate(self._kind(kind).acceptance):
                survives *= right
                gains[i + 1] += survives * sum(room > i for room in each)
        return list(accumulate(gains))

    def _probe(self, lengths: dict[str, int], rooms: Mapping[str, Sequence[int]]) -> None:
        """Let the kind draft that has not for longest, for what it teaches, once that has been saved up for."""
        seconds, width = self._clock.seconds, max(lengths.values())
        for kind in lengths:
            each = self._kind(kind)
            each.waited = 0 if lengths[kind] else each.waited + 1
        for kind in sorted(lengths, key=lambda kind: -self._kind(kind).waited):
            each = self._kind(kind)
            costs = [value + self._draft_seconds(kind, count) for count, value in enumerate(seconds)]
            probe = cheapest_probe(costs, max(rooms[kind]))
            if each.waited < FIRST_WAIT or not probe:
                continue
            extra = seconds[max(width, probe)] + self._draft_seconds(kind, probe) - seconds[width]
            if not self._is_free(kind):
                extra += self._reading.unread(sum(map(len, rooms.values()))) * self._reading.seconds
            if self._saved >= extra / seconds[width]:
                self._saved = 0.0
                lengths[kind], each.waited = probe, 0
            return

    def _draft_seconds(self, kind: str, count: int) -> float:
        return self._costs_of_kinds.get(kind, self._costs).draft_seconds(count)

    def _is_free(self, kind: str) -> bool:
        return not self._draft_seconds(kind, 1)

    def _kind(self, kind: str) -> Kind:
        return self._kinds.setdefault(kind, Kind(self.most))


class Kind:
    """What one kind of draft has been worth, over all rows.

    found: how often there was a draft at all. acceptance: of each position, given that all before it were accepted.
    waited: rounds since it last drafted. lately: tokens of its last draft.
    """

    def __init__(self, longest: int) -> None:
        self._hits, self._seen = [0.0] * longest, [0.0] * longest
        self._asked = self._found = PRIOR_WEIGHT
        self.waited = self.lately = 0
        self._estimate()

    def observe(self, drafted: int, accepted: int) -> None:
        """Of a row that was asked for a draft."""
        self._asked, self._found = MEMORY * self._asked + 1.0, MEMORY * self._found + (drafted > 0)
        if drafted:
            self.lately = drafted
            self._hits = [MEMORY * hits for hits in self._hits]
            self._seen = [MEMORY * seen for seen in self._seen]
        for i in range(min(drafted, accepted + 1, len(self._seen))):  # behind a rejection nothing was tested
            self._hits[i] += i < accepted
            self._seen[i] += 1.0
        self._estimate()

    def _estimate(self) -> None:
        """Of a position that was seen little, one expects what the one before it is worth."""
        self.found, self.acceptance, lasting = self._found / self._asked, list[float](), PRIOR
        for hits, seen in zip(self._hits, self._seen, strict=True):
            lasting = (hits + PRIOR_WEIGHT * lasting) / (seen + PRIOR_WEIGHT)
            self.acceptance.append(lasting)
