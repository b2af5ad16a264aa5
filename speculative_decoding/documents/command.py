"""The command `document`: decodes whole documents to files, or one document to standard output."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated as A
from typing import Any

from ..checkpoints.text import WAY_OUT
from ..cli.common import read_text, require_one_process, say, start_alone, write_stats, write_to_stdout
from ..cli.flags import RunFlags, add_decoding_flags
from ..cli.parser import File, Parser, add_flags, flag, flags_from
from ..cli.progress import progress
from ..cli.run_config import LANGUAGES, RunConfig, run_config_from
from ..cli.runner import settle_exactness, summary_notes
from ..decoding.prompt import language_prefix
from ..engine import DEFAULT_SLOTS
from ..errors import InputError, Message, Name, joined
from ..loading.language_map import effective_languages, language_tag
from ..loading.pair import ModelPair
from ..loading.task_prefixes import only_languages
from ..rows.parts import PartScheduler
from ..runs.log import Log
from ..runs.places import NamedFile
from ..sampling import GenerationOptions
from ..sampling.values import BASIC, Bool, Flag, Int, Text
from ..subpackages import require_subpackage
from .api import rules_for
from .decoder import DocumentDecoder, require_usable
from .decoding import Rules, Steps, decode_piece
from .encodings import encoding_named, label_of, require_encoding
from .findings import FAILED, report
from .folders import FoundDocuments
from .formats import FORMATS
from .journal import LOG_FORMAT, Journal
from .matches import match_finder
from .options import FORMATS_OF, DocumentOptions
from .output import END, STANDARD, Destinations, Document, write_documents
from .pieces import Piece, check_format, parts_of
from .reading import DocumentFile
from .splitting import effective_unit, source_language, target_language
from .tokens import Literal

FILES = "documents or their folders; - is standard input"
OUTPUT = "file, or a folder for several documents (default: standard output)"
KEEP = "terms that must appear unchanged, one per line"
WRITE_MEMORY = "write the sources and outputs as a TMX file"
USE_MATCHES = Message("use the translations of equal sources in {memory} without decoding them")
CHECK = "exit with status 1 if there are findings"
FORCE = "replace existing outputs, and start over if an interrupted run cannot be continued"
OUTPUT_ENCODING = "encoding of the outputs, except HTML and XLIFF (default: that of each document)"
SLOTS = "number of prompts to decode together"
SEGTYPES = {"sentence": "sentence", "line": "block", "paragraph": "paragraph"}  # unit -> segment type of TMX

AddPair = Callable[[str, str], None]


@dataclass(frozen=True)
class DocumentFlags(RunFlags):
    """The flags of `document` except those of `DocumentOptions` and the decoding options."""

    files: A[Sequence[str], Text(), FILES] = ()
    output: A[str | None, Text(), OUTPUT, BASIC, Flag(short="-o", metavar="FILE_OR_FOLDER")] = None
    output_encoding: A[str | None, Text(), OUTPUT_ENCODING, Flag(metavar="NAME")] = None
    keep: A[Path | None, File(), KEEP, BASIC] = None
    use_matches: A[bool, Bool(), USE_MATCHES, BASIC] = False
    write_memory: A[Path | None, File(), WRITE_MEMORY, BASIC] = None
    check: A[bool, Bool(), CHECK, BASIC] = False
    force: A[bool, Bool(), FORCE, BASIC] = False
    slots: A[int, Int(1), SLOTS] = DEFAULT_SLOTS

    def __post_init__(self) -> None:
        if self.output_encoding is not None:
            require_encoding(self.output_encoding, "output_encoding")
        if self.force and self.output in (None, STANDARD) and self.write_memory is None:
            raise InputError(Message("has no effect without {output}"), "force", "give both, or leave it out")
        if self.write_memory is not None:
            require_subpackage("memory", "write_memory")
            if self.write_memory.suffix.lower() != ".tmx":
                raise InputError(f"{self.write_memory} is not a .tmx file", "write_memory", "name one")


def document_parser(program: str) -> Parser:
    parser = Parser(
        prog=program,
        usage="%(prog)s FILE [FILE ...] [-o FILE_OR_FOLDER] [options]",
        description="Decode whole documents sentence by sentence, and copy everything else unchanged.",
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
    """Decode the documents and return the exit status.

    The status is 2 if a document in a folder cannot be read or an output cannot be encoded, and 1 if --check is given
    and there are findings.
    """
    require_one_process()
    flags, options = flags_from(DocumentFlags, chosen), flags_from(DocumentOptions, chosen)
    options = replace(options, unit=effective_unit(options))
    if flags.use_matches and "memory" not in chosen:
        raise InputError(Message("has no effect without {memory}"), "use_matches", "give both, or leave it out")
    found = FoundDocuments.search(flags.files, flags.output, options.format)
    places = Destinations(found.files, flags.output, flags.write_memory, found.names if found.has_folders else None)
    places.check(vars(chosen), [] if flags.keep is None else [NamedFile("keep", flags.keep)])
    terms = [] if flags.keep is None else read_terms(flags.keep)
    with ExitStack() as stack:
        target = target_language(getattr(chosen, "tgt_lang", None), flags.prefix)
        documents = readable_documents(found, places, options, flags.output_encoding, target, stack)
        config = run_config_from(chosen, used=["memory"] if flags.use_matches else ())
        pair = config.open()
        model, tokenizer = pair.target.model, pair.target.tokenizer
        named = config.options
        config = config.with_memory(pair, used_languages(flags, options.unit))
        own = config.options
        prefix = flags.prefix or language_prefix(model, tokenizer, own.src_lang, own.tgt_lang)
        languages = languages_of(named, prefix, only_languages(model.task_prefixes), flags.write_memory)
        if (known := target_language(languages[1], prefix)) != target:
            documents = documents_into(known, documents, found)
        match = match_finder(config.memory, *languages) if flags.use_matches else None
        require_usable(model, tokenizer, config.options, prefix)
        say(config.describe(pair))
        settings = run_settings(config, pair, options, terms) | {"languages": languages, "outputs": places.names}
        settings |= {"use_matches": True} if flags.use_matches else {}
        journal = opened_journal(stack, settings, places, flags.force)
        session = stack.enter_context(config.session(pair))
        settle_exactness(session, flags.slots, None if journal is None else journal.log)
        language = source_language(languages[0], prefix)
        rules = rules_for(session, config.options, prefix, frozenset(terms), match)
        has_match = None if match is None else rules.has_match
        run = Run(documents, language, known, journal, found.failures, has_match)
        limit: dict[str, Any] = {"max_tokens": config.options.max_tokens} if "max_tokens" in config.given else {}
        steps = partial(run.steps, rules)
        decoder = DocumentDecoder(session, rules, prefix=prefix, slots=flags.slots, steps=steps, **limit)
        try:
            with memory_writer(flags, options.unit, languages) as add_pair:
                run.decode(decoder, add_pair, total_size(documents))
        except KeyboardInterrupt:
            way_out = "" if journal is None else "; run the same command again to continue"
            say(f"\ndocument: interrupted after {run.finished} pieces{way_out}")
            return 130
        if journal is not None and not any(document.error for document in documents):
            journal.log.remove()
    return finish(run, decoder.scheduler, config, pair.folders | settings, flags)


def read_terms(path: Path) -> list[str]:
    lines = map(str.strip, read_text(path, Name("keep")).split("\n"))
    return sorted({line for line in lines if line})


def readable_documents(
    found: FoundDocuments,
    places: Destinations,
    options: DocumentOptions,
    output_encoding: str | None,
    target: str | None,
    stack: ExitStack,
) -> list[Document]:
    """Return the documents that can be read. The errors of other documents in folders are added to `found.failures`.

    target: The BCP 47 tag of the outputs' language, or None if unknown.

    Raises `InputError` for another document that cannot be read, and if none of the documents can be read.
    """
    readable: list[Document] = []
    for name, output in zip(found.files, places.outputs, strict=True):
        document = document_of(name, output, options, output_encoding)
        document.import_parser()
        try:
            document.check(stack, target)
        except InputError as error:
            if name not in found.in_folders:
                raise
            found.failures[name] = error
        else:
            readable.append(document)
    if not readable:
        errors = [*found.failures.values()]
        if len(errors) == 1:
            raise errors[0]
        each = joined(" | ", (error.problem for error in errors))
        raise InputError(Message("none of the documents can be read ({each})", each=each), "files", "repair them")
    formats = ", ".join(sorted({each.file.format for each in readable}))
    for name in FORMATS_OF:
        if getattr(options, name) and not any(getattr(each.options, name) for each in readable):
            problem = f"has no effect on the formats of these documents ({formats})"
            raise InputError(problem, name, "leave it out")
    if output_encoding is not None and all(FORMATS[each.file.format].has_references for each in readable):
        problem = f"has no effect on {formats}, whose documents keep their encoding"
        raise InputError(problem, "output_encoding", "leave it out")
    if options.encoding is not None:
        for document in readable:
            note_encoding(document.file, options.encoding)
    for line in found.notes():
        say(line)
    if found.failures:
        count = len(found.failures)
        say(f"{count} {'file' if count == 1 else 'files'} cannot be read, and will be named at the end")
    return readable


def documents_into(target: str | None, documents: Sequence[Document], found: FoundDocuments) -> list[Document]:
    """Return the documents that are for this language, which the model determines. See `readable_documents`."""
    suitable: list[Document] = []
    for document in documents:
        try:
            with document.reading():
                check_format(document.file.lines, document.options, target)
        except InputError as error:
            if document.file.name not in found.in_folders or len(documents) == 1:
                raise
            found.failures[document.file.name] = error
        else:
            suitable.append(document)
    return suitable


def note_encoding(file: DocumentFile, given: str) -> None:
    """Print a note if a document probably has another encoding than the given one."""
    if file.own_encoding not in (None, encoding_named(given)):
        say(f"note: {file.name} is read as {label_of(file.own_encoding or '')}, which it declares, not as {given}")
    elif file.is_utf8:
        say(f"note: {file.name} is read as {given}, but is also valid UTF-8")


def document_of(
    name: str,
    output: Path | None,
    options: DocumentOptions,
    output_encoding: str | None = None,
) -> Document:
    """Return a document that is not open yet. Raises `InputError` for an unsupported format.

    output_encoding: The encoding of the output (default: the document's).
    """
    is_stdin = name == STANDARD
    which = "its" if options.encoding is None else "another"
    file = DocumentFile(
        sys.stdin.buffer if is_stdin else Path(name),
        options,
        "standard input" if is_stdin else name,
        output_encoding=None if output_encoding is None else encoding_named(output_encoding),
        way_out=Message("name {which} {encoding}, or {convert}", which=which, convert=WAY_OUT),
    )
    return Document(file, output, options.for_format(file.format))


def total_size(documents: Sequence[Document]) -> int | None:
    """Return the total size of the documents in bytes, or None if one of them is not a regular file."""
    names = [document.file.name for document in documents]
    return sum(map(os.path.getsize, names)) if all(map(os.path.isfile, names)) else None


def used_languages(flags: DocumentFlags, unit: str) -> Sequence[str]:
    """Return the language options that have an effect even if the model has no languages."""
    if flags.write_memory is not None:
        return LANGUAGES
    return ("src_lang",) if unit == "sentence" else ()  # sentence boundaries depend on the language


def languages_of(
    options: GenerationOptions, prefix: str, own: tuple[str | None, str | None], write_memory: Path | None
) -> tuple[str | None, str | None]:
    """Return the languages of the documents and of the outputs, if the options, the prefix or the model determine them.

    own: The only languages between which the model translates, if they are known.

    Raises `InputError` if `write_memory` is given and a language is unknown or both languages are the same.
    """
    languages = effective_languages(options.src_lang, options.tgt_lang, prefix, own)
    if write_memory is not None:
        if None in languages:
            way_out = Message("name them with {src_lang} and {tgt_lang}")
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
    limit = {} if "max_tokens" in config.given else {"max_tokens": None}  # depends on each prompt
    return config.output_settings(pair) | reading | limit | {"keep_sha256": digest}


def opened_journal(stack: ExitStack, settings: Mapping[str, Any], places: Destinations, force: bool) -> Journal | None:
    """Open the journal, unless the document goes to standard output. Raises `InputError` if an output exists."""
    journal = None
    if places.journal is not None:
        places.make_folder()
        log = stack.enter_context(Log.open(places.journal, LOG_FORMAT, settings, force=force))
        journal = Journal(log, force=force)
        if not journal.log.is_new:
            say(f"continuing an interrupted run; {places.journal} has its finished pieces")
            return journal
    if not force:
        places.require_new()
    return journal


def memory_writer(
    flags: DocumentFlags, unit: str, languages: Sequence[str | None]
) -> AbstractContextManager[AddPair | None]:
    """Return a context manager that yields a function to add a pair to the memory, or None if no memory is written."""
    if flags.write_memory is None:
        return nullcontext()
    from ..memory.tmx_writer import writing_tmx

    source, target = (language_tag(each) for each in languages if each)
    return writing_tmx(flags.write_memory, source, target, SEGTYPES[unit], replaces=flags.force)


@dataclass
class Run:
    """One run of the command: decodes documents and writes their outputs.

    Args:
        documents: The documents.
        language: The ISO code of the documents' language.
        target: The BCP 47 tag of the outputs' language, or None if unknown.
        journal: The journal, or None if the document goes to standard output.
        failures: The errors of the documents that cannot be read or written, keyed by name.
        has_match: See `parts_of`.

    Attributes:
        current: The document whose part was read last.
        finished: The number of pieces whose outputs are known.
        pieces: The number of pieces that have been written.
        matches: How many of them are from the memory.
        seconds: The elapsed time.
    """

    documents: Sequence[Document]
    language: str
    target: str | None
    journal: Journal | None
    failures: dict[str, InputError] = field(default_factory=dict)
    has_match: Callable[[Piece], bool] | None = None
    current: Document | None = None
    finished: int = 0
    pieces: int = 0
    matches: int = 0
    seconds: float = 0.0

    def parts(self) -> Iterator[Literal | Piece]:
        """Yield the parts of all documents in order, with `END` after each document."""
        for document in self.documents:
            self.current = document
            with document.reading():
                lines = document.file.lines
                yield from parts_of(lines, document.options, self.language, self.target, self.has_match)
            yield END

    def steps(self, rules: Rules, number: int, piece: Piece) -> Steps:
        """Return the recorded output for a piece. If there is none, decode the piece and record its output."""
        decoded = None
        if self.journal is not None and self.current is not None:
            decoded = self.journal.recorded(number, piece, self.current.file.name)
        is_new = decoded is None
        if decoded is None:
            decoded = yield from decode_piece(piece, rules)
        self.finished += 1
        if is_new and self.journal is not None:
            self.journal.append(number, piece, decoded)
        return decoded

    def decode(self, decoder: DocumentDecoder, add_pair: AddPair | None, size: int | None) -> None:
        """Decode and write all documents. size: their total size in bytes, if known."""
        started = time.perf_counter()
        scheduler = decoder.scheduler
        done = 0
        decoded = decoder.decode(self.parts())
        replaces = self.journal is not None and self.journal.force
        may_be_bar = self.journal is not None or not sys.stdout.isatty()  # a bar would be mixed with the document
        with progress(may_be_bar=may_be_bar) as show:

            def show_rate() -> None:
                self.seconds = time.perf_counter() - started
                rate = scheduler.stats.generated_tokens / self.seconds
                show(done, size, f"{self.pieces} pieces, {scheduler.num_prompts} prompts, {rate:.1f} tokens/s")

            scheduler.on_output = show_rate
            for document, part, piece in write_documents(self.documents, decoded, write_to_stdout, replaces=replaces):
                done += document.file.num_bytes(part.raw)
                if document.error is not None and document.file.name not in self.failures:
                    self.failures[document.file.name] = document.error
                    say(f"note: {document.error.message(flag)}")
                if piece is not None:
                    self.pieces += 1
                    self.matches += piece.from_memory
                    if add_pair is not None and not any(each.kind == FAILED for each in piece.findings):
                        add_pair(piece.source, piece.text)
                    show_rate()


def finish(
    run: Run, scheduler: PartScheduler, config: RunConfig, settings: Mapping[str, Any], flags: DocumentFlags
) -> int:
    """Print a summary and the findings, write the statistics, and return the exit status."""
    stats = scheduler.stats
    rate = stats.generated_tokens / run.seconds if run.seconds else 0.0
    count = len(run.documents)
    summary = (
        f"{run.pieces} pieces of {count} document{'s' * (count > 1)}; {stats.generated_tokens} tokens of "
        f"{scheduler.num_prompts} prompts in {run.seconds:.1f} s, {rate:.1f} tokens/s"
    )
    found = {document.file.name: document.findings for document in run.documents}
    lists = (report(findings, name) for name, findings in found.items())
    notes = summary_notes(stats, config.options, scheduler.num_prompts, 0)
    if run.matches:
        notes.append(f"LOSSY: {run.matches} segment{'s' * (run.matches > 1)} from the memory, not decoded")
    failed = [error.message(flag) for error in run.failures.values()]
    if failed:
        total = len({*found, *run.failures})
        failed.insert(0, f"{len(failed)} of {total} {'document was' if total == 1 else 'documents were'} not written:")
    say("\n".join([summary, *notes, *chain.from_iterable(lists), *failed]))
    if flags.stats_json is not None:
        counts = {
            "pieces": run.pieces,
            "matches": run.matches,
            "prompts": scheduler.num_prompts,
            "seconds": run.seconds,
            "slots": flags.slots,
        }
        listed = [{"file": name, **each._asdict()} for name, findings in found.items() for each in findings]
        statistics = stats.as_dict() | {"lossless": stats.lossless and not run.matches}
        failures = [{"file": name, "error": error.message(flag)} for name, error in run.failures.items()]
        write_stats(flags.stats_json, {**settings, **counts, **statistics, "findings": listed, "failures": failures})
    return 2 if failed else int(flags.check and any(found.values()))
