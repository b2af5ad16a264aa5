"""Tests the memory that clients share."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from speculative_decoding.server.shared_memory import SharedMemory

ACTIONS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["take", "add", "release"]), st.integers(0, 40)))


@settings(deadline=None, derandomize=True)
@given(ACTIONS)
def test_a_client_takes_at_most_as_much_as_then_remains_free(actions: list[tuple[str, str, int]]) -> None:
    memory = SharedMemory(100)
    used: Counter[str] = Counter()
    for client, action, size in actions:
        if action == "take":
            used[client] += size
            is_allowed = used[client] <= 100 - used.total()
            assert memory.take(client, size) is is_allowed
            used[client] -= 0 if is_allowed else size
        elif action == "add":
            memory.add(client, size)
            used[client] += size
        else:
            size = min(size, used[client])
            memory.release(client, size)
            used[client] -= size
        assert memory.used == used.total()


def test_one_client_gets_half_and_many_clients_leave_some_free() -> None:
    memory = SharedMemory(1200)
    taken = [sum(memory.take(client, 1) for _ in range(1200)) for client in "abcde"]
    assert taken == [600, 300, 150, 75, 37]
