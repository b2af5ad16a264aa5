"""On Linux CPUs, replaces the few operations that MLX computes slowly with implementations in the folder cpu/.

`@replaced_on_cpu` marks such an operation; cpu/replacements.py contains a function with the same name. The marked
function itself is pure MLX. It runs on GPUs, on Macs, and if the folder is missing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from types import ModuleType
from typing import ParamSpec, TypeVar

from ..subpackages import has_subpackage
from .device import on_gpu

P = ParamSpec("P")
R = TypeVar("R")


@cache
def replacements() -> ModuleType | None:
    """Return cpu/replacements.py, or None if it does not support this machine or is missing."""
    if not sys.platform.startswith("linux") or not has_subpackage("cpu"):
        return None
    from ..cpu import replacements

    return replacements


def replaced_on_cpu(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function or method call its replacement in cpu/replacements.py if the default device is a CPU."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        cpu = None if on_gpu() else replacements()
        return function(*args, **kwargs) if cpu is None else getattr(cpu, function.__name__)(*args, **kwargs)

    return call


@contextmanager
def computing() -> Iterator[None]:
    """Raise an `InputError` if MLX fails because it cannot compile CPU kernels, for example when the disk is full."""
    try:
        yield
    except RuntimeError as error:
        if has_subpackage("cpu"):
            from ..cpu.kernels import raise_kernel_error

            raise_kernel_error(error)
        raise
