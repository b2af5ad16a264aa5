"""Measures the costs of passes and drafts on this device.

1. The first request measures only for `START_SECONDS`, because its first token must wait for the measurement. All costs
   are estimated from the few that were measured (costs.py).
2. Between later rounds, the least certain cost is timed again, within `REFINING_SECONDS` and `REFINING_SHARE`.
3. Rounds correct the ratios of the costs, which other programs and work on the host change.
4. Wider passes are timed only in later rounds, and only if a draft-length policy requests them. They are not used
   before they are timed.
5. At the user's request, all costs except those of wider passes are measured until they are known well.

Measurements are stored, so most processes only read them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from .costs import (
    ALL_WIDTHS,
    CostCurve,
    RoundTimes,
    max_measured_width,
    max_number_of_widths,
    next_power_of_two,
    useful_widths,
    wider_widths,
)
from .passes import RoundCosts
from .store import CalibrationStore, Draft

if TYPE_CHECKING:
    from .exact_widths import ExactWidths
    from .probe import Probe

START_SECONDS = 0.15  # approximate limit before the first token, for each number of rows
FULL_SECONDS = 2.0  # approximate limit if the user requests a measurement
# Later timings take at most about `REFINING_SECONDS`, plus a share of the rounds' time.
REFINING_SECONDS = 0.1
REFINING_SHARE = 0.02
ROUNDS_TO_CORRECTION = 16  # number of new rounds after which costs are corrected again
DRAFT_TIMINGS = 4  # number of timings after which a draft's costs are known well

DRAFT = 0  # represents the draft where a width is expected
NO_DRAFT = Draft(0.0, 0.0, 0.0)

Key = tuple[int, bool]  # rows, and whether passes are exact


class Calibration:
    """The costs of a target's passes and of one draft. Missing costs are measured.

    Args:
        probe: Returns the probe that times passes and the draft. Called only when a measurement is needed.
        store: Keeps the measurements.
        exact_widths: The widths of exact passes; None if passes of all widths produce the same bits.
        draft: The fingerprint of the draft that the probe times, or "" without a draft.
        clock: Returns the current time in seconds, for simulations (default: `time.perf_counter`).
    """

    def __init__(
        self,
        probe: Callable[[], Probe],
        store: CalibrationStore,
        exact_widths: ExactWidths | None = None,
        draft: str = "",
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.exact_widths = exact_widths
        self._probe = probe
        self._store = store
        self._draft = draft
        self._clock = clock or time.perf_counter
        self._measured: dict[Key, tuple[CostCurve, RoundCosts]] = {}  # without rounds
        self._rounds: dict[Key, RoundTimes] = {}
        self._corrected: dict[Key, tuple[int, RoundCosts]] = {}  # the number of rounds then, and the costs
        self._precise: set[Key] = set()  # nothing needs to be timed again
        self._wanted: dict[Key, int] = {}  # the width of a wider pass to time
        self._round_seconds = 0.0
        self._refining_seconds = 0.0

    def forget(self) -> None:
        """Discard all measurements. They are repeated when needed."""
        if not self._store.is_read_only:
            self._store.clear()
        for kept in (self._measured, self._rounds, self._corrected, self._precise, self._wanted):
            kept.clear()

    def costs(self, rows: int, *, exact: bool = False) -> RoundCosts:
        """The costs of a round with this many rows, rounded up to a power of two. exact: whether passes must be exact.

        The first call measures for about `START_SECONDS`, unless another process has already stored measurements.
        """
        key = next_power_of_two(rows), exact
        count, costs = self._corrected.get(key, (0, None))
        rounds = self._rounds.get(key)
        if costs is not None and (rounds is None or rounds.count < count + ROUNDS_TO_CORRECTION):
            return costs
        if key not in self._measured:
            if self._store.is_read_only:
                self._corrected[key] = 0, self._named_costs(*key)
                return self._corrected[key][1]
            if not self._is_known(*key):
                self._measure(*key, START_SECONDS)
            self._measured[key] = self._estimate(*key)
        curve, costs = self._measured[key]
        if rounds is not None:
            corrected = curve.costs(rounds)
            passes = {width: corrected[width] for width in costs.passes}
            costs = replace(costs, passes=passes, fastest_baseline=corrected[1] if exact else 0.0)
        self._corrected[key] = 0 if rounds is None else rounds.count, costs
        return costs

    def observe(self, rows: int, width: int, steps: int, seconds: float, *, exact: bool = False) -> None:
        """Learn from a round whose time was affected by nothing but its shape and other programs.

        Args:
            rows: The number of rows.
            width: The width of the target's pass.
            steps: The number of steps of the draft model.
            seconds: The time that the round took.
            exact: As for `costs`.
        """
        if self._store.is_read_only:
            return
        key = next_power_of_two(rows), exact
        self.costs(rows, exact=exact)
        self._round_seconds += seconds
        _, costs = self._measured[key]
        if width in costs.passes and seconds > 0.0:
            drafting = costs.round_cost(width - 1, steps) - costs.passes[width]
            self._rounds.setdefault(key, RoundTimes()).add(width, seconds, costs.passes[width], drafting)

    def widen(self, rows: int, width: int, *, exact: bool = False) -> None:
        """Let a later call of `refine` time this width, which is one of `RoundCosts.untimed`."""
        key = next_power_of_two(rows), exact
        self._wanted[key] = width
        self._precise.discard(key)

    def refine(self, rows: int, *, exact: bool = False) -> None:
        """Repeat the timing of the least certain pass or draft, or time a wider pass for the first time.

        Called between rounds, when no request is waiting for its first token.
        """
        key = next_power_of_two(rows), exact
        if self._store.is_read_only or key in self._precise:
            return
        if self._refining_seconds > REFINING_SECONDS + REFINING_SHARE * self._round_seconds:
            return
        started = self._clock()
        width = self._next(*key, wider=True)
        if width is None:
            self._precise.add(key)
        else:
            self._time(key[0], width)
            self._store.save()
        self._measured.clear()
        self._corrected.clear()
        self._refining_seconds += self._clock() - started

    def measure_fully(self, rows: int, *, exact: bool = False) -> RoundCosts:
        """Measure at the user's request until all costs are known well, but not much longer than `FULL_SECONDS`."""
        if not self._store.is_read_only:
            self._measure(next_power_of_two(rows), exact, FULL_SECONDS)
            self._measured.clear()
            self._corrected.clear()
        return self.costs(rows, exact=exact)

    def _measure(self, rows: int, exact: bool, seconds: float) -> None:
        """Repeatedly time the least certain cost, for `seconds` or until all are known. Then store the results."""
        started = self._clock()
        width = self._next(rows, exact)
        if width is None:
            return
        self._store.announce()
        while width is not None:
            self._time(rows, width)
            if self._clock() - started >= seconds and self._is_known(rows, exact):
                break
            width = self._next(rows, exact)
        self._store.save()

    def _time(self, rows: int, width: int) -> None:
        """Time a pass, or the draft."""
        probe = self._probe()
        if width == DRAFT:
            self._store.add_draft(self._draft, rows, *probe.draft_seconds(rows))
        else:
            self._store.add_pass(rows, width, probe.pass_seconds(rows, width))

    def _next(self, rows: int, exact: bool, *, wider: bool = False) -> int | None:
        """The width to time next, or `DRAFT`; None if all costs are known. wider: whether wider passes may be timed."""
        timed = self._store.passes.get(rows, {})
        candidates = self._candidates(rows, exact)
        for first in (1, candidates[0], candidates[-1], DRAFT, *candidates[1:2]):
            if (first not in timed) if first != DRAFT else self._draft_timings(rows) == 0:
                return first
        if wider and (wanted := self._wanted.get((rows, exact))) in self._wider(rows, exact)[1]:
            assert wanted is not None
            if self._may_use(rows, wanted, exact):
                return wanted
        width = self._curve(rows, exact).least_certain(max_number_of_widths(rows))
        if width is None and self._draft_timings(rows) < DRAFT_TIMINGS:
            return DRAFT
        return width

    def _draft_timings(self, rows: int) -> int:
        """How many times the draft has been timed."""
        if not self._draft:
            return DRAFT_TIMINGS
        draft = self._store.drafts.get(self._draft, {}).get(rows)
        return 0 if draft is None else draft.runs

    def _is_known(self, rows: int, exact: bool) -> bool:
        """Whether enough has been measured to estimate the costs."""
        timed = self._store.passes.get(rows, {})
        has_passes = 1 in timed and any(each in timed for each in self._candidates(rows, exact))
        return has_passes and self._draft_timings(rows) > 0

    def _candidates(self, rows: int, exact: bool) -> list[int]:
        """The widths that passes may have, except wider ones."""
        if exact and self.exact_widths is not None:
            return self.exact_widths.candidates(rows)
        return [*ALL_WIDTHS][: max_measured_width(rows)]

    def _wider(self, rows: int, exact: bool) -> tuple[list[int], list[int]]:
        """The wider passes that may be used, and those that must be timed or compared first."""
        timed = self._store.passes.get(rows, {})
        usable: list[int] = []
        untimed: list[int] = []
        for width in wider_widths(rows):
            same = self.exact_widths.known_same_bits(rows, width) if exact and self.exact_widths is not None else True
            if same and width in timed:
                usable.append(width)
            elif same is not False:
                untimed.append(width)
        return usable, untimed

    def _may_use(self, rows: int, width: int, exact: bool) -> bool:
        """Whether rounds may have passes of this width. Compares bits if necessary."""
        return not exact or self.exact_widths is None or self.exact_widths.same_bits(rows, width)

    def _curve(self, rows: int, exact: bool) -> CostCurve:
        widths = sorted({1, *self._candidates(rows, exact), *self._wider(rows, exact)[0]})
        return CostCurve(widths, self._store.passes[rows])

    def _estimate(self, rows: int, exact: bool) -> tuple[CostCurve, RoundCosts]:
        """The costs according to the timings."""
        curve = self._curve(rows, exact)
        costs = curve.costs()
        candidates = self._candidates(rows, exact)
        usable, untimed = self._wider(rows, exact)
        widths = [*useful_widths({each: costs[each] for each in candidates}, max_number_of_widths(rows)), *usable]
        draft = self._store.drafts.get(self._draft, {}).get(rows, NO_DRAFT) if self._draft else NO_DRAFT
        untimed = [each for each in untimed if each > max(widths)]
        passes = {width: costs[width] for width in widths}
        return curve, RoundCosts(passes, draft.step, draft.start, draft.prefill, costs[1] if exact else 0.0, untimed)

    def _named_costs(self, rows: int, exact: bool) -> RoundCosts:
        """The costs from a file named by the user, which may lack this number of rows or this draft."""
        found = self._store
        rows = max((each for each in found.passes if each <= rows), default=min(found.passes))
        passes = {width: timing.cost for width, timing in found.passes[rows].items()}
        baseline = passes.get(1, 0.0) if exact else 0.0
        if exact and self.exact_widths is not None:
            passes = {width: cost for width, cost in passes.items() if self.exact_widths.same_bits(rows, width)}
        by_rows = found.drafts.get(self._draft, {})
        if self._draft:
            by_rows = by_rows or next((costs for name, costs in found.drafts.items() if name), {})
        draft = by_rows.get(rows, NO_DRAFT)
        return RoundCosts(passes, draft.step, draft.start, draft.prefill, fastest_baseline=baseline)
