"""The table of tools/planted_faults.py fits the package."""

from __future__ import annotations

from tests.support.subpackages import SUBPACKAGES, needs_subpackage
from tools.planted_faults import FAULTS, parse, stale

pytestmark = [*map(needs_subpackage, SUBPACKAGES)]  # some faults are in optional subpackages


def test_each_fault_can_be_planted() -> None:
    assert [*stale(parse(FAULTS))] == []
