"""Decides whose turn it is: the client that has had least, and of its recordings the one that has had least.

Weighted fair queueing (Demers, Keshav and Shenker, 1989) with two levels and equal weights. Virtual time grows by what
each of those present would have had if all had had the same. A newcomer starts there, and its first turn comes earlier.
So it is next, but gets nothing for the time before it came, and a stream of newcomers does not stop the others.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)


@dataclass(eq=False)
class Entry:
    """A recording, or a client with its recordings.

    had: what it has received, plus the virtual time at its arrival.
    virtual: the virtual time of its recordings.
    entries: how many recordings it has.
    credit: how much earlier its first turn comes.
    waiting_since: the number of its arrival in the queue; None while it has its turn.
    """

    had: float
    virtual: float = 0.0
    entries: int = 0
    credit: float = 0.0
    waiting_since: int | None = None

    @property
    def order(self) -> float:
        return self.had - self.credit


@dataclass
class Turns(Generic[Item]):
    """The recordings that want turns. Not safe for several threads.

    credit: how much earlier the first turn of a newcomer comes: about what one turn costs.
    """

    credit: float
    _all: Entry = field(init=False, default_factory=lambda: Entry(0.0))  # its entries are the clients
    _clients: dict[str, Entry] = field(init=False, default_factory=dict)
    _items: dict[Item, tuple[str, Entry]] = field(init=False, default_factory=dict)  # with the client's name
    _arrivals: int = field(init=False, default=0)

    def __contains__(self, item: Item) -> bool:
        return item in self._items

    @property
    def items(self) -> list[Item]:
        return [*self._items]

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return sum(entry.waiting_since is not None for _, entry in self._items.values())

    def is_waiting(self, item: Item) -> bool:
        return self._items[item][1].waiting_since is not None

    def enter(self, item: Item, client: str) -> None:
        """Add a recording of a client, which does not wait for a turn yet."""
        if client not in self._clients:
            self._clients[client] = self._newcomer(self._all)
        self._items[item] = client, self._newcomer(self._clients[client])

    def _newcomer(self, parent: Entry) -> Entry:
        parent.entries += 1
        return Entry(parent.virtual, credit=self.credit)

    def wait(self, item: Item) -> None:
        """Let a recording wait for a turn."""
        self._arrivals += 1
        self._items[item][1].waiting_since = self._arrivals

    def take(self, *, newcomers_only: bool = False, without: Collection[Item] = ()) -> Item | None:
        """Return the recording whose turn it is, which no longer waits. None if none waits.

        Args:
            newcomers_only: Leave out recordings that have had a turn.
            without: Leave these out, too.
        """
        waiting = [
            ((self._clients[client].order, entry.order, entry.waiting_since), item)
            for item, (client, entry) in self._items.items()
            if entry.waiting_since is not None and item not in without and (entry.credit or not newcomers_only)
        ]
        if not waiting:
            return None
        item = min(waiting, key=lambda each: each[0])[1]
        self._items[item][1].waiting_since = None
        return item

    def charge(self, item: Item, amount: float) -> None:
        """Count what a recording gets in a turn. One that has left is ignored."""
        if item in self._items:
            name, entry = self._items[item]
            client = self._clients[name]
            for parent, child in ((self._all, client), (client, entry)):
                parent.virtual += amount / parent.entries
                child.had += amount
                child.credit = 0.0

    def leave(self, item: Item) -> None:
        """Remove a recording. One that has left is ignored."""
        if item in self._items:
            name, _ = self._items.pop(item)
            self._clients[name].entries -= 1
            if not self._clients[name].entries:
                del self._clients[name]
                self._all.entries -= 1
