"""`document`: decodes whole documents to files, or one to standard output."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated as A
from typing import Any

from ..cli.common import read_text, require_one_process, say, start_alone, write_stats, write_to_stdout
from ..cli.flags import NamedFile, RunFlags, add_decoding_flags, check_files
from ..cli.parser import File, Parser, add_flags, flags_from, require_writable
from ..cli.progress import progress
from ..cli.run_config import RunConfig, run_config_from
from ..cli.runner import settle_exactness
from ..cli.summary import summary_notes
from ..decoding.prompt import check_languages
from ..engine import DEFAULT_SLOTS
from ..errors import InputError, Name, writing
from ..loading.language_map import language_tag
from ..loading.pair import ModelPair
from ..models.speech_languages import CODES
from ..rooms import require_room
from ..sampling.values import BASIC, Bool, Flag, Int, Text
from .api import rules_for
from .decoding import DecodedPiece
from .findings import FAILED, report
from .journal import Journal
from .options import DocumentOptions
from .output import Document, DocumentStream, write_documents
from .pieces import Piece
from .reading import DocumentFile
from .scheduler import PieceScheduler, decode_parts, require_usable
from .splitting import KNOWN_CODES, effective_unit, source_language

FILES = "decode these documents; - reads standard input"
OUTPUT = "file for the document; for several, a folder, which is created if needed (default: standard output)"
KEEP = "file with terms that must appear unchanged, one per line"
WRITE_MEMORY = "write the sources and outputs of all pieces to this translation memory (TMX)"
CHECK = "exit with status 1 if anything is listed for checking"
FORCE = "replace existing outputs, and decode again what an interrupted run cannot continue"
SLOTS = "number of prompts to decode together"
STDIN = "-"
SEGMENTS = {"sentence": "sentence", "line": "block", "paragraph": "paragraph"}  # what TMX calls the units
LANGUAGE_PAIR = re.compile(r"(\w+) (?:in)?to (\w+)")

AddPair = Callable[[str, str], None]


@dataclass(frozen=True)
class DocumentFlags(RunFlags):
    """The flags of `document`, except for those of `DocumentOptions` and decoding options."""

    files: A[Sequence[str], Text(), FILES] = ()
    output: A[str | None, Text(), OUTPUT, BASIC, Flag(short="-o", metavar="FILE_OR_FOLDER")] = None
    keep: A[Path | None, File(), KEEP, BASIC] = None
    write_memory: A[Path | None, File(), WRITE_MEMORY, BASIC] = None
    check: A[bool, Bool(), CHECK, BASIC] = False
    force: A[bool, Bool(), FORCE, BASIC] = False
    slots: A[int, Int(1), SLOTS] = DEFAULT_SLOTS

    def __post_init__(self) -> None:
        if self.files.count(STDIN) > 1:
            raise InputError("- is given twice", "files", "give it once")
        if self.force and self.output in (None, STDIN) and self.write_memory is None:
            raise InputError(("has no effect without ", Name("output")), "force", "give both, or leave it out")
        if self.write_memory is not None:
            require_room("memory", "write_memory")
            if self.write_memory.suffix.lower() != ".tmx":
                raise InputError(f"{self.write_memory} is not a .tmx file", "write_memory", "name one")


def document_parser(program: str) -> Parser:
    parser = Parser(
        prog=program,
        usage="%(prog)s FILE [FILE ...] [-o FILE_OR_FOLDER] [options]",
        description="Decode whole documents sentence by sentence. Everything else in them stays as it is.",
        basic=("files", "memory", "src_lang", "tgt_lang"),
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help=FILES)
    add_flags(parser, "documents", DocumentOptions)
    add_flags(parser, "output", DocumentFlags, without=("files",))
    add_decoding_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None, program: str = "speculative-decoding document") -> int:
    return start_alone(document_parser(program), argv, decode_documents)


def decode_documents(chosen: argparse.Namespace) -> int:
    """Decode the documents and return the exit status: 1 if --check is given and anything is listed."""
    require_one_process()
    flags, options = flags_from(DocumentFlags, chosen), flags_from(DocumentOptions, chosen)
    options = replace(options, unit=effective_unit(options))
    outputs = outputs_of(flags)
    check_places(vars(chosen), flags, outputs)
    terms = [] if flags.keep is None else read_terms(flags.keep)
    documents = [document_of(*each, options) for each in zip(flags.files, outputs, strict=True)]
    with ExitStack() as stack:
        for document in documents:
            document.check(stack)
        config = run_config_from(chosen)
        languages = languages_of(config, flags)
        pair = config.open()
        config = config.with_memory(pair, names_languages=True)
        check_languages(pair.target.tokenizer, config.options)
        require_usable(pair.target.model, pair.target.tokenizer, config.options)
        say(config.describe(drafts_text=pair.drafts_text))
        settings = run_settings(config, pair, options, terms) | {"languages": languages, "outputs": names_of(flags)}
        journal = opened_journal(stack, settings, flags, outputs)
        session = stack.enter_context(config.session(pair))
        settle_exactness(session, flags.slots, {} if journal is None else journal.settings)
        stream = DocumentStream(documents, source_language(languages[0], flags.prefix))
        run = Run(documents, stream, journal)
        scheduler = PieceScheduler(
            session,
            rules_for(session, config.options, flags.prefix, frozenset(terms)),
            prefix=flags.prefix,
            slots=flags.slots,
            recorded=run.recorded,
        )
        try:
            with memory_writer(flags, options.unit, languages) as add_pair:
                run.decode(scheduler, add_pair, total_size(flags.files))
        except KeyboardInterrupt:
            way_out = "" if journal is None else "; run the same command again to continue"
            say(f"\ndocument: interrupted after {run.pieces} pieces{way_out}")
            return 130
        if journal is not None:
            journal.remove()
    return finish(run, scheduler, config, pair.folders | settings, flags)


def outputs_of(flags: DocumentFlags) -> list[Path | None]:
    """Return the file for each document; None is standard output. Raises `InputError`."""
    output, count = flags.output, len(flags.files)
    if output in (None, STDIN):
        if count > 1:
            raise InputError(f"several documents need a folder (got {count})", "output", "name one")
        return [None]
    assert output is not None
    if not is_folder(flags):
        return [Path(output)]
    if STDIN in flags.files:
        raise InputError("standard input has no name for a file in a folder", "output", "name a file")
    outputs: dict[str, Path | None] = {}
    for name in (Path(each).name for each in flags.files):
        if name.casefold() in outputs:
            raise InputError(f"two documents are named {name}", "files", "write them to different folders")
        outputs[name.casefold()] = Path(output, name)
    return [*outputs.values()]


def is_folder(flags: DocumentFlags) -> bool:
    output = flags.output or ""
    return len(flags.files) > 1 or output.endswith("/") or Path(output).is_dir()


def journal_path(flags: DocumentFlags, output: Path) -> Path:
    """Return the place of the journal. output: the file for the first document."""
    return output.with_name(".documents.journal" if len(flags.files) > 1 else f"{output.name}.journal")


def check_places(given: Mapping[str, Any], flags: DocumentFlags, outputs: Sequence[Path | None]) -> None:
    """Raise `InputError` for a file that cannot be written, or that is given for two purposes."""
    read: list[NamedFile] = [((Name("files"),), name) for name in flags.files if name != STDIN]
    read += [] if flags.keep is None else [((Name("keep"),), flags.keep)]
    written: list[NamedFile] = [((Name("output"),), path) for path in outputs if path is not None]
    if written:
        path = Path(written[0][1])
        written.append(((Name("output"), "'s journal"), journal_path(flags, path)))
        folder = path.parent if is_folder(flags) else path
        if is_folder(flags) and folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is not a folder", "output", "name one")
        if not folder.is_dir():
            require_writable("output", folder)
    if flags.write_memory is not None:
        require_writable("write_memory", flags.write_memory)
        written.append(((Name("write_memory"),), flags.write_memory))
    check_files(given, read, written)
    for (name, *_), each in written:
        if os.path.exists(each) and not os.path.isfile(each):
            raise InputError(f"{each} is not a regular file", name, "name another")


def read_terms(path: Path) -> list[str]:
    lines = map(str.strip, read_text(path, Name("keep")).split("\n"))
    return sorted({line for line in lines if line})


def document_of(name: str, output: Path | None, options: DocumentOptions) -> Document:
    """Return a document that is not open yet. Raises `InputError` for its format."""
    is_stdin = name == STDIN
    file = DocumentFile(sys.stdin.buffer if is_stdin else Path(name), options, "standard input" if is_stdin else name)
    return Document(file, output, replace(options, format=file.format), not is_stdin and Path(name).is_file())


def total_size(names: Sequence[str]) -> int | None:
    """Return the bytes of all documents, or None if one of them is a pipe."""
    return sum(map(os.path.getsize, names)) if all(map(os.path.isfile, names)) else None


def languages_of(config: RunConfig, flags: DocumentFlags) -> tuple[str | None, str | None]:
    """Return the languages of the documents and of the outputs, if the options or the prefix name them.

    Raises `InputError` if a memory is to be written and they are unknown.
    """
    match = LANGUAGE_PAIR.search(flags.prefix)
    names = match.groups() if match else (None, None)
    named = [name if name and (name.lower() in CODES or name in KNOWN_CODES) else None for name in names]
    languages = config.options.src_lang or named[0], config.options.tgt_lang or named[1]
    if flags.write_memory is not None:
        if None in languages:
            way_out = ("name them with ", Name("src_lang"), " and ", Name("tgt_lang"))
            raise InputError("needs the languages of the sources and the outputs", "write_memory", way_out)
        tags = [language_tag(each) for each in languages if each]
        if tags[0] == tags[1]:
            raise InputError(f"a memory has two languages, not {tags[0]} twice", "write_memory", "leave it out")
    return languages


def run_settings(config: RunConfig, pair: ModelPair, options: DocumentOptions, terms: Sequence[str]) -> dict[str, Any]:
    """Return every setting that affects the outputs."""
    reading = asdict(options)
    del reading["max_document"]
    digest = hashlib.sha256(json.dumps(terms).encode()).hexdigest() if terms else None
    return config.output_settings(pair) | reading | {"keep_sha256": digest}


def names_of(flags: DocumentFlags) -> list[str]:
    """Return what the run writes, relative to the journal."""
    documents = [Path(name).name for name in flags.files] if is_folder(flags) else [Path(flags.output or "").name]
    return documents if flags.write_memory is None else [*documents, str(flags.write_memory)]


def opened_journal(
    stack: ExitStack, settings: Mapping[str, Any], flags: DocumentFlags, outputs: Sequence[Path | None]
) -> Journal | None:
    """Open the journal, unless the output is not a file. Raises `InputError` for outputs of other runs."""
    journal = None
    if (first := outputs[0]) is not None:
        with writing(Name("output"), first.parent):
            first.parent.mkdir(exist_ok=True)
        path = journal_path(flags, first)
        journal = stack.enter_context(Journal.open(path, settings, force=flags.force))
        if not journal.is_new:
            say(f"continuing an interrupted run; {path} has its finished pieces")
            return journal
    for name, path in [*(("output", each) for each in outputs), ("write_memory", flags.write_memory)]:
        if path is not None and path.exists() and not flags.force:
            raise InputError(f"{path} already exists", name, ("name another, or replace it with ", Name("force")))
    return journal


@contextmanager
def memory_writer(flags: DocumentFlags, unit: str, languages: Sequence[str | None]) -> Iterator[AddPair | None]:
    """Yield a function that adds a pair to the memory, or None if no memory is written."""
    if flags.write_memory is None:
        yield None
        return
    from ..memory.tmx_writer import writing_tmx

    source, target = (language_tag(each) for each in languages if each)
    with writing_tmx(flags.write_memory, source, target, SEGMENTS[unit]) as add:
        yield add


@dataclass
class Run:
    """Decodes and writes documents.

    Attributes:
        pieces: The number of written pieces.
        seconds: The time that it took.
    """

    documents: Sequence[Document]
    stream: DocumentStream
    journal: Journal | None
    pieces: int = 0
    seconds: float = 0.0

    def recorded(self, piece: Piece) -> DecodedPiece | None:
        """Return the output for a piece that an earlier run has decoded."""
        if self.journal is None or self.stream.current is None:
            return None
        return self.journal.recorded(piece, self.stream.current.file.name)

    def decode(self, scheduler: PieceScheduler, add_pair: AddPair | None, size: int | None) -> None:
        """Decode and write all documents. size: their bytes, if they are known."""
        started = time.perf_counter()
        done = 0
        decoded = decode_parts(scheduler, self.stream)
        may_be_bar = self.journal is not None or not sys.stdout.isatty()  # a bar would mix with the document
        with progress(may_be_bar=may_be_bar) as show:
            for document, part, piece in write_documents(self.documents, decoded, write_to_stdout):
                done += len(document.file.encode(part.raw))
                if isinstance(part, Piece) and piece is not None:
                    self._keep(part, piece, add_pair)
                    self.seconds = time.perf_counter() - started
                    rate = scheduler.stats.generated_tokens / self.seconds
                    show(done, size, f"{self.pieces} pieces, {rate:.1f} tokens/s")

    def _keep(self, part: Piece, piece: DecodedPiece, add_pair: AddPair | None) -> None:
        self.pieces += 1
        if self.journal is not None:
            self.journal.append(part, piece)
        if add_pair is not None and not any(each.kind == FAILED for each in piece.findings):
            add_pair(piece.source, piece.text)


def finish(
    run: Run, scheduler: PieceScheduler, config: RunConfig, settings: Mapping[str, Any], flags: DocumentFlags
) -> int:
    """Print a summary and what a reader should check, write the statistics, and return the exit status."""
    stats = scheduler.stats
    rate = stats.generated_tokens / run.seconds if run.seconds else 0.0
    say(
        f"{run.pieces} pieces of {len(run.documents)} documents; {stats.generated_tokens} tokens of "
        f"{scheduler.prompts} prompts in {run.seconds:.1f} s, {rate:.1f} tokens/s"
    )
    for line in summary_notes(stats, config.options, scheduler.prompts, 0):
        say(line)
    found = {document.file.name: document.findings for document in run.documents}
    for name, findings in found.items():
        for line in report(findings, name):
            say(line)
    if flags.stats_json is not None:
        counts = {"pieces": run.pieces, "prompts": scheduler.prompts, "seconds": run.seconds, "slots": flags.slots}
        listed = [{"file": name, **each._asdict()} for name, findings in found.items() for each in findings]
        write_stats(flags.stats_json, {**settings, **counts, **stats.as_dict(), "findings": listed})
    return int(flags.check and any(found.values()))
