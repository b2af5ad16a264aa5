"""main.py: which of its uses the flags ask for. Decodes nothing itself."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from . import common
from .drafting import plan_of
from .flags import Files, Views, main_parser, require_consistent
from .parser import chosen_as, require_writable


def main(argv: Sequence[str] | None = None, program: str = "main.py") -> int:
    chosen = main_parser(program).parse_args(argv)
    return common.run(program, lambda: decode(chosen))


def decode(chosen: argparse.Namespace) -> int:
    """The exit status."""
    require_consistent(vars(chosen))
    views = chosen_as(Views, chosen)
    require_writable("stats_json", views.stats_json)
    require_writable("trace", views.trace)
    plan = plan_of(chosen)
    # not imported at the top: --help and errors need not wait for what draws texts
    if views.interactive:
        from .console import interact

        return interact(plan, views)
    if "input" in chosen:
        from .jobs import decode_file

        return decode_file(plan, chosen_as(Files, chosen), views.stats_json)
    from .prompts import decode_prompts

    return decode_prompts(plan, views)
