"""Finds the kernels that differ between two wheels: `python -m tools.metal diff WHEEL_A WHEEL_B`."""

from __future__ import annotations

from dataclasses import dataclass

from .metallib import Metallib
from .operations import MODELS
from .runtime import code_digest
from .traces import traces_of


@dataclass(frozen=True)
class Difference:
    """Names of kernels. used: those that the traces use. If these are unchanged, the recorded classes still hold."""

    removed: list[str]
    added: list[str]
    changed: list[str]
    same: int
    used: set[str]


def compare(a: Metallib, b: Metallib) -> Difference:
    """Compare the bitcode of kernels with the same name. If it differs, compare code without compiler versions."""
    common = [name for name in a.entries if name in b.entries]
    changed = [
        name
        for name in common
        if a.entries[name].digest != b.entries[name].digest
        and code_digest(a.bitcode(name), name) != code_digest(b.bitcode(name), name)
    ]
    used = set().union(*(traces_of(model).kernels() for model in MODELS))
    removed = [name for name in a.entries if name not in b.entries]
    added = [name for name in b.entries if name not in a.entries]
    return Difference(removed, added, changed, len(common) - len(changed), used)
