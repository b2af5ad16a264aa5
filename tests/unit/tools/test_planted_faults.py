"""The table of tools/planted_faults.py fits the package."""

from __future__ import annotations

from tools.planted_faults import FAULTS, parse, stale


def test_each_fault_can_be_planted() -> None:
    assert [*stale(parse(FAULTS))] == []
