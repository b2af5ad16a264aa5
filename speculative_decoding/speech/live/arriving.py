"""Speech that arrives in chunks: its samples, and a thread that reads them ahead of whoever uses them."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from threading import Condition, Thread

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...sampling.options import short_repr
from ..audio_file import BLOCK_SAMPLES, SAMPLE_RATE, AudioArray, Samples, scaled

MAX_KEPT = 28 * SAMPLE_RATE  # samples: as much as a window can hear

Chunk = bytes | NDArray[np.float32] | NDArray[np.int16]


def samples_of(chunks: Iterable[Chunk]) -> Generator[Samples]:
    """Yield the samples of chunks, in blocks of at most 10 seconds.

    chunks: Arrays of samples at 16 kHz, floats from -1 to 1 or integers; or bytes of signed 16-bit little-endian PCM,
        where a sample may begin in one chunk and end in the next.

    Raises:
        InputError: A chunk is something else.
    """
    odd = b""
    for chunk in chunks:
        if isinstance(chunk, bytes | bytearray | memoryview):
            data = odd + bytes(chunk)
            whole = len(data) // 2 * 2
            odd = data[whole:]
            samples = np.frombuffer(data[:whole], "<i2")
            yield from (scaled(samples[i : i + BLOCK_SAMPLES]) for i in range(0, len(samples), BLOCK_SAMPLES))
        elif isinstance(chunk, np.ndarray):
            yield from AudioArray(chunk).blocks()
        else:
            raise InputError(f"must yield NumPy arrays or bytes, not {short_repr(chunk)}", "chunks")


class Arriving:
    """Iterates over speech while a thread reads it. Each item is all the sound since the last one, joined.

    An error of the source is raised after the sound before it.

    Args:
        chunks: See `samples_of`. They are read in the thread.
        can_wait: Whether the source can wait while 28 seconds are kept, as a pipe or a file. A microphone cannot: what
            it hears until there is room again is dropped, and counted.

    Attributes:
        dropped_samples: How many samples were dropped so far.
    """

    def __init__(self, chunks: Iterable[Chunk], *, can_wait: bool = True) -> None:
        self.dropped_samples = 0
        self._can_wait = can_wait
        self._kept: list[Samples] = []
        self._error: Exception | None = None
        self._has_ended = False
        self._is_closed = False
        self._changed = Condition()
        # A daemon, because it may wait for a pipe without end
        Thread(target=self._read, args=(chunks,), name="live audio", daemon=True).start()

    def __iter__(self) -> Iterator[Samples]:
        return self

    def __next__(self) -> Samples:
        with self._changed:
            self._changed.wait_for(lambda: self._kept or self._has_ended)
            if self._kept:
                joined = np.concatenate(self._kept)
                self._kept.clear()
                self._changed.notify_all()
                return joined
        if self._error is not None:
            raise self._error
        raise StopIteration

    def close(self) -> None:
        """Let the thread end after its current chunk. Nothing more arrives."""
        with self._changed:
            self._is_closed = self._has_ended = True
            self._kept.clear()
            self._changed.notify_all()

    def _read(self, chunks: Iterable[Chunk]) -> None:
        error = None
        try:
            for samples in samples_of(chunks):
                if not self._keep(samples):
                    break
        except Exception as found:
            error = found
        with self._changed:
            self._error = error
            self._has_ended = True
            self._changed.notify_all()

    def _keep(self, samples: Samples) -> bool:
        """Add samples, and return whether to read more."""
        with self._changed:
            if self._can_wait:
                self._changed.wait_for(lambda: self._has_room(samples) or self._is_closed)
            if self._has_room(samples):
                self._kept.append(samples)
                self._changed.notify_all()
            else:
                self.dropped_samples += len(samples)
            return not self._is_closed

    def _has_room(self, samples: Samples) -> bool:
        return sum(map(len, self._kept)) + len(samples) <= MAX_KEPT
