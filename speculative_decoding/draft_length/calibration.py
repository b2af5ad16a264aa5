"""What passes cost on this device and which of them have the same bits: measured once, stored, and read again.

The file lies in the user's cache folder, one for each target as it is computed here (its shapes and dtype, the device,
the versions); what drafts cost is kept by draft. `SPECULATIVE_DECODING_CALIBRATION` names a file to use instead of
measuring, for runs that must be reproducible to the round.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from ..cache_folder import cache_folder
from ..errors import InputError
from ..loading.atomic_io import atomic_write
from ..models.base import EncoderDecoder
from ..version import __version__, native_libraries
from .costs import RoundCosts, measure_widths
from .probe import SWEEPS, Bits, Probe

CALIBRATION_VARIABLE = "SPECULATIVE_DECODING_CALIBRATION"
FORMAT = 1
# Widths whose bits are compared, the same on every device.
COMPARED_WIDTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 16, 24, 32)
DRAFTED = 16  # widths up to this one count when a class is chosen
MOST_POSITIONS = 256  # rows * width; wider passes of large batches are not measured
MOST_OF_BATCH = 6  # widths measured for several rows
DAMAGED = KeyError, TypeError, ValueError, AttributeError, IndexError


@dataclass
class Measurements:
    """What is stored. passes: by rows, seconds by width. drafts: by draft and rows, (step, start, source).
    same_bits: by rows, whether each width that was compared has the bits of the exact class.
    fixed_capacity: whether bits depend on the capacity of the cache.
    """

    passes: dict[int, dict[int, float]] = field(default_factory=dict)
    drafts: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    same_bits: dict[int, dict[int, bool]] = field(default_factory=dict)
    fixed_capacity: bool = False

    @classmethod
    def from_json(cls, raw: Any) -> Measurements:
        """Raises one of `DAMAGED` for anything that `as_json` has not written."""
        if raw["format"] != FORMAT:
            raise ValueError(raw["format"])
        return cls(
            {int(rows): {int(w): seconds(s) for w, s in own.items()} for rows, own in raw["passes"].items()},
            {
                draft: {int(rows): [seconds(s, 0.0) for s in costs] for rows, costs in own.items()}
                for draft, own in raw["drafts"].items()
            },
            {int(rows): {int(w): bool(s) for w, s in own.items()} for rows, own in raw["same_bits"].items()},
            bool(raw["fixed_capacity"]),
        )

    def as_json(self, key: Mapping[str, Any]) -> str:
        return json.dumps({"format": FORMAT, "key": key, **vars(self)}, indent=1) + "\n"


class CalibrationStore:
    """Measurements in a file of the cache folder, or in memory alone where there is none."""

    def __init__(self, key: Mapping[str, Any]) -> None:
        self.measured, self.key = Measurements(), key
        self.path: Path | None = None
        self.is_fixed = False  # given by the user, so nothing is measured
        self.is_said = False  # that the device is measured
        if named := os.environ.get(CALIBRATION_VARIABLE):
            self.measured, self.is_fixed = given(Path(named)), True
            return
        name = sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
        with suppress(OSError, RuntimeError):
            self.path = cache_folder("calibration") / f"{name}.json"
        with suppress(OSError, *DAMAGED):
            if self.path is not None:
                self.measured = Measurements.from_json(json.loads(self.path.read_text(encoding="utf-8")))

    def save(self) -> None:
        if self.path is not None and not self.is_fixed:
            with suppress(OSError):  # as where the disk is full: measured again next time
                atomic_write(self.path, self.measured.as_json(self.key))

    def forget(self) -> None:
        if not self.is_fixed:
            self.measured = Measurements()


@cache
def shared_store(key: str) -> CalibrationStore:
    """One for each key (as JSON) in a process: sessions with and without a draft share the target's measurements."""
    return CalibrationStore(json.loads(key))


