"""convert.py: a Hugging Face checkpoint -> a folder under models/, with a progress bar."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from . import common, options
from .common import say


def main(argv: Sequence[str] | None = None) -> int:
    chosen = options.convert_parser().parse_args(argv)
    return common.run("convert.py", lambda: convert(chosen))


def convert(chosen: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from .. import conversion

    columns = (
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None)
        output = conversion.convert(
            chosen.model,
            getattr(chosen, "output", None),
            dtype=chosen.dtype,
            revision=getattr(chosen, "revision", None),
            force=chosen.force,
            progress=lambda name, done, total: bar.update(task, description=name, completed=done, total=total),
        )
    say(f"converted to {output}")
    return 0
