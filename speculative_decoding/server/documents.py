"""Texts and files of clients as documents. Imported only if the package has the room documents/."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from io import BytesIO, StringIO
from itertools import islice
from typing import Any

from ..decoding.prompt import TOKEN_CHARACTERS, fits
from ..documents.decoding import Rules, decode_piece
from ..documents.formats import FORMATS, format_of
from ..documents.lengths import DocumentFindings
from ..documents.options import DocumentOptions
from ..documents.outputs import DecodedPiece, Output
from ..documents.pieces import Piece, parts_of
from ..documents.reading import DocumentFile
from ..documents.rendering import Renderer
from ..documents.splitting import effective_unit, source_language
from ..documents.tokens import Block, Literal
from ..sampling.options import validate
from ..sampling.values import Text
from .detection import CHARACTERS
from .service import Service
from .texts import Prompting, Steps

SAMPLE_PARTS = 1000  # of a document from which its language is detected


class Document:
    """A text or a file as pieces; a `DividedText`.

    Args:
        lines: Its lines, each with its line end.
        options: How it is read.
        service: The service.
        prompting: How its prompts are decoded.
    """

    def __init__(self, lines: Iterable[str], options: DocumentOptions, service: Service, prompting: Prompting) -> None:
        self.prompting = prompting
        language = source_language(prompting.options.src_lang, prompting.prefix)
        self.parts = parts_of(lines, replace(options, unit=effective_unit(options)), language)
        self._rules = Rules(fitting(service, prompting))
        self._renderer = Renderer()
        self._findings = DocumentFindings()

    def steps(self, part: Literal | Piece) -> Steps | None:
        return decode_piece(part, self._rules) if isinstance(part, Piece) else None

    def output(self, text: str, finish_reason: str) -> Output:
        return Output(text, finish_reason)

    def add(self, part: Literal | Piece, result: DecodedPiece | None) -> str:
        if result is not None and isinstance(part, Piece):
            self._findings.add(part, result)
        return self._renderer.add(part, result)

    def findings(self) -> list[dict[str, Any]]:
        return [each._asdict() for each in self._findings.by_line()]


def text_document(text: str, format: str, service: Service, prompting: Prompting) -> Document:
    """Return a text of a request as a document. format: text or html."""
    return Document(StringIO(text, newline=""), DocumentOptions(format=format), service, prompting)


def fitting(service: Service, prompting: Prompting) -> Callable[[str], bool]:
    """Return whether the model and the limits allow a text as a prompt, after its prefix."""
    session, most = service.session, service.limits.max_prompt_tokens

    def is_allowed(text: str) -> bool:
        prompt = prompting.prefix + text
        if len(prompt) > most * TOKEN_CHARACTERS or not fits(
            session.model, session.tokenizer, prompt, prompting.options
        ):
            return False
        return len(session.tokenizer.encode(prompt, prompting.options.src_lang)) <= most

    return is_allowed


def sample_of_text(text: str, format: str) -> str:
    return sample(StringIO(text, newline=""), DocumentOptions(format=format))


def sample(lines: Iterable[str], options: DocumentOptions) -> str:
    """Return the first words of a document, without its markup."""
    found: list[str] = []
    for part in islice(FORMATS[options.format or "text"].parse(lines, options), SAMPLE_PARTS):
        if isinstance(part, Block):
            found.append(part.text)
            if sum(map(len, found)) > CHARACTERS:
                break
    return "\n".join(found)


@dataclass(frozen=True)
class GivenFile:
    """A file of a client; a `TextSource`.

    name: its name, without folders. options: how it is read.
    """

    name: str
    file: DocumentFile
    text: str
    options: DocumentOptions

    def sample(self) -> str:
        return sample(StringIO(self.text, newline=""), self.options)

    def divide(self, service: Service, prompting: Prompting) -> Document:
        return Document(StringIO(self.text, newline=""), self.options, service, prompting)

    def encode(self, text: str) -> bytes:
        return self.file.preamble + self.file.encode(text)


def open_file(content: bytes, name: str, format: str | None) -> GivenFile:
    """Read a file. Raises `InputError`.

    format: one of the names in `FORMATS`; None for that of the name's suffix.
    """
    options = DocumentOptions(format=validate("format", Text(tuple(FORMATS)), format or format_of(name, "file")))
    with DocumentFile(BytesIO(content), options, name) as file:
        return GivenFile(name, file, "".join(file.lines), options)
