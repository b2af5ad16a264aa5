"""main.py --input: decodes a file of prompts to a file of records."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any

from ..distributed import ProcessGroup, decode_on_all_ranks, serve_rows
from ..engine import QUEUE_PER_SLOT
from ..errors import InputError
from ..jobs import InputLine, Job, JobTotals, ResumableOutput, choose_format, parse_line, read_lines
from ..jobs.job import DecodeRows, RecordingResult
from ..jobs.messages import parse_batch_result
from ..loading import manifest
from ..loading.draft_head import DraftHeadHandle
from ..loading.load import ModelHandle
from ..loading.pair import ModelPair
from ..sampling import GenerationOptions
from ..sampling.options import default
from ..session import Session
from .common import open_text, printing, say, write_stats
from .compare import note_exactness
from .flags import SHARED_FLAGS, TEXT_ONLY, Files
from .progress import progress
from .run_config import RunConfig
from .summary import job_summary


def decode_file(config: RunConfig, files: Files, stats_json: Path | None, processes: ProcessGroup | None = None) -> int:
    """Decode the file and return the exit status: 1 if some lines were errors.

    processes: the processes that share the lines, if there are several.
    """
    totals = JobTotals()
    with ExitStack() as stack:
        file = stack.enter_context(open_input(files.input))
        size = os.fstat(file.fileno()).st_size or None
        pair = config.open()
        if pair.target.model.audio is not None:
            require_recordings(config.options, files, processes)
        say(config.describe())
        file_format = files.input_format or choose_format(files.input, file.peek().split(b"\n")[0])
        settings = record_settings(config, pair, file_format)

        lines = read_lines(file)
        write = write_to_stdout
        running: AbstractContextManager[None] = nullcontext()
        if files.output is not None:
            output = stack.enter_context(
                ResumableOutput.open(files.output, settings, resume=files.resume, force=files.force)
            )
            lines = output.remaining(file, files.input)
            write = output.write
            running = output.running()
            totals.lines = output.written.lines
            totals.errors = output.errors
            if totals.lines:
                say(f"resuming {files.output} after line {totals.lines}")

        session = stack.enter_context(config.session(pair))
        note_exactness(session, files.slots)
        decode_rows = row_decoder(session, files)
        if session.model.audio is not None:
            decode_rows = partial(transcribe_rows, session, files)
        slots = files.slots
        if processes is not None:
            decode_rows = row_decoder_of_all_ranks(decode_rows, slots, processes)
            slots *= processes.size
        job = Job(
            lines,
            partial(parse_line, format=file_format, options=config.options.with_values(drafter=config.drafter)),
            decode_rows,
            write,
            slots=slots,
            # Draft counts are reproducible only if the drafts of a row do not depend on earlier rows.
            with_draft_counts=isinstance(config.options.num_draft_tokens, int) and config.drafter in ("none", "model"),
            totals=totals,
        )
        try:
            with running:
                run_with_progress(job, size, files)
        except KeyboardInterrupt:
            way_out = "" if files.output is None else "; run the same command with --resume to continue"
            say(f"\nmain.py: interrupted after line {totals.lines}{way_out}")
            return 130

    say(job_summary(totals, config.options))
    if stats_json is not None:
        write_stats(stats_json, pair.folders | settings | {"slots": files.slots} | totals.as_dict())
    return 1 if totals.errors else 0


def row_decoder(session: Session, files: Files) -> DecodeRows:
    return lambda rows: session.batch_as_completed(rows, slots=files.slots, max_memory_gb=files.max_memory)


def require_recordings(options: GenerationOptions, files: Files, processes: ProcessGroup | None) -> None:
    """Raise `InputError` for flags that have no effect on a job with recordings."""
    if processes is not None:
        raise InputError("--input: recordings are transcribed by one process; start it without mlx.launch")
    if files.max_memory is not None:
        raise InputError("--max-memory has no effect on recordings; lower --slots")
    for name in (*TEXT_ONLY, *SHARED_FLAGS, "temperature"):
        if getattr(options, name) != default(name):
            raise InputError(f"{name} has no effect on a file of recordings; set options in its lines")


def transcribe_rows(session: Session, files: Files, rows: Iterator[Mapping[str, Any]]) -> Iterator[RecordingResult]:
    """Transcribe the rows of a job. Their paths are relative to the folder of the job's file."""
    folder = Path() if files.input == "-" else Path(files.input).parent
    found = ({**row, "audio": folder / row["audio"]} if "audio" in row else row for row in rows)
    for event in session.transcribe_batch(found, slots=files.slots):
        if event.is_last:
            yield RecordingResult(event.number, event.result, None if event.error is None else str(event.error))


def row_decoder_of_all_ranks(decode_rows: DecodeRows, slots: int, processes: ProcessGroup) -> DecodeRows:
    return partial(
        decode_on_all_ranks,
        decode=decode_rows,
        channel=processes.channel,
        ranks=range(1, processes.size),
        max_pending=(QUEUE_PER_SLOT + 2) * slots + 4,
        parse=parse_batch_result,
    )


def run_with_progress(job: Job, input_bytes: int | None, files: Files) -> None:
    may_be_bar = files.output is not None or not sys.stdout.isatty()  # a bar would mix with records on the screen
    with progress(may_be_bar=may_be_bar) as show:
        for totals in job.run():
            show(totals.input_bytes, input_bytes, job_progress(totals))


def serve_file(config: RunConfig, files: Files, processes: ProcessGroup) -> int:
    """Decode the rows that the first process sends, and return the exit status."""
    with config.session(config.open()) as session:
        return serve_rows(row_decoder(session, files), processes.channel)


def write_to_stdout(record: bytes, line: InputLine) -> None:
    with printing():
        sys.stdout.buffer.write(record)
        sys.stdout.buffer.flush()


def open_input(name: str) -> BufferedReader:
    if name == "-":
        return sys.stdin.buffer  # type: ignore[return-value]
    try:
        return open_text(Path(name))
    except OSError as error:
        raise InputError(f"--input {name}: {error.strerror}; name a file, or - for standard input") from error


def record_settings(config: RunConfig, pair: ModelPair, file_format: str) -> dict[str, Any]:
    """Return every setting that changes records. Models are identified by content, not by name."""
    options = asdict(config.options) | asdict(config.flags)
    del options["recalibrate"]
    options["strict"] = bool(options["strict"])  # earlier versions stored it as a bool
    return {
        **{name: str(value) if isinstance(value, Path) else value for name, value in options.items()},
        "drafter": config.drafter,
        "dtype": config.models.dtype,
        "target_sha256": fingerprint(pair.target),
        "draft_sha256": None if pair.draft is None else fingerprint(pair.draft),
        "input_format": file_format,
    }


def fingerprint(handle: ModelHandle | DraftHeadHandle) -> str:
    """Hash a model's manifest; without a manifest, the names, sizes and dates of its files."""
    files: Mapping[str, Any] = manifest.files_of(handle.folder)
    if not files:
        files = {path.name: [path.stat().st_size, int(path.stat().st_mtime)] for path in handle.folder.iterdir()}
    if isinstance(handle, ModelHandle) and handle.adapter is not None:
        files = {**files, "adapter": handle.adapter.fingerprint}
    return hashlib.sha256(json.dumps(sorted(files.items())).encode()).hexdigest()


def job_progress(totals: JobTotals) -> str:
    accepted = f", accepted {totals.stats.acceptance_rate:.1%}" if totals.stats.drafted_tokens else ""
    errors = f", {totals.errors} errors" if totals.errors else ""
    return f"{totals.lines} lines{errors}, {totals.end_to_end_tps:.1f} tokens/s{accepted}"
