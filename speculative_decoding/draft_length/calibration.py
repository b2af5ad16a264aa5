"""Measures the costs of passes and drafts on this device.

1. The first request measures for `START_SECONDS`, because its first token waits. What is not measured is estimated from
   the measured widths.
2. A cost is rough until several timings agree. Later rounds time one rough cost each, for a moment in each process.
3. If the user asks, everything is measured until no cost is rough.

Measurements are stored, so most processes only read them.
"""

from __future__ import annotations

import time

from .costs import ALL_WIDTHS, MAX_MEASURED_WIDTHS, MAX_WIDTH, interpolated, measure_widths, next_width
from .exact_widths import ExactWidths, max_batched_width, next_power_of_two
from .passes import RoundCosts
from .store import Draft, draft_name, pass_name

START_SECONDS = 0.15  # before the first token, for each number of rows
FULL_SECONDS = 2.0  # if the user asks for a measurement
ROUNDS_BEFORE_REFINING = 64  # in a process that has measured before its first token

DRAFT = 0  # in place of a width: the draft
NO_DRAFT = (0.0, 0.0, 0.0)


class Calibration:
    """Costs of a target's passes and of one draft. Missing ones are measured.

    Args:
        exact_widths: The widths of exact passes. Its probe measures this device, and its store keeps the measurements.
        draft: The fingerprint of the draft that the probe times, or "" without a draft.
    """

    def __init__(self, exact_widths: ExactWidths, draft: str = "") -> None:
        self.exact_widths = exact_widths
        self._store = exact_widths.store()
        self._draft = draft
        self._costs: dict[tuple[int, bool], RoundCosts] = {}  # by rows, and whether passes are exact
        self._refined: set[tuple[int, bool]] = set()  # those without a rough cost
        self._rounds_to_wait = 0

    def forget(self) -> None:
        """Discard all measurements; they are repeated when they are needed."""
        if not self._store.is_read_only:
            self._store.clear()
        self._costs.clear()
        self._refined.clear()

    def costs(self, rows: int, *, exact: bool = False) -> RoundCosts:
        """The costs of a round with this many rows, measured at the next power of two; perhaps with exact passes only.

        The first call measures for about `START_SECONDS`, if no other process has.
        """
        rows = next_power_of_two(rows)
        if (rows, exact) not in self._costs:
            costs = self._named_costs(rows, exact) if self._store.is_read_only else self._estimate(rows, exact)
            if costs is None:
                self._measure(rows, exact, START_SECONDS)
                self._rounds_to_wait = ROUNDS_BEFORE_REFINING
                costs = self._estimate(rows, exact)
                assert costs is not None
            self._costs[rows, exact] = costs
        return self._costs[rows, exact]

    def refine(self, rows: int, *, exact: bool = False) -> None:
        """Time one pass or draft again if its cost is rough. Called between rounds, when no first token is waited for.

        A process begins no further timing after `CalibrationStore.refine_seconds`.
        """
        store = self._store
        if self._rounds_to_wait:
            self._rounds_to_wait -= 1
            return
        key = next_power_of_two(rows), exact
        if store.refine_seconds <= 0.0 or store.is_read_only or key in self._refined:
            return
        started = time.perf_counter()
        width = self._next(*key)
        if width is None:
            self._refined.add(key)
        else:
            self._time(key[0], width)
            store.save()
            self._costs.clear()
        store.refine_seconds -= time.perf_counter() - started

    def measure_fully(self, rows: int, *, exact: bool = False) -> RoundCosts:
        """Measure until no cost is rough, at most for `FULL_SECONDS`, because the user wants to know."""
        if not self._store.is_read_only:
            self._measure(next_power_of_two(rows), exact, FULL_SECONDS)
            self._costs.clear()
        return self.costs(rows, exact=exact)

    def _measure(self, rows: int, exact: bool, seconds: float) -> None:
        """Time what is known least, again and again, for this long or until no cost is rough; then store the result."""
        started = time.perf_counter()
        width = self._next(rows, exact)
        if width is None:
            return
        self._store.announce()
        while width is not None:
            self._time(rows, width)
            if time.perf_counter() - started >= seconds and self._estimate(rows, exact) is not None:
                break
            width = self._next(rows, exact)
        self._store.save()

    def _time(self, rows: int, width: int) -> None:
        """Time a pass, or the draft."""
        probe = self.exact_widths.probe()
        if width == DRAFT:
            self._store.found.add_draft(self._draft, rows, probe.draft_seconds(rows))
        else:
            self._store.found.add_pass(rows, width, probe.pass_seconds(rows, width))

    def _next(self, rows: int, exact: bool) -> int | None:
        """The width to time next, or `DRAFT`; None if no cost is rough."""
        found = self._store.found
        if 1 not in found.passes.get(rows, {}):  # the baseline, also if it is not exact
            return 1
        candidates = self._candidates(rows, exact)
        measured = self._measured(rows, candidates)
        if measured and self._draft_costs(rows) is None:
            return DRAFT
        width = next_width(measured, candidates, max_widths(rows))
        if width is not None or not found.rough:
            return width
        names = {pass_name(rows, each): each for each in (1, *measured)} | {draft_name(self._draft, rows): DRAFT}
        rough = {each: found.rough[name] for name, each in names.items() if name in found.rough}
        return min(rough, key=rough.__getitem__, default=None)

    def _candidates(self, rows: int, exact: bool) -> list[int]:
        """The widths that passes may have, in increasing order."""
        exact_widths = self.exact_widths
        widths = [*ALL_WIDTHS]
        if exact and not exact_widths.any_width:
            widths = [width for width in exact_widths.widths if width <= MAX_WIDTH] or exact_widths.widths[:1]
        if rows > 1:
            widths = [width for width in widths if width <= max_batched_width(rows)] or widths[:1]
            widths = [width for width in widths if not exact or exact_widths.same_bits(rows, width)]
        return widths

    def _measured(self, rows: int, candidates: list[int]) -> dict[int, float]:
        """The costs of the candidates that have been timed."""
        passes = self._store.found.passes.get(rows, {})
        return {width: passes[width] for width in candidates if width in passes}

    def _draft_costs(self, rows: int) -> Draft | None:
        return self._store.found.drafts.get(self._draft, {}).get(rows) if self._draft else NO_DRAFT

    def _estimate(self, rows: int, exact: bool) -> RoundCosts | None:
        """The costs as if all were measured: what has not been timed is interpolated. None if too little is known."""
        candidates = self._candidates(rows, exact)
        measured = self._measured(rows, candidates)
        draft = self._draft_costs(rows)
        if not measured or draft is None:
            return None
        passes = measure_widths(interpolated(measured), candidates, max_widths(rows), measured)
        step, start, prefill = draft
        baseline = self._store.found.passes[rows][1] if exact else 0.0
        return RoundCosts(passes, step, start, prefill, fastest_baseline=baseline)

    def _named_costs(self, rows: int, exact: bool) -> RoundCosts:
        """The costs from a file that the user named, which need not contain these rows or this draft."""
        found = self._store.found
        rows = max((each for each in found.passes if each <= rows), default=min(found.passes))
        passes = found.passes[rows]
        baseline = passes.get(1, 0.0) if exact else 0.0
        if exact:
            passes = {width: cost for width, cost in passes.items() if self.exact_widths.same_bits(rows, width)}
        by_rows = found.drafts.get(self._draft, {})
        if self._draft:
            by_rows = by_rows or next((costs for name, costs in found.drafts.items() if name), {})
        step, start, prefill = by_rows.get(rows, NO_DRAFT)
        return RoundCosts(passes, step, start, prefill, fastest_baseline=baseline)


def max_widths(rows: int) -> int:
    """The most widths that are measured."""
    return MAX_MEASURED_WIDTHS if rows == 1 else 6
