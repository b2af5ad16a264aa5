"""Chooses the draft lengths that maximize expected tokens per cost, from measured costs and observed acceptance.

This takes a few microseconds of arithmetic on the host per round, and never waits for the device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from ..drafters.base import COPY, MEMORY, MODEL, TEXT
from ..errors import InputError, Message
from .base import DraftLength, DraftOutcome
from .passes import TYPICAL_TOKENS, RoundCosts

LONGEST = 16
LONGEST_COPY = 63  # fills the widest pass; copied tokens need no computation, so only the pass limits their number
COPIES = (COPY, TEXT, MEMORY)
COPY_POSITIONS = 4  # acceptance of a copy hardly depends on the position, so all later positions are counted together
OPTIMISM = 0.7  # fraction by which a prior, which was measured on other text, is moved towards 1
DECAY = 0.994  # each round multiplies the weight of past observations by this factor
IDLE_DECAY = 0.9965  # the same factor for kinds that are currently not drafted
IDLE_ROUNDS = 4  # number of rounds without a new decision after a decision to draft nothing
WORTHWHILE = 1.05  # minimum predicted speedup; allows for errors in the measured costs


class Acceptance:
    """Estimates each position's acceptance rate for one kind of draft, given that all earlier positions were accepted.

    The last position also represents all positions beyond it.

    Args:
        prior: The acceptance rate of each position on held-out text, if known. The estimate for a position with few
            observations is based on the preceding position.
        longest: The number of positions.
    """

    def __init__(self, prior: Sequence[float] = (), longest: int = LONGEST) -> None:
        optimistic = 0.93  # high enough that drafts are tried if nothing is known
        known = [each + OPTIMISM * (1.0 - each) for each in prior[:longest]] or [optimistic]
        self._prior = known + known[-1:] * (longest - len(known))
        self._hits = [0.0] * longest
        self._seen = [0.0] * longest
        self.faded = 1.0  # decay since `_hits` and `_seen` were last updated; lower values weaken past observations

    def observe(self, outcomes: Sequence[DraftOutcome]) -> None:
        self._hits = [self.faded * value for value in self._hits]
        self._seen = [self.faded * value for value in self._seen]
        self.faded = 1.0
        last = len(self._seen) - 1
        for outcome in outcomes:
            # Positions after the first rejected token were not tested.
            for i in range(min(outcome.drafted, outcome.accepted + 1)):
                position = i if i < last else last
                self._hits[position] += i < outcome.accepted
                self._seen[position] += 1.0

    def expected(self, longest: int) -> list[float]:
        """The expected number of accepted tokens for each draft length from 0 to `longest`."""
        faded = self.faded
        survives = 1.0  # the probability that all positions up to this one are accepted
        expected = [0.0]
        likely = before = self._prior[0]
        weight = 4.0  # the prior has the weight of this many observed drafts
        for prior, hits, seen, _ in zip(self._prior, self._hits, self._seen, range(longest), strict=False):
            likely = (faded * hits + weight * min(1.0, likely * prior / before)) / (faded * seen + weight)
            before = max(prior, 1e-3)
            weight = 15.0  # weight, in drafts, of a position's acceptance as the prior of the next position
            survives *= likely
            expected.append(expected[-1] + survives)
        total = expected[-1]
        for _ in range(longest - len(self._seen)):
            survives *= likely
            total += survives
            expected.append(total)
        return expected


class AdaptiveLength(DraftLength):
    """Chooses lengths for all rows together, because the longest draft determines the width of the target's pass.

    A round whose longest draft has w tokens, after m steps of a draft model, takes pass(w + 1) + start + m * step
    seconds. It yields 1 + a_1 + a_1 a_2 + ... tokens for each row, up to its draft length (Leviathan et al. 2023,
    section 3.3, with one acceptance rate per position and measured costs). Copies need no model step, so this class
    chooses the pair (w, m) with the most tokens per second.

    If no draft promises a speedup, nothing is drafted until past observations have faded enough for the prior to
    promise one. The worse or more expensive a draft is, the longer it takes until it is retried.

    A draft model without a prior starts with two tokens. As in TCP's slow start, its later drafts have at most twice
    the largest number of tokens accepted from any earlier draft. A useless draft model therefore stays cheap.

    Copies from any text may have up to `LONGEST_COPY` tokens, other drafts up to `LONGEST`. Passes wider than usual are
    timed only when needed: if a whole copy was accepted, and a wider pass would be worthwhile at the cost of the widest
    timed pass.

    Args:
        costs: Returns the costs of a round with a given number of rows.
        prior: The prior of a draft model or draft head; see `Acceptance`.
        max_draft_tokens: The maximum draft length.
        widen: Called with a number of rows and a width from `RoundCosts.untimed` to request that a pass of this width
            be timed.
    """

    def __init__(
        self,
        costs: Callable[[int], RoundCosts],
        *,
        prior: Sequence[float] = (),
        max_draft_tokens: int = LONGEST_COPY,
        widen: Callable[[int, int], None] | None = None,
    ) -> None:
        if max_draft_tokens < 1:
            raise InputError(
                f"must be >= 1, not {max_draft_tokens}",
                "max_draft_tokens",
                Message("{num_draft_tokens} 0 turns drafting off"),
            )
        self._max_draft_tokens = max_draft_tokens
        self._costs = costs
        self._prior = prior
        self._widen = widen
        self._kinds: dict[str, Acceptance] = {}
        self._speedup = 1.0  # predicted for the last chosen lengths
        self._lengths: dict[str, int] = {}  # the last chosen lengths, by kind
        self._model_limit = LONGEST if prior else 2
        self._rounds_to_decision = 0  # rounds until lengths are chosen again
        self._filled = False  # whether a copy that filled the pass was fully accepted in the last round

    def wants_drafts(self) -> bool:
        return self._rounds_to_decision <= 0

    def choose(self, kinds: Sequence[str], limits: Sequence[int]) -> list[int]:
        if not any(limits):
            return [0] * len(limits)
        costs = self._costs(len(limits))
        most = self._max_draft_tokens
        longest = {kind: min(most, LONGEST_COPY if kind in COPIES else LONGEST) for kind in kinds}
        limits = [min(limit, longest[kind]) for kind, limit in zip(kinds, limits, strict=True)]
        lengths, self._speedup = self._best(kinds, limits, costs)
        lengths = {kind: min(length, longest[kind]) for kind, length in lengths.items()}
        if self._filled and costs.untimed and self._widen is not None:
            self._request_wider_pass(kinds, limits, costs)
        if MODEL in lengths:
            lengths[MODEL] = min(lengths[MODEL], self._model_limit)
        self._speedup *= (costs.fastest_baseline or costs.baseline) / costs.baseline
        self._lengths |= lengths
        self._rounds_to_decision = 1 if any(self._lengths.values()) else IDLE_ROUNDS + 1
        return [min(limit, self._lengths[kind]) for kind, limit in zip(kinds, limits, strict=True)]

    def observe(self, outcomes: Sequence[DraftOutcome]) -> None:
        drafted = [outcome for outcome in outcomes if outcome.drafted]
        self._filled = any(
            outcome.kind in COPIES and outcome.accepted >= self._lengths.get(outcome.kind, LONGEST)
            for outcome in drafted
        )
        for kind in dict.fromkeys(outcome.kind for outcome in drafted):
            own = [outcome for outcome in drafted if outcome.kind == kind]
            self._of(kind).observe(own)
            if kind == MODEL:
                self._model_limit = max(self._model_limit, *(2 * outcome.accepted for outcome in own))
        for kind, acceptance in self._kinds.items():  # rejected kinds are retried when their observations have faded
            acceptance.faded *= DECAY if self._lengths.get(kind) else IDLE_DECAY
        self._rounds_to_decision -= 1

    def describe(self) -> str:
        if not self._lengths:
            return "the first round chooses a length"
        drafting = ", ".join(f"{kind or 'draft'} {length}" for kind, length in self._lengths.items() if length)
        if not drafting:
            return "drafts nothing, because no draft length promises a speedup"
        return f"{drafting} tokens a round, a predicted speedup of {self._speedup:.2f}x"

    def _of(self, kind: str) -> Acceptance:
        if kind not in self._kinds:
            positions = COPY_POSITIONS if kind in COPIES else LONGEST
            self._kinds[kind] = Acceptance(self._prior if kind == MODEL else (), positions)
        return self._kinds[kind]

    def _request_wider_pass(self, kinds: Sequence[str], limits: Sequence[int], costs: RoundCosts) -> None:
        """Request the narrowest untimed pass that would be worthwhile if it cost as much as the widest timed one."""
        assert self._widen is not None
        rows = len(limits)
        copied, _ = self._expected_tokens(kinds, limits, costs.untimed[-1] - 1)
        rate = self._speedup * rows / costs.baseline
        for width in costs.untimed:
            if rows + copied[width - 1] > WORTHWHILE * rate * max(costs.passes.values()):
                self._widen(rows, width)
                return

    def _best(self, kinds: Sequence[str], limits: Sequence[int], costs: RoundCosts) -> tuple[dict[str, int], float]:
        """The length for each kind that yields the most tokens per cost, and the predicted speedup."""
        rows = len(limits)
        most = min(max(limits), max(costs.passes, default=1) - 1)
        copied, modelled = self._expected_tokens(kinds, limits, most)
        prefill = costs.prefill / TYPICAL_TOKENS  # per token
        first_draft = 0.0 if self._lengths.get(MODEL) else costs.prefill  # an idle draft model must encode the source
        best = 0, 0  # the longest copy, and the number of draft-model steps
        best_rate = WORTHWHILE * rows / costs.baseline
        for longest, steps, cost in self._rounds(kinds, most, costs):
            tokens = rows + copied[min(longest, most)] + modelled[steps]
            drafting = costs.start + steps * costs.step + tokens * prefill + first_draft if steps else 0.0
            rate = tokens / (cost + drafting)
            if rate > best_rate:
                best = longest, steps
                best_rate = rate
        speedup = best_rate * costs.baseline / rows if best[0] else 1.0
        return {kind: best[kind == MODEL] for kind in kinds}, speedup

    def _expected_tokens(
        self, kinds: Sequence[str], limits: Sequence[int], most: int
    ) -> tuple[list[float], list[float]]:
        """The expected number of accepted tokens by draft length, in total for rows that copy, and for the others."""
        copied = [0.0] * (most + 1)
        modelled = [0.0] * (most + 1)
        expected = {kind: self._of(kind).expected(most) for kind in set(kinds)}
        capped = [min(limit, most) for limit in limits]
        for (kind, limit), times in Counter(zip(kinds, capped, strict=True)).items():
            tokens_by_length = modelled if kind == MODEL else copied
            for i in range(most + 1):
                tokens_by_length[i] += times * expected[kind][min(i, limit)]
        return copied, modelled

    def _rounds(self, kinds: Sequence[str], most: int, costs: RoundCosts) -> Iterator[tuple[int, int, float]]:
        """Yield the rounds to compare: the longest copy, the number of draft-model steps, and the cost of the pass."""
        has_copies = any(kind != MODEL for kind in kinds)
        max_steps = min(most, LONGEST) if MODEL in kinds else 0
        narrower = 0  # the longest draft of the next narrower pass
        for width, cost in sorted(costs.passes.items()):
            longest = width - 1  # copies fill the pass, because their additional tokens cost nothing
            fewest = 0 if has_copies else narrower + 1  # drafts with fewer steps fit into the narrower pass
            for steps in range(fewest, min(longest, max_steps) + 1):
                yield longest, steps, cost
            narrower = longest
