"""Decides whose turn it is: the client that has had least, and of its recordings the one that has had least.

Start-time fair queueing (Goyal, Vin and Cheng, 1996) with two levels. A newcomer starts with what the least served of
the others has had. So it need not wait until the others have had enough, and gets nothing for the time before it came.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)


@dataclass
class Account:
    """What a client has had since its first recording arrived. Forgotten with its last one."""

    had: float
    items: int = 0


@dataclass
class Entry:
    """What a recording has had.

    had: in comparison with the other recordings of its client.
    own: by itself.
    waiting_since: the number of its arrival in the queue; None while it has its turn.
    """

    client: Account
    had: float
    own: float = 0.0
    waiting_since: int | None = None

    @property
    def order(self) -> tuple[float, float, float, int]:
        assert self.waiting_since is not None
        return self.client.had, self.had, self.own, self.waiting_since


class Turns(Generic[Item]):
    """The recordings that want turns. Not safe for several threads."""

    def __init__(self) -> None:
        self._clients: dict[str, Account] = {}
        self._entries: dict[Item, Entry] = {}
        self._names: dict[Item, str] = {}  # of their clients
        self._arrivals = 0

    def __contains__(self, item: Item) -> bool:
        return item in self._entries

    @property
    def items(self) -> list[Item]:
        return [*self._entries]

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return sum(entry.waiting_since is not None for entry in self._entries.values())

    def enter(self, item: Item, client: str) -> None:
        """Add a recording of a client, which does not wait for a turn yet."""
        account = self._clients.get(client)
        if account is None:
            account = Account(min((each.had for each in self._clients.values()), default=0.0))
            self._clients[client] = account
        of_client = [each.had for each in self._entries.values() if each.client is account]
        self._entries[item] = Entry(account, min(of_client, default=0.0))
        self._names[item] = client
        account.items += 1

    def wait(self, item: Item) -> None:
        """Let a recording wait for a turn."""
        self._arrivals += 1
        self._entries[item].waiting_since = self._arrivals

    def is_waiting(self, item: Item) -> bool:
        return self._entries[item].waiting_since is not None

    def take(self) -> Item | None:
        """Return the recording whose turn it is, which no longer waits. None if none waits."""
        waiting = [(entry.order, item) for item, entry in self._entries.items() if entry.waiting_since is not None]
        if not waiting:
            return None
        item = min(waiting, key=lambda each: each[0])[1]
        self._entries[item].waiting_since = None
        return item

    def charge(self, item: Item, amount: float) -> None:
        """Count what a recording gets in a turn. One that has left is ignored."""
        if (entry := self._entries.get(item)) is not None:
            entry.client.had += amount
            entry.had += amount
            entry.own += amount

    def leave(self, item: Item) -> None:
        """Remove a recording. One that has left is ignored."""
        entry = self._entries.pop(item, None)
        if entry is not None:
            name = self._names.pop(item)
            entry.client.items -= 1
            if not entry.client.items:
                del self._clients[name]
