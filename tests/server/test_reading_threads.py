"""Tests the threads that read recordings in turns."""

from __future__ import annotations

import threading
from collections.abc import Generator
from concurrent.futures import CancelledError

import pytest

from speculative_decoding.server import reading_threads
from speculative_decoding.server.reading_threads import ReadingThreads
from tests.support.waiting import eventually


def steps(name: str, count: int, done: list[str]) -> Generator[None, None, str]:
    for _ in range(count):
        done.append(name)
        yield
    return name


def test_short_readings_pass_long_ones() -> None:
    """Regression test: two hour-long files occupied both threads and delayed all other files until their end."""
    done: list[str] = []
    may_run, is_blocked = threading.Event(), threading.Event()

    def gate() -> Generator[None, None, None]:
        is_blocked.set()
        may_run.wait()
        yield

    clock = iter(range(10_000))
    threads = ReadingThreads(1, clock=lambda: next(clock))
    threads.start()
    gated = threads.run("z", gate())
    is_blocked.wait()
    long = [threads.run("x", steps(f"long {i}", 360, done)) for i in range(2)]
    short = threads.run("x", steps("short", 2, done))
    other = threads.run("y", steps("other", 3, done))
    may_run.set()
    assert [future.result() for future in (gated, short, other, *long)] == [None, "short", "other", "long 0", "long 1"]
    assert done.index("short") < 6 and max(i for i, name in enumerate(done) if name == "other") < 8, done[:12]
    assert {done.count(f"long {i}") for i in range(2)} == {360}
    assert abs(done[:100].count("long 0") - done[:100].count("long 1")) <= 1
    threads.stop()


def test_errors_and_cancellations_end_a_reading() -> None:
    closed: list[str] = []

    def endless(name: str) -> Generator[None, None, None]:
        try:
            while True:
                yield
        finally:
            closed.append(name)

    def failing() -> Generator[None, None, None]:
        yield
        raise ValueError("planted")

    threads = ReadingThreads(1)
    threads.start()
    first, second = threads.run("x", endless("first")), threads.run("x", endless("second"))
    with pytest.raises(ValueError, match="planted"):
        threads.run("x", failing()).result()
    assert first.cancel()
    eventually(lambda: closed == ["first"])
    threads.stop()
    with pytest.raises(CancelledError):
        second.result()
    eventually(lambda: closed == ["first", "second"])


def test_a_long_step_delays_its_own_client_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression test: parsing a megabyte of text is one step. Two such steps occupied both threads for a minute."""
    monkeypatch.setattr(reading_threads, "STEP_SECONDS", 0.001)
    done: list[str] = []
    may_run = threading.Event()

    def stuck() -> Generator[None, None, None]:
        may_run.wait()
        yield

    threads = ReadingThreads(2)
    threads.start()
    long = [threads.run("x", stuck()) for _ in range(3)]
    own = threads.run("x", steps("own", 1, done))
    others = [threads.run(name, steps(name, 3, done)) for name in ("y", "z", "y")]
    assert [each.result() for each in others] == ["y", "z", "y"] and "own" not in done
    may_run.set()
    assert [each.result() for each in (*long, own)] == [None] * 3 + ["own"]
    threads.stop()
