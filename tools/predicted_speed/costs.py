"""Predicts the costs of passes on Apple GPUs from published figures, and the best draft length for given costs.

None of these figures was measured by this project. A pass over one position is assumed to read its weights once, at the
chip's memory bandwidth, and to wait for each kernel's dispatch. In a wider pass, the time for reading weights grows by
the same factor as the time of a matrix product. A round with a draft also waits for the host. A baseline round does not
wait, because its pass starts early (decoding/round.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from speculative_decoding.draft_length.adaptive import LONGEST, WORTHWHILE
from speculative_decoding.draft_length.costs import ALL_WIDTHS
from speculative_decoding.draft_length.passes import TYPICAL_TOKENS, RoundCosts

DISPATCH_SECONDS = 2.75e-6  # for a tiny kernel that depends on the previous kernel (ml-explore/mlx#4521, M3 Ultra)
HOST_SECONDS = 1.5e-4  # half the time measured on an x86-64 server (docs/decisions/host-time.md)
# Approximate numbers; docs/decisions/metal-source.md lists exact numbers for some models.
DISPATCHES_PER_LAYER = {"T5": 14, "BART": 17, "Whisper": 17, "T5Gemma": 32, "T5Gemma2": 30}


class Chip(NamedTuple):
    """An Apple GPU.

    bandwidth: the memory bandwidth, in bytes per second.
    generation: the chip's generation, such as 3 for an M3.
    """

    bandwidth: float
    generation: int


CHIPS: Mapping[str, Chip] = {
    "M1": Chip(68e9, 1),
    "M1 Pro": Chip(200e9, 1),
    "M4": Chip(120e9, 4),
    "M4 Pro": Chip(273e9, 4),
    "M4 Max": Chip(546e9, 4),
    "M3 Ultra": Chip(819e9, 3),
}

# The time of a matrix product for each number of rows, relative to one row. benchmarks/devices.json names the sources.
# Nothing is predicted for widths beyond the last published one.
PUBLISHED = {
    "M1 Pro, 16 bits": {1: 1.0, 2: 1.97, 4: 1.97, 8: 1.97, 64: 1.97},
    "M3 Ultra, 16 bits": {1: 1.0, 2: 1.17, 4: 1.17, 8: 1.11, 16: 2.0},
    "M4 Pro, 16 bits": {1: 1.0, 2: 1.26, 4: 1.32, 8: 1.38, 16: 2.9},
    "Apple GPU, 4 bits": {1: 1.0, 2: 1.71, 4: 3.1, 8: 4.83},
    "M4 Pro, 4 bits": {1: 1.0, 2: 0.99, 3: 1.13, 4: 1.43, 5: 1.75, 8: 2.84, 10: 4.5, 32: 4.5},
}


class Work(NamedTuple):
    """One pass of a decoder, or one step of a draft.

    nbytes: the size in bytes of the weights that the pass or step reads.
    dispatches: the number of kernels that the pass or step dispatches.
    """

    nbytes: float
    dispatches: int


def chip_named(device: str) -> Chip | None:
    """Return the chip for a device name such as "Apple M4 Max", or None if there are no figures for it."""
    return CHIPS.get(device.removeprefix("Apple "))


def seconds(chip: Chip, work: Work, relative_cost: float = 1.0) -> float:
    """Return the time on the device. relative_cost: the entry of `relative_costs` for the width of the pass."""
    return relative_cost * work.nbytes / chip.bandwidth + work.dispatches * DISPATCH_SECONDS


def pass_seconds(chip: Chip, architecture: str, nbytes: int, decoder_layers: int) -> float:
    """Return the approximate time of a pass over one position, including a wait for the host as in calibration."""
    return HOST_SECONDS + seconds(chip, Work(nbytes, DISPATCHES_PER_LAYER[architecture] * decoder_layers))


def relative_costs(chip: Chip, bits: int) -> dict[int, float]:
    """Return a matrix product's cost for each width, relative to one position. It never decreases with the width."""
    has_wide_kernels = chip.generation >= 3  # gemv_wide and qmv_wide
    if bits < 16:
        name = "M4 Pro, 4 bits" if has_wide_kernels else "Apple GPU, 4 bits"
    elif has_wide_kernels:
        name = "M3 Ultra, 16 bits" if chip.generation == 3 else "M4 Pro, 16 bits"
    else:
        name = "M1 Pro, 16 bits"
    published = PUBLISHED[name]
    widths = [width for width in ALL_WIDTHS if width <= max(published)]
    costs = np.interp(widths, [*published], [*published.values()])
    return dict(zip(widths, np.maximum.accumulate(costs).tolist(), strict=True))


def predicted_costs(
    chip: Chip, bits: int, narrow: Work, wide: Work, step: Work | None = None, start: Work | None = None
) -> RoundCosts:
    """Predict the costs of rounds over one row.

    Args:
        chip: The device.
        bits: Bits per weight.
        narrow: The target's pass over one position.
        wide: The target's pass over several positions, which reads the same weights.
        step: One draft token.
        start: The fixed cost of a draft, in addition to its steps.
    """
    passes = {width: HOST_SECONDS + seconds(chip, wide, cost) for width, cost in relative_costs(chip, bits).items()}
    passes[1] = seconds(chip, narrow)
    return RoundCosts(passes, step=seconds(chip, step) if step else 0.0, start=seconds(chip, start) if start else 0.0)


def recommend_length(costs: RoundCosts, acceptance_rate: float, baseline: float) -> tuple[int, float]:
    """Find the draft length with the most expected tokens per unit of cost.

    Args:
        costs: The costs of a round. For copied drafts, the costs of drafting are 0.
        acceptance_rate: The probability that a draft token is accepted if all tokens before it are.
        baseline: The cost of a round without a draft; the speedup is relative to it.

    Returns:
        The number of draft tokens per round (0 if drafting is not worthwhile), and the expected speedup over baseline
        decoding.
    """
    best = 0
    best_speedup = baseline / costs.baseline
    least_speedup = WORTHWHILE * best_speedup
    expected_tokens = 1.0
    for length in range(1, LONGEST + 1):
        expected_tokens += acceptance_rate**length
        prefill = expected_tokens * costs.prefill / TYPICAL_TOKENS
        speedup = expected_tokens * baseline / (costs.round_cost(length, steps=length) + prefill)
        if speedup > max(least_speedup, best_speedup):
            best = length
            best_speedup = speedup
    return best, best_speedup
