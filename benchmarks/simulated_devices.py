"""`python -m benchmarks.simulated_devices [FILE]`: tests the adaptive draft length on simulated devices.

Replays recorded drafts (acceptance.txt) round by round under published and generated cost curves. The command prints
the speeds of the sessions, and exits with status 1 if a bound is missed. It neither runs a model nor measures time, so
its results are deterministic.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain, pairwise, product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from speculative_decoding.cli.common import read_text, run, say
from speculative_decoding.cli.parser import Parser
from speculative_decoding.decoding.results import Round
from speculative_decoding.draft_length import AdaptiveLength, FixedLength
from speculative_decoding.draft_length.adaptive import LONGEST
from speculative_decoding.draft_length.base import DraftLength
from speculative_decoding.draft_length.costs import WIDER_WIDTHS, measure_widths, monotone
from speculative_decoding.draft_length.passes import RoundCosts
from speculative_decoding.drafters.base import COPY, MODEL, TEXT
from speculative_decoding.errors import InputError

from .record import Recorded, read

CURVES = Path(__file__).with_name("devices.json")
ACCEPTANCE = Path(__file__).with_name("acceptance.txt")
LONGEST_OUTPUT = 100  # tokens
LOOKED_UP = {COPY: ("found", "copy"), TEXT: ("followed", "text")}  # the kinds for lengths and for correct tokens
MEASUREMENT_ERROR = 0.05
ROUND_NOISE = 0.1
SLOWDOWN = 2.0  # in half of the sessions, the device becomes slower by this factor halfway through
SEEDS = (0, 1, 2)


class Device(NamedTuple):
    """A device. `curve` maps a pass's width to its cost, relative to a pass of width 1."""

    name: str
    curve: Mapping[int, float]

    def cost(self, width: int) -> float:
        widths = sorted(self.curve)
        return float(np.interp(width, widths, [self.curve[each] for each in widths]))


class Drafts(NamedTuple):
    """A source of drafts.

    Args:
        name: Name in the output.
        recorded: Kind in acceptance.txt; empty for none.
        looked_up: The kind of recorded draft that is used instead, where one was recorded: `COPY`, `TEXT`, or "" for
            none.
        step: As in `RoundCosts`.
        start: As in `RoundCosts`.
    """

    name: str
    recorded: str
    looked_up: str
    step: float = 0.0
    start: float = 0.0


DRAFTS = (
    Drafts("head", "head", "", 0.05, 0.03),
    Drafts("draft model", "model", "", 0.16, 0.03),
    Drafts("copies", "", COPY),
    Drafts("head and copies", "head", COPY, 0.05, 0.03),
    Drafts("text", "", TEXT),
    Drafts("head and text", "head", TEXT, 0.05, 0.03),
)


class Position(NamedTuple):
    """The draft at one position of an output: its maximum length, and the number of correct tokens."""

    kind: str
    length: int
    right: int


class SimulatedRound(NamedTuple):
    """A round: the number of draft tokens, and the number of steps of the draft model or head."""

    drafted: int
    steps: int


class Result(NamedTuple):
    """The speed of a session relative to baseline decoding and to the best fixed length."""

    of_baseline: float
    of_best: float


def read_devices(path: Path) -> list[Device]:
    """Read published curves. Raises `InputError` for a malformed file."""
    try:
        curves = json.loads(read_text(path, "FILE"))["curves"]
        return [
            Device(
                f"{each['device']}, {each['weights']}, {each['shape']}",
                dict(zip(each["rows"], each["cost"], strict=True)),
            )
            for each in curves
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"FILE {path}: not a list of cost curves ({error!r}); see {CURVES}") from None


