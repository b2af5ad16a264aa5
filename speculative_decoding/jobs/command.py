"""The `batch` command: decodes a file of prompts into a file of records."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from typing import Annotated as A

from ..checkpoints.files import open_text
from ..checkpoints.text import ENCODINGS
from ..cli.common import say, write_stats, write_to_stdout
from ..cli.flags import (
    RunFlags,
    add_decoding_flags,
    all_but,
    check_files,
)
from ..cli.lines import InputLine, read_lines
from ..cli.parser import File, Parser, add_flags, flags_from
from ..cli.progress import progress
from ..cli.run_config import RunConfig, run_config_from
from ..cli.runner import settle_exactness, summary_notes
from ..cli.start import start
from ..engine import DEFAULT_SLOTS, QUEUE_PER_SLOT
from ..errors import InputError, Message
from ..loading.pair import ModelPair
from ..rows.scheduling import Progress, Scheduler
from ..runs.places import NamedFile
from ..sampling import GenerationOptions
from ..sampling.options import option_specs
from ..sampling.values import Bool, Flag, Int, Number, Text
from ..session import Session
from ..subpackages import require_subpackage
from .input import INPUT_FORMATS, ParsedLine, choose_format, parse_line
from .job import Job, JobTotals, parse_batch_result
from .output import ResumableOutput, settings_path

if TYPE_CHECKING:
    from ..distributed import ProcessGroup

INPUT = (
    "decode each line of this file: text (.txt), or a JSON object (.jsonl) with a prompt, options, and fields to copy "
    "to the output; - reads standard input"
)
INPUT_FORMAT = "format of the lines (default: by the file name, else jsonl if the first line starts with {)"
MAX_MEMORY = "memory limit; use fewer slots to stay below it"
OUTPUT = "file for the results, one JSON object per input line, in input order (default: standard output)"
PARALLEL = (
    "with several processes, started by mlx.launch: tensor splits the target among them; data loads the whole target "
    "in each of them, and splits the lines (default: data)"
)
RowScheduler = Scheduler[tuple[int, Any], Progress]


@dataclass(frozen=True)
class BatchFlags(RunFlags):
    """The flags of `batch`."""

    input: A[str, Text(may_be_empty=True), INPUT] = ""
    input_format: A[str | None, Text(INPUT_FORMATS), INPUT_FORMAT] = None
    output: A[Path | None, File(), OUTPUT] = None
    resume: A[bool, Bool(), "continue an interrupted output file, or start a new one"] = False
    force: A[bool, Bool(), "replace an existing output file"] = False
    slots: A[int, Int(1), "number of lines to decode together"] = DEFAULT_SLOTS
    max_memory: A[
        float | None, Number(0, exclusive=True), MAX_MEMORY, Flag(metavar="GB", parameter="max_memory_gb")
    ] = None
    parallel: A[str | None, Text(("tensor", "data")), PARALLEL] = None

    def __post_init__(self) -> None:
        if self.resume and self.force:
            raise InputError(Message("cannot be combined with {resume}"), "force", "leave one of them out")
        for name in ("resume", "force"):
            if getattr(self, name) and self.output is None:
                raise InputError(Message("has no effect without {output}"), name, "give both, or leave it out")


def batch_parser(program: str) -> Parser:
    parser = Parser(
        prog=program,
        usage="%(prog)s FILE [--output FILE] [options]",
        description="Decode a file of prompts of any length in bounded memory, many at once.",
        basic=[*all_but(BatchFlags, "max_memory", "parallel"), "memory"],
    )
    parser.add_argument("input", metavar="FILE", help=INPUT)
    add_flags(parser, "input and output", BatchFlags, without=("input",))
    add_decoding_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None, program: str = "speculative-decoding batch") -> int:
    return start(batch_parser(program), argv, batch, follow)


def batch(chosen: argparse.Namespace, processes: ProcessGroup | None = None) -> int:
    """Decode the file, and return the exit status, which is 1 if any line had an error."""
    given = vars(chosen)
    flags = flags_from(BatchFlags, chosen)
    files = [NamedFile("input", flags.input)]
    written: list[NamedFile] = []
    if flags.output is not None:
        written = [NamedFile("output", flags.output), NamedFile("output", settings_path(flags.output), "'s settings")]
    check_files(given, files, written)
    if shares_lines(chosen, processes):
        return decode_file(run_config_from(chosen), flags, processes)
    return decode_file(run_config_from(chosen, processes=processes), flags)


def shares_lines(chosen: argparse.Namespace, processes: ProcessGroup | None) -> bool:
    """Return whether processes share the lines rather than the target. Raises `InputError` for invalid flags."""
    share = flags_from(BatchFlags, chosen).parallel
    if processes is None:
        if share is not None:
            way_out = "start several with mlx.launch, or leave it out"
            raise InputError(f"{share} has no effect on one process", "parallel", way_out)
        return False
    if share != "tensor" and "ngram_store" in chosen:
        raise InputError(
            Message("cannot be combined with {parallel} data, where each process decodes different lines"),
            "ngram_store",
            "leave it out",
        )
    return share != "tensor"


def follow(chosen: argparse.Namespace, processes: ProcessGroup) -> int:
    """Run the loop of a rank above 0, which receives work from rank 0, and return the exit status."""
    if not shares_lines(chosen, processes):
        from ..distributed.command import serve_shard

        return serve_shard(chosen, processes)
    from ..distributed import serve_rows

    config = run_config_from(chosen)
    pair = config.open()
    with config.with_memory(pair).session(pair) as session:
        scheduler, _ = row_scheduler(session, flags_from(BatchFlags, chosen))
        return serve_rows(scheduler, processes.channel)


def decode_file(config: RunConfig, files: BatchFlags, processes: ProcessGroup | None = None) -> int:
    """Decode the file, and return the exit status.

    processes: The processes that share the lines; None if the lines are not shared.
    """
    totals = JobTotals()
    with ExitStack() as stack:
        file = stack.enter_context(open_input(files.input))
        is_utf16 = file.peek()[:2] in ENCODINGS
        size = None if is_utf16 else os.fstat(file.fileno()).st_size or None  # progress is measured in UTF-8 bytes
        config, pair = open_models(config, files, processes)
        file_format = files.input_format or choose_format(files.input, file.peek())
        settings = config.output_settings(pair) | {"input_format": file_format}
        lines = read_lines(file)
        output = None
        if files.output is not None:
            opened = ResumableOutput.open(files.output, settings, resume=files.resume, force=files.force)
            output = stack.enter_context(opened)
            lines = resume(output, lines, files, totals)
        if totals.lines and processes is None:  # with several processes, the other ranks wait until the job ends
            first = next(lines, None)
            if first is None:  # all lines have records, so no model is needed
                assert output is not None
                output.begin()  # truncates the file after the last record
                return finish(totals, config, pair.folders | settings, files)
            lines = chain([first], lines)

        session = stack.enter_context(config.session(pair))
        settle_exactness(session, files.slots, None if output is None else output.log)
        scheduler, row = row_scheduler(session, files)
        slots = files.slots
        if processes is not None:
            scheduler = scheduler_of_all_ranks(scheduler, slots, processes)
            slots *= processes.size
        job = Job(
            lines,
            partial(parse_prompt, files.prefix, file_format, config.options),
            scheduler,
            write_to_stdout if output is None else output.write,
            slots=slots,
            row=row,
            with_draft_counts=has_reproducible_counts(config.options, pair),
            totals=totals,
        )
        try:
            if output is not None:
                output.begin()  # reports an unwritable file before anything is decoded
            run_with_progress(job, size, files)
        except KeyboardInterrupt:
            way_out = "" if files.output is None else "; run the same command with --resume to continue"
            say(f"\nbatch: interrupted after line {totals.lines}{way_out}")
            return 130

    return finish(totals, config, pair.folders | settings, files)


def open_models(config: RunConfig, files: BatchFlags, processes: ProcessGroup | None) -> tuple[RunConfig, ModelPair]:
    """Open and describe the models. Returns them with the complete configuration. Raises `InputError`."""
    pair = config.open()
    if pair.target.model.audio is not None:
        require_recordings(config.options, files, processes)
    else:
        config = config.with_memory(pair)
    say(config.describe(pair))
    if config.options.draft_tokens == 0:  # for example, with --num-draft 0; a line cannot turn drafting on
        config = replace(config, chosen=config.chosen.with_values(drafter="none"))
    return config, pair


def resume(
    output: ResumableOutput, lines: Iterator[InputLine], files: BatchFlags, totals: JobTotals
) -> Iterator[InputLine]:
    """Return the lines without a record, and add the existing records to the totals. Raises `InputError`."""
    lines = output.remaining(lines, files.input)
    totals.lines = output.lines
    totals.errors, totals.first_errors = output.errors, output.first_errors
    if totals.lines:
        say(f"resuming {files.output} after line {totals.lines}")
    return lines


def has_reproducible_counts(options: GenerationOptions, pair: ModelPair) -> bool:
    """Return whether the drafts of a row are independent of earlier rows and of the other rows in its batch.

    A draft model with another vocabulary writes text for all rows in one batch.
    """
    is_fixed = isinstance(options.num_draft_tokens, int)
    return is_fixed and not pair.drafts_text and not options.follows_texts


def finish(totals: JobTotals, config: RunConfig, settings: Mapping[str, Any], files: BatchFlags) -> int:
    """Print a summary, write the statistics file, and return the exit status."""
    say(job_summary(totals, config.options))
    if files.stats_json is not None:
        write_stats(files.stats_json, dict(settings) | {"slots": files.slots} | totals.as_dict())
    return 1 if totals.errors else 0


def parse_prompt(prefix: str, file_format: str, options: GenerationOptions, line: InputLine) -> ParsedLine:
    """Parse a line, and add the prefix to its prompt. The record contains the prompt without the prefix."""
    parsed = parse_line(line, file_format, options)
    if not prefix or parsed.fields is None or "prompt" not in parsed.fields:
        return parsed
    return replace(parsed, fields={**parsed.fields, "prompt": prefix + parsed.fields["prompt"]})


def row_scheduler(session: Session, files: BatchFlags) -> tuple[RowScheduler, Callable[[Mapping[str, Any]], Any]]:
    """Return a scheduler for prompts or recordings, and a function that converts a line's fields to its items."""
    if session.model.audio is None:
        return session.prompt_scheduler(files.slots, files.max_memory), lambda fields: fields
    require_subpackage("speech", "input")
    from ..speech.api import new_scheduler
    from ..speech.keywords import split_options
    from .recordings import opener

    scheduler = new_scheduler(session, *split_options({}, session.model.audio), files.slots)
    return scheduler, partial(opener, scheduler, Path() if files.input == "-" else Path(files.input).parent)


