"""main.py: which of its uses the options ask for, and which of them contradict each other. Decodes nothing itself."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..errors import InputError
from . import common, drafting, jobs
from .main_options import main_parser
from .trace import open_trace


def main(argv: Sequence[str] | None = None) -> int:
    chosen = main_parser().parse_args(argv)
    return common.run("main.py", lambda: decode(chosen))


ALONE = {  # options that do not go with these
    "interactive": ("prompt", "compare", "verify", "stats_json"),
    "compare": ("verify", "regular_decode"),
}


def require_consistent(chosen: argparse.Namespace) -> None:
    """Raise `InputError` for options that contradict each other or would be ignored."""
    jobs.require_consistent(chosen)
    given = {name for name, value in vars(chosen).items() if value is not False}
    for name, others in ALONE.items():
        for other in others:
            if {name, other} <= given:
                raise InputError(f"{jobs.flag(other)} does not go with {jobs.flag(name)}; leave one of them out")


def decode(chosen: argparse.Namespace) -> int:
    require_consistent(chosen)
    stats_file: Path | None = getattr(chosen, "stats_json", None)
    trace_file: Path | None = getattr(chosen, "trace", None)
    for option, file in (("--stats-json", stats_file), ("--trace", trace_file)):
        if file is not None and (file.is_dir() or not file.resolve().parent.is_dir()):
            raise InputError(f"{option} {file}: cannot be written; name a file in a folder that exists")
    request = common.decoding_options(chosen)
    request |= {"sampling": replace(request["sampling"], seed=chosen.seed)}
    if trace_file is not None:
        request["timed"] = True
    if chosen.interactive:
        from .console import interact  # not at the top, as below: --help and errors need not wait for what draws texts

        with open_trace(trace_file) as trace:
            return interact(chosen, request, trace)
    folders = common.choose(chosen)
    drafting.settle(chosen, folders)
    if "input" in chosen:
        return jobs.decode_file(chosen, folders, request)

    from .prompts import decode_prompts

    return decode_prompts(chosen, folders, request)
