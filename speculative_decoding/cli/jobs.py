"""main.py --input: a file of prompts -> a file of records."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict
from io import BufferedReader
from pathlib import Path
from typing import Any

from ..distributed import ProcessGroup
from ..errors import InputError
from ..jobs import InputLine, Job, JobTotals, LineParser, ResumableOutput, Spread, choose_format, read_lines, work
from ..jobs.job import DecodeRows
from ..loading import manifest
from ..loading.draft_head import OpenedHead
from ..loading.load import Opened
from ..loading.pair import Pair
from ..session import Session
from .common import printing, say, write_stats
from .compare import note_exactness
from .drafting import Plan
from .flags import Files
from .progress import progress
from .summary import job_summary

REPEATABLE = ("none", "model")  # drafters whose drafts for a row do not depend on the rows before it


def decode_file(plan: Plan, files: Files, stats_json: Path | None, processes: ProcessGroup | None = None) -> int:
    """The exit status: 1 if some lines were errors. processes: the processes that share the lines."""
    output, totals = files.output, JobTotals()
    with ExitStack() as stack:
        file = stack.enter_context(open_input(files.input))
        size = os.fstat(file.fileno()).st_size or None
        pair = plan.open()
        say(plan.describe())
        file_format = files.input_format or choose_format(files.input, file.peek().split(b"\n")[0])
        settings = record_settings(plan, pair, file_format)
        running: AbstractContextManager[None] = nullcontext()
        lines, write = read_lines(file), write_to_stdout
        if output is not None:
            opening = ResumableOutput.open(output, settings, resume=files.resume, force=files.force)
            journal = stack.enter_context(opening)
            lines, write, running = journal.remaining(file, files.input), journal.write, journal.running()
            totals.lines, totals.errors = journal.written.lines, journal.errors
            if totals.lines:
                say(f"resuming {output} behind line {totals.lines}")
        session, slots = stack.enter_context(plan.session(pair)), files.slots
        note_exactness(session, slots)
        engine: DecodeRows = engine_of(session, files)
        if processes is not None:
            engine = Spread(engine, processes.channel, range(1, processes.size), slots)
            slots *= processes.size
        job = Job(
            lines,
            LineParser(file_format, plan.options),
            engine,
            write,
            slots=slots,
            with_draft_counts=isinstance(plan.options.num_draft_tokens, int) and plan.drafter in REPEATABLE,
            totals=totals,
        )
        is_watched = output is not None or not sys.stdout.isatty()  # records and a bar on one screen are neither
        try:
            with running, progress(may_be_bar=is_watched) as show:
                for now in job.run():
                    show(now.input_bytes, size, pace(now))
        except KeyboardInterrupt:
            way_out = "" if output is None else "; the same command with --resume goes on from there"
            say(f"\nmain.py: interrupted after line {totals.lines}{way_out}")
            return 130
    say(job_summary(totals, plan.options))
    if stats_json is not None:
        write_stats(stats_json, pair.folders | settings | {"slots": files.slots} | totals.as_dict())
    return 1 if totals.errors else 0


def engine_of(session: Session, files: Files) -> DecodeRows:
    return lambda rows: session.batch(rows, slots=files.slots, max_memory_gb=files.max_memory)


def decode_rows(plan: Plan, files: Files, processes: ProcessGroup) -> int:
    """Those that the first process hands out."""
    with plan.session(plan.open()) as session:
        return work(engine_of(session, files), processes.channel)


def write_to_stdout(record: bytes, line: InputLine) -> None:
    with printing():
        sys.stdout.buffer.write(record)
        sys.stdout.buffer.flush()


def open_input(name: str) -> BufferedReader:
    if name == "-":
        return sys.stdin.buffer  # type: ignore[return-value]
    try:
        return open(name, "rb")
    except OSError as error:
        raise InputError(f"--input {name}: {error.strerror}; name a file, or - for standard input") from error


def record_settings(plan: Plan, pair: Pair, file_format: str) -> dict[str, Any]:
    """All that records depend on besides the input; models by what they are, not by how they were named."""
    options = asdict(plan.options) | asdict(plan.flags)
    del options["recalibrate"]
    options["strict"] = bool(options["strict"])  # as jobs begun by earlier versions have it
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


def pace(totals: JobTotals) -> str:
    accepted = f", accepted {totals.stats.acceptance_rate:.1%}" if totals.stats.drafted_tokens else ""
    errors = f", {totals.errors} errors" if totals.errors else ""
    return f"{totals.lines} lines{errors}, {totals.end_to_end_tps:.1f} tokens/s{accepted}"
