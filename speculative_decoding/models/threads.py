"""Support for using MLX in threads and child processes."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import mlx.core as mx

from ..errors import InputError


class ThreadStreams:
    """Destroys a thread's streams when the thread ends and its thread-local values are deleted."""

    def __del__(self) -> None:
        mx.clear_streams()


_of_thread = threading.local()
_turn = threading.RLock()
_is_used = False  # whether this process has computed with MLX
_was_used_before_fork = False


def use_mlx() -> None:
    """Prepare the current thread for computation. Call this before the first computation; it costs almost nothing.

    MLX (0.32.4) starts a worker for each thread that computes on a CPU. If the thread ends before its worker, the
    process aborts on exit.

    Raises:
        InputError: This process was forked from a process that has computed. MLX's workers exist only in the parent,
            so computations would hang.
    """
    global _is_used
    if _was_used_before_fork:
        raise InputError(
            "this process was forked after its parent had loaded a model, and MLX cannot compute in it",
            way_out='start it with multiprocessing.get_context("spawn"), and load the model there',
        )
    _is_used = True
    if not hasattr(_of_thread, "streams") and threading.current_thread() is not threading.main_thread():
        _of_thread.streams = ThreadStreams()


@contextmanager
def turn() -> Iterator[None]:
    """Prepare the current thread for computation, and make other threads wait until the block ends.

    Turns protect the tables and compiled passes that models keep, and the statistics that sessions collect in each
    round. A turn never includes a `yield`, so an unfinished stream blocks no other thread.
    """
    use_mlx()
    with _turn:
        yield


def _note_fork() -> None:
    global _was_used_before_fork
    _was_used_before_fork = _is_used


os.register_at_fork(after_in_child=_note_fork)
