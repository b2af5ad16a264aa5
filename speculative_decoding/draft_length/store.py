"""Stores this device's measurements. Independent of models and of the unit of costs.

Each target has one file in the user's cache folder. The file name depends on everything that affects the measurements:
the target's shapes and dtypes, the device, and library versions. The environment variable
SPECULATIVE_DECODING_CALIBRATION names a file to use instead of measuring, for runs that must be reproducible round by
round.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from ..cache_folder import WAY_OUT, cache_folder, locked
from ..errors import InputError, note
from ..runs.places import atomic_write
from .costs import Timing

CALIBRATION_VARIABLE = "SPECULATIVE_DECODING_CALIBRATION"
FORMAT = 3
READABLE_FORMATS = (2, FORMAT)  # format 2 has only costs, without the number of timings
COMPARISON = 3  # version of the comparison; resuming a job that was started with another version reports the difference
PARSE_ERRORS = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError)
MEASUREMENTS = ("passes", "drafts", "same_bits", "capacity_borders", "source_borders")  # attributes saved in the file
UNKNOWN_RUNS = 3  # of timings, if the file does not say it
MAX_RUNS = 10**9
LEAST_COST = 1e-9


class Draft(NamedTuple):
    """The costs `step`, `start` and `prefill` of `RoundCosts`, as means of a number of timings."""

    step: float
    start: float
    prefill: float
    runs: int = UNKNOWN_RUNS

    def add(self, step: float, start: float, prefill: float) -> Draft:
        """Include another timing."""
        runs = self.runs + 1
        return Draft(
            self.step + (step - self.step) / runs,
            self.start + (start - self.start) / runs,
            self.prefill + (prefill - self.prefill) / runs,
            runs,
        )


class CalibrationStore:
    """The measurements of a target on a device, kept in a file in the cache folder if possible.

    If the file cannot be read or written, the user is warned once, and measurements last only as long as the process.

    Args:
        key: Everything on which the measurements depend; None for measurements that are not stored.

    Attributes:
        passes: Timings of a pass, by rows and width.
        drafts: Costs of a draft, by the draft's fingerprint and rows.
        same_bits: Whether passes have the same bits as the exact widths, by rows and width.
        capacity_borders: The KV-cache capacities at which the bits of a pass change, in increasing order.
        source_borders: The same for source capacities.
        path: The file; None if measurements are not stored.
        is_read_only: Whether the user named the file. If so, nothing is measured.
    """

    def __init__(self, key: Mapping[str, Any] | None) -> None:
        self.key = key
        self.passes: dict[int, dict[int, Timing]] = {}
        self.drafts: dict[str, dict[int, Draft]] = {}
        self.same_bits: dict[int, dict[int, bool]] = {}
        self.capacity_borders: list[int] = []
        self.source_borders: list[int] = []
        self.path: Path | None = None
        self.is_read_only = False
        self._replaces = False
        if key is None:
            return
        if named := os.environ.get(CALIBRATION_VARIABLE):
            self._load_named_file(Path(named))
            return
        name = sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
        try:
            self.path = cache_folder("calibration") / f"{name}.json"
            vars(self).update(read_measurements(self.path))
        except FileNotFoundError:
            pass
        except PARSE_ERRORS:
            self._note_damage()
        except (OSError, RuntimeError) as error:
            self._give_up(error)

    def add_pass(self, rows: int, width: int, seconds: Sequence[float]) -> None:
        """Add timings of a pass."""
        known = self.passes.setdefault(rows, {})
        for each in seconds:
            cost = max(each, LEAST_COST)  # a coarse clock may not advance during a pass
            known[width] = known[width].add(cost) if width in known else Timing(cost, 1)

    def add_draft(self, draft: str, rows: int, step: float, start: float, prefill: float) -> None:
        """Add a timing of a draft."""
        known = self.drafts.setdefault(draft, {})
        known[rows] = known[rows].add(step, start, prefill) if rows in known else Draft(step, start, prefill, 1)

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
        """Add the measurements of another process, as `read_measurements` returns them.

        Of two estimates of a cost, the one from more timings is kept. They may share timings, so they are not averaged.
        """
        for name in ("passes", "drafts"):
            own = getattr(self, name)
            for key, found in other[name].items():
                known = own.setdefault(key, {})
                for each, costs in found.items():
                    if each not in known or costs.runs > known[each].runs:
                        known[each] = costs
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
            if not self.passes or not all(self.passes.values()):
                raise ValueError("no passes")
        except (OSError, *PARSE_ERRORS) as error:
            problem = f"{CALIBRATION_VARIABLE}: {path} is not a calibration file ({error!r})"
            raise InputError(problem, way_out="unset it to measure this device") from error


def read_measurements(path: Path) -> dict[str, Any]:
    """Read the `MEASUREMENTS` from a file, by name.

    Raises OSError, or one of `PARSE_ERRORS` if the file is not in the format that `CalibrationStore.save` writes.
    """
    raw = json.loads(path.read_text(encoding="utf-8-sig"))
    if raw["format"] not in READABLE_FORMATS:
        raise ValueError(raw["format"])

    return {
        "passes": {
            int(rows): {int(width): parse_timing(timing) for width, timing in by_width.items()}
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
    }


@cache
def warn_once(message: str) -> None:
    note(message)


def parse_cost(raw: Any, least: float = LEAST_COST) -> float:
    """Return `raw` as a cost. Raises ValueError if it is not a plausible cost."""
    if type(raw) not in (int, float) or not least <= raw < 1e6:
        raise ValueError(raw)
    return float(raw)


def parse_timing(raw: Any) -> Timing:
    """Return `raw`, a cost or the fields of a timing, as a timing. Raises ValueError or TypeError if it is invalid."""
    if not isinstance(raw, list):
        return Timing(parse_cost(raw), UNKNOWN_RUNS)
    cost, runs, squares = raw
    return Timing(parse_cost(cost), parse_runs(runs), parse_cost(squares, least=0.0))


def parse_draft(raw: Any) -> Draft:
    """Return `raw` as the costs of a draft. Raises ValueError or TypeError if it is invalid."""
    step, start, prefill = (parse_cost(value, least=0.0) for value in raw[:3])
    return Draft(step, start, prefill, *map(parse_runs, raw[3:]))


def parse_runs(raw: Any) -> int:
    """Return `raw` as a number of timings. Raises ValueError if it is invalid."""
    if type(raw) is not int or not 1 <= raw <= MAX_RUNS:
        raise ValueError(raw)
    return raw