def generated_devices() -> list[Device]:
    """Return synthetic cost curves."""
    devices = [Device("flat after the first position", {1: 1.0, 2: 1.97, 64: 1.97})]
    rng = random.Random("devices")
    for at in (2, 3, 5, 7, 10, 14):
        slope = rng.uniform(0.0, 0.03)
        step = rng.uniform(1.3, 2.5)
        curve = {width: (1.0 + slope * (width - 1)) * (step if width >= at else 1.0) for width in range(1, 65)}
        devices.append(Device(f"step of {step:.2f} at {at}, slope {slope:.3f}", curve))
    for at, slope, step in ((9, 0.004, 1.5), (17, 0.01, 1.9)):
        curve = {width: 1.0 + slope * (width - 1) + (step - 1.0) * (width >= at) for width in range(1, 65)}
        devices.append(Device(f"nearly flat, step of {step:.2f} at {at}", curve))
    return devices


def positions(task: Recorded, drafts: Drafts) -> list[list[Position]]:
    """Return the draft at each token of each output."""
    lengths, right = LOOKED_UP[drafts.looked_up or COPY]
    outputs = []
    for i, output in enumerate(task[lengths]):
        own = []
        for j, length in enumerate(output):
            if drafts.looked_up and (length or not drafts.recorded):
                own.append(Position(drafts.looked_up, length, task[right][i][j]))
            else:
                own.append(Position(MODEL, LONGEST, task[drafts.recorded][i][j]))
        outputs.append(own)
    return outputs


def head_prior(tasks: Mapping[str, Recorded]) -> list[float]:
    """Return the conditional acceptance rate of each draft position, over all tasks."""
    right = Counter(each for task in tasks.values() for output in task["head"] for each in output)
    at_least = [*accumulate(right[each] for each in range(LONGEST, -1, -1))][::-1]
    return [more / max(1, all_) for all_, more in pairwise(at_least)]


def play(length: DraftLength, output: Sequence[Position]) -> list[SimulatedRound]:
    """Decode one output, and return its rounds."""
    rounds = []
    done = 0
    while done < len(output):
        kind, longest, right = output[done]
        asked = 0
        if length.wants_drafts():
            known = longest if longest < LONGEST else LONGEST_OUTPUT  # as from `NgramDrafter.longest`
            (asked,) = length.choose([kind], [min(LONGEST_OUTPUT - done - 1, known)])
        drafted = min(asked, longest)
        accepted = min(drafted, right)
        length.observe([Round([], [0] * drafted, accepted, kind=kind if asked else "")])
        rounds.append(SimulatedRound(drafted, drafted if kind == MODEL else 0))
        done += accepted + 1
    return rounds


class SimulatedSession:
    """A session with an adaptive draft length on one device. Its cost measurements have a simulated error."""

    def __init__(self, device: Device, drafts: Drafts, prior: Sequence[float], seed: str) -> None:
        self._device = device
        self._drafts = drafts
        self._rng = random.Random(seed)
        self._seed = seed
        self._slowdown = 1.0
        self._costs = RoundCosts(measure_widths(self._measure), drafts.step, drafts.start, untimed=WIDER_WIDTHS)
        self._length = AdaptiveLength(lambda rows: self._costs, prior=prior, widen=self._widen)
        self.seconds = 0.0

    def decode(self, output: Sequence[Position]) -> None:
        for each in play(self._length, output):
            seconds = self._round_seconds(each) * self._rng.uniform(1.0 - ROUND_NOISE, 1.0 + ROUND_NOISE)
            self.seconds += seconds

    def slow_down(self) -> None:
        self._slowdown = SLOWDOWN

    def _widen(self, rows: int, width: int) -> None:
        passes = monotone({**self._costs.passes, width: self._measure(width)})
        untimed = [each for each in self._costs.untimed if each > width]
        self._costs = replace(self._costs, passes=passes, untimed=untimed)

    def _measure(self, width: int) -> float:
        """Return the cost of a pass, with an error that is constant for each width."""
        error = random.Random(f"{self._seed} {width}").uniform(-MEASUREMENT_ERROR, MEASUREMENT_ERROR)
        return self._device.cost(width) * (1.0 + error)

    def _round_seconds(self, each: SimulatedRound) -> float:
        drafting = self._drafts.start + each.steps * self._drafts.step if each.steps else 0.0
        return self._slowdown * (self._device.cost(self._costs.padded_width(each.drafted + 1)) + drafting)


