"""`python -m benchmarks.simulated_devices [FILE]`: tests the adaptive draft length on simulated devices.

Replays recorded drafts (acceptance.txt) round by round under published and generated cost curves, and under timings
that were recorded beside other programs (loads.json). Costs are calibrated as on a real device, by a simulated probe.
The command prints the speeds of the sessions, without the time of calibration, and exits with status 1 if a bound is
missed. It neither runs a model nor measures time, so its results are deterministic.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain, pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from speculative_decoding.cli.common import read_text, run, say
from speculative_decoding.cli.parser import Parser
from speculative_decoding.decoding.results import Round
from speculative_decoding.draft_length import AdaptiveLength, FixedLength
from speculative_decoding.draft_length.adaptive import LONGEST
from speculative_decoding.draft_length.base import DraftLength
from speculative_decoding.draft_length.calibration import Calibration
from speculative_decoding.draft_length.probe import MAX_RUN_SECONDS, MAX_RUNS, Probe
from speculative_decoding.draft_length.store import CalibrationStore
from speculative_decoding.drafters.base import COPY, MODEL, TEXT
from speculative_decoding.errors import InputError

from .record import Recorded, read

CURVES = Path(__file__).with_name("devices.json")
LOADS = Path(__file__).with_name("loads.json")
ACCEPTANCE = Path(__file__).with_name("acceptance.txt")
LONGEST_OUTPUT = 100  # tokens
LOOKED_UP = {COPY: ("found", "copy"), TEXT: ("followed", "text")}  # the kinds for lengths and for correct tokens
MEASUREMENT_ERROR = 0.05
ROUND_NOISE = 0.1
PASS_SECONDS = 0.003  # of a pass of width 1
SLOWDOWN = 2.0  # in half of the sessions, the device becomes slower by this factor halfway through
SEEDS = (0, 1, 2)
LOAD_SEEDS: Sequence[int] = range(10)


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


HEAD = Drafts("head", "head", "", 0.05, 0.03)
DRAFTS = (
    HEAD,
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


class Device:
    """A device.

    Args:
        name: Name in the output.
        curve: The cost of a pass by width, relative to a pass of width 1. Costs of other widths are interpolated.
    """

    def __init__(self, name: str, curve: Mapping[int, float]) -> None:
        self.name = name
        widths = sorted(curve)
        self._costs: list[float] = np.interp(range(65), widths, [curve[each] for each in widths]).tolist()

    def seconds(self, each: SimulatedRound, width: int, drafts: Drafts) -> float:
        """The mean time of a round whose pass has this width."""
        drafting = drafts.start + each.steps * drafts.step if each.steps else 0.0
        return PASS_SECONDS * (self._costs[width] + drafting)

    def round_factor(self, width: int, rng: random.Random) -> float:
        """The time of a round, relative to the mean."""
        return rng.uniform(1.0 - ROUND_NOISE, 1.0 + ROUND_NOISE)

    def pass_timing(self, width: int, rng: random.Random) -> float:
        """The measured time of a pass. Its error is the same in every repetition."""
        error = random.Random(f"{self.name} {width}").uniform(-MEASUREMENT_ERROR, MEASUREMENT_ERROR)
        return PASS_SECONDS * self._costs[width] * (1.0 + error)

    def draft_timing(self, steps: int, drafts: Drafts, rng: random.Random) -> float:
        """The measured time of a draft."""
        return PASS_SECONDS * (drafts.start + steps * drafts.step)


class Load:
    """A machine with other programs, with timings recorded by loads.py with the bundled target and its draft head.

    Args:
        recorded: The load's entry in loads.json.
    """

    def __init__(self, recorded: Mapping[str, Any]) -> None:
        self.name: str = recorded["load"]
        self._rounds = self._by_width(recorded["rounds"])
        self._passes = self._by_width(recorded["passes"])
        self._drafts = {int(steps): seconds for steps, seconds in recorded["drafts"].items()}

    def seconds(self, each: SimulatedRound, width: int, drafts: Drafts) -> float:
        """As for `Device`. A recorded round's draft filled its pass."""
        return self._rounds[min(width, max(self._rounds))][0]

    def round_factor(self, width: int, rng: random.Random) -> float:
        return rng.choice(self._rounds[min(width, max(self._rounds))][1])

    def pass_timing(self, width: int, rng: random.Random) -> float:
        mean, factors = self._passes[width]
        return mean * rng.choice(factors)

    def draft_timing(self, steps: int, drafts: Drafts, rng: random.Random) -> float:
        return rng.choice(self._drafts[steps])

    @staticmethod
    def _by_width(recorded: Mapping[str, Sequence[float]]) -> dict[int, tuple[float, list[float]]]:
        """The mean time by width, smoothed by a quadratic curve, and factors from this width and its neighbors."""
        times = {int(width): np.array(seconds) for width, seconds in recorded.items()}
        means = {width: own.mean() for width, own in times.items()}
        weights = [len(own) ** 0.5 / means[width] for width, own in times.items()]
        smooth = np.polyval(np.polyfit([*means], [*means.values()], 2, w=weights), [*means])
        factors = {width: own / means[width] for width, own in times.items()}
        return {
            width: (float(mean), np.concatenate([factors[near] for near in factors if abs(near - width) <= 2]).tolist())
            for width, mean in zip(times, smooth, strict=True)
        }


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


