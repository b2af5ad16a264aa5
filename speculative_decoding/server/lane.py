"""Submits the items of all clients to one scheduler, assigns turns, notifies clients, and cancels items."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import count
from typing import Protocol

from ..errors import InputError
from ..rows.scheduling import Progress
from .client_request import Callback, ClientItem
from .errors import ServerError
from .turns import Turns

LOG = logging.getLogger("speculative_decoding.server")


class TurnScheduler(Protocol):
    """A scheduler whose items need a slot repeatedly, such as for each window of a recording or each prompt of a text.

    paused: The numbers of the items that could use a slot now.
    free_turns: The number of these items that can take a turn before the next round.

    The other members have the same meaning as in `Scheduler`.
    """

    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def is_idle(self) -> bool: ...
    def cancel(self, number: int) -> None: ...
    @property
    def paused(self) -> Sequence[int]: ...
    @property
    def free_turns(self) -> int: ...

    def resume(self, number: int) -> Iterable[Progress]:
        """Give a paused item a slot, even if no slot is free. Returns any progress that is available immediately."""

    def decode_round(self) -> Iterable[Progress]:
        """Run a round for all items that have a slot, without assigning slots to paused items."""


class Lane:
    """Decodes prompts, texts, recordings and live speech for the decoding thread.

    An item that takes turns waits until `Turns` chooses it, based on the number of turns that each client has had. Each
    output of a recording takes a turn, and so does each prompt of a text. All other items start at once: a prompt joins
    the queue of the engine; live speech has a slot from start to end, and is resumed whenever enough audio has arrived.

    With extra turns, a new item does not wait for the turns in progress. While a new item has its first turn, items
    that have already had one wait, so that they do not slow it down.

    Args:
        scheduler: Decodes the items.
        extra_turns: How many turns of the scheduler are reserved for items that have not had a turn.
        held_clients: Returns the clients whose items may not have the next turn.

    Attributes:
        calls: Callbacks that notify clients, in order. The caller must run them after `submit` and `step`, even if
            these raise an error, because a finished item is no longer `active`.
        finished: The number of items that finished without an error, plus the number of updates of endless items.
    """

    def __init__(
        self, scheduler: TurnScheduler, extra_turns: int = 0, held_clients: Callable[[], Collection[str]] = tuple
    ) -> None:
        self._scheduler = scheduler
        self._extra = extra_turns
        self._held_clients = held_clients
        self._turns = Turns[int](credit=1.0)
        self._next_number = count()
        self._items: dict[int, ClientItem] = {}  # the unfinished items
        self._numbers: dict[ClientItem, int] = {}  # unfinished item, or a sample of it -> its number
        self._started: set[int] = set()  # the items that have had a turn
        self._first: set[int] = set()  # with extra turns, the items that are in their first turn
        self._held: dict[int, set[int]] = {}  # item -> the items whose first turns must end before its next turn
        self.calls: list[Callback] = []
        self.finished = 0

    @property
    def decoding(self) -> int:
        """The number of items that have a slot."""
        return self._scheduler.running

    @property
    def waiting(self) -> int:
        """The number of items that are waiting for a slot."""
        return self._scheduler.waiting + len(self._turns.items) - len(self._started)

    @property
    def is_idle(self) -> bool:
        """Whether `step` has nothing to do."""
        return self._scheduler.is_idle and not self._turns.waiting

    @property
    def active(self) -> Sequence[ClientItem]:
        """The unfinished items."""
        return [*self._items.values()]

    def submit(self, item: ClientItem) -> None:
        """Queue an item with its samples. If the item raises an error, only its request fails."""
        if item is not item.samples[0]:
            return
        number = next(self._next_number)
        self._items[number] = item
        self._numbers |= dict.fromkeys(item.samples, number)
        if item.takes_turns:
            self._turns.enter(number, item.address)
            self._turns.wait(number)
        elif not self._start(number):
            return
        self.calls += [each.client.on_queued for each in item.samples]

    def cancel(self, item: ClientItem) -> None:
        """Free the slot of an item and of all samples of its prompt. Ignores finished items."""
        if item in self._numbers:
            self._forget(self._numbers[item])

    def step(self) -> None:
        """Assign the free turns, then run a round."""
        for number in self._scheduler.paused:
            if not self._items[number].takes_turns:
                self._notify(self._scheduler.resume(number))
        for _ in range(self._scheduler.free_turns):
            if (turn := self._next_turn()) is None:
                break
            self._give_turn(turn)
        self._notify(self._scheduler.decode_round())

    def _next_turn(self) -> int | None:
        """Return the item that takes the next turn, or None if no turn is free or no item may take one."""
        paused = [number for number in self._scheduler.paused if self._items[number].takes_turns]
        self._first.difference_update(paused)
        for number in paused:
            if not self._turns.is_waiting(number):
                self._turns.wait(number)
                self._held[number] = set(self._first)
        free_turns = self._scheduler.free_turns
        if free_turns <= 0:
            return None
        held = [number for number, firsts in self._held.items() if firsts & self._first]
        if clients := self._held_clients():
            held += [number for number in self._turns.items if self._items[number].address in clients]
        return self._turns.take(newcomers_only=free_turns <= self._extra, without=held)

    def _give_turn(self, number: int) -> None:
        self._turns.charge(number, 1)
        self._held.pop(number, None)
        if number not in self._started:
            self._started.add(number)
            if self._extra:
                self._first.add(number)
            self._start(number)
        if number in self._items:
            self._notify(self._scheduler.resume(number))

    def _start(self, number: int) -> bool:
        """Pass an item to the scheduler. Returns whether the item can be decoded."""
        item = self._items[number]
        try:
            self._notify(item.start(self._scheduler, number))
        except Exception as error:
            self._forget(number)
            self._fail(item, error)
            return False
        return True

    def _notify(self, all_progress: Iterable[Progress]) -> None:
        """Notify clients of progress."""
        for progress in all_progress:
            item = self._items[progress.number]
            if progress.is_last:
                self._forget(progress.number)
            if isinstance(progress.error, Exception):
                self._fail(item, progress.error)
                continue
            self.finished += progress.is_last or item.is_endless
            if (update := item.client_progress(progress)) is not None:
                self.calls.append(partial(item.client.on_progress, *update))

    def _fail(self, item: ClientItem, error: Exception) -> None:
        if isinstance(error, ArithmeticError):
            LOG.error("a request failed: %s", error)
        elif not isinstance(error, InputError | ServerError):
            LOG.error("a request failed", exc_info=error)
        self.calls.append(partial(item.client.fail, item.error_of(error)))

    def _forget(self, number: int) -> None:
        """Remove an item that has finished or is cancelled, and free its slot."""
        for each in self._items.pop(number).samples:
            del self._numbers[each]
        self._turns.leave(number)
        self._held.pop(number, None)
        for numbers in (self._started, self._first):
            numbers.discard(number)
        self._scheduler.cancel(number)
