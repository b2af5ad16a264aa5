"""Writes the outputs of a `document` run: chooses the output files, and writes the decoded parts of all documents.

A file is replaced atomically: parts are written to a temporary file in the same folder, which is renamed when the
document is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

from ..cli.flags import check_files
from ..errors import InputError, Message, Name, writing
from ..runs.places import NamedFile, folded, new_file, not_replaced, require_folder, require_writable
from ..sampling.options import is_address
from .decoder import Decoded
from .encodings import label_of
from .findings import Finding
from .formats import FORMATS
from .options import DocumentOptions
from .output_checks import DocumentFindings
from .pieces import Piece, check_format
from .reading import DocumentFile
from .rendering import Renderer
from .results import DecodedPiece
from .tokens import Literal

STANDARD = "-"  # standard input, or standard output
END = Literal("")  # marks the end of each document in a stream of parts
UNWRITTEN = Message(
    "run the same command with {output_encoding} utf-8, and with {force} if other outputs exist; nothing is decoded "
    "again"
)
WAY_OUT = "free some space, or name another output"

Write = Callable[[bytes], None]


@dataclass(frozen=True)
class Destinations:
    """The files that a run writes.

    Args:
        files: The documents; - is standard input.
        output: The name of a file or folder; None or - is standard output.
        memory: The translation memory to write, or None.
        paths: The paths of the outputs in the output folder, if some of the documents were found in folders.

    Raises:
        InputError: The documents cannot be written to this output, for example several documents to one file.
    """

    files: Sequence[str]
    output: str | None
    memory: Path | None = None
    paths: Sequence[Path] | None = None

    def __post_init__(self) -> None:
        if is_address(self.output):
            raise InputError(f"{self.output} is an address", "output", "name a file or a folder")
        count = len(self.files)
        if self.output in (None, STANDARD):
            if self.paths is not None or count > 1:
                raise InputError(f"several documents need a folder (got {count})", "output", "name one")
        elif self._is_folder and STANDARD in self.files:
            raise InputError("standard input has no name for a file in a folder", "output", "name a file")
        if twice := repeated_path(self._relative):
            raise InputError(f"two documents are named {twice}", "files", "decode them one by one")

    @cached_property
    def outputs(self) -> list[Path | None]:
        """The file for each document; None is standard output."""
        if self.output in (None, STANDARD):
            return [None]
        assert self.output is not None
        return [Path(self.output, path) for path in self._relative] if self._is_folder else [Path(self.output)]

    @property
    def folder(self) -> Path | None:
        """The folder to create if it does not exist; None if there is none."""
        return Path(self.output) if self.output is not None and self._is_folder else None

    @property
    def journal(self) -> Path | None:
        first = self.outputs[0]
        if first is None:
            return None
        if self.folder is not None and (self.paths is not None or len(self.files) > 1):
            return self.folder / ".documents.journal"
        return first.with_name(f"{first.name}.journal")

    @property
    def names(self) -> list[str]:
        """The names of the outputs, relative to the journal's folder, and the path of the translation memory."""
        paths = [*map(str, self._relative)] if self._is_folder else [each.name for each in self.outputs if each]
        return paths if self.memory is None else [*paths, str(self.memory)]

    @property
    def _relative(self) -> Sequence[Path]:
        """The paths of the outputs in the output folder."""
        return [Path(Path(name).name) for name in self.files] if self.paths is None else self.paths

    @property
    def _is_folder(self) -> bool:
        output = self.output or ""
        return self.paths is not None or len(self.files) > 1 or output.endswith("/") or Path(output).is_dir()

    def check(self, given: Mapping[str, Any], read: Sequence[NamedFile]) -> None:
        """Raise `InputError` if a file cannot be written, or is also used for another purpose.

        given, read: see `check_files`.
        """
        if self.folder is not None:
            require_folder(self.folder, "output")
            if not self.folder.exists():  # it is created, but not its parent folder
                require_writable(self.folder, "output")
        for name, path in self._written:
            if name == "output" and self.folder is not None:
                require_folder(path.parent, name)
            else:
                require_writable(path, name)
        inputs = [NamedFile("files", name) for name in self.files if name != STANDARD]
        written = [NamedFile(name, path) for name, path in self._written]
        if self.journal is not None:
            written.append(NamedFile("output", self.journal, "'s journal"))
        check_files(given, [*inputs, *read], written)

    def make_folder(self) -> None:
        if self.folder is not None:
            with writing(Name("output"), self.folder):
                self.folder.mkdir(exist_ok=True)

    def require_new(self) -> None:
        """Raise `InputError` if a file already exists."""
        for name, path in self._written:
            if path.exists():
                raise not_replaced(path, "already exists", name)

    @property
    def _written(self) -> list[tuple[str, Path]]:
        files = [("output", path) for path in self.outputs if path is not None]
        return files if self.memory is None else [*files, ("write_memory", self.memory)]