def read_loads(path: Path) -> list[Load]:
    """Read recorded loads; the first one is idle."""
    return [Load(each) for each in json.loads(path.read_text())["loads"]]


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


def play(length: DraftLength, output: Sequence[Position]) -> Iterator[SimulatedRound]:
    """Decode one output, and yield its rounds."""
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
        yield SimulatedRound(drafted, drafted if kind == MODEL else 0)
        done += accepted + 1


class SimulatedProbe(Probe):
    """Times simulated passes and drafts. `seconds` is the time that this and the rounds of a session have taken."""

    def __init__(self, device: Device | Load, drafts: Drafts, rng: random.Random) -> None:
        self.device = device
        self.seconds = 0.0
        self._drafts = drafts
        self._rng = rng

    def pass_seconds(self, rows: int, width: int) -> list[float]:
        return self._repeat(lambda: self.device.pass_timing(width, self._rng))

    def draft_seconds(self, rows: int) -> tuple[float, float, float]:
        def draft(steps: int) -> float:
            return self.device.draft_timing(steps, self._drafts, self._rng)

        short, long = (statistics.median(self._repeat(partial(draft, steps))) for steps in (1, 9))
        step = max(0.0, (long - short) / 8)
        return step, max(0.0, short - step), 0.0

    def _repeat(self, timing: Callable[[], float]) -> list[float]:
        taken: list[float] = []
        while len(taken) < MAX_RUNS and sum(taken) < MAX_RUN_SECONDS:
            taken.append(timing())
        self.seconds += sum(taken)
        return taken


class SilentStore(CalibrationStore):
    def announce(self) -> None:
        """Nothing is measured, so nothing is announced."""


class SimulatedSession:
    """A session with an adaptive draft length on one device.

    Args:
        calibrated_on: The device on which costs were measured before the session; None if they are measured in it.
    """

    def __init__(
        self,
        device: Device | Load,
        drafts: Drafts,
        prior: Sequence[float],
        seed: str,
        calibrated_on: Device | Load | None = None,
    ) -> None:
        self._drafts = drafts
        self._rng = random.Random(seed)
        self._probe = SimulatedProbe(calibrated_on or device, drafts, self._rng)
        store = SilentStore(None)
        draft = drafts.recorded and "a draft"
        self._calibration = Calibration(lambda: self._probe, store, None, draft, clock=lambda: self._probe.seconds)
        if calibrated_on is not None:
            self._calibration.measure_fully(1)
            self._probe.device = device
        self._length = AdaptiveLength(self._calibration.costs, prior=prior, widen=self._calibration.widen)
        self._slowdown = 1.0
        self.seconds = 0.0  # of the rounds

    def decode(self, output: Sequence[Position]) -> None:
        for number, each in enumerate(play(self._length, output)):
            width = self._calibration.costs(1).padded_width(each.drafted + 1)
            device = self._probe.device
            seconds = self._slowdown * device.seconds(each, width, self._drafts)
            self.seconds += seconds
            seconds *= device.round_factor(width, self._rng)
            self._probe.seconds += seconds
            if number:
                self._calibration.observe(1, width, each.steps, seconds)
                self._calibration.refine(1)

    def slow_down(self) -> None:
        self._slowdown = SLOWDOWN

    def move_to(self, device: Device | Load) -> None:
        self._probe.device = device


