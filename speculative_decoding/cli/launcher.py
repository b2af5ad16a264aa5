"""main.py in several processes at once, as `mlx.launch` starts them: the first is the program, and alone reads, prints
and writes; the others compute for it. All end together: whoever goes on alone would wait for ever.
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
from dataclasses import replace

from ..distributed import JOIN_SECONDS, ProcessGroup, join_process_group, launched_rank
from ..errors import InputError
from . import common
from .drafting import plan_of
from .flags import Files, Together
from .parser import Parser, flags_from

Decode = Callable[[argparse.Namespace, ProcessGroup | None], int]
GRACE_SECONDS = 5.0
SAYS = 1  # of the others, who says that the first is gone
LOST = "has ended, or is out of reach for 20 seconds; what was written stays, and a job goes on with --resume"


def run(parser: Parser, argv: Sequence[str] | None, decode: Decode) -> int:
    """The exit status of a command, alone or together. decode: what it does, or the first of several processes."""
    rank = launched_rank()
    if rank:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process hears it too, and ends in order
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            chosen = parser.parse_args(argv)
        warnings.simplefilter("ignore")  # the first process says the same
    else:
        chosen = parser.parse_args(argv)
    return common.run(
        parser.prog, lambda: decode(chosen, None) if rank is None else run_as(rank, parser, chosen, decode)
    )


def run_as(rank: int, parser: Parser, chosen: argparse.Namespace, decode: Decode) -> int:
    def lost(peer: int, status: int | None, why: str) -> None:
        """One process says it, and then this one ends at once: its main thread may wait for numbers from the other."""
        if not rank:
            processes.channel.leave(status or 1)
        if not rank or (status is None and rank == SAYS):
            common.say(f"{parser.prog}: error: process {peer + 1}: {why or LOST}")
        os._exit(status or 1)

    if not rank:
        common.say(f"{parser.prog}: waits for the other processes, {JOIN_SECONDS} seconds at most")
    processes = join_process_group(lost)
    if rank:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # who ends all of them may mean a server that ends in order
    status, why = 1, "failed; see what it said"
    try:
        with_parallel(chosen)
        status = decode(chosen, processes) if processes.is_first else follow(chosen, processes)
    except InputError as error:
        if processes.is_first:
            status = 2
            raise
        time.sleep(GRACE_SECONDS)  # what the first process refuses too, it says, and that ends this one
        status, why = 2, str(error)
    except KeyboardInterrupt:
        status = 130
        raise
    finally:
        processes.channel.leave(status, why)
    return status


def with_parallel(chosen: argparse.Namespace) -> None:
    """How the work is shared, where nobody chose it. Raises `InputError`."""
    if flags_from(Together, chosen).parallel is None:
        chosen.parallel = "data" if "input" in chosen else "tensor"
    if chosen.parallel == "data":
        if "input" not in chosen:
            raise InputError("--parallel data shares the lines of a file; name one with --input, or leave it out")
        if "ngram_store" in chosen:
            raise InputError("--ngram-store does not go with --parallel data, where each process has its own lines")


def follow(chosen: argparse.Namespace, processes: ProcessGroup) -> int:
    """What all but the first do; its exit status."""
    sys.stdin = open(os.devnull)  # noqa: SIM115
    plan = plan_of(chosen)
    if chosen.parallel == "data":
        from .jobs import serve_rows

        return serve_rows(plan, flags_from(Files, chosen), processes)
    target = replace(plan.folders, processes=processes).open(use_draft=False).opened_target
    target.load_weights()
    return target.follow()