def require_recordings(options: GenerationOptions, files: BatchFlags, processes: ProcessGroup | None) -> None:
    """Raise `InputError` for flags that have no effect on a job with recordings."""
    if processes is not None:
        raise InputError("recordings are transcribed by one process", "input", "start the job without mlx.launch")
    if files.max_memory is not None:
        raise InputError("has no effect on recordings", "max_memory", Message("lower {slots}"))
    if files.prefix:
        raise InputError("has no effect on recordings", "prefix", "leave it out")
    from ..speech.keywords import DECODING

    for name, spec in option_specs().items():
        if name not in DECODING and getattr(options, name) != spec.default:
            raise InputError("has no effect on a file of recordings", name, "set options in its lines")


def scheduler_of_all_ranks(scheduler: RowScheduler, slots: int, processes: ProcessGroup) -> RowScheduler:
    from ..distributed import AllRanks

    max_pending = (QUEUE_PER_SLOT + 2) * slots + 4
    ranks = range(1, processes.size)
    return AllRanks(scheduler, processes.channel, ranks, max_pending=max_pending, parse=parse_batch_result)


def run_with_progress(job: Job, input_bytes: int | None, files: BatchFlags) -> None:
    may_be_bar = files.output is not None or not sys.stdout.isatty()  # a bar would disturb records on screen
    with progress(may_be_bar=may_be_bar) as show:
        for totals in job.run():
            show(totals.input_bytes, input_bytes, job_progress(totals))


