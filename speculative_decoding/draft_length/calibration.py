"""Measures the costs of passes and drafts on this device.

1. The first request measures only for `START_SECONDS`, because its first token must wait for the measurement. The costs
   of all other widths are estimated from those that were measured.
2. A cost is rough until several timings agree. Each later round times one rough cost again, within a time limit per
   process.
3. Wider passes are timed only in later rounds, and only if a draft-length policy requests them. They are not used
   before they are timed.
4. At the user's request, all costs except those of wider passes are measured until none is rough.

Measurements are stored, so most processes only read them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from .costs import (
    interpolated,
    max_measured_width,
    max_number_of_widths,
    measure_widths,
    monotone,
    next_power_of_two,
    next_width,
    wider_widths,
)
from .passes import RoundCosts
from .store import CalibrationStore, Draft, draft_name, pass_name

if TYPE_CHECKING:
    from .exact_widths import ExactWidths
    from .probe import Probe

START_SECONDS = 0.15  # approximate limit before the first token, for each number of rows
FULL_SECONDS = 2.0  # approximate limit if the user requests a measurement
ROUNDS_BEFORE_REFINING = 64  # if this process's first token had to wait for a measurement

DRAFT = 0  # represents the draft where a width is expected
NO_DRAFT = (0.0, 0.0, 0.0)


class Calibration:
    """The costs of a target's passes and of one draft. Missing costs are measured.

    Args:
        probe: Returns the probe that times passes and the draft. Called only when a measurement is needed.
        store: Keeps the measurements.
        exact_widths: The widths of exact passes; None if passes of all widths produce the same bits.
        draft: The fingerprint of the draft that the probe times, or "" without a draft.
    """

    def __init__(
        self,
        probe: Callable[[], Probe],
        store: CalibrationStore,
        exact_widths: ExactWidths | None = None,
        draft: str = "",
    ) -> None:
        self.exact_widths = exact_widths
        self._probe = probe
        self._store = store
        self._draft = draft
        self._costs: dict[tuple[int, bool], RoundCosts] = {}  # by rows, and whether passes are exact
        self._refined: set[tuple[int, bool]] = set()  # the keys for which no cost is rough
        self._wanted: dict[tuple[int, bool], int] = {}  # the width of a wider pass to time, by the same keys
        self._rounds_to_wait = 0

    def forget(self) -> None:
        """Discard all measurements. They are repeated when needed."""
        if not self._store.is_read_only:
            self._store.clear()
        self._costs.clear()
        self._refined.clear()
        self._wanted.clear()

    def costs(self, rows: int, *, exact: bool = False) -> RoundCosts:
        """The costs of a round with this many rows, rounded up to a power of two. exact: whether passes must be exact.

        The first call measures for about `START_SECONDS`, unless another process has already stored measurements.
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

    def widen(self, rows: int, width: int, *, exact: bool = False) -> None:
        """Let a later call of `refine` time this width, which is one of `RoundCosts.untimed`."""
        key = next_power_of_two(rows), exact
        self._wanted[key] = width
        self._refined.discard(key)

    def refine(self, rows: int, *, exact: bool = False) -> None:
        """Repeat the timing of one pass or draft whose cost is rough, or time a wider pass for the first time.

        Called between rounds, when no request is waiting for its first token. A process stops refining once it has
        spent `CalibrationStore.refine_seconds`.
        """
        store = self._store
        if self._rounds_to_wait:
            self._rounds_to_wait -= 1
            return
        key = next_power_of_two(rows), exact
        if store.refine_seconds <= 0.0 or store.is_read_only or key in self._refined:
            return
        started = time.perf_counter()
        width = self._next(*key, wider=True)
        if width is None:
            self._refined.add(key)
        else:
            self._time(key[0], width)
            store.save()
        self._costs.clear()
        store.refine_seconds -= time.perf_counter() - started

    def measure_fully(self, rows: int, *, exact: bool = False) -> RoundCosts:
        """Measure at the user's request until no cost is rough, but not much longer than `FULL_SECONDS`."""
        if not self._store.is_read_only:
            self._measure(next_power_of_two(rows), exact, FULL_SECONDS)
            self._costs.clear()
        return self.costs(rows, exact=exact)

    def _measure(self, rows: int, exact: bool, seconds: float) -> None:
        """Repeatedly time the least certain cost, for `seconds` or until no cost is rough. Then store the results."""
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
        probe = self._probe()
        if width == DRAFT:
            self._store.add_draft(self._draft, rows, probe.draft_seconds(rows))
        else:
            self._store.add_pass(rows, width, probe.pass_seconds(rows, width))

    def _next(self, rows: int, exact: bool, *, wider: bool = False) -> int | None:
        """The width to time next, or `DRAFT`; None if no cost is rough. wider: whether wider passes may be timed."""
        store = self._store
        if 1 not in store.passes.get(rows, {}):  # the baseline, even if it is not exact
            return 1
        candidates, measured, draft = self._known(rows, exact)
        if measured and draft is None:
            return DRAFT
        width = next_width(measured, candidates, max_number_of_widths(rows))
        if width is not None:
            return width
        if wider:
            timed, untimed = self._wider(rows, exact)
            measured |= timed
            wanted = self._wanted.get((rows, exact))
            if wanted in untimed and self._may_use(rows, wanted, exact):
                return wanted
        if not store.rough:
            return None
        names = {pass_name(rows, each): each for each in (1, *measured)} | {draft_name(self._draft, rows): DRAFT}
        rough = {each: store.rough[name] for name, each in names.items() if name in store.rough}
        return min(rough, key=rough.__getitem__, default=None)

    def _known(self, rows: int, exact: bool) -> tuple[list[int], dict[int, float], Draft | None]:
        """The widths that passes may have, the costs of the timed ones, and the draft's costs (None if not timed)."""
        candidates = [*range(1, max_measured_width(rows) + 1)]
        if exact and self.exact_widths is not None:
            candidates = self.exact_widths.candidates(rows)
        passes = self._store.passes.get(rows, {})
        measured = {width: passes[width] for width in candidates if width in passes}
        draft = self._store.drafts.get(self._draft, {}).get(rows) if self._draft else NO_DRAFT
        return candidates, measured, draft

    def _wider(self, rows: int, exact: bool) -> tuple[dict[int, float], list[int]]:
        """The costs of the wider passes that may be used, and the widths that must be timed or compared first."""
        passes = self._store.passes.get(rows, {})
        timed: dict[int, float] = {}
        untimed: list[int] = []
        for width in wider_widths(rows):
            same = self.exact_widths.known_same_bits(rows, width) if exact and self.exact_widths is not None else True
            if same and width in passes:
                timed[width] = passes[width]
            elif same is not False:
                untimed.append(width)
        return timed, untimed

    def _may_use(self, rows: int, width: int, exact: bool) -> bool:
        """Whether rounds may have passes of this width. Compares bits if necessary."""
        return not exact or self.exact_widths is None or self.exact_widths.same_bits(rows, width)

    def _estimate(self, rows: int, exact: bool) -> RoundCosts | None:
        """The costs of all widths, interpolated where a width has not been timed. None if too little is known."""
        candidates, measured, draft = self._known(rows, exact)
        if not measured or draft is None:
            return None
        passes = measure_widths(interpolated(measured), candidates, max_number_of_widths(rows), measured)
        timed, untimed = self._wider(rows, exact)
        if timed:
            passes = monotone(passes | timed)
        if self._store.refine_seconds <= 0.0:
            untimed = []
        step, start, prefill = draft
        baseline = self._store.passes[rows][1] if exact else 0.0
        return RoundCosts(passes, step, start, prefill, baseline, [each for each in untimed if each > max(passes)])

    def _named_costs(self, rows: int, exact: bool) -> RoundCosts:
        """The costs from a file named by the user, which may lack this number of rows or this draft."""
        found = self._store
        rows = max((each for each in found.passes if each <= rows), default=min(found.passes))
        passes = found.passes[rows]
        baseline = passes.get(1, 0.0) if exact else 0.0
        if exact and self.exact_widths is not None:
            passes = {width: cost for width, cost in passes.items() if self.exact_widths.same_bits(rows, width)}
        by_rows = found.drafts.get(self._draft, {})
        if self._draft:
            by_rows = by_rows or next((costs for name, costs in found.drafts.items() if name), {})
        step, start, prefill = by_rows.get(rows, NO_DRAFT)
        return RoundCosts(passes, step, start, prefill, fastest_baseline=baseline)
