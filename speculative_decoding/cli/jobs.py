"""main.py --input: a file of prompts -> a file of records."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict
from io import BufferedReader
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..jobs import Job, Journal, Line, RowParser, Totals, choose_format, read_lines
from ..loading import manifest
from ..loading.draft_head import OpenedHead
from ..loading.load import Opened
from .common import say
from .drafting import Plan
from .main_flags import Files
from .models import Pair
from .progress import progress, summary

REPEATABLE = ("none", "model")  # drafters whose drafts for a row do not depend on the rows before it


def decode_file(plan: Plan, files: Files, stats_json: Path | None) -> int:
    """The exit status: 1 if some lines were errors."""
    output, totals = files.output, Totals()
    with ExitStack() as stack:
        file, name, size = stack.enter_context(open_input(files.input, output))
        pair = plan.open()
        say(plan.describe())
        file_format = files.input_format or choose_format(files.input, file.peek().split(b"\n")[0])
        settings = record_settings(plan, pair, file_format)
        running: AbstractContextManager[None] = nullcontext()
        lines, write = read_lines(file), write_to_stdout
        if output is not None:
            opening = Journal.open(output, settings, resume=files.resume, force=files.force)
            journal = stack.enter_context(opening)
            lines, write, running = journal.remaining(file, name), journal.write, journal.running()
            totals.lines, totals.errors = journal.done.lines, journal.errors
            if totals.lines:
                say(f"resuming {output} behind line {totals.lines}")
        session = stack.enter_context(plan.session(pair))
        job = Job(
            lines,
            RowParser(file_format, plan.options),
            lambda rows: session.batch(rows, slots=files.slots, max_memory_gb=files.max_memory),
            write,
            slots=files.slots,
            counts=isinstance(plan.options.num_draft, int) and plan.drafter in REPEATABLE,
            totals=totals,
        )
        is_watched = output is not None or not sys.stdout.isatty()  # records and a bar on one screen are neither
        try:
            with running, progress(size, is_watched=is_watched) as show:
                for now in job.run():
                    show(now)
        except KeyboardInterrupt:
            way_out = "" if output is None else "; the same command with --resume goes on from there"
            say(f"\nmain.py: interrupted after line {totals.lines}{way_out}")
            return 130
    say(summary(totals, files.slots))
    if stats_json is not None:
        draft = None if pair.opened_draft is None else str(plan.folders.draft)
        content = {"model": str(plan.folders.target), "draft_model": draft, **settings, "slots": files.slots}
        stats_json.write_text(json.dumps(content | totals.as_dict(), indent=2) + "\n", encoding="utf-8")
    return 1 if totals.errors else 0


def write_to_stdout(record: bytes, line: Line) -> None:
    sys.stdout.buffer.write(record)
    sys.stdout.buffer.flush()


@contextmanager
def open_input(name: str, output: Path | None) -> Iterator[tuple[BufferedReader, str, int | None]]:
    """The file, what to call it, and its size if it has one."""
    if name == "-":
        if sys.stdin is None:
            raise InputError("--input -: there is no standard input; name a file")
        yield sys.stdin.buffer, "standard input", None  # type: ignore[misc]
        return
    try:
        file = open(name, "rb")  # noqa: SIM115
    except OSError as error:
        raise InputError(f"--input {name}: {error.strerror}; name a file, or - for standard input") from error
    with file:
        if output is not None and output.exists() and os.path.samefile(name, output):
            raise InputError(f"--output {output}: is the input itself; name another file")
        yield file, name, os.fstat(file.fileno()).st_size or None


def record_settings(plan: Plan, pair: Pair, file_format: str) -> dict[str, Any]:
    """All that records depend on besides the input; models by what they are, not by how they were named."""
    options = asdict(plan.options) | asdict(plan.flags)
    return {
        **{name: str(value) if isinstance(value, Path) else value for name, value in options.items()},
        "drafter": plan.drafter,
        "dtype": plan.folders.dtype,
        "target_sha256": fingerprint(pair.opened_target),
        "draft_sha256": None if pair.opened_draft is None else fingerprint(pair.opened_draft),
        "input_format": file_format,
    }


def fingerprint(opened: Opened | OpenedHead) -> str:
    """Of a model: the manifest's checksums; or of a folder without one, its files' names, sizes and dates."""
    files: Mapping[str, Any] = manifest.files_of(opened.folder)
    if not files:
        files = {path.name: [path.stat().st_size, int(path.stat().st_mtime)] for path in opened.folder.iterdir()}
    return hashlib.sha256(json.dumps(sorted(files.items())).encode()).hexdigest()