def open_input(name: str) -> BufferedReader:
    if name == "-":
        return sys.stdin.buffer  # type: ignore[return-value]
    try:
        return open_text(Path(name))
    except OSError as error:
        raise InputError(f"{name}: {error.strerror}", "input", "name a file, or - for standard input") from error


def job_summary(totals: JobTotals, options: GenerationOptions) -> str:
    """Return the summary of a finished job."""
    stats = totals.stats
    errors = ""
    if totals.errors:
        (first, reason), *others = totals.first_errors.items()
        numbers = [str(number) for number, _ in others] + ["..."] * (totals.errors > len(totals.first_errors))
        also = f"; also line{'s' * (len(numbers) > 1)} {', '.join(numbers)}" if numbers else ""
        errors = f", {totals.errors} of them {'errors' if also else 'an error'} (line {first}: {reason}{also})"
    text = (
        f"{totals.lines} line{'s' * (totals.lines != 1)}{errors}; {stats.generated_tokens} tokens of {totals.rows} "
        f"rows in {totals.seconds:.1f} s"
    )
    if totals.rows:
        text += (
            f"\nfirst token after {totals.mean_time_to_first_token:.3f} s on average; "
            f"decoding {totals.decode_tps:.1f} tokens/s, end to end {totals.end_to_end_tps:.1f} tokens/s"
            f"\n{stats.target_calls} iterations, {stats.tokens_per_target_call:.2f} tokens per iteration"
            f"\nencode {totals.encode_seconds:.3f} s, decode {totals.decode_seconds:.3f} s; "
            f"peak memory {stats.peak_memory_bytes / 1e9:.2f} GB"
        )
    return "\n".join([text, *summary_notes(stats, options, totals.rows, totals.cut)])


def job_progress(totals: JobTotals) -> str:
    accepted = f", accepted {totals.stats.acceptance_rate:.1%}" if totals.stats.drafted_tokens else ""
    errors = f", {totals.errors} errors" if totals.errors else ""
    return f"{totals.lines} lines{errors}, {totals.end_to_end_tps:.1f} tokens/s{accepted}"
