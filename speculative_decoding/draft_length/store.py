"""Stores this device's measurements. Independent of models and of the unit of costs.

Each target has one file in the user's cache folder. The file name depends on everything that affects the measurements:
the target's shapes and dtypes, the device, and library versions. The environment variable
SPECULATIVE_DECODING_CALIBRATION names a file to use instead of measuring, for runs that must be reproducible round by
round.
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
from ..runs.places import atomic_write

CALIBRATION_VARIABLE = "SPECULATIVE_DECODING_CALIBRATION"
FORMAT = 2
COMPARISON = 2  # version of the comparison; resuming a job that was started with another version reports the difference
PARSE_ERRORS = (KeyError, TypeError, ValueError, AttributeError, IndexError)
ENOUGH_TIMINGS = 8  # number of timings after which a cost is no longer rough
CONFIRMED = 3  # number of timings that are sufficient if the last one agrees with the fastest
AGREEMENT = 1.1
MEASUREMENTS = (
    "passes",
    "drafts",
    "same_bits",
    "capacity_borders",
    "source_borders",
    "rough",
)  # attributes that are saved in the file

Draft = Sequence[float]  # costs (step, start, prefill) of `RoundCosts`


class CalibrationStore:
    """The measurements of a target on a device, kept in a file in the cache folder if possible.

    Only the fastest of repeated timings counts, because the slower ones were delayed by other programs. If the file
    cannot be read or written, the user is warned once, and measurements last only as long as the process.

    Args:
        key: Everything on which the measurements depend.

    Attributes:
        passes: Costs of a pass, by rows and width.
        drafts: Costs of a draft, by the draft's fingerprint and rows.
        same_bits: Whether passes have the same bits as the exact widths, by rows and width.
        capacity_borders: The KV-cache capacities at which the bits of a pass change, in increasing order.
        source_borders: The same for source capacities.
        rough: How many times each rough cost has been timed, by the name of the cost.
        path: The file; None if measurements are not stored.
        is_read_only: Whether the user named the file. If so, nothing is measured.
        refine_seconds: How many more seconds this process may spend on timing rough costs.
    """

    def __init__(self, key: Mapping[str, Any]) -> None:
        self.key = key
        self.passes: dict[int, dict[int, float]] = {}
        self.drafts: dict[str, dict[int, Draft]] = {}
        self.same_bits: dict[int, dict[int, bool]] = {}
        self.capacity_borders: list[int] = []
        self.source_borders: list[int] = []
        self.rough: dict[str, int] = {}
        self.path: Path | None = None
        self.is_read_only = False
        self.refine_seconds = 0.2
        self._replaces = False
        if named := os.environ.get(CALIBRATION_VARIABLE):
            self._load_named_file(Path(named))
            return
        name = sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
        try:
            self.path = cache_folder("calibration") / f"{name}.json"
            vars(self).update(read_measurements(self.path))
        except FileNotFoundError:
            pass
        except (OSError, RuntimeError) as error:
            self._give_up(error)
        except PARSE_ERRORS:
            self._note_damage()

    def add_pass(self, rows: int, width: int, cost: float) -> None:
        """Add a pass's timing."""
        known = self.passes.setdefault(rows, {})
        before = known.get(width)
        known[width] = cost if before is None else min(before, cost)
        self._count(pass_name(rows, width), before, cost)

    def add_draft(self, draft: str, rows: int, costs: Draft) -> None:
        """Add a draft's timings."""
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

    def announce(self) -> None:
        """Tell the user, once per process, that the device is being measured."""
        where = f", once; stored in {self.path.parent}" if self.path else ""
        warn_once(f"measuring this device with this model, which also compiles kernels{where}")

    def clear(self) -> None:
        """Discard all measurements. The next `save` also discards those of other processes."""
        for name in MEASUREMENTS:
            getattr(self, name).clear()
        self._replaces = True

    def save(self) -> None:
        """Store the measurements, merged with those that other processes have stored."""
        if self.path is None or self.is_read_only:
            return
        try:
            with locked(self.path.parent):
                if not self._replaces:
                    self._merge_file(self.path)
                content = {"format": FORMAT, "key": self.key} | {name: getattr(self, name) for name in MEASUREMENTS}
                atomic_write(self.path, json.dumps(content, indent=1) + "\n")
            self._replaces = False
        except OSError as error:  # for example a full disk
            self._give_up(error)

    def merge(self, other: Mapping[str, Any]) -> None:
        """Add the measurements of another process, as `read_measurements` returns them."""
        known_names = names_of(self.passes, self.drafts)
        for name in names_of(other["passes"], other["drafts"]):
            own_count = self.rough.get(name, ENOUGH_TIMINGS) if name in known_names else 0
            self._set_count(name, max(own_count, other["rough"].get(name, ENOUGH_TIMINGS)))
        for rows, by_width in other["passes"].items():
            known = self.passes.setdefault(rows, {})
            known |= {width: min(cost, known.get(width, cost)) for width, cost in by_width.items()}
        for draft, by_rows in other["drafts"].items():
            own = self.drafts.setdefault(draft, {})
            own |= {rows: faster(own.get(rows, costs), costs) for rows, costs in by_rows.items()}
        for rows, same in other["same_bits"].items():
            self.same_bits[rows] = same | self.same_bits.get(rows, {})
        for name in ("capacity_borders", "source_borders"):
            setattr(self, name, sorted({*getattr(self, name), *other[name]}))

    def _merge_file(self, path: Path) -> None:
        """Add the current content of the file, which another process may have written or repaired."""
        try:
            self.merge(read_measurements(path))
        except FileNotFoundError:
            pass
        except PARSE_ERRORS:
            self._note_damage()

    def _note_damage(self) -> None:
        warn_once(f"calibration: {self.path} is damaged; this device is measured again, and the file is replaced")

    def _give_up(self, error: Exception) -> None:
        self.path = None
        warn_once(f"calibration: cannot be stored ({error}), so each run measures this device again; {WAY_OUT}")

    def _load_named_file(self, path: Path) -> None:
        """Load the file named by the environment variable. Raises `InputError`."""
        self.is_read_only = True
        try:
            vars(self).update(read_measurements(path))
            if not self.passes:
                raise ValueError("no passes")
        except (OSError, *PARSE_ERRORS) as error:
            problem = f"{CALIBRATION_VARIABLE}: {path} is not a calibration file ({error!r})"
            raise InputError(problem, way_out="unset it to measure this device") from error


