"""The draft length that promises most tokens per second, from measured costs and the acceptance seen so far.

Host arithmetic, some microseconds a round; never waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from .costs import Costs
from .draft_length import DraftLength
from .errors import InputError

WORTHWHILE = 1.02  # the least gain over regular decoding for which it drafts
HOPES = (0.8, 0.95, 1.0)  # the acceptance that a probe hopes for: the least that would pay
PROBE_SHARE = 0.01  # of the time since the last probe is the most that a probe may cost
FIRST_WAIT, LONGEST_WAIT = 8, 64  # rounds between probes; twice as many after each that failed
PROVEN = 4.0  # rounds' worth of time gained, after which earlier failures are forgotten
SURE = 1.3  # below this gain, what a round without a draft costs is checked more often

PRIOR, PRIOR_WEIGHT = 0.6, 5.0  # acceptance before anything was seen; the weight is in rounds
MEMORY = 0.985  # of what was seen, per round that drafted
MOOD_STEP, MOOD_MEMORY, LOUDEST = 0.2, 0.95, 3.0
CARRIED_OVER = 0.3  # of the mood, into the next request

SPEED_STEP, CORRECTION_STEP, TRUST, PLAIN_TRUST = (
    0.1,
    0.015,
    24,
    4,
)  # trust: how many rounds the measurement beforehand is worth
MOST_SURPRISE, ODD = 0.3, 0.3  # of a round's seconds, as logarithms: what counts at most; what is checked again at once


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

    def observe(self, drafted: int, accepted: int, seconds: float, kind: str = "") -> None:
        self._controller(kind).observe(drafted, accepted, seconds)

    def describe(self) -> str:
        return "; ".join(f"{kind or 'draft'}: {each.describe()}" for kind, each in self._controllers.items()) or "new"

    def _controller(self, kind: str) -> Controller:
        if kind not in self._controllers:
            self._controllers[kind] = Controller(self._kinds.get(kind, self._costs), self.most)
        return self._controllers[kind]


class Controller:
    """Chooses a length, parks and probes.

    For g drafted tokens a round yields 1 + a_1 + a_1 a_2 + ... + a_1...a_g tokens in t(g + 1) + g c + h seconds
    (Leviathan et al. 2023, section 3.3, with an acceptance per position and a pass whose cost depends on its width).
    One more token is worth its time up to the g with the best quotient; comparing them all looks past the steps of t.

    Where even the best gains less than `WORTHWHILE`, it parks: nothing is drafted but a probe now and then, of the
    cheapest length that could pay, ever more rarely, and never so often that a useless draft costs much. Where not
    even a perfect draft would pay, there are no probes.
    """

    def __init__(self, costs: Costs, longest: int) -> None:
        self._acceptance = Acceptance(longest)
        self._clock = RoundClock([costs.round_seconds(count) for count in range(longest + 1)])
        self._longest = longest
        self._gain = 1.0  # expected of the best length, over regular decoding
        self._best = 0
        self._rounds = 0  # in which something could be drafted
        self._parked_since: int | None = None
        self._waited, self._wait = 0, FIRST_WAIT  # rounds since the last probe, and how many there are to be
        self._gained = 0.0  # rounds' worth of time since drafting began again
        self._since_plain = 0  # rounds since one without a draft

    @property
    def parked(self) -> bool:
        return self._parked_since is not None

    @property
    def parked_rounds(self) -> int:
        return 0 if self._parked_since is None else self._rounds - self._parked_since

    def begin(self) -> None:
        self._acceptance.begin()
        self._clock.begin()

    def next(self, most: int) -> int:
        if most < 1:
            return 0
        self._rounds += 1
        seconds = self._clock.seconds
        self._best, self._gain = best_length(self._acceptance.estimates, seconds, most)
        if self._gain >= WORTHWHILE:
            self._parked_since = None
            self._since_plain += 1
            return 0 if self._since_plain > self._clock.plain_rounds_until(self._gain < SURE) else self._best
        if self._parked_since is None:
            self._parked_since, self._waited, self._gained = self._rounds - 1, 0, 0.0
        self._waited += 1
        if self._waited < self._wait:
            return 0
        probe = cheapest_probe(seconds, most)
        return probe if self._waited * PROBE_SHARE >= seconds[probe] / seconds[0] - 1.0 else 0

    def observe(self, drafted: int, accepted: int, seconds: float) -> None:
        self._clock.observe(drafted, seconds)
        if drafted == 0:  # free, and says nothing about acceptance; a probe that found nothing is still due
            self._since_plain = 0
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


class Acceptance:
    """How likely each drafted position is to be accepted, given that those before it were.

    What the session has taught is an average per position, with a prior that each position passes to the next. What
    holds right now is its odds times one factor, the mood, for acceptance comes in stretches and differs from
    request to request. The mood moves like a rating in chess: by what was accepted beyond expectation, and back
    towards 1 with every round and every request.
    """

    def __init__(self, longest: int) -> None:
        self._hits = [0.0] * longest
        self._seen = [0.0] * longest
        self._mood = 0.0  # a logarithm
        self.estimates: list[float] = []
        self._estimate()

    def begin(self) -> None:
        self._mood *= CARRIED_OVER
        self._estimate()

    def observe(self, drafted: int, accepted: int) -> None:
        self._hits = [MEMORY * hits for hits in self._hits]
        self._seen = [MEMORY * seen for seen in self._seen]
        surprise = 0.0
        for i in range(min(drafted, accepted + 1, len(self._seen))):  # behind a rejection nothing was tested
            hit = float(i < accepted)
            surprise += hit - self.estimates[i]
            self._hits[i] += hit
            self._seen[i] += 1.0
        self._mood = max(-LOUDEST, min(LOUDEST, MOOD_MEMORY * self._mood + MOOD_STEP * surprise))
        self._estimate()

    def _estimate(self) -> None:
        lasting, factor, self.estimates = PRIOR, math.exp(self._mood), []
        for hits, seen in zip(self._hits, self._seen, strict=True):
            lasting = (hits + PRIOR_WEIGHT * lasting) / (seen + PRIOR_WEIGHT)
            self.estimates.append(lasting * factor / (1.0 + lasting * (factor - 1.0)))


class RoundClock:
    """Seconds of a round by its drafted tokens: as measured beforehand, corrected by what rounds really take.

    One factor follows the speed of the machine, and no decision depends on it; one per count follows what the
    measurement got wrong. A single round counts only so much: now and then one takes three times as long for reasons
    of its own.
    """

    def __init__(self, measured: Sequence[float]) -> None:
        self._measured = measured
        self._corrections = [0.0] * len(measured)  # logarithms
        self._rounds = [0] * len(measured)
        self._speed = 0.0  # a logarithm
        self._odd = 0.0  # by how much the last round without a draft differed from what was expected, if by much
        self._caught_up = False  # whether the draft model holds all committed tokens
        self.seconds = list(measured)

    def plain_rounds_until(self, unsure: bool) -> int:
        """After how many rounds that drafted there should be one that does not, so that both costs are known."""
        if self._odd:
            return 1
        return 8 << min(self._rounds[0], 3) if unsure else 128

    def begin(self) -> None:
        self._caught_up = False

    def observe(self, drafted: int, seconds: float) -> None:
        """A draft after rounds without one, or the first of a request, is left out: its model reads what it missed."""
        caught_up, self._caught_up = self._caught_up, drafted > 0
        if drafted >= len(self._measured) or seconds <= 0 or (drafted and not caught_up):
            return
        surprise = math.log(seconds / self.seconds[drafted]) - self._speed
        self._rounds[drafted] += 1
        step = max(CORRECTION_STEP, 1.0 / (self._rounds[drafted] + (TRUST if drafted else PLAIN_TRUST)))
        if drafted == 0 and caught_up:
            before, self._odd = self._odd, surprise if abs(surprise) > ODD else 0.0
            if before * self._odd > 0:  # twice in a row is no accident
                self._correct(0, surprise / 2)
                return
        surprise = max(-MOST_SURPRISE, min(MOST_SURPRISE, surprise))
        self._speed += SPEED_STEP * surprise
        self._correct(drafted, step * surprise)

    def _correct(self, drafted: int, by: float) -> None:
        self._corrections[drafted] += by
        self.seconds[drafted] = self._measured[drafted] * math.exp(self._corrections[drafted])
