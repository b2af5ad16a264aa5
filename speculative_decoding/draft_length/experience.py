"""What the rounds so far have taught: how likely drafts are right, and what rounds take.

Host arithmetic on counts and seconds; `AdaptiveLength` and `JointLength` decide by it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

PRIOR, PRIOR_WEIGHT = 0.6, 5.0  # acceptance before anything was seen; the weight is in rounds
MEMORY = 0.985  # of what was seen, per round that drafted
MOOD_STEP, MOOD_MEMORY, LOUDEST = 0.2, 0.95, 3.0
CARRIED_OVER = 0.3  # of the mood, into the next request

TYPICAL_TOKENS = 32.0  # of a request, before any was seen
TYPICAL_EARNING, LEAST_TO_COME = 8.0, 2.0  # those of rounds that draft; and of a request that is longer than others
REQUEST_STEP = 0.2  # how much the last request counts

FIRST_SPEED, FIRST_ALL, FIRST_OWN = 0.3, 0.4, 0.07  # deviations of logarithms, when only a measurement is known
SPEED_WALK, ALL_WALK = 0.03, 0.003  # and what is added to them with each round
NOISE, MOST_SURPRISE = 0.25, 2.0  # of one round; the surprise that counts at most, in deviations
LEAST_APART, MOST_APART = 8, 256  # rounds that draft, between two that do not
TOGETHER = 8  # rounds without a draft, long after the last one, that are learned from at once


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

    The logarithm of a round's seconds is what was measured, plus the speed of the machine, which drifts, plus for a
    round that drafts an error of all such rounds and one of that count, plus noise. A Kalman filter over the first two
    (Kalman 1960) keeps apart what rounds of one kind alone cannot tell apart: is the machine slower, or was drafting
    measured too fast? The next round without a draft answers that, for all that was seen before it. Each count's own
    error is taken for independent of them, which saves a matrix.
    """

    def __init__(self, measured: Sequence[float]) -> None:
        self._measured = measured
        self._speed = self._all = 0.0  # logarithms, as all that follows
        self._own = [0.0] * len(measured)
        self._speed_variance, self._covariance, self._all_variance = FIRST_SPEED**2, 0.0, FIRST_ALL**2
        self._own_variances = [0.0, *[FIRST_OWN**2] * (len(measured) - 1)]
        self._caught_up = False  # whether the draft model holds all committed tokens
        self._since_plain = 0  # rounds that drafted, since one that did not
        self._plain: list[float] = []  # seconds of rounds without a draft that have yet to be learned from
        self._together = 1  # of which so many are awaited
        self.seconds = list(measured)  # as fast as the machine was then: only their ratios matter

    def wants_plain(self, drafted: int, gain: float) -> bool:
        """Whether the next round, which is to draft so much for such a gain, should rather draft nothing, so that both
        costs are known.
        """
        if self._since_plain < LEAST_APART:
            return False
        deviation = math.sqrt(self._all_variance + self._own_variances[drafted])
        return self._since_plain >= MOST_APART or math.log(max(gain, 1.0)) < deviation

    def begin(self) -> None:
        self._caught_up = False

    def excess(self, drafted: int, seconds: float) -> float:
        """By how many seconds a round took longer than such a round does, as fast as the machine is now."""
        return seconds - self.seconds[min(drafted, len(self.seconds) - 1)] * math.exp(self._speed)

    def observe(self, drafted: int, seconds: float) -> None:
        """A draft after rounds without one, or the first of a request, is left out: its model reads what it missed.
        seconds: 0, or less, if they say nothing.
        """
        if not drafted:
            self._caught_up, self._since_plain = False, 0
            if seconds > 0:
                self._plain.append(seconds)
            if len(self._plain) >= self._together:
                self._learn_plain()
                self._together = min(2 * self._together, TOGETHER)
            return
        caught_up, self._caught_up = self._caught_up, True
        self._since_plain, self._together = self._since_plain + 1, 1
        if drafted < len(self._measured) and seconds > 0 and caught_up:
            self._learn_plain()
            self._learn(drafted, seconds)

    def _learn_plain(self) -> None:
        """Their median stands for all: a round that drafts nothing is to cost the host next to nothing."""
        if self._plain:
            self._learn(0, sorted(self._plain)[len(self._plain) // 2], len(self._plain))
            self._plain = []

    def _learn(self, drafted: int, seconds: float, rounds: int = 1) -> None:
        """From so many rounds that took about so long. `seconds` becomes another list."""
        self._speed_variance += rounds * SPEED_WALK**2
        self._all_variance += rounds * ALL_WALK**2
        drafts = float(drafted > 0)
        of_speed = self._speed_variance + drafts * self._covariance  # covariances with what is observed
        of_all = self._covariance + drafts * self._all_variance
        of_own = self._own_variances[drafted]
        variance = of_speed + drafts * of_all + of_own + NOISE**2 / rounds
        most = MOST_SURPRISE * math.sqrt(variance)  # now and then a round takes three times as long, for other reasons
        surprise = math.log(seconds / self.seconds[drafted]) - self._speed
        learned = max(-most, min(most, surprise)) / variance
        self._speed += of_speed * learned
        self._all += of_all * learned
        self._own[drafted] += of_own * learned
        self._speed_variance -= of_speed**2 / variance
        self._covariance -= of_speed * of_all / variance
        self._all_variance -= of_all**2 / variance
        self._own_variances[drafted] -= of_own**2 / variance
        factor = math.exp(self._all)
        own = zip(self._measured[1:], self._own[1:], strict=True)
        self.seconds = [self._measured[0], *(value * factor * math.exp(error) for value, error in own)]


class Reading:
    """What a draft costs once in a request, besides its tokens: a draft model reads the source, and what was committed
    before it first speaks. Also how many tokens of a request come of such rounds, which are to earn that back.

    seconds: as measured beforehand.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds  # may be negative by chance
        self._typical, self._tokens = TYPICAL_EARNING, 0
        self._paid = False

    @property
    def owed(self) -> float:
        """Seconds yet to be paid in this request."""
        return 0.0 if self._paid else max(0.0, self._seconds)

    @property
    def tokens_to_come(self) -> float:
        return max(self._typical - self._tokens, LEAST_TO_COME)

    def begin(self) -> None:
        if self._tokens:
            self._typical += REQUEST_STEP * (self._tokens - self._typical)
        self._tokens, self._paid = 0, False

    def observe(self, drafted: int, tokens: int, excess: float | None) -> None:
        """excess: seconds beyond those of another round that drafted as much, if they are known."""
        self._tokens += tokens
        if not drafted or self._paid:
            return
        self._paid = True
        if excess is not None:
            self._seconds += REQUEST_STEP * (excess - self._seconds)


class SharedReading:
    """What `Reading` knows of one request, for the rows of a batch: there is always one that has yet to be read, so the
    costs belong to every token.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._read = PRIOR_WEIGHT * seconds, PRIOR_WEIGHT  # of all readings, and how many there were
        self._tokens, self._requests = TYPICAL_TOKENS, 1.0
        self._unread = 0

    @property
    def seconds(self) -> float:
        """Of one request."""
        return max(0.0, self._seconds) / self._read

    @property
    def seconds_per_token(self) -> float:
        return self.seconds * self._requests / self._tokens

    def begin(self) -> None:
        self._unread += 1
        self._requests = MEMORY * self._requests + 1.0
        self._tokens *= MEMORY

    def unread(self, rows: int) -> int:
        """How many of the rows have not been read; requests that came and went in silence never will be."""
        return min(self._unread, rows)

    def observe(self, rows: int, tokens: int, spoke: bool, excess: float | None) -> bool:
        """After a round in which the rows wrote so many tokens, and the draft model spoke or not; whether it had to
        read first. excess: seconds beyond those of another round that drafted as much, if they are known.
        """
        self._tokens += tokens
        if not spoke or not self._unread:
            return False
        if excess is not None:
            self._seconds = MEMORY * self._seconds + excess
            self._read = MEMORY * self._read + self.unread(rows)
        self._unread = 0
        return True
