"""Divides clients' texts and files into parts, as `document` does. Requires the subpackage documents/."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from io import BytesIO, StringIO
from itertools import islice
from pathlib import PurePath
from typing import Any

from ..checkpoints.text import WAY_OUT
from ..decoding.prompt import TOKEN_CHARACTERS, fits, usual_max_tokens
from ..documents.decoding import Rules, Steps, decode_piece
from ..documents.formats import FORMATS, format_of
from ..documents.options import DocumentOptions
from ..documents.output_checks import DocumentFindings
from ..documents.pieces import Piece, check_format, parts_of
from ..documents.reading import DocumentFile
from ..documents.rendering import Renderer
from ..documents.results import DecodedPiece
from ..documents.splitting import effective_unit, source_language, target_language
from ..documents.tokens import Block, Literal
from ..errors import InputError, Message
from ..loading.language_map import effective_languages
from ..sampling import GenerationOptions
from ..sampling.options import validate
from ..sampling.values import Text
from ..session import Session
from .detection import CHARACTERS
from .limits import Limits

SAMPLE_PARTS = 1000  # number of a document's parts that are read to detect its language


@dataclass(frozen=True)
class Prompting:
    """Creates the prompts for the sources of a text.

    Args:
        prefix: The text before each source.
        options: The options of all prompts. `max_tokens` is the maximum; the limit for a short source is smaller.
        session: The models. The target's tokenizer counts the tokens of the sources.
        limits: The limits of the server.
        languages: The languages of the texts and the outputs, according to the request. Empty if it names none.
    """

    prefix: str
    options: GenerationOptions
    session: Session
    limits: Limits
    languages: tuple[str, str] = ("", "")

    def prompt(self, text: str) -> dict[str, Any]:
        """Return the prompt for a source, and its options."""
        prompt, options = self.prefix + text, self.options
        usual = usual_max_tokens(len(self.session.tokenizer.encode(prompt, options.src_lang)))
        return {"prompt": prompt, "options": options.with_values(max_tokens=min(usual, options.max_tokens))}


class Document:
    """A text or file from a client. `begin` sets `prompting` and `parts`.

    Args:
        text: The content.
        options: The options for reading it.
        file: The file, or None for a text.

    Attributes:
        finished: The number of characters of `text` whose output has been written.
    """

    prompting: Prompting
    parts: Iterator[Literal | Piece]

    def __init__(self, text: str, options: DocumentOptions, file: DocumentFile | None = None) -> None:
        self.text = text
        self.file = file
        self._options = replace(options, unit=effective_unit(options))
        self._renderer = Renderer()
        self._findings = DocumentFindings()
        self.finished = 0

    def sample(self) -> str:
        """Return the beginning of the text without markup, for language detection."""
        if self._options.format == "text":
            return self.text
        found: list[str] = []
        parts = FORMATS[self._options.format or "text"].parse(StringIO(self.text, newline=""), self._options, None)
        for part in islice(parts, SAMPLE_PARTS):
            if isinstance(part, Block):
                found.append(part.text)
                if sum(map(len, found)) > CHARACTERS:
                    break
        return "\n".join(found)

    def begin(self, prompting: Prompting) -> None:
        """Set `prompting`, and `parts` to an iterator. Each step of the iterator may take seconds."""
        self.prompting = prompting
        options, prefix = prompting.options, prompting.prefix
        languages = effective_languages(options.src_lang, options.tgt_lang, prefix, prompting.languages)
        language, target = source_language(languages[0], prefix), target_language(languages[1], prefix)
        self.parts = parts_of(StringIO(self.text, newline=""), self._options, language, target)
        self._rules = Rules(fitting(prompting))

    def steps(self, part: Literal | Piece) -> Steps | None:
        """Return the steps that decode a part, or None if the part is copied."""
        return decode_piece(part, self._rules) if isinstance(part, Piece) else None

    def add(self, part: Literal | Piece, result: DecodedPiece | None) -> str:
        """Return the output for the next part. result: The result of the part's steps, or None for a copied part."""
        self._findings.add(part, result)
        self.finished += len(part.raw)
        return self._renderer.add(part, result)

    def findings(self) -> list[dict[str, Any]]:
        """Return the findings, which are the places in the output that a reader should check."""
        return [each._asdict() for each in self._findings.by_line()]


def fitting(prompting: Prompting) -> Callable[[str], bool]:
    """Return a predicate that checks whether a source, with its prefix, is within the limits of model and server."""
    session, most = prompting.session, prompting.limits.max_prompt_tokens

    def is_allowed(text: str) -> bool:
        prompt = prompting.prefix + text
        if len(prompt) > most * TOKEN_CHARACTERS or not fits(
            session.model, session.tokenizer, prompt, prompting.options
        ):
            return False
        return len(session.tokenizer.encode(prompt, prompting.options.src_lang)) <= most

    return is_allowed


def open_file(content: bytes, name: str, format: str | None, fields: Mapping[str, Any]) -> Document:
    """Read a file. Raises `InputError`.

    format: One of the names in `FORMATS`. If None, the name's suffix determines the format.
    fields: Further `DocumentOptions`, such as the columns of a table.
    """
    if format is None and not PurePath(name).suffix:
        way_out = Message("rename it, or name a {format}")
        raise InputError(f"{name or 'a file without a name'}: has no suffix such as .txt", "file", way_out)
    format = validate("format", Text(tuple(FORMATS)), format or format_of(name, "file"))
    options = DocumentOptions(format=format, **fields)
    way_out = Message("name its {encoding}, or {convert}", convert=WAY_OUT)
    with DocumentFile(BytesIO(content), options, name, way_out=way_out) as file:
        text = "".join(file.lines)
        check_format(StringIO(text, newline=""), options)  # so that no damaged file is decoded in part
        return Document(text, options, file)
