"""The items of all clients in one scheduler: who has the next turn, who is told what, and what is cancelled."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import count
from typing import Any, Protocol

from ..errors import InputError
from ..rows.scheduling import Progress, Scheduler
from .client_request import Callback, ClientItem
from .errors import ServerError
from .turns import Turns

LOG = logging.getLogger("speculative_decoding.server")


class TurnScheduler(Scheduler[Any, Any], Protocol):
    """A scheduler whose items need a slot again and again: for each window of a recording, or prompt of a text.

    paused: The numbers of the items that can use a slot now.
    free_turns: How many of them can have a turn before the next round.
    """

    @property
    def paused(self) -> Sequence[int]: ...
    @property
    def free_turns(self) -> int: ...

    def resume(self, number: int) -> Iterable[Progress]:
        """Give a paused item a slot, even if none is free. Returns progress that is available immediately."""

    def decode_round(self) -> Iterable[Progress]:
        """Run a round of every item that has a slot, without giving others a slot."""


class Lane:
    """Decodes prompts, texts, recordings and live speech for the decoding thread.

    Items that take turns wait until `Turns` chooses them, by the number of turns that each client has had: a recording
    has a turn for each output, a text for each prompt. All others are passed on at once: a prompt to the queue of the
    engine, and live speech, which has a slot from its start to its end, whenever enough has arrived.

    With extra turns, a new item does not wait for the turns in progress. Items that have had a turn wait for the first
    turns in progress, to avoid slowing them down.

    Args:
        scheduler: Decodes the items.
        extra_turns: How many of the scheduler's turns are reserved for items that have not had a turn.
        held_clients: Returns the clients whose items may not have the next turn.

    Attributes:
        calls: Callbacks that notify clients, in order. The caller runs them after `submit` and `step`, even if one of
            these raises an error, because a finished item is not `active` any more.
        finished: How many items have ended without an error, and updates of endless ones.
    """

    def __init__(
        self, scheduler: TurnScheduler, extra_turns: int = 0, held_clients: Callable[[], Collection[str]] = tuple
    ) -> None:
        self._scheduler = scheduler
        self._extra = extra_turns
        self._held_clients = held_clients
        self._turns = Turns[int](credit=1.0)
        self._next_number = count()
        self._items: dict[int, ClientItem] = {}  # that are not finished
        self._numbers: dict[ClientItem, int] = {}  # of the same items and all their samples
        self._started: set[int] = set()  # the items that take turns and have had one
        self._first: set[int] = set()  # the items in their first turn, if there are extra turns
        self._held: dict[int, set[int]] = {}  # item -> first turns that it waits for
        self.calls: list[Callback] = []
        self.finished = 0

    @property
    def decoding(self) -> int:
        """How many items have a slot."""
        return self._scheduler.running

    @property
    def waiting(self) -> int:
        """How many items wait for a slot."""
        return self._scheduler.waiting + len(self._turns.items) - len(self._started)

    @property
    def is_idle(self) -> bool:
        """Whether `step` has nothing to do."""
        return self._scheduler.is_idle and not self._turns.waiting

    @property
    def active(self) -> Sequence[ClientItem]:
        """The items that are not finished."""
        return [*self._items.values()]

    def submit(self, item: ClientItem) -> None:
        """Queue an item with its samples. An error fails only its request, not the others."""
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
        """Free the slot of an item, and of all samples of its prompt. A finished item is ignored."""
        if item in self._numbers:
            self._forget(self._numbers[item])

    def step(self) -> None:
        """Run a round, after as many turns as are free."""
        for number in self._scheduler.paused:
            if not self._items[number].takes_turns:
                self._tell(self._scheduler.resume(number))
        for _ in range(self._scheduler.free_turns):
            if (turn := self._next_turn()) is None:
                break
            self._give_turn(turn)
        self._tell(self._scheduler.decode_round())

    def _next_turn(self) -> int | None:
        """Return the item that has the next turn, or None if there is no free one or no item may take it."""
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
            self._tell(self._scheduler.resume(number))

    def _start(self, number: int) -> bool:
        """Pass an item to the scheduler. Returns whether it can be decoded."""
        item = self._items[number]
        try:
            self._tell(item.start(self._scheduler, number))
        except Exception as error:
            self._forget(number)
            self._fail(item, error)
            return False
        return True

    def _tell(self, all_progress: Iterable[Progress]) -> None:
        """Notify clients of progress."""
        for progress in all_progress:
            item = self._items[progress.number]
            if progress.is_last:
                self._forget(progress.number)
            if isinstance(progress.error, Exception):
                self._fail(item, progress.error)
                continue
            self.finished += progress.is_last or item.is_endless
            if (news := item.news(progress)) is not None:
                self.calls.append(partial(item.client.on_progress, *news))

    def _fail(self, item: ClientItem, error: Exception) -> None:
        if isinstance(error, ArithmeticError):
            LOG.error("a request failed: %s", error)
        elif not isinstance(error, InputError | ServerError):
            LOG.error("a request failed", exc_info=error)
        self.calls.append(partial(item.client.fail, item.error_of(error)))

    def _forget(self, number: int) -> None:
        """Forget an item that has finished or is cancelled, and free its slot."""
        for each in self._items.pop(number).samples:
            del self._numbers[each]
        self._turns.leave(number)
        self._held.pop(number, None)
        for numbers in (self._started, self._first):
            numbers.discard(number)
        self._scheduler.cancel(number)