def given(path: Path) -> Measurements:
    """The file that the user named. Raises `InputError`."""
    try:
        found = Measurements.from_json(json.loads(path.read_text(encoding="utf-8")))
        if not found.passes:
            raise ValueError("passes")
        return found
    except (OSError, *DAMAGED) as error:
        raise InputError(
            f"{CALIBRATION_VARIABLE}: {path} is not a calibration file ({error!r}); leave it unset to measure"
        ) from error


class Calibration:
    """Costs and bit-identical widths of a target with a draft. Measures what is asked for and not known yet.

    draft: names the draft that `probe` times, "" for none.
    """

    def __init__(self, probe: Probe, store: CalibrationStore, draft: str = "") -> None:
        self._probe, self._store, self._draft = probe, store, draft
        self._costs: dict[int, RoundCosts] = {}

    def forget(self) -> None:
        """Measure again what is asked for from now on."""
        self._store.forget()
        self._probe.forget()
        self._costs.clear()

    def costs(self, rows: int) -> RoundCosts:
        """Of a round with so many rows, measured at the next power of two."""
        rows = next_power_of_two(rows)
        if rows not in self._costs:
            if self._store.is_fixed:
                return self._costs.setdefault(rows, nearest(self._store.measured, self._draft, rows))
            passes, drafts = self._store.measured.passes, self._store.measured.drafts
            if rows not in passes:
                passes[rows] = self._measure_passes(rows)
                self._store.save()
            if self._draft and rows not in drafts.setdefault(self._draft, {}):
                self._say()
                drafts[self._draft][rows] = [*self._probe.draft_seconds(rows)]
                self._store.save()
            self._costs[rows] = RoundCosts(passes[rows], *drafts[self._draft][rows] if self._draft else ())
        return self._costs[rows]

    def exact_costs(self, rows: int) -> RoundCosts:
        """With passes of the exact class alone; none where batches have other bits than single rows."""
        costs = self.costs(rows)
        return costs.restricted_to([width for width in costs.passes if self.same_bits(rows, width)])

    def same_bits(self, rows: int, width: int) -> bool:
        """Whether passes of this shape have the bits of the exact class, as far as samples tell."""
        rows = next_power_of_two(rows)
        own = self._store.measured.same_bits.setdefault(rows, {})
        if self._store.is_fixed:
            return own.get(width, True)
        if rows == 1:
            self._compare_widths()
        if width not in own:
            self._say()
            reference = self.exact_widths[0]
            if rows == 1:
                own[width] = self._probe.bits(width) == self._probe.bits(reference)
            else:
                alone = [self._probe.single_bits(row, reference) for row in range(2)]
                own[width] = self._probe.batch_bits(rows, width) == alone
            self._store.save()
        return own[width]

    def has_exact_pass(self, tokens: int) -> bool:
        """Whether any exact pass of a single row has room for so many."""
        return tokens <= max(self.exact_widths) or self.same_bits(1, tokens)

    def batches_match(self, slots: int) -> bool:
        """Whether a row of up to so many has the bits of its prompt alone, as far as samples tell."""
        passes = self.exact_costs(1).passes
        sizes = [1 << power for power in range(1, next_power_of_two(slots).bit_length())]
        ends = {size: [width for width in passes if width <= min(DRAFTED, MOST_POSITIONS // size)] for size in sizes}
        return bool(passes) and all(
            self.same_bits(size, width) for size, widths in ends.items() for width in {min(passes), *widths[-1:]}
        )

    @property
    def exact_widths(self) -> list[int]:
        """The class, of the widths in `COMPARED_WIDTHS`."""
        self._compare_widths()
        own = self._store.measured.same_bits.get(1, {})
        return [width for width in COMPARED_WIDTHS if own.get(width, self._store.is_fixed)]

    @property
    def fixed_capacity(self) -> bool:
        """Whether bits depend on the capacity of the cache."""
        self._compare_widths()
        return self._store.measured.fixed_capacity

    def measure_again(self, rows: int, widths: Sequence[int]) -> None:
        """The device's speed has changed: all costs follow these widths'. Not stored, for it may change back."""
        if not self._store.is_fixed:
            costs = self.costs(rows)
            self._probe.forget()
            measured = {costs.width(width) for width in widths}
            factors = {width: self._probe.pass_seconds(rows, width) / costs.passes[width] for width in measured}
            self._costs[next_power_of_two(rows)] = costs.scaled(factors)

    def _measure_passes(self, rows: int) -> dict[int, float]:
        self._say()
        measure = partial(self._probe.pass_seconds, rows)
        if rows > 1:
            widths = [
                each for each in self.costs(1).passes if each == 1 or each <= min(DRAFTED, MOST_POSITIONS // rows)
            ]
            return [measure_widths(measure, widths, MOST_OF_BATCH) for _ in range(SWEEPS)][-1]
        found = [measure_widths(measure) for _ in range(SWEEPS)][-1]
        if not all(self.same_bits(1, width) for width in found):
            found |= [measure_widths(measure, self.exact_widths) for _ in range(SWEEPS)][-1]
        return dict(sorted(found.items()))

    def _compare_widths(self) -> None:
        """Group the widths by their bits and choose a class: by kernels alone, never by a timing or a draft."""
        own = self._store.measured.same_bits.setdefault(1, {})
        if own or self._store.is_fixed:
            return
        self._say()
        classes: list[tuple[list[Bits], list[int]]] = []
        for width in COMPARED_WIDTHS:
            bits = self._probe.bits(width)
            group = next((widths for found, widths in classes if found == bits), None)
            if group is None:
                classes.append((bits, [width]))
            else:
                group.append(width)
        best = choose_exact_widths([widths for _, widths in classes])
        own |= {width: width in best for width in COMPARED_WIDTHS}
        self._store.measured.fixed_capacity = self._probe.capacity_matters(best[0])
        self._store.save()

    def _say(self) -> None:
        if not self._store.is_said:
            self._store.is_said = True
            where = "" if self._store.path is None else f"; kept in {self._store.path.parent}"
            warnings.warn(
                f"measuring this device with this model, and compiling its kernels, once{where}", stacklevel=2
            )


def choose_exact_widths(classes: Sequence[Sequence[int]]) -> Sequence[int]:
    """The class of widths with the most draft lengths; of equals, the one with the narrowest pass."""
    return max(classes, key=lambda widths: (sum(width <= DRAFTED for width in widths), -min(widths)))


def next_power_of_two(rows: int) -> int:
    """The next power of two."""
    return 1 << (rows - 1).bit_length()


def nearest(measured: Measurements, draft: str, rows: int) -> RoundCosts:
    """Of a file that need not have all numbers of rows, nor name this draft."""
    at = max((each for each in measured.passes if each <= rows), default=min(measured.passes))
    costs = measured.drafts.get(draft) or next((own for name, own in measured.drafts.items() if name and draft), {})
    return RoundCosts(measured.passes[at], *costs.get(at, (0.0, 0.0, 0.0)))


def seconds(raw: Any, least: float = 1e-9) -> float:
    """Raises ValueError unless it is a finite number of seconds."""
    if type(raw) not in (int, float) or not least <= raw < 1e6:
        raise ValueError(raw)
    return float(raw)


def fingerprint(network: nn.Module) -> str:
    """Of what decides the speed and the bits of a network: its configuration, and its parameters' shapes and types."""
    parameters: Any = tree_flatten(network.parameters())
    shapes = sorted((path, str(array.shape), str(array.dtype)) for path, array in parameters)
    text = f"{type(network).__name__} {getattr(network, 'config', None)!r} {shapes}"
    return sha256(text.encode()).hexdigest()[:16]


def calibration_key(target: EncoderDecoder) -> str:
    """All that a measurement of this target depends on, as JSON."""
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
        "ranks": target.mirror.ranks,
    }
    return json.dumps(facts, sort_keys=True)


def device_name() -> str:
    """The name of the GPU or CPU that computes."""
    if mx.default_device().type == mx.gpu:
        return str(mx.device_info().get("device_name", "GPU"))
    with suppress(OSError, subprocess.SubprocessError):
        if sys.platform == "darwin":
            command = ("sysctl", "-n", "machdep.cpu.brand_string")
            return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "CPU")
    return platform.processor() or platform.machine()
