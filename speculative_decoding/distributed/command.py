"""Runs a command in one process, or in all processes started by `mlx.launch`, and ends them together.

Rank 0 handles all input and output; the other ranks only compute. If a rank ends, the others also end, because they
would otherwise wait for it forever.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout

from ..cli.common import launched_rank, say
from ..cli.parser import Parser
from ..cli.run_config import run_config_from
from ..errors import InputError
from ..models.memory_budget import memory_limits
from .process_group import JOIN_SECONDS, ProcessGroup, join_process_group
from .sharded_model import ShardedModel

Command = Callable[[argparse.Namespace, ProcessGroup], int]


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
        finally:  # `say` fails if mlx.launch, which reads standard error, has also been killed
            os._exit(status or 1)

    if rank == 0:
        say(f"{command}: waiting up to {JOIN_SECONDS} seconds for the other processes")
    processes = join_process_group(end_with)
    if rank:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # all ranks receive SIGTERM; rank 0 shuts down the others
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


def run_in_processes(parser: Parser, argv: Sequence[str] | None, command: Command, follow: Command | None) -> int:
    """Parse the arguments, run this rank's part of a command, and return its exit status.

    Args:
        parser: The command's parser.
        argv: The arguments.
        command: Runs the command on rank 0.
        follow: Runs the command's part on the other ranks; None means `serve_shard`.
    """
    rank = launched_rank()
    assert rank is not None
    if rank:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 also receives SIGINT, and shuts down all ranks
        with open(os.devnull, "w") as devnull, redirect_stdout(devnull), redirect_stderr(devnull):
            chosen = parser.parse_args(argv)
        warnings.simplefilter("ignore")  # rank 0 prints the same warnings
    else:
        chosen = parser.parse_args(argv)

    def run_rank(processes: ProcessGroup) -> int:
        if processes.is_first:
            return command(chosen, processes)
        sys.stdin = open(os.devnull)  # noqa: SIM115
        return (follow or serve_shard)(chosen, processes)

    return run_in_group(rank, parser.prog, say, run_rank)


def serve_shard(chosen: argparse.Namespace, processes: ProcessGroup) -> int:
    """Run the passes that rank 0 announces on this rank's shard of the target, and return the exit status."""
    target = run_config_from(chosen, processes=processes).open(use_draft=False).target
    model = target.model
    assert isinstance(model, ShardedModel)
    with memory_limits():
        target.load_weights()
        return model.broadcaster.serve(model)
