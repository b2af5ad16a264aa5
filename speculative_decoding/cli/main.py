"""main.py: parses the flags and runs the console, a job, the doctor, or prompts."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from ..distributed import ProcessGroup
from ..distributed import command as parallel
from ..errors import InputError
from .flags import Doctor, Files, Together, Views, main_parser, require_consistent, take_prompt
from .parser import flags_from, require_writable
from .run_config import run_config_from


def main(argv: Sequence[str] | None = None, program: str = "main.py") -> int:
    return parallel.run(main_parser(program), argv, decode)


def decode(chosen: argparse.Namespace, processes: ProcessGroup | None = None) -> int:
    """Run the mode that the flags select, and return the exit status.

    processes: the process group, in which this process is rank 0.
    """
    take_prompt(chosen)
    require_consistent(vars(chosen))
    share = flags_from(Together, chosen).parallel
    if processes is None and share is not None:
        raise InputError(
            f"{share} has no effect on one process", "parallel", "start several with mlx.launch, or leave it out"
        )
    if processes is not None and "doctor" in chosen:
        raise InputError("runs in one process", "doctor", "start it without mlx.launch")
    if "audio" in chosen:
        if processes is not None:
            raise InputError("runs in one process", "audio", "start it without mlx.launch")
        from ..speech.command import transcribe

        return transcribe(chosen)
    views = flags_from(Views, chosen)
    require_writable("stats_json", views.stats_json)
    require_writable("trace", views.trace)
    config = run_config_from(chosen)
    if share == "tensor":
        config = replace(config, process_group=processes)
    # Import late, so that --help and argument errors are fast.
    if "doctor" in chosen:
        from ..doctor.command import examine

        return examine(config, flags_from(Doctor, chosen).json)
    if views.interactive:
        from .console import interact

        return interact(config, views)
    if "input" in chosen:
        from ..jobs.command import decode_file

        return decode_file(config, flags_from(Files, chosen), views.stats_json, processes if share == "data" else None)
    from .prompts import decode_prompts

    return decode_prompts(config, views)
