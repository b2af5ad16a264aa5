"""Memory that clients share, so that no client can use all of it."""

from __future__ import annotations

from collections import Counter


class SharedMemory:
    """Counts the bytes that each client uses.

    The memory of a client must not exceed the memory that remains free (dynamic thresholds, Choudhury and Hahne, 1998).
    A single client can therefore use at most half of the memory, and a few clients cannot use all of it.

    max_bytes: The size of the memory.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._used: Counter[str] = Counter()  # client -> bytes

    def take(self, client: str, size: int) -> bool:
        """Take memory for a client, if the client may use that much. Returns whether it may."""
        if self._used[client] + size > self._max_bytes - self._used.total() - size:
            return False
        self.add(client, size)
        return True

    def add(self, client: str, size: int) -> None:
        """Count memory that a client uses in any case."""
        self._used[client] += size

    def release(self, client: str, size: int) -> None:
        self._used[client] -= size
        if not self._used[client]:
            del self._used[client]

    @property
    def used(self) -> int:
        """The number of bytes that all clients use."""
        return self._used.total()
