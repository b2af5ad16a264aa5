"""Writes the decoded parts of several documents, which arrive as one stream, to files or standard output.

A file is replaced atomically: parts are written to a temporary file in the same folder, which is renamed when the
document is complete.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from ..errors import InputError
from ..runs.places import new_file
from .decoder import Decoded
from .findings import Finding
from .formats import FORMATS
from .lengths import DocumentFindings
from .options import DocumentOptions
from .outputs import DecodedPiece
from .pieces import Piece
from .reading import DocumentFile
from .rendering import Renderer
from .tokens import Literal

END = Literal("")  # marks the end of each document in a stream of parts
WAY_OUT = "free some space, or name another output"

Write = Callable[[bytes], None]


@dataclass
class Document:
    """A document and its destination.

    Args:
        file: The document.
        output: The file to write; None writes to standard output.
        options: How to read it.
        findings: The findings of the document. Empty until all of its parts have been written.
    """

    file: DocumentFile
    output: Path | None
    options: DocumentOptions
    findings: list[Finding] = field(default_factory=list)

    def check(self, stack: ExitStack) -> None:
        """Read the document once to validate it. Raises `InputError`. stack: closes a document that must stay open."""
        format = FORMATS[self.file.format]
        parse = format.parse  # imports packages, which may be missing
        if not self.file.can_reopen:
            stack.enter_context(self.file)
        with self.reading():
            deque(parse(self.file.lines, self.options) if format.has_errors else (), maxlen=0)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Open the document unless it is open, and prepend its name to errors about its lines."""
        with self.file if self.file.can_reopen else nullcontext():
            try:
                yield
            except InputError as error:
                raise error.at(self.file.name) from error


def write_documents(
    documents: Iterable[Document], decoded: Iterable[Decoded], write_to_stdout: Write, *, replaces: bool = False
) -> Iterator[tuple[Document, Literal | Piece, DecodedPiece | None]]:
    """Write the decoded parts of documents, each followed by `END`. Yields each part after it was written.

    replaces: Whether existing files with another content are replaced.

    Raises:
        InputError: A file cannot be written. No partial file remains.
    """
    stream = iter(decoded)
    for document in documents:
        findings = DocumentFindings()
        renderer = Renderer()
        with opened(document.output, write_to_stdout, replaces) as write:
            write(document.file.preamble)
            for part, piece in takewhile(lambda each: each[0] is not END, stream):
                write(document.file.encode(renderer.add(part, piece)))
                findings.add(part, piece)
                yield document, part, piece
        document.findings = findings.by_line()


@contextmanager
def opened(path: Path | None, write_to_stdout: Write, replaces: bool) -> Iterator[Write]:
    """Yield a function that writes to a new file, or to standard output. See `write_documents`."""
    if path is None:
        yield write_to_stdout
        return
    with new_file(
        path.resolve(), "output", WAY_OUT, replaces=replaces
    ) as write:  # resolved, so a symbolic link is kept
        yield write
