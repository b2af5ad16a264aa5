"""The draft length that promises most tokens per second, from measured costs and the acceptance seen so far.

Host arithmetic, some microseconds a round; never waits for the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .costs import Costs
from .draft_length import DraftLength
from .errors import InputError
from .experience import Acceptance, Reading, RoundClock

WORTHWHILE = 1.02  # the least gain over regular decoding for which it drafts
HOPES = (0.8, 0.95, 1.0)  # the acceptance that a probe hopes for: the least that would pay
PROBE_SHARE = 0.01  # of the time since the last probe is the most that a probe may cost
FIRST_WAIT, LONGEST_WAIT = 8, 64  # rounds between probes; twice as many after each that failed
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
        best = [(most, max(kinds, key=lambda kind: self._gain(most, kind))) for most, kinds in rows]
        return [(kind, self.next(most, kind)) for most, kind in best]

    def observe(self, drafted: int, accepted: int, seconds: float, kind: str = "") -> None:
        self._controller(kind).observe(drafted, accepted, seconds)

    def describe(self) -> str:
        return "; ".join(f"{kind or 'draft'}: {each.describe()}" for kind, each in self._controllers.items()) or "new"

    def _gain(self, most: int, kind: str) -> float:
        return self._controller(kind).promise(min(most, self.most))[1]

    def _controller(self, kind: str) -> Controller:
        if kind not in self._controllers:
            self._controllers[kind] = Controller(self._kinds.get(kind, self._costs), self.most)
        return self._controllers[kind]


class Controller:
    """Chooses a length, parks and probes.

    For g drafted tokens a round yields 1 + a_1 + a_1 a_2 + ... + a_1...a_g tokens in t(g + 1) + g c + h seconds
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
        self._reading = Reading()
        self._longest = longest
        self._gain = 1.0  # expected of the best length, over regular decoding
        self._best = 0
        self._rounds = 0  # in which something could be drafted
        self._parked_since: int | None = None
        self._waited, self._wait = 0, FIRST_WAIT  # rounds since the last probe, and how many there are to be
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

    def promise(self, most: int) -> tuple[int, float]:
        """The best length up to `most`, and its gain over regular decoding."""
        if most < 1:
            return 0, 1.0
        seconds = self._clock.seconds
        best, gain = best_length(self._acceptance.estimates, seconds, most)
        return best, 1.0 / (1.0 / gain + self._reading.owed / (self._reading.tokens_to_come * seconds[0]))

    def next(self, most: int) -> int:
        if most < 1:
            return 0
        self._rounds += 1
        seconds = self._clock.seconds
        self._best, self._gain = self.promise(most)
        if self._gain >= WORTHWHILE:
            self._parked_since = None
            return 0 if self._clock.wants_plain(self._best, self._gain) else self._best
        if self._parked_since is None:
            self._parked_since, self._waited, self._gained = self._rounds - 1, 0, 0.0
        self._waited += 1
        if self._waited < self._wait:
            return 0
        probe = cheapest_probe(seconds, most)
        return probe if self._waited * PROBE_SHARE >= (seconds[probe] + self._reading.owed) / seconds[0] - 1.0 else 0

    def observe(self, drafted: int, accepted: int, seconds: float) -> None:
        self._reading.observe(drafted, accepted + 1, self._clock.excess(drafted, seconds))
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
