"""Speech in chunks: bytes in pieces of any size give the same samples, and what arrives meanwhile is joined."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from queue import SimpleQueue
from threading import Event

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculative_decoding.errors import InputError
from speculative_decoding.speech.audio_file import BLOCK_SAMPLES, Samples
from speculative_decoding.speech.live.arriving import MAX_KEPT, Arriving, Chunk, samples_of

SAMPLES = np.random.default_rng(0).integers(-32768, 32768, 1000).astype("<i2")
EXPECTED = SAMPLES / np.float32(32768)


class Source:
    """Chunks that a test sends. `asked` has an item each time that the reader asks for another one."""

    def __init__(self) -> None:
        self.asked: SimpleQueue[None] = SimpleQueue()
        self.has_stopped = Event()
        self._sent: SimpleQueue[Chunk | BaseException | None] = SimpleQueue()

    def send(self, *chunks: Chunk | BaseException | None) -> None:
        """Send chunks, each after the last one has been read. None ends the source."""
        for chunk in chunks:
            self.asked.get(timeout=60)
            self._sent.put(chunk)

    def wait(self) -> None:
        """Wait until everything that was sent has been read."""
        self.asked.get(timeout=60)
        self.asked.put(None)

    def __iter__(self) -> Iterator[Chunk]:
        try:
            while True:
                self.asked.put(None)
                chunk = self._sent.get(timeout=60)
                if chunk is None:
                    return
                if isinstance(chunk, BaseException):
                    raise chunk
                yield chunk
        finally:
            self.has_stopped.set()


def block(value: float, count: int = 1000) -> Samples:
    return np.full(count, value, np.float32)


@settings(derandomize=True, deadline=None)
@given(st.lists(st.integers(0, 2001), max_size=8))
def test_bytes_in_pieces_of_any_size_have_the_same_samples(cuts: list[int]) -> None:
    """Also if a piece ends within a sample. Half a sample at the end is dropped."""
    data = SAMPLES.tobytes() + b"\x01"
    borders = [0, *sorted(cuts), len(data)]
    pieces = [data[i:j] for i, j in pairwise(borders)]
    assert np.array_equal(np.concatenate([*samples_of(pieces)]), EXPECTED)


@pytest.mark.parametrize("chunk", [SAMPLES, EXPECTED, memoryview(SAMPLES.tobytes()), bytearray(SAMPLES.tobytes())])
def test_each_kind_of_chunk_has_the_same_samples(chunk: Chunk) -> None:
    (found,) = samples_of([chunk])
    assert found.dtype == np.float32 and np.array_equal(found, EXPECTED)


def test_a_long_chunk_becomes_blocks() -> None:
    for chunk in (bytes(6 * BLOCK_SAMPLES), np.zeros(3 * BLOCK_SAMPLES, np.float32)):
        assert [len(each) for each in samples_of([chunk])] == [BLOCK_SAMPLES] * 3


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        ("text", "chunks: must be NumPy arrays or bytes, not 'text'; read them"),
        (np.zeros((2, 9), np.float32), "must be samples of one channel"),
        (np.full(3, np.nan, np.float32), "must be from -1 to 1"),
        (np.full(3, 1000.0, np.float32), "divide 16-bit integers by 32768"),
    ],
)
def test_chunks_that_are_no_sound_are_refused(chunk: Chunk, message: str) -> None:
    with pytest.raises(InputError, match=message):
        [*samples_of([chunk])]


def test_what_arrives_meanwhile_is_joined() -> None:
    source = Source()
    arriving = Arriving(source)
    source.send(block(0.1))
    assert np.array_equal(next(arriving), block(0.1))
    source.send(block(0.2), block(0.3), b"", block(0.4), None)
    source.has_stopped.wait(60)
    assert np.array_equal(next(arriving), np.concatenate([block(0.2), block(0.3), block(0.4)]))
    assert [*arriving] == []


@pytest.mark.parametrize("error", [InputError("broken"), KeyError("planted"), SystemExit(3)])
def test_an_error_of_the_source_is_raised_after_the_sound_before_it(error: BaseException) -> None:
    source = Source()
    arriving = Arriving(source)
    source.send(block(0.1), error)
    assert np.array_equal(next(arriving), block(0.1))
    with pytest.raises(type(error)) as found:
        next(arriving)
    assert found.value is error


def test_a_fast_pipe_waits_while_28_seconds_are_kept() -> None:
    given = [np.full(16_000, second / 100, np.float32) for second in range(70)]
    taken = 0

    def chunks() -> Iterator[Samples]:
        nonlocal taken
        for taken, chunk in enumerate(given, 1):  # noqa: B007
            yield chunk

    found = []
    for each in Arriving(chunks()):
        found.append(each)
        assert len(each) <= MAX_KEPT and taken <= sum(map(len, found)) // 16_000 + 28 + 1
    assert np.array_equal(np.concatenate(found), np.concatenate(given))


def test_sound_of_a_microphone_is_dropped_and_counted_while_28_seconds_are_kept() -> None:
    source = Source()
    arriving = Arriving(source, can_wait=False)
    seconds = [np.full(16_000, second / 100, np.float32) for second in range(40)]
    source.send(*seconds)
    source.wait()
    assert np.array_equal(next(arriving), np.concatenate(seconds[:28]))
    assert arriving.dropped_samples == 12 * 16_000
    source.send(seconds[7], None)
    assert np.array_equal(np.concatenate([*arriving]), seconds[7])


@pytest.mark.parametrize("is_full", [False, True])
def test_closing_stops_the_thread(is_full: bool) -> None:
    source = Source()
    arriving = Arriving(source)
    source.send(*[block(0.1, MAX_KEPT // 4)] * (5 if is_full else 1))
    if is_full:
        arriving.close()
    else:  # the thread notices with its next chunk, which may be empty
        source.wait()
        arriving.close()
        source.send(b"")
    assert source.has_stopped.wait(60) and [*arriving] == []
