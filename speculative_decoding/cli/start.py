"""Starts a command in this process, or in several processes started by `mlx.launch`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from ..subpackages import require_subpackage
from .common import launched_rank, run
from .parser import Parser

# A command takes the parsed arguments and the group of processes that share the work, or None. It returns the exit
# status.
Command = Callable[[argparse.Namespace, Any], int]


def start(parser: Parser, argv: Sequence[str] | None, command: Command, follow: Command | None = None) -> int:
    """Parse the arguments, run a command, and return its exit status.

    If `mlx.launch` started several processes, rank 0 runs the command, and the other ranks run `follow`.

    follow: The command that the other ranks run. If None, they run a sharded target's passes as directed by rank 0.
    """

    def start_processes() -> int:
        require_subpackage("distributed")
        from ..distributed.command import run_in_processes

        return run_in_processes(parser, argv, command, follow)

    if launched_rank() is not None:
        return run(parser.prog, start_processes, name=parser.name_of)
    chosen = parser.parse_args(argv)
    return run(parser.prog, lambda: command(chosen, None), name=parser.name_of)
