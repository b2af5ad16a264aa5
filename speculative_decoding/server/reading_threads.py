"""Threads that decode all clients' audio files a few seconds at a time, and read their texts part by part.

After each step, `Turns` chooses the next reading based on the processor time used, so a long or costly recording
delays the others by only one step. A step that takes unusually long, such as parsing a megabyte of text, does not delay
other clients, because each of them gets an extra thread. This module is independent of the model.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from .turns import Turns

Result = TypeVar("Result")
CREDIT = 0.05  # in seconds; about the processor time that a step takes
STEP_SECONDS = 0.1  # a step that takes more time is unusually long


@dataclass(eq=False)
class Reading(Generic[Result]):
    """The steps that read a client's recording or text, and the future for their result."""

    client: str
    steps: Generator[None, None, Result]
    future: Future[Result] = field(default_factory=Future)
    is_running: bool = False


class ReadingThreads:
    """Runs the steps of many readings in turn.

    Args:
        count: The number of permanent threads.
        clock: Returns the processor time of the current thread, in seconds.
    """

    def __init__(self, count: int = 2, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._turns = Turns[Reading[Any]](CREDIT)
        self._wake = threading.Condition()
        self._is_stopping = False
        self._running: list[str] = []  # the clients whose steps are running
        self._helped: set[str] = set()  # the clients that have an extra thread
        self._threads = [threading.Thread(target=self._work, name=f"audio {i}", daemon=True) for i in range(count)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop the threads after their current steps, and cancel the futures of unfinished readings."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify_all()
            unfinished = self._turns.items
        for reading in unfinished:
            reading.future.cancel()
        for thread in self._threads:
            thread.join()

    def run(self, client: str, steps: Generator[None, None, Result]) -> Future[Result]:
        """Run steps for a client. If the returned future is cancelled, they end after the current step."""
        reading = Reading(client, steps)
        reading.future.add_done_callback(lambda _: self._remove(reading))
        with self._wake:
            self._turns.enter(reading, client)
            self._turns.wait(reading)
            needs_help = len(self._turns.items) > len(self._threads) and client not in self._helped
            if needs_help:
                self._helped.add(client)
            self._wake.notify_all()
        if needs_help:
            threading.Thread(target=self._help, args=(client,), name="relief", daemon=True).start()
        return reading.future

    def _are_others_running(self, client: str) -> bool:
        return len(self._running) >= len(self._threads) and client not in self._running

    def _help(self, client: str) -> None:
        """Run the client's steps in its extra thread while steps of other clients take unusually long.

        Returns when the client has no readings left.
        """
        while (reading := self._next_to_help(client)) is not None:
            self._run(reading)
            del reading

    def _next_to_help(self, client: str) -> Reading[Any] | None:
        with self._wake:
            while not self._is_stopping and any(each.client == client for each in self._turns.items):
                reading = None
                if not self._wake.wait_for(lambda: not self._are_others_running(client), STEP_SECONDS):
                    reading = self._turns.take(without=[each for each in self._turns.items if each.client != client])
                if reading is not None:
                    self._begin(reading)
                    return reading
                self._wake.wait(STEP_SECONDS)
            self._helped.discard(client)
        return None

    def _remove(self, reading: Reading[Any]) -> None:
        """Free the resources of a reading whose future is done."""
        with self._wake:
            self._turns.leave(reading)
            is_running = reading.is_running
        if not is_running:
            reading.steps.close()

    def _work(self) -> None:
        while self._step():
            pass

    def _step(self) -> bool:
        """Run a step. Returns False after `stop`. On return, no local variable keeps the reading alive."""
        reading = self._next()
        if reading is not None:
            self._run(reading)
        return reading is not None

    def _begin(self, reading: Reading[Any]) -> None:
        reading.is_running = True
        self._running.append(reading.client)

    def _run(self, reading: Reading[Any]) -> None:
        """Run a step, then finish the reading or queue it for its next turn."""
        started = self._clock()
        has_ended = True
        result: Any = None
        error: BaseException | None = None
        try:
            next(reading.steps)
            has_ended = False
        except StopIteration as end:
            result = end.value
        except BaseException as raised:
            error = raised
        with self._wake:
            reading.is_running = False
            self._running.remove(reading.client)
            self._turns.charge(reading, self._clock() - started)
            if not has_ended and reading in self._turns:
                self._turns.wait(reading)
                return
        if not has_ended:  # the reading was cancelled during the step
            reading.steps.close()
        elif reading.future.set_running_or_notify_cancel():
            if error is None:
                reading.future.set_result(result)
            else:
                reading.future.set_exception(error)
        error = None  # its traceback refers to this frame, which would keep the recording until garbage collection

    def _next(self) -> Reading[Any] | None:
        """Wait for a reading, and return the next one. Returns None after `stop`."""
        with self._wake:
            while not self._is_stopping:
                reading = self._turns.take()
                if reading is not None:
                    self._begin(reading)
                    return reading
                self._wake.wait()
        return None
