"""The table of tools/planted_faults.py fits the package."""

from __future__ import annotations

from tests.support.rooms import ROOMS, needs_room
from tools.planted_faults import FAULTS, parse, stale

pytestmark = [*map(needs_room, ROOMS)]  # some faults are in rooms


def test_each_fault_can_be_planted() -> None:
    assert [*stale(parse(FAULTS))] == []
