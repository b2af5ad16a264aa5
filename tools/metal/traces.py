"""Recorded dispatches: the kernels that MLX runs for an operation, with their grids and arguments.

Each model has a file, traces/MODEL.jsonl.xz. A line contains a list of dispatches, and the passes that run them:

    {"dispatches": [...], "strides": [...], "passes": [[chips, operation, bits, dtype, width], ...]}

A dispatch is a list: the kernel's name, function constants, arguments, grid, threadgroup size, whether the grid counts
threads, and bytes of threadgroup memory. An argument is either constant bytes in hexadecimal, or an array and an offset
in bytes: `input0+0`, `output+0`, or `temporary0/4096+0` for a temporary array of 4,096 bytes. MLX rounds allocations of
more than 16 KiB up to multiples of 16 KiB, so the recorded size of a temporary array may be rounded up.
"""

from __future__ import annotations

import functools
import json
import lzma
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .operations import Operation

FOLDER = Path(__file__).with_name("traces")


@dataclass(frozen=True)
class Constant:
    """Bytes that the host passes to a kernel."""

    value: bytes


@dataclass(frozen=True)
class ArrayArgument:
    """An array that the host passes to a kernel. name: inputN, output or temporaryN. nbytes: size if temporary."""

    name: str
    offset: int
    nbytes: int = 0


@dataclass(frozen=True)
class TracedDispatch:
    """One dispatch of a kernel, with the arguments for `runtime.Kernel.run`."""

    kernel: str
    constants: dict[int, bytes]
    arguments: dict[int, Constant | ArrayArgument]
    grid: tuple[int, int, int]
    group: tuple[int, int, int]
    grid_is_threads: bool
    threadgroup_memory: dict[int, int]


@dataclass(frozen=True)
class Trace:
    """The dispatches of one pass. strides: the output's strides in memory, in elements."""

    dispatches: list[TracedDispatch]
    strides: tuple[int, ...]


class TraceError(Exception):
    """A trace file cannot be read, or does not contain an operation."""


def argument(text: str) -> Constant | ArrayArgument:
    """Parse one argument. Raises ValueError."""
    if "+" not in text:
        return Constant(bytes.fromhex(text))
    place, offset = text.split("+")
    name, _, nbytes = place.partition("/")
    if name.rstrip("0123456789") not in ("input", "output", "temporary"):
        raise ValueError(f"argument {text!r}")
    return ArrayArgument(name, int(offset), int(nbytes or 0))


def size(values: list[int]) -> tuple[int, int, int]:
    x, y, z = values
    return x, y, z


def dispatch(record: list[Any]) -> TracedDispatch:
    """Parse one dispatch. Raises ValueError or TypeError."""
    kernel, constants, arguments, grid, group, grid_is_threads, memory = record
    return TracedDispatch(
        kernel,
        {int(index): bytes.fromhex(value) for index, value in constants.items()},
        {int(index): argument(text) for index, text in arguments.items()},
        size(grid),
        size(group),
        bool(grid_is_threads),
        {int(index): int(nbytes) for index, nbytes in memory.items()},
    )


class Traces:
    """The traces of one model."""

    def __init__(self, model: str, path: Path | None = None) -> None:
        self.path = path or FOLDER / f"{model}.jsonl.xz"
        self.by_pass: dict[tuple[str, str, int, str, int], Trace] = {}
        try:
            with lzma.open(self.path, "rt", encoding="ascii") as lines:
                for line in lines:
                    self._add(json.loads(line))
        except (OSError, lzma.LZMAError, EOFError, ValueError, TypeError, KeyError) as error:
            raise TraceError(f"{self.path.name}: cannot be read ({error})") from None

    def _add(self, record: dict[str, Any]) -> None:
        trace = Trace([dispatch(each) for each in record["dispatches"]], tuple(record["strides"]))
        for chips, name, bits, dtype, width in record["passes"]:
            for chip in chips.split():
                self.by_pass[chip, name, bits, dtype, width] = trace

    def find(self, chip: str, operation: Operation, dtype: str, width: int) -> Trace:
        """Return the trace of a pass. Raises TraceError if it was not recorded."""
        key = chip, str(operation), operation.bits, dtype, width
        if key not in self.by_pass:
            raise TraceError(f"{self.path.name}: no pass of width {width} of {operation} in {dtype} on {chip}")
        return self.by_pass[key]

    def kernels(self) -> set[str]:
        """Return the names of all kernels in the traces."""
        return {each.kernel for trace in self.by_pass.values() for each in trace.dispatches}


@functools.cache
def traces_of(model: str) -> Traces:
    return Traces(model)
