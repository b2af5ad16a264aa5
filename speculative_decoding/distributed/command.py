"""Runs a command in one process, or in several processes started by `mlx.launch`.

Rank 0 handles all input and output; the other ranks only compute.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout

from ..cli.common import launched_rank, say
from ..cli.parser import Parser
from ..cli.run_config import run_config_from
from ..models.memory_budget import memory_limits
from . import ProcessGroup, ShardedModel
from .launcher import run_in_group

Command = Callable[[argparse.Namespace, ProcessGroup], int]


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
