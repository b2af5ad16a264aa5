"""main.py --input: decodes a file of prompts to a file of records."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, replace
from functools import partial
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import Any

from ..checkpoints.text import ENCODINGS
from ..cli.common import open_text, printing, say, write_stats
from ..cli.compare import note_exactness
from ..cli.flags import SHARED_FLAGS, TEXT_ONLY, Files
from ..cli.progress import progress
from ..cli.run_config import RunConfig
from ..cli.summary import job_summary
from ..distributed import ProcessGroup, decode_on_all_ranks, serve_rows
from ..engine import QUEUE_PER_SLOT
from ..errors import InputError, Name
from ..loading import manifest
from ..loading.draft_head import DraftHeadHandle
from ..loading.load import ModelHandle
from ..loading.pair import ModelPair
from ..sampling import GenerationOptions
from ..sampling.options import option_specs
from ..session import Session
from . import InputLine, Job, JobTotals, ResumableOutput, choose_format, parse_line, read_lines
from .job import DecodeRows, RecordingResult
from .messages import parse_batch_result
from .output import recorded_setting


def decode_file(config: RunConfig, files: Files, stats_json: Path | None, processes: ProcessGroup | None = None) -> int:
    """Decode the file and return the exit status: 1 if some lines were errors.

    processes: the processes that share the lines, if there are several.
    """
    totals = JobTotals()
    with ExitStack() as stack:
        file = stack.enter_context(open_input(files.input))
        is_utf16 = file.peek()[:2] in ENCODINGS
        size = None if is_utf16 else os.fstat(file.fileno()).st_size or None  # lines are counted in UTF-8
        pair = config.open()
        if pair.target.model.audio is not None:
            require_recordings(config.options, files, processes)
        say(config.describe())
        file_format = files.input_format or choose_format(files.input, file.peek())
        config = with_recorded_rule(config, files)
        if config.is_baseline:  # as with --num-draft 0: a line cannot turn drafts on
            config = replace(config, options=config.options.with_values(drafter="none"))
        settings = record_settings(config, pair, file_format)

        lines = read_lines(file)
        write = write_to_stdout
        running: AbstractContextManager[None] = nullcontext()
        recorded: dict[str, Any] = {}
        if files.output is not None:
            output = stack.enter_context(
                ResumableOutput.open(files.output, settings, resume=files.resume, force=files.force)
            )
            lines = output.remaining(file, files.input)
            write = output.write
            running = output.running()
            recorded = output.settings
            totals.lines = output.written.lines
            totals.errors = output.errors
            if totals.lines:
                say(f"resuming {files.output} after line {totals.lines}")

        if totals.lines and processes is None:  # other processes wait for the end of the rows
            first = next(lines, None)
            if first is None:  # no model is needed
                with running:
                    return finish(totals, config, stats_json, pair.folders | settings, files)
            lines = chain([first], lines)

        session = stack.enter_context(config.session(pair))
        settle_exactness(session, files.slots, recorded)
        decode_rows = row_decoder(session, files)
        if session.model.audio is not None:
            decode_rows = partial(transcribe_rows, session, files)
        slots = files.slots
        if processes is not None:
            decode_rows = row_decoder_of_all_ranks(decode_rows, slots, processes)
            slots *= processes.size
        job = Job(
            lines,
            partial(parse_line, format=file_format, options=config.options),
            decode_rows,
            write,
            slots=slots,
            # Draft counts are reproducible only if the drafts of a row do not depend on earlier rows.
            with_draft_counts=isinstance(config.options.num_draft_tokens, int) and not config.options.looks_up_ngrams,
            totals=totals,
        )
        try:
            with running:
                run_with_progress(job, size, files)
        except KeyboardInterrupt:
            way_out = "" if files.output is None else "; run the same command with --resume to continue"
            say(f"\nmain.py: interrupted after line {totals.lines}{way_out}")
            return 130

    return finish(totals, config, stats_json, pair.folders | settings, files)


def finish(
    totals: JobTotals, config: RunConfig, stats_json: Path | None, settings: Mapping[str, Any], files: Files
) -> int:
    """Print and write what the job has done, and return the exit status."""
    say(job_summary(totals, config.options))
    if stats_json is not None:
        write_stats(stats_json, dict(settings) | {"slots": files.slots} | totals.as_dict())
    return 1 if totals.errors else 0


def settle_exactness(session: Session, slots: int, recorded: dict[str, Any]) -> None:
    """Decide whether passes are exact, unless the job's journal says so: a job must not change that when it is resumed.

    recorded: settings for the journal; "exact" is added.
    """
    options = session.options_with({})
    if options.strict is not None or options.num_beams > 1:
        note_exactness(session, slots)
        return
    if "exact" not in recorded:
        note_exactness(session, slots)
        recorded["exact"] = session.planner.widths(options, slots).exact
    session.options = session.options.with_values(strict=recorded["exact"])


def row_decoder(session: Session, files: Files) -> DecodeRows:
    return lambda rows: session.batch_as_completed(rows, slots=files.slots, max_memory_gb=files.max_memory)


def require_recordings(options: GenerationOptions, files: Files, processes: ProcessGroup | None) -> None:
    """Raise `InputError` for flags that have no effect on a job with recordings."""
    if processes is not None:
        raise InputError("recordings are transcribed by one process", "input", "start it without mlx.launch")
    if files.max_memory is not None:
        raise InputError("has no effect on recordings", "max_memory", ("lower ", Name("slots")))
    for name in (*TEXT_ONLY, *SHARED_FLAGS, "temperature"):
        if getattr(options, name) != option_specs()[name].default:
            raise InputError("has no effect on a file of recordings", name, "set options in its lines")


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
        raise InputError(f"{name}: {error.strerror}", "input", "name a file, or - for standard input") from error


def record_settings(config: RunConfig, pair: ModelPair, file_format: str) -> dict[str, Any]:
    """Return every setting that changes records. Models are identified by content, not by name."""
    options = asdict(config.options) | asdict(config.flags)
    del options["recalibrate"]
    options["acceptance"] = config.options.rule
    strict = options.pop("strict")
    return {
        **({} if strict is None else {"exact": strict}),  # otherwise decided by the first run
        "strict": bool(strict),  # earlier versions stored it as a bool
        **{name: str(value) if isinstance(value, Path) else value for name, value in options.items()},
        "dtype": config.models.dtype,
        "target_sha256": fingerprint(pair.target),
        "draft_sha256": None if pair.draft is None else fingerprint(pair.draft),
        "input_format": file_format,
    }


def with_recorded_rule(config: RunConfig, files: Files) -> RunConfig:
    """Return the configuration with the acceptance rule of an unfinished output, if no rule was chosen for either.

    The default of earlier versions, which they recorded, was rejection.
    """
    if files.output is None or not files.resume or config.options.acceptance is not None:
        return config
    if recorded_setting(files.output, "acceptance") != "rejection":
        return config
    return replace(config, options=config.options.with_values(acceptance="rejection"))


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
