"""Chooses the draft lengths with the most expected tokens per cost, from measured costs and observed acceptance.

This takes some microseconds of host arithmetic per round, and never waits for the device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from ..drafters.base import MODEL
from ..errors import InputError, Name
from .base import DraftLength, DraftOutcome
from .passes import TYPICAL_TOKENS, RoundCosts

LONGEST = 16
OPTIMISM = 0.7  # moves a prior, which was measured on other text, towards 1 by this fraction
DECAY = 0.994  # each round multiplies the weight of past observations by this factor
IDLE_DECAY = 0.9965  # the same factor for kinds that are currently not drafted
WORTHWHILE = 1.05  # minimum predicted speedup; covers the error of measured costs


class Acceptance:
    """Estimates, for one kind of draft, the acceptance of each position given that all earlier ones were accepted.

    Args:
        prior: The acceptance of each position on held-out text, if known. A position with few observations is
            predicted from the one before it.
        longest: The number of positions.
    """

    def __init__(self, prior: Sequence[float] = (), longest: int = LONGEST) -> None:
        optimistic = 0.93  # so that drafts are tried if nothing is known
        known = [each + OPTIMISM * (1.0 - each) for each in prior[:longest]] or [optimistic]
        self._prior = known + known[-1:] * (longest - len(known))
        self._hits = [0.0] * longest
        self._seen = [0.0] * longest
        self.faded = 1.0  # decay since `_hits` and `_seen` were updated; lower it to weaken past observations

    def observe(self, outcomes: Sequence[DraftOutcome]) -> None:
        self._hits = [self.faded * value for value in self._hits]
        self._seen = [self.faded * value for value in self._seen]
        self.faded = 1.0
        for outcome in outcomes:
            # Positions after the first rejected token were not tested.
            for i in range(min(outcome.drafted, outcome.accepted + 1, len(self._seen))):
                self._hits[i] += i < outcome.accepted
                self._seen[i] += 1.0

    def expected(self) -> list[float]:
        """The expected number of accepted tokens for each draft length, from 0."""
        faded = self.faded
        survives = 1.0  # the probability that all positions so far are accepted
        expected = [0.0]
        likely = before = self._prior[0]
        weight = 4.0  # the prior counts as much as this many observed drafts
        for prior, hits, seen in zip(self._prior, self._hits, self._seen, strict=True):
            likely = (faded * hits + weight * min(1.0, likely * prior / before)) / (faded * seen + weight)
            before = max(prior, 1e-3)
            weight = 15.0  # in drafts: how much a position's acceptance counts as the prior of the next position
            survives *= likely
            expected.append(expected[-1] + survives)
        return expected


class AdaptiveLength(DraftLength):
    """Chooses lengths for all rows together, because the longest draft determines the width of the target's pass.

    A round whose longest draft has w tokens, after m steps of a draft model, takes pass(w + 1) + start + m step
    seconds. It yields 1 + a_1 + a_1 a_2 + ... tokens for each row, up to its draft length (Leviathan et al. 2023,
    section 3.3, with an acceptance per position and measured costs). Copies need no model step, so this class chooses
    the pair (w, m) with the most tokens per second.

    If no draft promises a speedup, nothing is drafted until past observations have faded enough for the prior to
    promise one. The worse or more expensive a draft is, the later it is retried.

    A draft model without a prior starts with two tokens. Its later drafts are at most twice as long as the most tokens
    accepted from one draft so far, as in TCP's slow start. So a useless draft model stays cheap.

    Args:
        costs: Returns the costs of a round with this many rows.
        prior: The prior of a draft model or draft head; see `Acceptance`.
        max_draft_tokens: The maximum length.
    """

    def __init__(
        self, costs: Callable[[int], RoundCosts], *, prior: Sequence[float] = (), max_draft_tokens: int = LONGEST
    ) -> None:
        if max_draft_tokens < 1:
            raise InputError(
                f"must be >= 1, not {max_draft_tokens}",
                "max_draft_tokens",
                (Name("num_draft_tokens"), " 0 turns drafting off"),
            )
        self._max_draft_tokens = max_draft_tokens
        self._costs = costs
        self._prior = prior
        self._kinds: dict[str, Acceptance] = {}
        self._speedup = 1.0  # predicted for the last choice
        self._lengths: dict[str, int] = {}  # the last choice, by kind
        self._model_limit = max_draft_tokens if prior else 2
        self._idle_rounds = 0  # rounds until the next decision

    def begin_round(self) -> bool:
        for kind, acceptance in self._kinds.items():  # rejected kinds are retried when their observations have faded
            acceptance.faded *= DECAY if self._lengths.get(kind) else IDLE_DECAY
        self._idle_rounds -= 1
        return self._idle_rounds < 0

    def choose(self, kinds: Sequence[str], limits: Sequence[int]) -> list[int]:
        if not any(limits):
            return [0] * len(limits)
        costs = self._costs(len(limits))
        lengths, self._speedup = self._best(kinds, limits, costs)
        if MODEL in lengths:
            lengths[MODEL] = min(lengths[MODEL], self._model_limit)
        self._speedup *= (costs.fastest_baseline or costs.baseline) / costs.baseline
        self._lengths |= lengths
        self._idle_rounds = 0 if any(self._lengths.values()) else 4
        return [min(limit, self._lengths[kind]) for kind, limit in zip(kinds, limits, strict=True)]

    def observe(self, outcomes: Sequence[DraftOutcome]) -> None:
        drafted = [outcome for outcome in outcomes if outcome.drafted]
        for kind in dict.fromkeys(outcome.kind for outcome in drafted):
            own = [outcome for outcome in drafted if outcome.kind == kind]
            self._of(kind).observe(own)
            if kind == MODEL:
                self._model_limit = max(self._model_limit, *(2 * outcome.accepted for outcome in own))

    def describe(self) -> str:
        if not self._lengths:
            return "the first round chooses a length"
        drafting = ", ".join(f"{kind or 'draft'} {length}" for kind, length in self._lengths.items() if length)
        if not drafting:
            return "drafts nothing, because no draft length promises a speedup"
        return f"{drafting} tokens a round, a predicted speedup of {self._speedup:.2f}x"

    def _of(self, kind: str) -> Acceptance:
        if kind not in self._kinds:
            self._kinds[kind] = Acceptance(self._prior if kind == MODEL else (), self._max_draft_tokens)
        return self._kinds[kind]

    def _best(self, kinds: Sequence[str], limits: Sequence[int], costs: RoundCosts) -> tuple[dict[str, int], float]:
        """The length of each kind that gives the most tokens per cost, and its predicted speedup."""
        rows = len(limits)
        copied, modelled = self._expected_tokens(kinds, limits)
        prefill = costs.prefill / TYPICAL_TOKENS  # per token
        first_draft = 0.0 if self._lengths.get(MODEL) else costs.prefill  # an idle draft model must encode the source
        best = 0, 0  # the longest copy, and the steps of the draft model
        best_rate = WORTHWHILE * rows / costs.baseline
        for longest, steps, cost in self._rounds(kinds, costs):
            tokens = rows + copied[longest] + modelled[steps]
            drafting = costs.start + steps * costs.step + tokens * prefill + first_draft if steps else 0.0
            rate = tokens / (cost + drafting)
            if rate > best_rate:
                best = longest, steps
                best_rate = rate
        speedup = best_rate * costs.baseline / rows if best[0] else 1.0
        return {kind: best[kind == MODEL] for kind in kinds}, speedup

    def _expected_tokens(self, kinds: Sequence[str], limits: Sequence[int]) -> tuple[list[float], list[float]]:
        """The expected accepted tokens of all rows, by draft length: for rows that copy, and for the others."""
        most = self._max_draft_tokens
        copied = [0.0] * (most + 1)
        modelled = [0.0] * (most + 1)
        expected = {kind: self._of(kind).expected() for kind in set(kinds)}
        capped = [min(limit, most) for limit in limits]
        for (kind, limit), times in Counter(zip(kinds, capped, strict=True)).items():
            tokens_by_length = modelled if kind == MODEL else copied
            for i in range(most + 1):
                tokens_by_length[i] += times * expected[kind][min(i, limit)]
        return copied, modelled

    def _rounds(self, kinds: Sequence[str], costs: RoundCosts) -> Iterator[tuple[int, int, float]]:
        """Yield the rounds to compare: the longest copy, the steps of the draft model, and the cost of the pass."""
        has_copies = any(kind != MODEL for kind in kinds)
        max_steps = self._max_draft_tokens if MODEL in kinds else 0
        narrower = 0  # the longest draft of the next narrower pass
        for width, cost in sorted(costs.passes.items()):
            longest = min(width - 1, self._max_draft_tokens)  # copies fill the pass, because more tokens cost nothing
            fewest = 0 if has_copies else narrower + 1  # fewer steps fit into the narrower pass
            for steps in range(fewest, min(longest, max_steps) + 1):
                yield longest, steps, cost
            narrower = longest
