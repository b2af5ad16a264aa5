"""Runs a command in one process, or in several processes started by `mlx.launch`.

Rank 0 reads, prints and writes; the other ranks compute for it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace

from ..cli import common
from ..cli.flags import Files, Together
from ..cli.parser import Parser, flags_from
from ..cli.run_config import run_config_from
from ..errors import InputError, Name
from ..models.memory_budget import memory_limits
from . import ProcessGroup, ShardedModel, launched_rank
from .launcher import run_in_group

Decode = Callable[[argparse.Namespace, ProcessGroup | None], int]


def run(parser: Parser, argv: Sequence[str] | None, decode: Decode) -> int:
    """Parse the flags, run the command, and return its exit status.

    Args:
        decode: Runs the command in a single process, or on rank 0 of a group.
    """
    rank = launched_rank()
    if rank:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 receives it too, and shuts down all ranks
        with open(os.devnull, "w") as devnull, redirect_stdout(devnull), redirect_stderr(devnull):
            chosen = parser.parse_args(argv)
        warnings.simplefilter("ignore")  # rank 0 prints the same warnings
    else:
        chosen = parser.parse_args(argv)

    def run_rank(processes: ProcessGroup) -> int:
        choose_parallel(chosen)
        return decode(chosen, processes) if processes.is_first else serve(chosen, processes)

    if rank is None:
        return common.run(parser.prog, lambda: decode(chosen, None), name=parser.name_of)
    return common.run(parser.prog, lambda: run_in_group(rank, parser.prog, common.say, run_rank), name=parser.name_of)


def choose_parallel(chosen: argparse.Namespace) -> None:
    """Set the default of --parallel. Raises `InputError` for flags that conflict with it."""
    if flags_from(Together, chosen).parallel is None:
        chosen.parallel = "data" if "input" in chosen else "tensor"
    if chosen.parallel == "data":
        if "input" not in chosen:
            raise InputError(
                "data shares the lines of a file",
                "parallel",
                ("add ", Name("input"), " FILE, or omit ", Name("parallel")),
            )
        if "ngram_store" in chosen:
            raise InputError(
                ("cannot be combined with ", Name("parallel"), " data, where each process decodes different lines"),
                "ngram_store",
                "leave it out",
            )


def serve(chosen: argparse.Namespace, processes: ProcessGroup) -> int:
    """Execute the work that rank 0 sends until it shuts down, and return the exit status."""
    sys.stdin = open(os.devnull)  # noqa: SIM115
    config = run_config_from(chosen)
    if chosen.parallel == "data":
        from ..jobs.command import serve_file

        return serve_file(config, flags_from(Files, chosen), processes)
    target = replace(config, process_group=processes).open(use_draft=False).target
    model = target.model
    assert isinstance(model, ShardedModel)
    with memory_limits():
        target.load_weights()
        return model.broadcaster.serve(model)
