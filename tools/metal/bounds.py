"""Finds memory accesses outside arguments, using guard pages around each argument: `python -m tools.metal bounds`."""

from __future__ import annotations

import itertools
import multiprocessing
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .build import metallib_of
from .classes import WrongResultError, check
from .operations import DTYPES, MODELS, WIDTHS, Operation
from .replay import Inputs, replay
from .runtime import Fault, KernelError, Library, Placement
from .traces import traces_of

MAX_WEIGHT = 4_000_000  # elements; larger matrices need no replay: kernels do not depend on the number of columns


@dataclass(frozen=True)
class Known:
    """Known accesses by MLX's kernels that do not change results. pattern: matches the fault's text."""

    pattern: str
    reason: str


KNOWN = (
    Known(
        r"steel_gemm_fused_n[nt]_\w+ reads [\d,]+ bytes behind buffer 2",
        "addmm bounds the columns of the added matrix, a mask or a residual, but not its rows: a tile of up to 64 "
        "rows reads rows behind the last one, and does not store what it adds them to",
    ),
)


@dataclass(frozen=True)
class Case:
    """A pass to replay with guard pages."""

    chip: str
    model: str
    operation: Operation
    dtype: str
    width: int


def cases(chips: Sequence[str], models: Sequence[str], dtypes: Sequence[str] = DTYPES) -> list[Case]:
    """Return passes for each kind of operation and sequence of kernels: the smallest matrix, at every width.

    The width of a pass matters, because tiles that are not filled with rows are read with different bounds.
    """
    chosen: dict[object, tuple[int, Case]] = {}
    for model in models:
        for operation in MODELS[model]:
            elements = operation.sizes[0] * operation.sizes[-1]
            if elements > MAX_WEIGHT:
                continue
            for chip, dtype, width in itertools.product(chips, dtypes, WIDTHS):
                trace = traces_of(model).find(chip, operation, dtype, width)
                kernels = tuple((each.kernel, *each.constants.items()) for each in trace.dispatches)
                key = operation.kind, kernels, width
                if key not in chosen or elements < chosen[key][0]:
                    chosen[key] = elements, Case(chip, model, operation, dtype, width)
    return [case for _, case in chosen.values()]


def faults_of(library: Library, case: Case) -> list[Fault]:
    """Replay a pass with guard pages after each argument, then before each argument.

    Raises:
        KernelError: The kernel stopped.
        WrongResultError: NaN values that the kernel read outside its arguments changed the result.
    """
    trace = traces_of(case.model).find(case.chip, case.operation, case.dtype, case.width)
    inputs = Inputs(case.operation, case.dtype)
    faults = []
    for placement, side in ((Placement.ENDS_AT_GUARD, "behind"), (Placement.BEGINS_AT_GUARD, "before")):
        arrays = inputs.of_pass(case.width)
        result = replay(library, trace, case.operation, case.dtype, arrays, case.width, placement=placement)
        check(inputs, result.output, case.width, None)
        faults += [
            fault for fault in result.faults if fault.side == side
        ]  # the other guard is not next to the argument
    return faults


def reason_for(fault: Fault) -> str | None:
    """Return the reason recorded for a known fault, or None for an unknown one."""
    return next((known.reason for known in KNOWN if re.fullmatch(known.pattern, str(fault))), None)


_library: Library  # of a worker process


def start_worker(wheel: str) -> None:
    global _library
    _library = Library(metallib_of(wheel))


def work(case: Case) -> tuple[Case, list[Fault], str]:
    try:
        return case, faults_of(_library, case), ""
    except (KernelError, WrongResultError) as error:
        return case, [], str(error)


def check_all(wheel: str, found: Sequence[Case], processes: int) -> Iterator[tuple[Case, list[Fault], str]]:
    """Yield each case with its faults, or with the error that stopped it."""
    with multiprocessing.get_context("spawn").Pool(processes, start_worker, [wheel]) as pool:
        yield from pool.imap_unordered(work, found)
