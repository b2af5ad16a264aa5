"""Accesses behind or before arguments, found by guard pages around each: `python -m tools.metal bounds`."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .build import metallib_of
from .operations import DTYPES, MODELS, WIDTHS, Operation
from .replay import Inputs, replay
from .runtime import Fault, KernelError, Library, Placement
from .traces import traces_of

MAX_WEIGHT = 4_000_000  # elements of a matrix in a guarded replay: kernels do not depend on the number of columns


@dataclass(frozen=True)
class Known:
    """Accesses of MLX that are known and do not change results. pattern: of the fault's text."""

    pattern: str
    reason: str


KNOWN: tuple[Known, ...] = ()


@dataclass(frozen=True)
class Case:
    """The smallest pass that runs a sequence of kernels."""

    chip: str
    model: str
    operation: Operation
    dtype: str
    width: int


def cases(chips: Sequence[str], models: Sequence[str], dtypes: Sequence[str] = DTYPES) -> list[Case]:
    """Return one pass for each sequence of kernels and each kind of operation: the smallest matrix, the widest pass."""
    chosen: dict[object, tuple[tuple[int, int], Case]] = {}
    for model in models:
        for operation in MODELS[model]:
            elements = operation.sizes[0] * operation.sizes[-1]
            if elements > MAX_WEIGHT:
                continue
            for chip in chips:
                for dtype in dtypes:
                    for width in WIDTHS:
                        trace = traces_of(model).find(chip, operation, dtype, width)
                        kernels = tuple((each.kernel, *each.constants.items()) for each in trace.dispatches)
                        cost = elements * (len(trace.dispatches) + 1), -width
                        case = Case(chip, model, operation, dtype, width)
                        key = (operation.kind, kernels)
                        if key not in chosen or cost < chosen[key][0]:
                            chosen[key] = cost, case
    return [case for _, case in chosen.values()]


def faults_of(library: Library, case: Case) -> list[Fault]:
    """Replay a pass with guard pages behind, then before each argument. Raises KernelError."""
    trace = traces_of(case.model).find(case.chip, case.operation, case.dtype, case.width)
    inputs = Inputs(case.operation, case.dtype).of_pass(case.width)
    return [
        fault
        for placement in (Placement.ENDS_AT_GUARD, Placement.BEGINS_AT_GUARD)
        for fault in replay(library, trace, case.operation, case.dtype, inputs, case.width, placement=placement).faults
        # A guard page lies at both sides, but only one of them is next to the argument.
        if (fault.side == "behind") == (placement == Placement.ENDS_AT_GUARD)
    ]


def reason_for(fault: Fault) -> str | None:
    """Return why a fault is known, or None."""
    return next((known.reason for known in KNOWN if re.fullmatch(known.pattern, str(fault))), None)


_library: Library  # of a worker process


def start_worker(wheel: str) -> None:
    global _library
    _library = Library(metallib_of(wheel))


def work(case: Case) -> tuple[Case, list[Fault], str]:
    try:
        return case, faults_of(_library, case), ""
    except KernelError as error:
        return case, [], str(error)


def check_all(wheel: str, found: Sequence[Case], processes: int) -> Iterator[tuple[Case, list[Fault], str]]:
    """Yield each case with its faults, or with the problem that stopped it."""
    with multiprocessing.get_context("spawn").Pool(processes, start_worker, [wheel]) as pool:
        yield from pool.imap_unordered(work, found)
