"""Finds pass widths with bit-identical results by replaying traces: `python -m tools.metal classes --help`."""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .build import metallib_of
from .numbers import Values, decode
from .operations import MODELS, WIDTHS, Operation
from .replay import MARGIN, MAX_ROWS, Inputs, replay
from .runtime import KernelError, Library, Orders, Placement, ProductOrder, SumOrder
from .traces import traces_of

ALL_ORDERS = (
    Orders(SumOrder.NEAR, ProductOrder.FMA),
    Orders(SumOrder.FAR, ProductOrder.REVERSE),
    Orders(SumOrder.SEQUENTIAL, ProductOrder.PAIRS),
)
COMPARED_VALUES = 2048  # minimum per width
MAX_COLUMNS = 2048  # columns computed for wider matmuls: a column's sum does not depend on the other columns
Classes = list[list[int]]


class WrongResultError(Exception):
    """A replay produced wrong values, so the trace does not match the kernel."""


@dataclass(frozen=True)
class Found:
    """An operation's classes: sets of widths whose results are bit-identical under every order of additions.

    by_order: the classes under each of `ALL_ORDERS`. problems: the reason for each width that has no class.
    """

    operation: Operation
    dtype: str
    by_order: list[Classes]
    problems: dict[int, str]

    @property
    def classes(self) -> Classes:
        return common_classes(self.by_order)

    @property
    def depends_on_order(self) -> bool:
        return any(classes != self.by_order[0] for classes in self.by_order)

    def __str__(self) -> str:
        note = " (depends on the order of additions)" if self.depends_on_order else ""
        missing = ""
        for problem in dict.fromkeys(self.problems.values()):
            widths = [width for width, each in self.problems.items() if each == problem]
            missing += f"; not {', '.join(ranges(widths))}: {problem}"
        return f"{self.operation}: {described(self.classes)}{note}{missing}"


def described(classes: Classes) -> str:
    """Format classes as ranges of compared widths, such as `{1} {2-5}` for [[1], [2, 3, 4, 5]]."""
    return " ".join("{" + ", ".join(ranges(widths)) + "}" for widths in classes)


def ranges(widths: Sequence[int]) -> Iterator[str]:
    """Join widths that are consecutive in WIDTHS into ranges."""
    start = 0
    for end in range(1, len(widths) + 1):
        if end == len(widths) or WIDTHS.index(widths[end]) != WIDTHS.index(widths[end - 1]) + 1:
            first, last = widths[start], widths[end - 1]
            yield str(first) if first == last else f"{first}-{last}"
            start = end


def common_classes(partitions: Sequence[Classes]) -> Classes:
    """Group the widths that are in the same class in every partition."""
    numbers: dict[tuple[int, ...], list[int]] = {}
    for width in sorted({width for classes in partitions for widths in classes for width in widths}):
        key = tuple(next(i for i, widths in enumerate(classes) if width in widths) for classes in partitions)
        numbers.setdefault(key, []).append(width)
    return list(numbers.values())


def rows_first(output: Values) -> Values:
    """(M, N) or (B, H, M, D) -> (M, all other axes)."""
    rows = output if output.ndim == 2 else output.transpose(2, 0, 1, 3)
    return rows.reshape(len(rows), -1)


def results(
    library: Library, chip: str, model: str, inputs: Inputs, width: int, columns: int | None, orders: Orders
) -> Values:
    """Return at least `COMPARED_VALUES` stored results from passes of one width, (rows, values).

    Raises:
        KernelError: The kernel is not in the library, or it stopped.
        WrongResultError: The values differ from the exact ones by more than rounding errors, or the kernel wrote
            outside its arguments.
    """
    operation, dtype = inputs.operation, inputs.dtype
    trace = traces_of(model).find(chip, operation, dtype, width)
    values_of_row = columns or math.prod(operation.output(width)) // width
    rows = min(max(math.ceil(COMPARED_VALUES / values_of_row), 2), MAX_ROWS)  # inputs differ between even and odd rows
    passes: list[Values] = []
    for first in range(0, rows, width):
        if first and first + width > MAX_ROWS:
            break
        # The first pass runs with guard pages: if the trace does not match the kernel, it may write anywhere.
        placement = Placement.UNGUARDED if first else Placement.ENDS_AT_GUARD
        arrays = inputs.of_pass(width, first)
        result = replay(
            library, trace, operation, dtype, arrays, width, columns=columns, orders=orders, placement=placement
        )
        for fault in result.faults:
            if fault.access == "writes":
                raise WrongResultError(str(fault))
        if first == 0:
            check(inputs, result.output, width, columns)
        passes.append(rows_first(result.output))
    return np.concatenate(passes)


def check(inputs: Inputs, output: Values, width: int, columns: int | None) -> None:
    reference = inputs.reference(width)
    exact, tolerance = reference.values[..., :columns], reference.tolerance[..., :columns]
    is_right = np.abs(decode(output, inputs.dtype) - exact) <= tolerance  # False for NaN
    if not is_right.all():
        raise WrongResultError(f"{np.count_nonzero(~is_right):,} of {is_right.size:,} values are wrong")


def partition(outputs: Sequence[tuple[int, Values]]) -> Classes:
    """Group widths whose common rows are bit-identical."""
    groups: list[list[tuple[int, Values]]] = []
    for width, values in outputs:
        for group in groups:
            if all(is_equal(values, other) for _, other in group):
                group.append((width, values))
                break
        else:
            groups.append([(width, values)])
    return [[width for width, _ in group] for group in groups]


def is_equal(a: Values, b: Values) -> bool:
    rows = min(len(a), len(b))
    return a[:rows].tobytes() == b[:rows].tobytes()


def find_classes(
    library: Library,
    chip: str,
    model: str,
    operation: Operation,
    dtype: str,
    widths: Sequence[int] = WIDTHS,
    all_orders: Sequence[Orders] = ALL_ORDERS,
) -> Found:
    """Replay passes of one operation at each width, and compare their bits."""
    is_wide = "attention" not in operation.kind and len(operation.sizes) == 2 and operation.sizes[1] > MAX_COLUMNS
    columns = MAX_COLUMNS if is_wide else None
    inputs = Inputs(operation, dtype, columns and columns + MARGIN)
    by_order, problems = [], {}
    for orders in all_orders:
        outputs = []
        for width in widths:
            try:
                outputs.append((width, results(library, chip, model, inputs, width, columns, orders)))
            except (KernelError, WrongResultError) as error:
                problems[width] = str(error)
        by_order.append(partition(outputs))
    return Found(operation, dtype, by_order, problems)


_library: Library  # of a worker process


def start_worker(wheel: str) -> None:
    global _library
    _library = Library(metallib_of(wheel))


def work(task: tuple[str, str, Operation, str]) -> Found:
    return find_classes(_library, *task)


def classes_of_model(
    wheel: str, chip: str, model: str, dtypes: Sequence[str], bits: Sequence[int], processes: int
) -> Iterator[Found]:
    """Yield the classes of each of a model's operations, in order, for each dtype."""
    tasks = [
        (chip, model, operation, dtype)
        for dtype in dtypes
        for operation in MODELS[model]
        if operation.bits == 0 or operation.bits in bits
    ]
    with multiprocessing.get_context("spawn").Pool(processes, start_worker, [wheel]) as pool:
        yield from pool.imap(work, tasks)
