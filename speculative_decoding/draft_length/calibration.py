"""Measures the cost of passes on this device, and which pass widths give the same bits.

Costs are rough at first, because measuring must not delay the first token, and are refined between later rounds. The
widths with the same bits are compared completely, once, because tokens depend on them.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from ..models.base import EncoderDecoder
from ..models.device import on_gpu
from ..version import __version__, native_libraries
from .costs import ALL_WIDTHS, MAX_MEASURED_WIDTHS, MAX_WIDTH, RoundCosts, interpolated, measure_widths, next_width
from .probe import Bits, Probe
from .store import SETTLED, CalibrationStore, draft_name, pass_name, warn_once

# The same on every device
COMPARED_WIDTHS = (1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 14, 15, 16, 17, 24, 32)
MAX_USUAL_WIDTH = 16  # most passes of drafts are no wider
MAX_TYPICAL_WIDTH = 10  # if 70 % of the draft tokens are accepted, longer drafts gain less than 3 %
MAX_POSITIONS = 256  # rows * width of the largest pass that is measured for several rows
START_SECONDS = 0.15  # before the first token, for each number of rows
SETTLE_SECONDS = 2.0  # if the user asks for a measurement
ROUNDS_BEFORE_REFINING = 64  # in a process that has measured before its first token

DRAFT = 0  # in place of a width: the draft


class Calibration:
    """Costs of a target's passes and of one draft, and the exact widths. Missing values are measured.

    The exact widths are a set of pass widths that give each position the same bits. The set is chosen by bits, never by
    a timing or a draft, so all runs on a device agree.

    Args:
        probe: Measures the device.
        store: Keeps the measurements.
        draft: The fingerprint of the draft that `probe` times, or "" without a draft.
        any_width: Whether passes of all shapes are known to give the same bits, so that nothing must be compared.
    """

    def __init__(self, probe: Probe, store: CalibrationStore, draft: str = "", *, any_width: bool = False) -> None:
        self._probe = probe
        self._store = store
        self._draft = draft
        self.any_width = any_width
        self._costs: dict[tuple[int, bool], RoundCosts] = {}
        self._rounds_to_wait = 0
        self._settled: set[tuple[int, bool]] = set()  # rows, and whether exact, without a rough cost

    def forget(self) -> None:
        """Discard all measurements; they are repeated when they are needed."""
        if not self._store.is_read_only:
            self._store.clear()
        self._costs.clear()
        self._settled.clear()

    # ---- costs

    def costs(self, rows: int, *, exact: bool = False) -> RoundCosts:
        """The costs of a round with this many rows, measured at the next power of two; perhaps with exact passes only.

        The first call measures for about `START_SECONDS`, if no other process has.
        """
        rows = next_power_of_two(rows)
        if (rows, exact) not in self._costs:
            if not self._store.is_read_only and not self._are_known(rows, exact):
                self._measure(rows, exact, START_SECONDS)
                self._rounds_to_wait = ROUNDS_BEFORE_REFINING
            self._costs[rows, exact] = self._found_costs(rows, exact)
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
        if store.refine_seconds <= 0.0 or store.is_read_only or key in self._settled:
            return
        started = time.perf_counter()
        if self._time_next(*key):
            store.save()
            self._costs.clear()
        else:
            self._settled.add(key)
        store.refine_seconds -= time.perf_counter() - started

    def settle(self, rows: int, *, exact: bool = False) -> RoundCosts:
        """Measure until no cost is rough, at most for `SETTLE_SECONDS`, because the user wants to know."""
        if not self._store.is_read_only:
            self._measure(next_power_of_two(rows), exact, SETTLE_SECONDS)
            self._costs.clear()
        return self.costs(rows, exact=exact)

    def measure_again(self, rows: int, widths: Sequence[int], *, exact: bool = False) -> None:
        """Measure these widths after the device's speed changed, and scale all costs by the result.

        The new costs are not stored, because the speed may change back.
        """
        if self._store.is_read_only:
            return
        costs = self.costs(rows, exact=exact)
        measured = {costs.width(width) for width in widths}
        factors = {width: self._probe.pass_seconds(rows, width) / costs.passes[width] for width in measured}
        self._costs[next_power_of_two(rows), exact] = costs.scaled(factors)
        self._store.refine_seconds = 0.0  # timings are no longer comparable with the stored ones

    def _measure(self, rows: int, exact: bool, seconds: float) -> None:
        """Time what is known least, again and again, for this long or until no cost is rough; then store the result."""
        started = time.perf_counter()
        if self._next(rows, exact) is None:
            return
        self._announce()
        while not self._are_known(rows, exact) or time.perf_counter() - started < seconds:
            if not self._time_next(rows, exact):
                break
        self._store.save()

    def _are_known(self, rows: int, exact: bool) -> bool:
        """Whether costs can be estimated."""
        return bool(self._measured(rows, exact)) and not self._lacks_draft(rows)

    def _lacks_draft(self, rows: int) -> bool:
        return bool(self._draft) and rows not in self._store.found.drafts.get(self._draft, {})

    def _time_next(self, rows: int, exact: bool) -> bool:
        """Time the pass or draft whose cost is known least. Returns False if none is rough."""
        width = self._next(rows, exact)
        if width is None:
            return False
        if width == DRAFT:
            self._store.found.add_draft(self._draft, rows, self._probe.draft_seconds(rows))
        else:
            self._store.found.add_pass(rows, width, self._probe.pass_seconds(rows, width))
        return True

    def _next(self, rows: int, exact: bool) -> int | None:
        """The width to time next, or `DRAFT`; None if no cost is rough."""
        found = self._store.found
        if 1 not in found.passes.get(rows, {}):  # the baseline, also if it is not exact
            return 1
        measured = self._measured(rows, exact)
        if measured and self._lacks_draft(rows):
            return DRAFT
        width = next_width(measured, self._candidates(rows, exact), max_widths(rows))
        if width is not None:
            return width
        timings = {each: found.timings[pass_name(rows, each)] for each in (1, *measured)}
        if self._draft:
            timings[DRAFT] = found.timings[draft_name(self._draft, rows)]
        least = min(timings, key=timings.__getitem__)
        return least if timings[least] < SETTLED else None

    def _measured(self, rows: int, exact: bool) -> dict[int, float]:
        """The seconds of the passes that have been timed, by width."""
        candidates = self._candidates(rows, exact)
        return {
            width: seconds
            for width, seconds in sorted(self._store.found.passes.get(rows, {}).items())
            if width in candidates
        }

    def _candidates(self, rows: int, exact: bool) -> list[int]:
        """The widths that passes may have."""
        widths = [*ALL_WIDTHS]
        if exact and not self.any_width:
            widths = [width for width in self.exact_widths if width <= MAX_WIDTH] or self.exact_widths[:1]
        if rows > 1:
            limit = min(MAX_USUAL_WIDTH, MAX_POSITIONS // rows)
            widths = [width for width in widths if width <= limit] or widths[:1]
            widths = [width for width in widths if not exact or self.same_bits(rows, width)]
        return widths

    def _found_costs(self, rows: int, exact: bool) -> RoundCosts:
        """The costs from what has been measured, or from a file that need not contain these rows or this draft."""
        found = self._store.found
        if self._store.is_read_only:
            rows = max((each for each in found.passes if each <= rows), default=min(found.passes))
            passes: Mapping[int, float] = found.passes[rows]
            if exact:
                passes = {width: seconds for width, seconds in passes.items() if self.same_bits(rows, width)}
        else:
            measured = self._measured(rows, exact)
            candidates = self._candidates(rows, exact)
            passes = measure_widths(interpolated(measured), candidates, max_widths(rows), measured)
        by_rows = found.drafts.get(self._draft, {})
        if self._store.is_read_only and self._draft:
            by_rows = by_rows or next((costs for name, costs in found.drafts.items() if name), {})
        baseline = found.passes[rows].get(1, 0.0) if exact else 0.0
        step, start, prefill = by_rows.get(rows, (0.0, 0.0, 0.0))
        return RoundCosts(passes, step, start, prefill, baseline)

    # ---- bits

    def same_bits(self, rows: int, width: int) -> bool:
        """Whether passes of this shape have the bits of the exact widths, as far as samples show."""
        if self.any_width:
            return True
        rows = next_power_of_two(rows)
        reference = self.exact_widths[0]  # compares all single rows first
        known = self._store.found.same_bits.setdefault(rows, {})
        if self._store.is_read_only:
            return known.get(width, True)
        if width not in known:
            self._announce()
            if rows == 1:
                known[width] = self._probe.bits(width) == self._probe.bits(reference)
            else:
                single_rows = [self._probe.single_bits(row, reference) for row in range(2)]
                known[width] = self._probe.batch_bits(rows, width) == single_rows
            self._store.save()
        return known[width]

    def is_exact_by_default(self, num_draft_tokens: int | None, slots: int) -> bool:
        """Whether decoding loses nothing with exact passes, as far as bits tell: usual passes need no padding.

        Times have no say, because a default that follows them could change from run to run, and tokens with it.

        Args:
            num_draft_tokens: Of every draft; 0 for baseline decoding, None for an adaptive length.
            slots: The most rows that are decoded together.
        """
        if self.any_width:
            return True
        if num_draft_tokens is None:
            usual = [width for width in COMPARED_WIDTHS if 2 <= width <= MAX_TYPICAL_WIDTH]
        else:
            usual = [num_draft_tokens + 1]
        return all(self.same_bits(1, width) for width in usual) and self.batches_match(slots, usual[-1])

    def exact_width(self, tokens: int) -> int | None:
        """The narrowest exact pass of a single row that can hold this many tokens; None if there is none."""
        if self.any_width or self.same_bits(1, tokens):
            return tokens
        return min((width for width in self.exact_widths if width >= tokens), default=None)

    def batches_match(self, slots: int, tokens: int = 1) -> bool:
        """Whether a row has the same bits in any batch of up to `slots` rows, as far as samples show.

        tokens: that a pass must be able to hold.
        """
        if self.any_width:
            return True
        for rows in powers_of_two(slots)[1:]:
            limit = min(MAX_USUAL_WIDTH, MAX_POSITIONS // rows)
            narrow = [width for width in self.exact_widths if width <= limit]
            compared = {*self.exact_widths[:1], *narrow[-1:], self.exact_width(tokens)}
            if not all(width is not None and self.same_bits(rows, width) for width in compared):
                return False
        return True

    def exact_widths_for(self, rows: int, num_draft_tokens: int | None) -> list[int]:
        """The widths of exact passes with drafts of this length, or of any length if it is None."""
        longest = self.exact_widths[-1] if num_draft_tokens is None else self.exact_width(num_draft_tokens + 1)
        widths = sorted({*self.exact_widths, longest or 1})
        if rows == 1:
            return widths
        return [width for width in widths if width <= (longest or 1) and self.same_bits(rows, width)]

    @property
    def exact_widths(self) -> list[int]:
        """The exact widths among `COMPARED_WIDTHS`."""
        if self.any_width:
            return [*COMPARED_WIDTHS]
        self._compare_widths()
        known = self._store.found.same_bits.get(1, {})
        return [width for width in COMPARED_WIDTHS if known.get(width, self._store.is_read_only)]

    @property
    def fixed_capacity(self) -> bool:
        """Whether bits depend on the capacity of the KV cache."""
        if self.any_width:
            return False
        self._compare_widths()
        return self._store.found.fixed_capacity

    def _compare_widths(self) -> None:
        """Group the widths by their bits, and choose the exact ones."""
        found = self._store.found
        if self._store.is_read_only or found.same_bits.get(1):
            return
        self._announce()
        groups: list[tuple[list[Bits], list[int]]] = []
        for width in COMPARED_WIDTHS:
            bits = self._probe.bits(width)
            group = next((widths for other, widths in groups if other == bits), None)
            if group is None:
                groups.append((bits, [width]))
            else:
                group.append(width)
        exact = choose_exact_widths([widths for _, widths in groups])
        found.fixed_capacity = self._probe.capacity_matters(exact[0])
        found.same_bits[1] = {width: width in exact for width in COMPARED_WIDTHS}
        self._store.save()

    def _announce(self) -> None:
        folder = self._store.path and self._store.path.parent
        where = f", once; stored in {folder}" if folder else ""
        warn_once(f"measuring this device with this model, which also compiles kernels{where}")


def max_widths(rows: int) -> int:
    return MAX_MEASURED_WIDTHS if rows == 1 else 6


def powers_of_two(most: int) -> list[int]:
    """1, 2, 4, ... up to the first that is at least `most`."""
    return [1 << i for i in range((most - 1).bit_length() + 1)]


def choose_exact_widths(groups: Sequence[Sequence[int]]) -> Sequence[int]:
    """The group with the most usual widths; among equally large ones, the group with the narrowest pass."""
    return max(groups, key=lambda widths: (sum(width <= MAX_USUAL_WIDTH for width in widths), -min(widths)))


def next_power_of_two(rows: int) -> int:
    return 1 << (rows - 1).bit_length()


def fingerprint(network: nn.Module) -> str:
    """A hash of everything in a network that decides its speed and bits: configuration, parameter shapes and dtypes."""
    parameters: Any = tree_flatten(network.parameters())
    shapes = sorted((path, str(array.shape), str(array.dtype)) for path, array in parameters)
    text = f"{type(network).__name__} {getattr(network, 'config', None)!r} {shapes}"
    return sha256(text.encode()).hexdigest()[:16]


def gives_any_width_the_same_bits(target: EncoderDecoder) -> bool:
    """Whether the matmuls of this target compute a row in the same way in any pass, so that nothing must be compared.

    `cpu/sgemm.c` does in float32. Other operations compute each row by itself.
    """
    if on_gpu() or target.ranks > 1 or "equal_rows" not in native_libraries:
        return False
    parameters: Any = tree_flatten(target.parameters())
    return all(array.dtype == mx.float32 for _, array in parameters)


def calibration_key(target: EncoderDecoder) -> str:
    """Everything that measurements of this target depend on, as JSON."""
    device = mx.default_device()
    facts = {
        "target": fingerprint(target),
        "device": f"{device.type.name} {device_name()}",
        "system": platform.release() if sys.platform == "darwin" else sys.platform,
        "mlx": mx.__version__,  # type: ignore[attr-defined]
        "package": __version__,
        "threads": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "blas": native_libraries.get("blas"),
        "tf32": os.environ.get("MLX_ENABLE_TF32"),
        "ranks": target.ranks,
    }
    return json.dumps(facts, sort_keys=True)


def device_name() -> str:
    """The name of the GPU or CPU that computes."""
    if on_gpu():
        return str(mx.device_info().get("device_name", "GPU"))
    with suppress(OSError, subprocess.SubprocessError):
        if sys.platform == "darwin":
            command = ("sysctl", "-n", "machdep.cpu.brand_string")
            return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "CPU")
    return platform.processor() or platform.machine()
