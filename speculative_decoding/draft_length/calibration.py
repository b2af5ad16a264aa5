"""Measures the cost of passes on this device, and which pass widths give the same bits; stores the results.

Each target has one file in the user's cache folder. Its name depends on everything that changes the measurements: the
target's shapes and dtype, the device, and library versions. The environment variable SPECULATIVE_DECODING_CALIBRATION
names a file to use instead of measuring, for runs that must be reproducible round by round.
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
from dataclasses import replace
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from ..cache_folder import cache_folder
from ..distributed import number_of_ranks
from ..errors import InputError
from ..loading.atomic_io import atomic_write
from ..models.base import EncoderDecoder
from ..models.device import on_gpu
from ..version import __version__, native_libraries
from .costs import ALL_WIDTHS, MAX_MEASURED_WIDTHS, RoundCosts, measure_widths
from .probe import Bits, Probe

CALIBRATION_VARIABLE = "SPECULATIVE_DECODING_CALIBRATION"
FORMAT = 1
COMPARED_WIDTHS = (1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 14, 15, 16, 24, 32)  # the same on every device
MAX_USUAL_WIDTH = 16  # most passes of drafts are no wider
MAX_POSITIONS = 256  # rows * width of the largest pass that is measured for several rows
PARSE_ERRORS = (KeyError, TypeError, ValueError, AttributeError, IndexError)


class CalibrationStore:
    """Measurements for one key, kept in a file of the cache folder if there is one, otherwise only in memory.

    Attributes:
        passes: Seconds of a pass, by rows and width.
        drafts: Seconds (step, start, prefill) of `RoundCosts`, by draft and rows.
        same_bits: By rows and width, whether passes have the bits of the exact widths.
        fixed_capacity: Whether bits depend on the capacity of the KV cache.
        is_noisy: Whether the timings are not worth storing.
    """

    def __init__(self, key: Mapping[str, Any]) -> None:
        self.key = key
        self.path: Path | None = None
        self.is_read_only = False  # the user named a file
        self.clear()
        if named := os.environ.get(CALIBRATION_VARIABLE):
            self._load_named_file(Path(named))
            return
        name = sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
        with suppress(OSError, RuntimeError):
            self.path = cache_folder("calibration") / f"{name}.json"
        with suppress(OSError, *PARSE_ERRORS):
            if self.path is not None:
                self._load(self.path)

    def clear(self) -> None:
        self.passes: dict[int, dict[int, float]] = {}
        self.drafts: dict[str, dict[int, list[float]]] = {}
        self.same_bits: dict[int, dict[int, bool]] = {}
        self.fixed_capacity = False
        self.is_noisy = False

    def save(self) -> None:
        if self.path is None or self.is_read_only or self.is_noisy:
            return
        content = {
            "format": FORMAT,
            "key": self.key,
            "passes": self.passes,
            "drafts": self.drafts,
            "same_bits": self.same_bits,
            "fixed_capacity": self.fixed_capacity,
        }
        with suppress(OSError):  # for example a full disk: the next process measures again
            atomic_write(self.path, json.dumps(content, indent=1) + "\n")

    def _load_named_file(self, path: Path) -> None:
        """Load the file that the environment variable names. Raises `InputError`."""
        self.is_read_only = True
        try:
            self._load(path)
            if not self.passes:
                raise ValueError("no passes")
        except (OSError, *PARSE_ERRORS) as error:
            raise InputError(
                f"{CALIBRATION_VARIABLE}: {path} is not a calibration file ({error!r}); unset it to measure this device"
            ) from error

    def _load(self, path: Path) -> None:
        """Raises OSError, or one of `PARSE_ERRORS` if `save` cannot have written the file; then nothing changes."""
        raw = json.loads(path.read_text(encoding="utf-8-sig"))
        if raw["format"] != FORMAT:
            raise ValueError(raw["format"])
        passes = {
            int(rows): {int(width): parse_seconds(value) for width, value in by_width.items()}
            for rows, by_width in raw["passes"].items()
        }
        drafts = {
            draft: {int(rows): [parse_seconds(value, least=0.0) for value in costs] for rows, costs in by_rows.items()}
            for draft, by_rows in raw["drafts"].items()
        }
        same_bits = {
            int(rows): {int(width): bool(value) for width, value in by_width.items()}
            for rows, by_width in raw["same_bits"].items()
        }
        self.fixed_capacity = bool(raw["fixed_capacity"])
        self.passes = passes
        self.drafts = drafts
        self.same_bits = same_bits


@cache
def shared_store(key: str) -> CalibrationStore:
    """The process's store for a key (as JSON). Sessions with and without a draft share the target's measurements."""
    return CalibrationStore(json.loads(key))


class Calibration:
    """Costs of a target's passes and of one draft, and the exact widths. Missing values are measured.

    The exact widths are a set of pass widths that give each position the same bits. The set is chosen by bits, never by
    a timing or a draft, so all runs on a device agree.

    Args:
        probe: Measures the device.
        store: Keeps the measurements.
        draft: The fingerprint of the draft that `probe` times, or "" without a draft.
    """

    def __init__(self, probe: Probe, store: CalibrationStore, draft: str = "") -> None:
        self._probe = probe
        self._store = store
        self._draft = draft
        self._costs: dict[int, RoundCosts] = {}

    def forget(self) -> None:
        """Discard all measurements; they are repeated when they are needed."""
        if not self._store.is_read_only:
            self._store.clear()
        self._probe.forget()
        self._costs.clear()

    def costs(self, rows: int) -> RoundCosts:
        """The costs of a round with this many rows, measured at the next power of two."""
        rows = next_power_of_two(rows)
        if rows not in self._costs:
            self._costs[rows] = self._read_costs(rows) if self._store.is_read_only else self._measure_costs(rows)
        return self._costs[rows]

    def exact_costs(self, rows: int) -> RoundCosts:
        """Costs with only exact passes. `passes` is empty if a batch has other bits than single rows."""
        costs = self.costs(rows)
        passes = {width: seconds for width, seconds in costs.passes.items() if self.same_bits(rows, width)}
        return replace(costs, passes=passes, fastest_baseline=costs.baseline)

    def same_bits(self, rows: int, width: int) -> bool:
        """Whether passes of this shape have the bits of the exact widths, as far as samples show."""
        rows = next_power_of_two(rows)
        known = self._store.same_bits.setdefault(rows, {})
        if self._store.is_read_only:
            return known.get(width, True)
        if rows == 1:
            self._compare_widths()
        if width not in known:
            self._announce()
            reference = self.exact_widths[0]
            if rows == 1:
                known[width] = self._probe.bits(width) == self._probe.bits(reference)
            else:
                single_rows = [self._probe.single_bits(row, reference) for row in range(2)]
                known[width] = self._probe.batch_bits(rows, width) == single_rows
            self._save()
        return known[width]

    def has_exact_pass(self, tokens: int) -> bool:
        """Whether an exact pass of a single row can hold this many tokens."""
        return tokens <= max(self.exact_widths) or self.same_bits(1, tokens)

    def batches_match(self, slots: int) -> bool:
        """Whether a row has the same bits in any batch of up to `slots` rows, as far as samples show."""
        widths = list(self.exact_costs(1).passes)
        if not widths:
            return False
        rows = 2
        while rows <= next_power_of_two(slots):
            batch_widths = [width for width in widths if width <= min(MAX_USUAL_WIDTH, MAX_POSITIONS // rows)]
            if not all(self.same_bits(rows, width) for width in {min(widths), *batch_widths[-1:]}):
                return False
            rows *= 2
        return True

    @property
    def exact_widths(self) -> list[int]:
        """The exact widths among `COMPARED_WIDTHS`."""
        self._compare_widths()
        known = self._store.same_bits.get(1, {})
        return [width for width in COMPARED_WIDTHS if known.get(width, self._store.is_read_only)]

    @property
    def fixed_capacity(self) -> bool:
        """Whether bits depend on the capacity of the KV cache."""
        self._compare_widths()
        return self._store.fixed_capacity

    def measure_again(self, rows: int, widths: Sequence[int]) -> None:
        """Measure these widths after the device's speed changed, and scale all costs by the result.

        The new costs are not stored, because the speed may change back.
        """
        if self._store.is_read_only:
            return
        costs = self.costs(rows)
        self._probe.forget()
        measured = {costs.width(width) for width in widths}
        factors = {width: self._probe.pass_seconds(rows, width) / costs.passes[width] for width in measured}
        self._costs[next_power_of_two(rows)] = costs.scaled(factors)

    def _read_costs(self, rows: int) -> RoundCosts:
        """Costs from a file that need not contain this number of rows or this draft."""
        store = self._store
        nearest = max((each for each in store.passes if each <= rows), default=min(store.passes))
        drafts = store.drafts
        if not self._draft:
            draft_costs = {}
        elif drafts.get(self._draft):
            draft_costs = drafts[self._draft]
        else:
            draft_costs = next((by_rows for name, by_rows in drafts.items() if name), {})
        return RoundCosts(store.passes[nearest], *draft_costs.get(nearest, (0.0, 0.0, 0.0)))

    def _measure_costs(self, rows: int) -> RoundCosts:
        passes = self._store.passes
        if rows not in passes:
            passes[rows] = self._measure_passes(rows)
            self._save()
        if not self._draft:
            return RoundCosts(passes[rows])
        drafts = self._store.drafts.setdefault(self._draft, {})
        if rows not in drafts:
            self._announce()
            drafts[rows] = [*self._probe.draft_seconds(rows)]
            self._save()
        return RoundCosts(passes[rows], *drafts[rows])

    def _measure_passes(self, rows: int) -> dict[int, float]:
        self._announce()
        if rows > 1:
            limit = min(MAX_USUAL_WIDTH, MAX_POSITIONS // rows)
            widths = [width for width in self.costs(1).passes if width == 1 or width <= limit]
            return self._sweep(rows, widths, max_widths=6)
        found = self._sweep(rows, ALL_WIDTHS)
        if not all(self.same_bits(1, width) for width in found):
            found |= self._sweep(rows, self.exact_widths)
        return dict(sorted(found.items()))

    def _sweep(self, rows: int, widths: Sequence[int], max_widths: int = MAX_MEASURED_WIDTHS) -> dict[int, float]:
        """Measure several times. The probe returns the fastest time so far, so the last sweep is the most accurate."""
        measure = partial(self._probe.pass_seconds, rows)
        return self._probe.settled(lambda: measure_widths(measure, widths, max_widths))

    def _save(self) -> None:
        """Store the measurements, unless other programs have disturbed them: the next process then repeats them."""
        if self._probe.is_noisy and not self._store.is_noisy:
            warnings.warn("timings vary, probably because of other programs, and are not stored", stacklevel=2)
            self._store.is_noisy = True
        self._store.save()

    def _compare_widths(self) -> None:
        """Group the widths by their bits, and choose the exact ones."""
        known = self._store.same_bits.setdefault(1, {})
        if known or self._store.is_read_only:
            return
        self._announce()
        groups: list[tuple[list[Bits], list[int]]] = []
        for width in COMPARED_WIDTHS:
            bits = self._probe.bits(width)
            group = next((widths for found, widths in groups if found == bits), None)
            if group is None:
                groups.append((bits, [width]))
            else:
                group.append(width)
        exact = choose_exact_widths([widths for _, widths in groups])
        known |= {width: width in exact for width in COMPARED_WIDTHS}
        self._store.fixed_capacity = self._probe.capacity_matters(exact[0])
        self._save()

    def _announce(self) -> None:
        announce(None if self._store.path is None else self._store.path.parent)


@cache  # say it once, also if several models are measured
def announce(folder: Path | None) -> None:
    """Warn that the device is being measured. folder: stores the measurements."""
    where = "" if folder is None else f"; stored in {folder}"
    warnings.warn(f"measuring this device with this model, which also compiles kernels, once{where}", stacklevel=3)


def choose_exact_widths(groups: Sequence[Sequence[int]]) -> Sequence[int]:
    """The group with the most usual widths; among equally large ones, the group with the narrowest pass."""
    return max(groups, key=lambda widths: (sum(width <= MAX_USUAL_WIDTH for width in widths), -min(widths)))


def next_power_of_two(rows: int) -> int:
    return 1 << (rows - 1).bit_length()


def parse_seconds(raw: Any, least: float = 1e-9) -> float:
    """Raises ValueError unless `raw` is a plausible number of seconds."""
    if type(raw) not in (int, float) or not least <= raw < 1e6:
        raise ValueError(raw)
    return float(raw)


def fingerprint(network: nn.Module) -> str:
    """A hash of everything in a network that decides its speed and bits: configuration, parameter shapes and dtypes."""
    parameters: Any = tree_flatten(network.parameters())
    shapes = sorted((path, str(array.shape), str(array.dtype)) for path, array in parameters)
    text = f"{type(network).__name__} {getattr(network, 'config', None)!r} {shapes}"
    return sha256(text.encode()).hexdigest()[:16]


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
        "ranks": number_of_ranks(target),
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