class FixedRounds:
    """The rounds of a task for every fixed draft length. They are the same on all devices."""

    def __init__(self, outputs: Sequence[Sequence[Position]]) -> None:
        longest = max(each.length for output in outputs for each in output)
        self._rounds = [
            Counter(each for output in outputs for each in play(FixedLength(length), output))
            for length in range(longest + 1)
        ]

    def seconds(self, device: Device | Load, drafts: Drafts) -> list[float]:
        """Return the seconds for each draft length, without padding of passes."""
        return [
            sum(times * device.seconds(each, each.drafted + 1, drafts) for each, times in rounds.items())
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


def load_result(
    calibrated_on: Load | None,
    loads: Sequence[Load],
    outputs: Sequence[Sequence[Position]],
    fixed: FixedRounds,
    prior: Sequence[float],
    seed: int,
) -> Result:
    """Decode the outputs under one load after another in one session with the draft head."""
    names = " ".join(each.name for each in loads)
    session = SimulatedSession(loads[0], HEAD, prior, f"{names} {seed}", calibrated_on)
    for load in loads:
        session.move_to(load)
        for output in outputs:
            session.decode(output)
    seconds = [sum(own) for own in zip(*(fixed.seconds(load, HEAD) for load in loads), strict=True)]
    return Result(seconds[0] / session.seconds, min(seconds) / session.seconds)


def simulate_loads(loads: Sequence[Load]) -> list[Result]:
    """Run sessions whose costs were measured under the same load or under another, and sessions in which it changes."""
    tasks = read(ACCEPTANCE, ["head", "model", *chain.from_iterable(LOOKED_UP.values())])
    prior = head_prior(tasks)
    results: list[Result] = []
    idle = loads[0]
    cases: list[tuple[str, Load | None, tuple[Load, Load]]]
    cases = [(f"first measured {load.name}", None, (load, load)) for load in loads]
    cases += [(f"measured {idle.name}, then {load.name}", idle, (load, load)) for load in loads[1:]]
    cases += [(f"measured {load.name}, then {idle.name}", load, (idle, idle)) for load in loads[1:]]
    cases += [(f"{load.name} halfway", idle, (idle, load)) for load in loads[1:]]
    for name, calibrated_on, sequence in cases:
        print(name)
        for task, recorded in tasks.items():
            outputs = positions(recorded, HEAD)
            fixed = FixedRounds(outputs)
            own = [load_result(calibrated_on, sequence, outputs, fixed, prior, seed) for seed in LOAD_SEEDS]
            print(f"  {task:12s} {summary(own)}")
            results += own
    return results


def summary(results: Sequence[Result]) -> str:
    speed = statistics.median(each.of_baseline for each in results)
    return f"{speed:5.2f}x baseline, at least {min(each.of_best for each in results):.3f} of the best fixed length"


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
            print(f"  {name:12s} {drafts.name:16s} {summary(own)}")
            results += own
    return results


def missed_bounds(results: Sequence[Result], least: float, median: float) -> list[str]:
    """Print each bound with the measured value, and return the names of the bounds that were missed.

    least, median: the bounds of the minimum and the median of the best fixed length.
    """
    of_best = sorted(each.of_best for each in results)
    figures = {
        "minimum of the best fixed length": (of_best[0], least),
        "5th percentile of the best fixed length": (of_best[len(of_best) // 20], 0.95),
        "median of the best fixed length": (statistics.median(of_best), median),
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
    missed = missed_bounds(simulate([*read_devices(file), *generated_devices()]), least=0.92, median=0.98)
    if LOAD_SEEDS:
        missed += missed_bounds(simulate_loads(read_loads(LOADS)), least=0.90, median=0.96)
    if missed:
        say(f"missed: {'; '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