class FixedRounds:
    """The rounds of a task for every fixed draft length. They are the same on all devices."""

    def __init__(self, outputs: Sequence[Sequence[Position]]) -> None:
        longest = max(each.length for output in outputs for each in output)
        self._rounds = [
            Counter(each for output in outputs for each in play(FixedLength(length), output))
            for length in range(longest + 1)
        ]

    def seconds(self, device: Device, drafts: Drafts) -> list[float]:
        """Return the seconds for each draft length, without padding of passes."""
        return [
            sum(
                times * (device.cost(each.drafted + 1) + (drafts.start + each.steps * drafts.step) * (each.steps > 0))
                for each, times in rounds.items()
            )
            for rounds in self._rounds
        ]


def session_result(
    device: Device,
    drafts: Drafts,
    outputs: Sequence[Sequence[Position]],
    fixed: FixedRounds,
    prior: Sequence[float],
    seed: int,
    slows_down: bool,
) -> Result:
    """Decode the outputs twice in one session. The device may slow down halfway."""
    session = SimulatedSession(device, drafts, prior, f"{device.name} {drafts.name} {seed}")
    for output in outputs:
        session.decode(output)
    if slows_down:
        session.slow_down()
    for output in outputs:
        session.decode(output)
    factor = 1.0 + (SLOWDOWN if slows_down else 1.0)
    seconds = [factor * each for each in fixed.seconds(device, drafts)]
    return Result(seconds[0] / session.seconds, min(seconds) / session.seconds)


def simulate(devices: Sequence[Device]) -> list[Result]:
    """Run all sessions, and print a line for each device, task and source of drafts."""
    tasks = read(ACCEPTANCE, ["head", "model", *chain.from_iterable(LOOKED_UP.values())])
    prior = head_prior(tasks)
    sessions = []
    for (name, task), drafts in product(tasks.items(), DRAFTS):
        outputs = positions(task, drafts)
        sessions.append((name, drafts, outputs, FixedRounds(outputs)))
    results: list[Result] = []
    for device in devices:
        print(device.name)
        for name, drafts, outputs, fixed in sessions:
            known = prior if drafts.recorded == "head" else ()
            own = [
                session_result(device, drafts, outputs, fixed, known, seed, slows_down)
                for seed, slows_down in product(SEEDS, (False, True))
            ]
            speed = statistics.median(each.of_baseline for each in own)
            lowest = min(each.of_best for each in own)
            print(
                f"  {name:12s} {drafts.name:16s} {speed:5.2f}x baseline, at least {lowest:.3f} of the best fixed length"
            )
            results += own
    return results


def missed_bounds(results: Sequence[Result]) -> list[str]:
    """Print each bound with the measured value, and return the names of the bounds that were missed."""
    of_best = sorted(each.of_best for each in results)
    figures = {
        "minimum of the best fixed length": (of_best[0], 0.92),
        "5th percentile of the best fixed length": (of_best[len(of_best) // 20], 0.95),
        "median of the best fixed length": (statistics.median(of_best), 0.98),
        "minimum of baseline decoding": (min(each.of_baseline for each in results), 0.97),
    }
    for name, (figure, bound) in figures.items():
        print(f"{name}: {figure:.3f}, bound {bound:.2f}{'' if figure >= bound else ', MISSED'}")
    return [name for name, (figure, bound) in figures.items() if figure < bound]


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m benchmarks.simulated_devices", description=__doc__)
    parser.add_argument(
        "file", metavar="FILE", type=Path, nargs="?", default=CURVES, help="cost curves (default: %(default)s)"
    )
    file: Path = parser.parse_args(argv).file
    return run("benchmarks.simulated_devices", lambda: simulate_file(file))


def simulate_file(file: Path) -> int:
    missed = missed_bounds(simulate([*read_devices(file), *generated_devices()]))
    if missed:
        say(f"missed: {'; '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
