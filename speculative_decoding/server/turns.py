"""Chooses the client that has received the least service, and among its items the one that has received the least.

This is fair queueing (Demers, Keshav and Shenker, 1989) with two levels. Virtual time is the service that each entry
would have received if all service had been shared equally. A new entry starts at the current virtual time, minus a
credit for its first turn, so it is served next. It is not compensated for the time before its arrival, so a stream of
new entries cannot starve the others.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)


@dataclass(eq=False)
class Entry:
    """An item, or a client with its items.

    Attributes:
        received: The service that the entry has received, plus the virtual time when it arrived.
        virtual: The virtual time of the client's items.
        entries: The number of the client's items.
        credit: Subtracted from `received` until the end of the first turn.
        waiting_since: The position in the order in which entries began to wait; None while the entry is not waiting.
    """

    received: float
    virtual: float = 0.0
    entries: int = 0
    credit: float = 0.0
    waiting_since: int | None = None

    @property
    def order(self) -> float:
        return self.received - self.credit


@dataclass
class Turns(Generic[Item]):
    """The items that take turns: recordings and texts, or readings of audio. Not thread-safe.

    credit: The credit of a new entry, which should be about as high as the cost of a turn.
    """

    credit: float
    _all: Entry = field(init=False, default_factory=lambda: Entry(0.0))  # the clients are the entries of this entry
    _clients: dict[str, Entry] = field(init=False, default_factory=dict)
    _items: dict[Item, tuple[str, Entry]] = field(init=False, default_factory=dict)  # item -> client's name, entry
    _arrivals: int = field(init=False, default=0)

    def __contains__(self, item: Item) -> bool:
        return item in self._items

    @property
    def items(self) -> list[Item]:
        return [*self._items]

    @property
    def waiting(self) -> int:
        """The number of items that are waiting for a turn."""
        return sum(entry.waiting_since is not None for _, entry in self._items.values())

    def is_waiting(self, item: Item) -> bool:
        return self._items[item][1].waiting_since is not None

    def enter(self, item: Item, client: str) -> None:
        """Add an item of a client. The item does not wait for a turn until `wait` is called."""
        if client not in self._clients:
            self._clients[client] = self._newcomer(self._all)
        self._items[item] = client, self._newcomer(self._clients[client])

    def _newcomer(self, parent: Entry) -> Entry:
        parent.entries += 1
        return Entry(parent.virtual, credit=self.credit)

    def wait(self, item: Item) -> None:
        """Make an item wait for a turn."""
        self._arrivals += 1
        self._items[item][1].waiting_since = self._arrivals

    def take(self, *, newcomers_only: bool = False, without: Collection[Item] = ()) -> Item | None:
        """Return the item that takes the next turn, and end its wait. Returns None if no item can take a turn.

        Args:
            newcomers_only: Whether to exclude items that have had a turn.
            without: Other items to exclude.
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
        """Record the service that an item received in a turn. Ignores items that have left."""
        if item in self._items:
            name, entry = self._items[item]
            client = self._clients[name]
            for parent, child in ((self._all, client), (client, entry)):
                parent.virtual += amount / parent.entries
                child.received += amount
                child.credit = 0.0

    def leave(self, item: Item) -> None:
        """Remove an item. Ignores items that have left."""
        if item in self._items:
            name, _ = self._items.pop(item)
            self._clients[name].entries -= 1
            if not self._clients[name].entries:
                del self._clients[name]
                self._all.entries -= 1