def read_measurements(path: Path) -> dict[str, Any]:
    """Read the `MEASUREMENTS` from a file, by name.

    Raises OSError, or one of `PARSE_ERRORS` if the file is not in the format that `CalibrationStore.save` writes.
    """
    raw = json.loads(path.read_text(encoding="utf-8-sig"))
    if raw["format"] != FORMAT:
        raise ValueError(raw["format"])

    return {
        "passes": {
            int(rows): {int(width): parse_cost(cost) for width, cost in by_width.items()}
            for rows, by_width in raw["passes"].items()
        },
        "drafts": {
            draft: {int(rows): parse_draft(costs) for rows, costs in by_rows.items()}
            for draft, by_rows in raw["drafts"].items()
        },
        "same_bits": {
            int(rows): {int(width): bool(same) for width, same in by_width.items()}
            for rows, by_width in raw["same_bits"].items()
        },
        "capacity_borders": [int(each) for each in raw["capacity_borders"]],
        "source_borders": [int(each) for each in raw["source_borders"]],
        "rough": {name: int(count) for name, count in raw["rough"].items()},
    }


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


def names_of(passes: Mapping[int, Mapping[int, float]], drafts: Mapping[str, Mapping[int, Draft]]) -> set[str]:
    """Return the names of all costs."""
    names = {pass_name(rows, width) for rows, by_width in passes.items() for width in by_width}
    return names | {draft_name(draft, rows) for draft, by_rows in drafts.items() for rows in by_rows}


def pass_name(rows: int, width: int) -> str:
    """Return the name of a pass in `CalibrationStore.rough`."""
    return f"pass {rows} {width}"


def draft_name(draft: str, rows: int) -> str:
    """Return the name of a draft in `CalibrationStore.rough`."""
    return f"draft {draft} {rows}"


def usual_cost(costs: Draft) -> float:
    """Return the cost of a draft of four tokens."""
    step, start, _ = costs
    return start + 4.0 * step


def faster(one: Draft, other: Draft) -> Draft:
    """Return the costs of the faster draft, but with the lower prefill cost of the two."""
    step, start, _ = min(one, other, key=usual_cost)
    return [step, start, min(one[2], other[2])]


def parse_cost(raw: Any, least: float = 1e-9) -> float:
    """Return `raw` as a cost. Raises ValueError if it is not a plausible cost."""
    if type(raw) not in (int, float) or not least <= raw < 1e6:
        raise ValueError(raw)
    return float(raw)


def parse_draft(raw: Any) -> Draft:
    """Return `raw` as the costs of a draft. Raises ValueError or TypeError if it is invalid."""
    step, start, prefill = (parse_cost(value, least=0.0) for value in raw)
    return [step, start, prefill]