def repeated_path(paths: Sequence[Path]) -> Path | None:
    """Return a path that occurs twice, or that is a folder for another one, on any file system; None without any."""
    found: set[str] = set()
    for path in paths:
        if (name := folded(str(path))) in found:
            return path
        found.add(name)
    return next((parent for path in paths for parent in path.parents if folded(str(parent)) in found), None)


@dataclass
class Document:
    """A document and its destination.

    Args:
        file: The document.
        output: The file to write; None writes to standard output.
        options: How to read it.
        findings: The findings for the document. Empty until all of its parts have been written.
        error: The error if the output is not written because its encoding lacks a character, otherwise None.
    """

    file: DocumentFile
    output: Path | None
    options: DocumentOptions
    findings: list[Finding] = field(default_factory=list)
    error: InputError | None = None

    def import_parser(self) -> None:
        """Import the parser of the document's format. Raises `InputError` if a required package is missing."""
        _ = FORMATS[self.file.format].parse

    def check(self, stack: ExitStack, target: str | None = None) -> None:
        """Read the document once to validate it. Raises `InputError`.

        Args:
            stack: Closes a document that stays open.
            target: The BCP 47 tag of the output's language, or None if unknown.
        """
        if not self.file.can_reopen:
            stack.enter_context(self.file)
        with self.reading():
            check_format(self.file.lines, self.options, target)
        if self.output is None and not self.file.can_write_all:
            problem = f"{label_of(self.file.output_encoding)} may lack characters of the output"
            raise InputError(problem, "output_encoding", Message("name utf-8, or name a file with {output}"))

    def encoded(self, text: str, part: Literal | Piece) -> bytes:
        """Encode the output for a part. Returns b"" and sets `error` if the encoding lacks a character."""
        try:
            return self.file.encode(text)
        except InputError as error:
            place = f"{self.file.name}: line {part.line}" if isinstance(part, Piece) else self.file.name
            problem = Message("{what}, so {path} is not written", what=error.problem, path=self.output)
            self.error = InputError(problem, way_out=UNWRITTEN).at(place)
            return b""

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Open the document unless it is already open, and prepend its name to errors about its lines."""
        with self.file if self.file.can_reopen else nullcontext():
            try:
                yield
            except InputError as error:
                raise error.at(self.file.name) from error


class Unwritten(Exception):
    """Discards an output that is incomplete."""


def write_documents(
    documents: Iterable[Document], decoded: Iterable[Decoded], write_to_stdout: Write, *, replaces: bool = False
) -> Iterator[tuple[Document, Literal | Piece, DecodedPiece | None]]:
    """Write the decoded parts of documents. `END` follows each document's parts. Yields each part after writing it.

    If the encoding of an output lacks a character, its document's `error` is set, and this output is not written.

    replaces: Whether existing files with different content are replaced.

    Raises:
        InputError: A file cannot be written. No partial file remains.
    """
    stream = iter(decoded)
    for document in documents:
        findings = DocumentFindings()
        renderer = Renderer()
        with suppress(Unwritten), opened(document.output, write_to_stdout, replaces) as write:
            write(document.file.preamble)
            for part, piece in takewhile(lambda each: each[0] is not END, stream):
                text = renderer.add(part, piece)
                if document.error is None:
                    write(document.encoded(text, part))
                findings.add(part, piece)
                yield document, part, piece
            if document.error is not None:
                raise Unwritten
        document.findings = findings.by_line()


@contextmanager
def opened(path: Path | None, write_to_stdout: Write, replaces: bool) -> Iterator[Write]:
    """Yield a function that writes to a new file or to standard output. See `write_documents`."""
    if path is None:
        yield write_to_stdout
        return
    with new_file(
        path.resolve(), "output", WAY_OUT, replaces=replaces
    ) as write:  # resolved, so that a symbolic link is kept
        yield write
