"""Executes a metallib's kernels on numpy arrays.

    library = Library(metallib_of("0.32.4"))
    kernel = library.kernel("rmsfloat32")
    kernel.run({0: x, 1: weight, 2: out, 3: epsilon}, grid=(rows * 32, 1, 1), group=(32, 1, 1))

Each argument is an array or bytes; outputs are written in place. Kernels are translated when they are first used, and
their object files are kept in the cache folder.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from .build import library_path
from .metallib import Metallib

MAX_ARGUMENTS = 31  # the limit for a Metal kernel
MAX_FAULTS = 64
Size = tuple[int, int, int]
Constants = Mapping[int, bytes]


class SumOrder(IntEnum):
    """The order in which simd_sum adds 32 lanes: pairs at increasing or decreasing distances, or lane by lane."""

    NEAR = 0
    FAR = 1
    SEQUENTIAL = 2


class ProductOrder(IntEnum):
    """The order of additions in matrix products: fused steps in ascending or descending order, or rounded pairs."""

    FMA = 0
    REVERSE = 1
    PAIRS = 2


class Placement(IntEnum):
    """Where an argument is placed between guard pages, which fault when accessed."""

    UNGUARDED = 0
    ENDS_AT_GUARD = 1
    BEGINS_AT_GUARD = 2


@dataclass(frozen=True)
class Orders:
    """The orders of those additions for which Metal does not specify one."""

    sums: SumOrder = SumOrder.NEAR
    products: ProductOrder = ProductOrder.FMA


DEFAULT_ORDERS = Orders()


@dataclass(frozen=True)
class Fault:
    """Accesses outside an argument. distance: that of the farthest one from the argument's end or start, in bytes."""

    kernel: str
    argument: int
    is_threadgroup_memory: bool
    access: str  # reads or writes
    distance: int
    side: str  # behind or before

    def __str__(self) -> str:
        memory = "threadgroup memory" if self.is_threadgroup_memory else "buffer"
        return f"{self.kernel} {self.access} {self.distance:,} bytes {self.side} {memory} {self.argument}"


class KernelError(Exception):
    """A kernel cannot be translated, or it stopped with an error."""


class _Constant(ctypes.Structure):
    _fields_ = (("index", ctypes.c_uint32), ("size", ctypes.c_uint32), ("bytes", ctypes.c_uint8 * 8))


class _Dispatch(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint64 * 3),
        ("group", ctypes.c_uint64 * 3),
        ("groups_to_run", ctypes.c_uint64 * 3),
        ("grid_is_threads", ctypes.c_int32),
        ("sum_order", ctypes.c_int32),
        ("product_order", ctypes.c_int32),
        ("placement", ctypes.c_int32),
    )


class _Fault(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_int32),
        ("is_threadgroup", ctypes.c_int32),
        ("reads_before", ctypes.c_uint64),
        ("reads_behind", ctypes.c_uint64),
        ("writes_before", ctypes.c_uint64),
        ("writes_behind", ctypes.c_uint64),
    )


@functools.cache
def native() -> Any:
    """Load the compiled runtime."""
    library = ctypes.CDLL(str(library_path()))
    library.metal_error.restype = ctypes.c_char_p
    library.metal_result.restype = ctypes.c_void_p
    library.metal_result_size.restype = ctypes.c_uint64
    library.metal_load.restype = ctypes.c_void_p
    library.metal_load.argtypes = [ctypes.c_char_p, ctypes.c_uint64]
    library.metal_translate.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int]
    library.metal_digest.argtypes = [ctypes.c_char_p, ctypes.c_uint64]
    library.metal_execute.argtypes = [ctypes.c_void_p] * 6 + [ctypes.c_int, ctypes.c_void_p]
    return library


def returned(status: int, name: str) -> bytes:
    """Return the bytes that a runtime function produced. Raises KernelError if it failed."""
    if status:
        raise KernelError(f"{name}: {native().metal_error().decode()}")
    return ctypes.string_at(native().metal_result(), native().metal_result_size())


def code_digest(bitcode: bytes, name: str) -> bytes:
    """Return a digest of a kernel's code that does not depend on the versions of the compiler and of macOS."""
    return returned(native().metal_digest(bitcode, len(bitcode)), name)


