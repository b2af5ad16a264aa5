"""The draft length that promises most tokens per second, from measured costs and the acceptance seen so far.

Host arithmetic, some microseconds a round; never waits for the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InputError
from .costs import Costs
from .experience import Acceptance, Reading, RoundClock
from .schedules import DraftLength

WORTHWHILE = 1.02  # the least gain over regular decoding for which it drafts
HOPES = (0.8, 0.95, 1.0)  # the acceptance that a probe hopes for: the least that would pay
FIRST_WAIT, LONGEST_WAIT = 16, 1024  # rounds between probes; twice as many after each that failed
PROBE_SHARE = 0.004  # of the time since the last probe; one that costs no more is due in any case
LOOK_EVERY = 8  # rounds, while parked
PROVEN = 4.0  # rounds' worth of time gained, after which earlier failures are forgotten


class AdaptiveLength(DraftLength):
    """Keeps a `Controller` for each kind of draft.

    costs: of drafts whose kind is not in `kinds`; a kind that is only looked up costs `costs.with_free_draft()`.
    """

    def __init__(self, costs: Costs, *, most: int = 16, kinds: Mapping[str, Costs] | None = None) -> None:
        if most < 1:
            raise InputError(f"the longest draft must be >= 1, not {most}; num_draft 0 turns drafting off")
        self.most = most
        self._costs, self._kinds = costs, dict(kinds or {})
        self._controllers: dict[str, Controller] = {}

    @property
    def parked(self) -> bool:
        """Whether nothing is drafted at present, of any kind seen so far."""
        return bool(self._controllers) and all(each.parked for each in self._controllers.values())

    @property
    def parked_rounds(self) -> int:
        """For how many rounds it has been parked, over all requests; 0 if it is not."""
        return min(each.parked_rounds for each in self._controllers.values()) if self.parked else 0

    def begin(self) -> None:
        for each in self._controllers.values():
            each.begin()

    def next(self, most: int, kind: str = "") -> int:
        return self._controller(kind).next(min(most, self.most))

    def choose(self, rows: Sequence[tuple[int, Sequence[str]]]) -> list[tuple[str, int]]:
        """The kind that promises most."""
        return [(kind, self.next(most, kind)) for most, kinds in rows for kind in [self._best_kind(most, kinds)]]

    def observe(self, drafted: int, accepted: int, seconds: float, kind: str = "") -> None:
        self._controller(kind).observe(drafted, accepted, seconds)

    def describe(self) -> str:
        return "; ".join(f"{kind or 'draft'}: {each.describe()}" for kind, each in self._controllers.items()) or "new"

    def _best_kind(self, most: int, kinds: Sequence[str]) -> str:
        if len(kinds) == 1:
            return kinds[0]
        return max(kinds, key=lambda kind: self._controller(kind).promise(min(most, self.most))[1])

    def _controller(self, kind: str) -> Controller:
        if kind not in self._controllers:
            self._controllers[kind] = Controller(self._kinds.get(kind, self._costs), self.most)
        return self._controllers[kind]


class Controller:
    """Chooses a length, parks and probes.

    For g drafted tokens a round yields 1 + a_1 + a_1 a_2 + ... + a_1...a_g tokens in t(g + 1) + s + g c + h seconds
    (Leviathan et al. 2023, section 3.3, with an acceptance per position and a pass whose cost depends on its width).
    One more token is worth its time up to the g with the best quotient; comparing them all looks past the steps of t.

    What a draft costs once in a request is set against all that the request will gain, until it is paid.

    Where even the best gains less than `WORTHWHILE`, it parks: nothing is drafted but a probe now and then, of the
    cheapest length that could pay, ever more rarely, and never so often that a useless draft costs much. Where not
    even a perfect draft would pay, there are no probes.
    """

    def __init__(self, costs: Costs, longest: int) -> None:
        self._acceptance = Acceptance(longest)
        self._clock = RoundClock([costs.round_seconds(count) for count in range(longest + 1)])
        self._reading = Reading(costs.reading)
        self._longest = longest
        self._basis: tuple[Any, ...] = ()  # of the last `promise`
        self._promise = 0, 1.0  # without the reading
        self._gain = 1.0  # expected of the best length, over regular decoding
        self._best = 0
        self._rounds = 0  # in which something could be drafted
        self._parked_since: int | None = None
        self._waited, self._wait = 0, FIRST_WAIT  # rounds since the last probe, and how many there are to be
        self._look_at = 0  # the round at which, parked, it decides anew
        self._gained = 0.0  # rounds' worth of time since drafting began again

    @property
    def parked(self) -> bool:
        return self._parked_since is not None

    @property
    def parked_rounds(self) -> int:
        return 0 if self._parked_since is None else self._rounds - self._parked_since

    def begin(self) -> None:
        self._acceptance.begin()
        self._reading.begin()
        self._clock.begin()
        self._look_at = 0

    def promise(self, most: int) -> tuple[int, float]:
        """The best length up to `most`, and its gain over regular decoding."""
        if most < 1:
            return 0, 1.0
        basis = self._acceptance.estimates, self._clock.seconds, most
        if basis != self._basis:
            self._basis, self._promise = basis, best_length(*basis)
        best, gain = self._promise
        if owed := self._reading.owed:
            gain = 1.0 / (1.0 / gain + owed / (self._reading.tokens_to_come * self._clock.seconds[0]))
        return best, gain

    def next(self, most: int) -> int:
        if most < 1:
            return 0
        self._rounds += 1
        self._waited += 1
        if self._rounds < self._look_at:
            return 0
        seconds = self._clock.seconds
        self._best, self._gain = self.promise(most)
        if self._gain >= WORTHWHILE:
            self._parked_since = None
            return 0 if self._clock.wants_plain(self._best, self._gain) else self._best
        if self._parked_since is None:
            self._parked_since, self._waited, self._gained = self._rounds - 1, 1, 0.0
        probe = cheapest_probe(seconds, most) if self._waited >= FIRST_WAIT else 0
        costs = (seconds[probe] + self._reading.owed) / seconds[0] - 1.0
        if probe and self._waited >= min(self._wait, costs / PROBE_SHARE):
            return probe
        self._look_at = self._rounds + LOOK_EVERY
        return 0

    def observe(self, drafted: int, accepted: int, seconds: float) -> None:
        excess = self._clock.excess(drafted, seconds) if drafted and seconds else None
        self._reading.observe(drafted, accepted + 1, excess)
        self._clock.observe(drafted, seconds)
        if drafted == 0:  # free, and says nothing about acceptance; a probe that found nothing is still due
            return
        self._acceptance.observe(drafted, accepted)
        expected = self._clock.seconds
        saved = accepted + 1 - expected[min(drafted, self._longest)] / expected[0]
        if not self.parked:
            self._gained += saved
            if self._gained > PROVEN:
                self._wait = FIRST_WAIT
        elif saved <= 0:  # a probe that paid is followed by another
            self._waited, self._wait = 0, min(2 * self._wait, LONGEST_WAIT)

    def describe(self) -> str:
        if self.parked:
            return f"parked for {self.parked_rounds} rounds, for drafting promises {self._gain:.2f}x the speed"
        return f"{self._best} tokens a round promise {self._gain:.2f}x the speed of regular decoding"


def best_length(acceptance: Sequence[float], seconds: Sequence[float], most: int) -> tuple[int, float]:
    """(g, its gain over regular decoding) for the g in 1..most with the most expected tokens per second.

    acceptance: of each position, given that all before it were accepted. seconds: of a round by its drafted tokens.
    """
    best, best_rate = 1, 0.0
    tokens = survives = 1.0
    for count in range(1, most + 1):
        survives *= acceptance[count - 1]
        tokens += survives
        if (rate := tokens / seconds[count]) > best_rate:
            best, best_rate = count, rate
    return best, best_rate * seconds[0]


def cheapest_probe(seconds: Sequence[float], most: int) -> int:
    """The shortest draft that would pay if it were good; 0 if none would even if it were perfect."""
    for hope in HOPES:
        tokens = survives = 1.0
        for count in range(1, most + 1):
            survives *= hope
            tokens += survives
            if tokens * seconds[0] >= WORTHWHILE * seconds[count]:
                return count
    return 0
