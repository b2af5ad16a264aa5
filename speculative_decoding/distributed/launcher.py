"""Runs a command in all processes started by `mlx.launch`, and ends them together.

Otherwise, a rank would wait forever for a rank that has ended.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from ..errors import InputError
from .process_group import JOIN_SECONDS, ProcessGroup, join_process_group


def run_in_group(rank: int, command: str, say: Callable[[str], None], run: Callable[[ProcessGroup], int]) -> int:
    """Join the other processes and run this rank's part. Returns the exit status, which is the same on all ranks.

    Args:
        rank: This process's rank.
        command: The command's name, for messages.
        say: Prints a message.
        run: Runs this rank's part and returns an exit status.

    Raises:
        InputError: `run` raised it on rank 0, or the other processes cannot be reached.
    """

    def end_with(peer: int, status: int | None, why: str) -> None:
        """End this process at once, because its main thread may be waiting for data from the lost rank."""
        try:
            if rank == 0:
                processes.channel.leave(status or 1)
            # Only one rank reports the loss: rank 0, or rank 1 if rank 0 was lost.
            if rank == 0 or (rank == 1 and status is None):
                why = why or (
                    "has ended, or has been unreachable for 20 seconds; "
                    "the output so far is kept, and a job continues with --resume"
                )
                say(f"{command}: error: process {peer + 1}: {why}")
        finally:  # `say` fails if mlx.launch, which reads standard error, was killed too
            os._exit(status or 1)

    if rank == 0:
        say(f"{command}: waiting up to {JOIN_SECONDS} seconds for the other processes")
    processes = join_process_group(end_with)
    if rank:
        signal.signal(
            signal.SIGTERM, signal.SIG_IGN
        )  # mlx.launch sends SIGTERM to all ranks; rank 0 shuts down the others
    status = 1
    why = "failed; see its error messages"
    try:
        status = run(processes)
    except InputError as error:
        status = 2
        if processes.is_first:
            raise
        why = str(error)
        time.sleep(5)  # rank 0 usually fails with the same error, prints it, and ends this process
    except KeyboardInterrupt:
        status = 130
        raise
    finally:
        processes.channel.leave(status, why)
    return status
