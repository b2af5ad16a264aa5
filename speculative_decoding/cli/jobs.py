"""main.py --input: a file of prompts -> a file of records, with progress on standard error and a summary at the end."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from io import BufferedReader
from pathlib import Path
from typing import Any, Protocol

from ..decoding.request import check_token_ids
from ..errors import InputError
from ..jobs import Job, Journal, RowParser, Stream, Totals, choose_format, read_lines
from ..loading import manifest
from ..loading.load import Opened
from . import common, drafting
from .common import Folders, Pair, say

ONLY_WITH_INPUT = ("output", "resume", "force", "slots", "max_memory", "input_format")
NOT_WITH_INPUT = ("prompt", "verify", "interactive", "compare", "show_draft", "trace")
SLOTS = 8
REPEATABLE = ("none", "model")  # drafters whose drafts for a row do not depend on the rows before it
NOTE_SECONDS = 30.0  # between notes where there is no terminal

# What changes no record; models and format are recorded by what they are, not by how they were named.
NOT_OF_THE_RECORDS = ("input", *ONLY_WITH_INPUT, *NOT_WITH_INPUT, "stats_json", "model", "draft_model")


def require_consistent(chosen: argparse.Namespace) -> None:
    """Raise `InputError` for options that contradict each other or would be ignored."""
    given = {name for name, value in vars(chosen).items() if value is not False}
    if "input" not in given:
        for name in ONLY_WITH_INPUT:
            if name in given:
                raise InputError(f"{flag(name)} belongs to a file of prompts; give --input too, or leave it out")
        return
    for name in NOT_WITH_INPUT:
        if name in given:
            raise InputError(f"{flag(name)} does not go with --input {chosen.input}; leave one of them out")
    for name in ("resume", "force"):
        if name in given and "output" not in given:
            raise InputError(f"{flag(name)} needs --output: only a file can be gone on with or replaced")
    if {"resume", "force"} <= given:
        raise InputError("--resume goes on with the output and --force replaces it; leave one of them out")


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def decode_file(chosen: argparse.Namespace, folders: Folders, request: Mapping[str, Any]) -> int:
    """request: what `generate` is asked for each row, but for the drafts. Returns 1 if some lines were errors."""
    given, output = vars(chosen), getattr(chosen, "output", None)
    with ExitStack() as stack:
        file, name, size = stack.enter_context(open_input(chosen.input, output))
        pair = common.open_pair(folders, chosen, use_draft=drafting.needs_draft(chosen))
        say(drafting.describe(chosen, folders))
        check_token_ids(chosen.eos_token_id, pair.target.config.vocab_size)
        file_format = given.get("input_format") or choose_format(chosen.input, file.peek().split(b"\n")[0])
        settings = record_settings(chosen, pair, file_format)
        journal = None
        if output is not None:
            opening = Journal.open(output, settings, resume=chosen.resume, force=chosen.force)
            journal = stack.enter_context(opening)
        lines = read_lines(file) if journal is None else journal.remaining(file, name)
        totals = Totals() if journal is None else Totals(lines=journal.done.lines, errors=journal.errors)
        if totals.lines:
            say(f"resuming {output} behind line {totals.lines}")
        session = stack.enter_context(drafting.session(chosen, pair))
        slots = session.slots = given.get("slots", SLOTS)
        limit = {"max_memory_gb": chosen.max_memory} if "max_memory" in given else {}
        job = Job(
            lines,
            RowParser(file_format, chosen.seed, chosen.temperature),
            lambda rows: session.batch(rows, **limit, **request),
            Stream(sys.stdout.buffer) if journal is None else journal,
            slots=slots,
            counts=isinstance(chosen.num_draft, int) and chosen.drafter in REPEATABLE,
            totals=totals,
        )
        watched = output is not None or not sys.stdout.isatty()  # records and a bar on one screen are neither
        try:
            with nullcontext() if journal is None else journal.running(), progress(size, watched) as show:
                for now in job.run():
                    show(now)
        except KeyboardInterrupt:
            way_out = "" if output is None else "; the same command with --resume goes on from there"
            say(f"\nmain.py: interrupted after line {totals.lines}{way_out}")
            return 130
    say(summary(totals, slots))
    if "stats_json" in given:
        names = {"model": folders.target, "draft_model": folders.draft if drafting.needs_draft(chosen) else None}
        content = {name: path and str(path) for name, path in names.items()} | settings | {"slots": slots}
        chosen.stats_json.write_text(json.dumps(content | totals.as_dict(), indent=2) + "\n", encoding="utf-8")
    return 1 if totals.errors else 0


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
        raise InputError(
            f"--input {name}: {error.strerror}; name a file of prompts, or - for standard input"
        ) from error
    with file:
        if output is not None and output.exists() and os.path.samefile(name, output):
            raise InputError(f"--output {output}: is the input itself; name another file")
        yield file, name, os.fstat(file.fileno()).st_size or None


def record_settings(chosen: argparse.Namespace, pair: Pair, file_format: str) -> dict[str, Any]:
    """All that records depend on besides the input. A new option of main.py is among them unless it is excepted."""
    values = {name: value for name, value in vars(chosen).items() if name not in NOT_OF_THE_RECORDS}
    draft = None if pair.opened_draft is None else fingerprint(pair.opened_draft)
    models = {"target_sha256": fingerprint(pair.opened_target), "draft_sha256": draft}
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}
    return plain | models | {"input_format": file_format}


def fingerprint(opened: Opened) -> str:
    """Of a model: the manifest's checksums; or of a folder without one, its files' names, sizes and dates."""
    files: Mapping[str, Any] = manifest.files_of(opened.folder)
    if not files:
        files = {path.name: [path.stat().st_size, int(path.stat().st_mtime)] for path in opened.folder.iterdir()}
    return hashlib.sha256(json.dumps(sorted(files.items())).encode()).hexdigest()


class Show(Protocol):
    def __call__(self, totals: Totals) -> None: ...


@contextmanager
def progress(size: int | None, watched: bool) -> Iterator[Show]:
    """A bar at a terminal; elsewhere a line now and then. size: of the input in bytes, if that is known."""
    if not (watched and sys.stderr.isatty()):
        yield Notes(size)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), redirect_stdout=False) as bar:
        task = bar.add_task("", total=size)

        def show(totals: Totals) -> None:
            bar.update(task, completed=totals.input_bytes, description=pace(totals))

        yield show


class Notes:
    """A line every `NOTE_SECONDS`, none for a short job."""

    def __init__(self, size: int | None) -> None:
        self._size = size
        self._began: tuple[float, int] | None = None
        self._said = time.monotonic()

    def __call__(self, totals: Totals) -> None:
        now = time.monotonic()
        began, first = self._began = self._began or (now, totals.input_bytes)
        if now - self._said < NOTE_SECONDS:
            return
        self._said, left = now, ""
        if self._size is not None and totals.input_bytes > first:
            seconds = (now - began) * (self._size - totals.input_bytes) / (totals.input_bytes - first)
            left = f", about {seconds / 60:.0f} min left"
        say(pace(totals) + left)


def pace(totals: Totals) -> str:
    accepted = f", accepted {totals.stats.acceptance_rate:.1%}" if totals.stats.drafted_tokens else ""
    errors = f", {totals.errors} errors" if totals.errors else ""
    return f"{totals.lines} lines{errors}, {totals.end_to_end_tps:.1f} tokens/s{accepted}"


def summary(totals: Totals, slots: int) -> str:
    stats = totals.stats
    errors = ""
    if totals.errors:
        here = f" (in this run first at line {', '.join(map(str, totals.error_lines))})" if totals.error_lines else ""
        errors = f", {totals.errors} of them errors{here}"
    lines = [
        f"{totals.lines} lines{errors}; {stats.generated_tokens} tokens of {totals.rows} rows in {totals.seconds:.1f} s"
    ]
    if totals.rows:
        lines += [
            f"first token after {totals.mean_time_to_first_token:.3f} s on average, "
            f"of all {min(slots, totals.rows)} slots after {totals.batch_time_to_first_token:.3f} s",
            f"decoding {totals.decode_tps:.1f} tokens/s, end to end {totals.end_to_end_tps:.1f} tokens/s",
            f"accepted {stats.accepted_tokens} of {stats.drafted_tokens} drafted tokens ({stats.acceptance_rate:.1%}), "
            f"{totals.accepted_per_target_call:.2f} per target call",
            f"{stats.target_calls} iterations, {stats.tokens_per_target_call:.2f} tokens each",
            f"encode {totals.encode_seconds:.3f} s, draft {totals.draft_seconds:.3f} s, "
            f"target {totals.target_seconds:.3f} s; peak memory {stats.peak_memory_bytes / 1e9:.2f} GB",
        ]
    if not stats.lossless:
        lines.append(
            "LOSSY: delta accepts tokens that the target alone would not write; "
            f"measured price {stats.delta_total_variation:.4f} per token"
        )
    return "\n".join(lines)
