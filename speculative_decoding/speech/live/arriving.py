"""Reads speech that arrives in chunks: converts the chunks to samples, and reads ahead in a thread."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from threading import Condition, Thread

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...sampling.options import short_repr
from ..audio_file import BLOCK_SAMPLES, SAMPLE_RATE, AudioArray, Samples, scaled

MAX_KEPT = 28 * SAMPLE_RATE  # in samples; the length of the longest window

Chunk = bytes | NDArray[np.float32] | NDArray[np.int16]


def samples_of(chunks: Iterable[Chunk]) -> Generator[Samples]:
    """Yield the samples of chunks, in blocks of at most 10 seconds. An empty chunk yields an empty block.

    chunks: Arrays of samples at 16 kHz (floats from -1 to 1, or integers), or bytes of signed 16-bit little-endian PCM.
        A sample may be split between two chunks of bytes.

    Raises:
        InputError: A chunk is of a different type, or its samples cannot be used.
    """
    odd = b""
    for chunk in chunks:
        if isinstance(chunk, bytes | bytearray | memoryview):
            data = odd + bytes(chunk)
            whole = len(data) // 2 * 2
            odd = data[whole:]
            samples = np.frombuffer(data[:whole], "<i2")
            yield from (scaled(samples[i : i + BLOCK_SAMPLES]) for i in range(0, max(len(samples), 1), BLOCK_SAMPLES))
        elif isinstance(chunk, np.ndarray):
            yield from AudioArray(chunk).blocks()
        else:
            problem = f"must be NumPy arrays or bytes, not {short_repr(chunk)}"
            raise InputError(problem, "chunks", "read them from your source, or use transcribe for a file")


class Arriving:
    """Iterates over speech while a thread reads it. Each item is all the audio that has arrived since the previous one.

    If the source raises an error, the audio before the error is yielded first.

    Args:
        chunks: See `samples_of`. They are read in the thread.
        can_wait: Whether the source, such as a pipe or a file, can wait while the buffer of 28 seconds is full. A
            microphone cannot wait: chunks that do not fit into the buffer are dropped and counted.

    Attributes:
        dropped_samples: The number of samples that have been dropped.
    """

    def __init__(self, chunks: Iterable[Chunk], *, can_wait: bool = True) -> None:
        self.dropped_samples = 0
        self._can_wait = can_wait
        self._kept = np.empty(MAX_KEPT, np.float32)  # the buffer; its first `_size` samples are in use
        self._size = 0
        self._error: BaseException | None = None
        self._has_ended = False
        self._is_closed = False
        self._changed = Condition()
        # A daemon thread, because it may block forever on a pipe
        Thread(target=self._read, args=(chunks,), name="live audio", daemon=True).start()

    def __iter__(self) -> Iterator[Samples]:
        return self

    def __next__(self) -> Samples:
        with self._changed:
            self._changed.wait_for(lambda: self._size or self._has_ended)
            if self._size:
                joined = self._kept[: self._size].copy()
                self._size = 0
                self._changed.notify_all()
                return joined
        if self._error is not None:
            raise self._error
        raise StopIteration

    def close(self) -> None:
        """Discard the buffered audio. The thread ends after its current chunk."""
        with self._changed:
            self._is_closed = self._has_ended = True
            self._size = 0
            self._changed.notify_all()

    def _read(self, chunks: Iterable[Chunk]) -> None:
        error = None
        try:
            for samples in samples_of(chunks):
                if not self._keep(samples):
                    break
        except BaseException as found:  # also SystemExit, which would otherwise end only this thread
            error = found
        with self._changed:
            self._error = error
            self._has_ended = True
            self._changed.notify_all()

    def _keep(self, samples: Samples) -> bool:
        """Add samples to the buffer. Returns whether reading should continue."""
        with self._changed:
            if self._can_wait:
                self._changed.wait_for(lambda: self._has_room(samples) or self._is_closed)
            if self._is_closed:
                return False
            if self._has_room(samples):
                self._kept[self._size : self._size + len(samples)] = samples
                self._size += len(samples)
                self._changed.notify_all()
            else:
                self.dropped_samples += len(samples)
            return True

    def _has_room(self, samples: Samples) -> bool:
        return self._size + len(samples) <= len(self._kept)
