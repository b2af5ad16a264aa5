"""A probe that measures a device simulated by formulas, and a clock for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from speculative_decoding.draft_length.calibration import Calibration
from speculative_decoding.draft_length.exact_widths import ExactWidths
from speculative_decoding.draft_length.kernel_bits import Bits, Shape
from speculative_decoding.draft_length.probe import Probe
from speculative_decoding.draft_length.store import CalibrationStore

KEY = {"target": "a target", "mlx": "1.2.3"}


def metal(width: int) -> int:
    """Return the group of a width in the published 16-bit kernels for M3 and later: gemv, two gemv_wide, or GEMM."""
    return sum(width >= least for least in (2, 6, 16))


class FakeProbe(Probe):
    """A device simulated by formulas, which records all measurements.

    Args:
        kind_of: Widths of the same kind have the same bits.
        batches: Whether rows of a batch have the bits of single rows.
        slope: The relative cost of a position.
        capacity_borders: The capacities of the KV cache at which bits change.
        source_borders: The capacities for sources at which bits change.
    """

    def __init__(
        self,
        kind_of: Callable[[int], int] = metal,
        *,
        batches: bool = True,
        slope: float = 0.02,
        capacity_borders: Sequence[int] = (),
        source_borders: Sequence[int] = (),
    ) -> None:
        self.capacity_borders = capacity_borders
        self.source_borders = source_borders
        self.kind_of = kind_of
        self.batches = batches
        self.slope = slope
        self.timed: list[tuple[int, int]] = []
        self.compared: list[tuple[int, int]] = []
        self.speed = 1.0

    def pass_seconds(self, rows: int, width: int) -> list[float]:
        self.timed.append((rows, width))
        return [self.speed * 0.001 * (1.0 + self.slope * rows * width + 0.2 * self.kind_of(width))] * 3

    def draft_seconds(self, rows: int) -> tuple[float, float, float]:
        self.timed.append((rows, 0))
        return 0.0001, 0.00005, 0.0

    def bits(self, width: int) -> list[Bits]:
        self.compared.append((1, width))
        return [[bytes([self.kind_of(width)])]]

    def kernel_bits(self, shapes: Sequence[Shape]) -> dict[Shape, Bits]:
        return {(rows, width): [bytes([self.kind_of(width)])] for rows, width in shapes}

    def borders(self, widths: Sequence[int]) -> tuple[list[int], list[int]]:
        return [*self.capacity_borders], [*self.source_borders]

    def single_bits(self, row: int, width: int) -> Bits:
        return [bytes([row, self.kind_of(width)])]

    def batch_bits(self, rows: int, width: int) -> list[Bits]:
        self.compared.append((rows, width))
        return [[bytes([row, self.kind_of(width) if self.batches else 99])] for row in range(2)]


class Clock:
    """A clock that advances only when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


def calibrated(probe: Probe, draft: str = "", key: Mapping[str, str] = KEY) -> Calibration:
    store = CalibrationStore(key)
    return Calibration(lambda: probe, store, ExactWidths(lambda: probe, lambda: store), draft)


def exact_widths_of(calibration: Calibration) -> ExactWidths:
    assert calibration.exact_widths is not None
    return calibration.exact_widths


def compared(probe: Probe, key: Mapping[str, str] = KEY) -> ExactWidths:
    return exact_widths_of(calibrated(probe, key=key))