class Library:
    """A metallib's kernels, which are translated on first use."""

    def __init__(self, path: Path) -> None:
        self.metallib = Metallib(path)
        self.kernels: dict[tuple[str, tuple[tuple[int, bytes], ...]], Kernel] = {}

    def kernel(self, name: str, constants: Constants | None = None) -> Kernel:
        """Return a kernel, specialized for the given values of its function constants. May raise KernelError."""
        given = tuple(sorted((constants or {}).items()))
        if (name, given) not in self.kernels:
            if name not in self.metallib.entries:
                raise KernelError(f"{name}: not in this metallib")
            self.kernels[name, given] = Kernel(name, self._object(name, given))
        return self.kernels[name, given]

    def _object(self, name: str, constants: tuple[tuple[int, bytes], ...]) -> bytes:
        bitcode = self.metallib.bitcode(name)
        digest = hashlib.sha256(repr((constants, bitcode)).encode()).hexdigest()[:32]
        path = library_path().parent / f"{digest}.o"
        if not path.exists():
            packed = (_Constant * max(1, len(constants)))()
            for slot, (index, value) in zip(packed, constants, strict=False):
                slot.index, slot.size = index, len(value)
                ctypes.memmove(slot.bytes, value, len(value))
            status = native().metal_translate(bitcode, len(bitcode), packed, len(constants))
            partial = path.with_suffix(f".partial-{os.getpid()}")
            partial.write_bytes(returned(status, name))
            partial.rename(path)
        return path.read_bytes()


class Kernel:
    """A kernel that is loaded into this process."""

    def __init__(self, name: str, code: bytes) -> None:
        self.name = name
        self.pointer = native().metal_load(code, len(code))
        if self.pointer is None:
            raise KernelError(f"{name}: {native().metal_error().decode()}")

    def run(
        self,
        arguments: Mapping[int, np.ndarray[Any, Any] | bytes],
        grid: Size,
        group: Size,
        *,
        threadgroup_memory: Mapping[int, int] | None = None,
        grid_is_threads: bool = False,
        groups_to_run: Size = (0, 0, 0),
        orders: Orders = DEFAULT_ORDERS,
        placement: Placement = Placement.UNGUARDED,
    ) -> list[Fault]:
        """Run the kernel over a grid, and return the accesses that guard pages caught.

        Args:
            arguments: Contiguous arrays or bytes, keyed by buffer index. The kernel writes to arrays in place.
            grid: The number of threadgroups, or of threads if `grid_is_threads`.
            threadgroup_memory: The number of bytes for each index.
            groups_to_run: How many of the first threadgroups to run along each axis of the grid (0: all).

        Raises:
            KernelError: The dispatch is invalid, or the kernel accessed memory far from all arguments.
        """
        buffers, sizes = (ctypes.c_void_p * MAX_ARGUMENTS)(), (ctypes.c_uint64 * MAX_ARGUMENTS)()
        shared = (ctypes.c_uint64 * MAX_ARGUMENTS)()
        copies = []  # keeps arrays alive; `bytes` are copied, because a kernel must not change them
        for index, value in arguments.items():
            array = np.frombuffer(bytearray(value), np.uint8) if isinstance(value, bytes) else value
            if not array.flags.c_contiguous:
                raise ValueError(f"argument {index}: not contiguous")
            copies.append(array)
            buffers[index], sizes[index] = array.ctypes.data, array.nbytes
        for index, nbytes in (threadgroup_memory or {}).items():
            shared[index] = nbytes
        dispatch = _Dispatch(grid, group, groups_to_run, grid_is_threads, orders.sums, orders.products, placement)
        faults, count = (_Fault * MAX_FAULTS)(), ctypes.c_int()
        status = native().metal_execute(
            self.pointer, buffers, sizes, shared, ctypes.byref(dispatch), faults, MAX_FAULTS, ctypes.byref(count)
        )
        if status:
            raise KernelError(f"{self.name}: {native().metal_error().decode()}")
        return [fault for each in faults[: count.value] for fault in self._faults(each)]

    def _faults(self, record: _Fault) -> list[Fault]:
        return [
            Fault(self.name, record.argument, bool(record.is_threadgroup), access, distance, side)
            for access in ("reads", "writes")
            for side in ("before", "behind")
            if (distance := getattr(record, f"{access}_{side}"))
        ]
