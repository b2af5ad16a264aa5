"""Reads TMX files (Translation Memory eXchange, versions 1.1 to 1.4b) written by memoQ, Trados, OmegaT and Okapi.

The file is parsed in parts. A document type declaration is accepted, but its DTD is never loaded. Entity declarations
are rejected, so that a small file cannot expand to a huge text. The content of codes (the inline elements bpt, ept, it,
ph and ut, with nested elements) is left out. The text of other inline elements, such as hi, is kept. White space is
collapsed, because some programs indent texts.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO
from xml.parsers import expat

from ..checkpoints.text import ENCODINGS
from ..errors import InputError
from .languages import choose_languages, closeness

CODES = {"bpt", "ept", "it", "ph", "ut"}
PART_BYTES = 1 << 16
MAX_TOKEN_BYTES = 1 << 20  # bytes of a tag, a comment or a document type
MAX_TEXT = 1 << 20  # characters in a segment
MAX_DEPTH = 100
MAX_NAMES = 10_000  # distinct element and attribute names
MAX_DEFAULTS = 20  # default attribute values, which a document type may declare
MAX_LANGUAGES = 1000


class Tmx:
    """A TMX file.

    Args:
        file: The file, which must be seekable.
        source_language: The requested source language, if any.
        target_language: The requested target language, if any.

    Attributes:
        languages: The chosen languages, or None before `choose`.
    """

    def __init__(self, file: BinaryIO, source_language: str | None, target_language: str | None) -> None:
        self._file = file
        self._wanted = source_language, target_language
        self.languages: tuple[str, str] | None = None

    def choose(self) -> None:
        """Read the languages' names, and choose the source and target languages. Raises `InputError`."""
        reader = Languages()
        for _ in reader.read(self._file):
            pass
        self.languages = choose_languages(reader.found, *self._wanted, reader.source)

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield each unit's pairs. Raises `InputError` for a damaged or hostile file."""
        assert self.languages is not None
        reader = Units(*self.languages)
        for _ in reader.read(self._file):
            yield from reader.pairs
            reader.pairs.clear()


class Reader:
    """Parses a file with limits on its content. Subclasses override `start`, `end` and `text`."""

    def read(self, file: BinaryIO) -> Iterator[None]:
        """Parse a file from its start. Yields after each chunk that it parses."""
        file.seek(0)
        part = file.read(PART_BYTES)
        self._depth = 0
        self._defaults = 0
        self._is_tmx = False
        parser = self._parser = expat.ParserCreate(encoding_of(part))
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self.text
        parser.EntityDeclHandler = self._refuse_entity
        parser.SkippedEntityHandler = self._refuse_unknown_entity
        parser.AttlistDeclHandler = self._count_default
        size = 0
        try:
            while part:
                parser.Parse(part, False)
                size += len(part)
                if size - parser.CurrentByteIndex > MAX_TOKEN_BYTES:
                    self._refuse(f"has a tag, comment or document type of over {MAX_TOKEN_BYTES} bytes")
                if len(parser.intern) > MAX_NAMES:
                    self._refuse(f"has over {MAX_NAMES} names of elements and attributes")
                yield
                part = file.read(PART_BYTES)
            parser.Parse(b"", True)
            yield
        except expat.ExpatError as error:
            reason = expat.ErrorString(error.code)
            raise InputError(f"is not XML or is damaged ({reason}, line {error.lineno})", "memory") from error
        except (LookupError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"has an unsupported encoding ({str(error)[:80]})", "memory", "convert it to UTF-8"
            ) from error

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        """Handle the start of an element."""

    def end(self, name: str) -> None:
        """Handle the end of an element."""

    def text(self, text: str) -> None:
        """Handle an element's text, or part of it."""

    def _start(self, name: str, attributes: Mapping[str, str]) -> None:
        name = local(name)
        if not self._is_tmx and name != "tmx":
            self._refuse(f"is XML, but not TMX (its first element is {name[:40]})")
        self._is_tmx = True
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._refuse(f"has over {MAX_DEPTH} levels of elements")
        self.start(name, attributes)

    def _end(self, name: str) -> None:
        self._depth -= 1
        self.end(local(name))

    def _refuse_entity(self, name: str, *_: Any) -> None:
        self._refuse(f"declares the entity {name[:40]}, which is not supported")

    def _refuse_unknown_entity(self, name: str, is_parameter: bool) -> None:
        if not is_parameter:
            self._refuse(f"has the undeclared entity &{name[:40]};")

    def _count_default(self, element: str, name: str, type: str, default: str | None, is_required: bool) -> None:
        self._defaults += default is not None
        if self._defaults > MAX_DEFAULTS:
            self._refuse(f"declares over {MAX_DEFAULTS} default values of attributes")

    def _refuse(self, problem: str) -> None:
        raise InputError(f"{problem} (line {self._parser.CurrentLineNumber})", "memory")


