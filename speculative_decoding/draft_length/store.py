"""Stores the measurements of this device. Knows nothing of models, and nothing of the unit of costs.

Each target has one file in the user's cache folder. Its name depends on everything that changes the measurements: the
target's shapes and dtype, the device, and library versions. The environment variable SPECULATIVE_DECODING_CALIBRATION
names a file to use instead of measuring, for runs that must be reproducible round by round.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from ..cache_folder import WAY_OUT, cache_folder
from ..errors import InputError, note
from ..loading.atomic_io import atomic_write

CALIBRATION_VARIABLE = "SPECULATIVE_DECODING_CALIBRATION"
FORMAT = 1
PARSE_ERRORS = (KeyError, TypeError, ValueError, AttributeError, IndexError)
ENOUGH_TIMINGS = 8  # timings after which a cost is no longer rough
CONFIRMED = 3  # timings that suffice if the last one agrees with the fastest
AGREEMENT = 1.1

Draft = Sequence[float]  # costs (step, start, prefill) of `RoundCosts`


class Measurements:
    """What has been measured of a target on a device.

    Of repeated timings the fastest counts, because slower ones waited for other programs.

    Attributes:
        passes: Costs of a pass, by rows and width.
        drafts: Costs of a draft, by the draft's fingerprint and rows.
        same_bits: By rows and width, whether passes have the bits of the exact widths.
        fixed_capacity: Whether bits depend on the capacity of the KV cache.
        rough: How often each cost has been timed that may still fall, by its name.
    """

    def __init__(self) -> None:
        self.passes: dict[int, dict[int, float]] = {}
        self.drafts: dict[str, dict[int, Draft]] = {}
        self.same_bits: dict[int, dict[int, bool]] = {}
        self.fixed_capacity = False
        self.rough: dict[str, int] = {}

    def add_pass(self, rows: int, width: int, cost: float) -> None:
        """Add a timing of a pass."""
        known = self.passes.setdefault(rows, {})
        before = known.get(width)
        known[width] = cost if before is None else min(before, cost)
        self._count(pass_name(rows, width), before, cost)

    def add_draft(self, draft: str, rows: int, costs: Draft) -> None:
        """Add timings of a draft."""
        known = self.drafts.setdefault(draft, {})
        before = known.get(rows)
        known[rows] = costs if before is None else faster(before, costs)
        self._count(draft_name(draft, rows), None if before is None else usual_cost(before), usual_cost(costs))

    def _count(self, name: str, before: float | None, cost: float) -> None:
        """Count a timing. before: the cost before this timing; None if it is the first."""
        count = 1 if before is None else self.rough.get(name, ENOUGH_TIMINGS) + 1
        agrees = before is not None and before / AGREEMENT <= cost <= before * AGREEMENT
        self._set_count(name, ENOUGH_TIMINGS if count >= CONFIRMED and agrees else count)

    def _set_count(self, name: str, count: int) -> None:
        self.rough[name] = count
        if count >= ENOUGH_TIMINGS:
            del self.rough[name]

    def merge(self, other: Measurements) -> None:
        """Add what another process has measured."""
        known_names = self._names()
        for name in other._names():
            own_count = self.rough.get(name, ENOUGH_TIMINGS) if name in known_names else 0
            self._set_count(name, max(own_count, other.rough.get(name, ENOUGH_TIMINGS)))
        for rows, by_width in other.passes.items():
            known = self.passes.setdefault(rows, {})
            known |= {width: min(cost, known.get(width, cost)) for width, cost in by_width.items()}
        for draft, by_rows in other.drafts.items():
            own = self.drafts.setdefault(draft, {})
            own |= {rows: faster(own.get(rows, costs), costs) for rows, costs in by_rows.items()}
        for rows, same in other.same_bits.items():
            self.same_bits[rows] = same | self.same_bits.get(rows, {})
        self.fixed_capacity |= other.fixed_capacity

    def _names(self) -> set[str]:
        """The names of all costs."""
        passes = {pass_name(rows, width) for rows, by_width in self.passes.items() for width in by_width}
        return passes | {draft_name(draft, rows) for draft, by_rows in self.drafts.items() for rows in by_rows}

    def as_dict(self) -> dict[str, Any]:
        """Return the measurements for JSON."""
        return {
            "passes": self.passes,
            "drafts": self.drafts,
            "same_bits": self.same_bits,
            "fixed_capacity": self.fixed_capacity,
            "rough": self.rough,
        }

    @classmethod
    def parse(cls, raw: Any) -> Measurements:
        """Raises one of `PARSE_ERRORS` if `as_dict` cannot have written this."""
        found = cls()
        for rows, by_width in raw["passes"].items():
            found.passes[int(rows)] = {int(width): parse_cost(value) for width, value in by_width.items()}
        for draft, by_rows in raw["drafts"].items():
            found.drafts[draft] = {int(rows): parse_draft(costs) for rows, costs in by_rows.items()}
        for rows, by_width in raw["same_bits"].items():
            found.same_bits[int(rows)] = {int(width): bool(value) for width, value in by_width.items()}
        found.fixed_capacity = bool(raw["fixed_capacity"])
        found.rough = {name: int(count) for name, count in raw.get("rough", {}).items()}
        return found


class CalibrationStore:
    """Measurements for one key, kept in a file of the cache folder if there is one, otherwise only in memory.

    A file that cannot be read or written gives one warning; measurements then last as long as the process.

    Attributes:
        found: The measurements.
        path: The file, or None.
        is_read_only: Whether the user named the file. Then nothing is measured.
        refine_seconds: How long this process may still time costs that are rough.
    """

    def __init__(self, key: Mapping[str, Any]) -> None:
        self.key = key
        self.path: Path | None = None
        self.is_read_only = False
        self.refine_seconds = 0.2
        self.found = Measurements()
        self._replaces = False
        if named := os.environ.get(CALIBRATION_VARIABLE):
            self._load_named_file(Path(named))
            return
        name = sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
        try:
            self.path = cache_folder("calibration") / f"{name}.json"
            self.found = self._load(self.path)
        except FileNotFoundError:
            pass
        except (OSError, RuntimeError) as error:
            self._give_up(error)
        except PARSE_ERRORS:
            warn_once(f"calibration: {self.path} is damaged; this device is measured again, and the file is replaced")
            self._replaces = True

    def announce(self) -> None:
        """Tell the user once in a process that something is measured."""
        where = f", once; stored in {self.path.parent}" if self.path else ""
        warn_once(f"measuring this device with this model, which also compiles kernels{where}")

    def clear(self) -> None:
        """Discard all measurements. The next `save` also discards those of other processes."""
        self.found = Measurements()
        self._replaces = True

    def save(self) -> None:
        """Store the measurements, merged with those that other processes have stored."""
        if self.path is None or self.is_read_only:
            return
        try:
            with locked(self.path.parent):
                if not self._replaces and self.path.exists():
                    self._merge_file(self.path)
                content = {"format": FORMAT, "key": self.key, **self.found.as_dict()}
                atomic_write(self.path, json.dumps(content, indent=1) + "\n")
            self._replaces = False
        except OSError as error:  # for example a full disk
            self._give_up(error)

    def _merge_file(self, path: Path) -> None:
        try:
            self.found.merge(self._load(path))
        except PARSE_ERRORS:
            warn_once(f"calibration: {path} was damaged while this program ran; it is replaced")

    def _give_up(self, error: Exception) -> None:
        self.path = None
        warn_once(f"calibration: cannot be stored ({error}), so each run measures this device again; {WAY_OUT}")

    def _load_named_file(self, path: Path) -> None:
        """Load the file that the environment variable names. Raises `InputError`."""
        self.is_read_only = True
        try:
            self.found = self._load(path)
            if not self.found.passes:
                raise ValueError("no passes")
        except (OSError, *PARSE_ERRORS) as error:
            problem = f"{CALIBRATION_VARIABLE}: {path} is not a calibration file ({error!r})"
            raise InputError(problem, way_out="unset it to measure this device") from error

    def _load(self, path: Path) -> Measurements:
        """Raises OSError, or one of `PARSE_ERRORS` if `save` cannot have written the file."""
        raw = json.loads(path.read_text(encoding="utf-8-sig"))
        if raw["format"] != FORMAT:
            raise ValueError(raw["format"])
        return Measurements.parse(raw)


@cache
def shared_store(key: str) -> CalibrationStore:
    """The process's store for a key (as JSON). Sessions with and without a draft share the target's measurements."""
    return CalibrationStore(json.loads(key))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes and threads from entering this block for the same folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@cache
def warn_once(message: str) -> None:
    note(message)


def pass_name(rows: int, width: int) -> str:
    """Return the name of a pass in `Measurements.rough`."""
    return f"pass {rows} {width}"


def draft_name(draft: str, rows: int) -> str:
    """Return the name of a draft in `Measurements.rough`."""
    return f"draft {draft} {rows}"


def usual_cost(costs: Draft) -> float:
    """Return the cost of a draft of four tokens."""
    step, start, _ = costs
    return start + 4.0 * step


def faster(one: Draft, other: Draft) -> Draft:
    """Return the costs with the faster draft, and the faster prefill."""
    step, start, _ = min(one, other, key=usual_cost)
    return [step, start, min(one[2], other[2])]


def parse_cost(raw: Any, least: float = 1e-9) -> float:
    """Raises ValueError unless `raw` is a plausible cost."""
    if type(raw) not in (int, float) or not least <= raw < 1e6:
        raise ValueError(raw)
    return float(raw)


def parse_draft(raw: Any) -> Draft:
    """Raises ValueError or TypeError unless `raw` holds the costs of a draft."""
    step, start, prefill = (parse_cost(value, least=0.0) for value in raw)
    return [step, start, prefill]