class Languages(Reader):
    """Finds the languages of a file.

    Attributes:
        found: The names of the languages.
        source: The source language, if the header names it.
    """

    def __init__(self) -> None:
        self.found: set[str] = set()
        self.source: str | None = None

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        if name == "tuv" and (language := language_of_variant(attributes)):
            self.found.add(language)
            if len(self.found) > MAX_LANGUAGES:
                self._refuse(f"has over {MAX_LANGUAGES} languages")
        elif name == "header" and attributes.get("srclang", "*all*").lower() != "*all*":
            self.source = attributes["srclang"]


class Units(Reader):
    """Collects a pair from each unit that contains texts in both languages.

    Attributes:
        pairs: The pairs collected since the caller last removed them.
    """

    def __init__(self, source_language: str, target_language: str) -> None:
        self.pairs: list[tuple[str, str]] = []
        self._wanted = source_language, target_language
        self._closeness: dict[str, tuple[int, int]] = {}  # keyed by a text's language
        self._best: list[tuple[int, str]] = []  # closeness and text for each side of the unit
        self._language = ""
        self._text: list[str] | None = None  # of the segment
        self._characters = 0
        self._codes = 0  # number of open elements whose content is left out

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        if self._text is not None:
            self._codes += bool(self._codes) or name in CODES
        elif name == "tu":
            self._best = [(0, ""), (0, "")]
        elif name == "tuv":
            self._language = language_of_variant(attributes)
        elif name == "seg" and self._best:
            self._text, self._characters = [], 0

    def text(self, text: str) -> None:
        if self._text is None or self._codes:
            return
        self._characters += len(text)
        if self._characters > MAX_TEXT:
            self._refuse(f"has a segment of over {MAX_TEXT} characters")
        self._text.append(text)

    def end(self, name: str) -> None:
        if self._codes:
            self._codes -= 1
        elif name == "seg" and self._text is not None:
            text = " ".join("".join(self._text).split())
            self._text = None
            for side, closeness in enumerate(self._fits()):
                if text and closeness > self._best[side][0]:
                    self._best[side] = closeness, text
        elif name == "tu" and self._best:
            (_, source), (_, target) = self._best
            if source and target:
                self.pairs.append((source, target))
            self._best = []

    def _fits(self) -> tuple[int, int]:
        """Return the current text's `closeness` to the source and the target language."""
        language = self._language
        if language not in self._closeness and len(self._closeness) < MAX_LANGUAGES:
            source, target = (closeness(each, language) for each in self._wanted)
            self._closeness[language] = source, target
        return self._closeness.get(language, (0, 0))


def local(name: str) -> str:
    """Return an element's name without its namespace, in lower case. Version 1.1 does not specify the case."""
    return name.rpartition(":")[2].lower()


def language_of_variant(attributes: Mapping[str, str]) -> str:
    """Return a text's language: xml:lang, or lang in version 1.1."""
    return attributes.get("xml:lang") or attributes.get("lang") or ""


def encoding_of(start: bytes) -> str | None:
    """Return the encoding to use instead of the declared one, or None. Some programs wrongly declare UTF-16."""
    if start[:2] in ENCODINGS or b"\0" in start[:2]:
        return "UTF-16"
    is_wrong = start.startswith(BOM_UTF8) or b"utf-16" in start[:100].lower()
    return "UTF-8" if is_wrong else None
