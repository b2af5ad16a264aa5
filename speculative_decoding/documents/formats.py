"""The formats of documents: how each is found by its suffix, and which module reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import PurePath
from typing import Any, cast

from ..errors import InputError, Name
from .tokens import Part

# Lines of a document, each with its line end, and the `DocumentOptions` -> the parts of the document
Parse = Callable[[Iterable[str], Any], Iterator[Part]]


INSTALL = 'pip install "speculative-decoding[documents]"'


@dataclass(frozen=True)
class Format:
    """A format of documents.

    Args:
        module: The module of this folder with its function `parse`.
        suffixes: The suffixes of its files.
        streams: Whether it is read line by line, so that memory does not depend on the size.
        has_errors: Whether `parse` refuses some documents.
    """

    module: str
    suffixes: tuple[str, ...]
    streams: bool = False
    has_errors: bool = False

    @property
    def parse(self) -> Parse:
        """The function that reads it. Raises `InputError` if a package is missing that it needs."""
        try:
            return cast(Parse, import_module(f".{self.module}", __package__).parse)
        except ModuleNotFoundError as error:
            problem = f"{self.module} requires {error.name}"
            raise InputError(problem, "format", f"run {INSTALL}") from error


FORMATS = {
    "text": Format("plain", (".txt", ".text"), streams=True),
    "markdown": Format("markdown", (".md", ".markdown", ".mkd"), has_errors=True),
    "html": Format("html", (".html", ".htm", ".xhtml")),
    "srt": Format("subtitles", (".srt",)),
    "vtt": Format("subtitles", (".vtt",)),
    "jsonl": Format("json_lines", (".jsonl", ".ndjson"), streams=True, has_errors=True),
}
BY_SUFFIX = {suffix: name for name, each in FORMATS.items() for suffix in each.suffixes}
CONVERTED = (".docx", ".doc", ".odt", ".pptx", ".ppt", ".epub", ".rtf", ".pdf")


def format_of(name: str, field: str = "files") -> str:
    """Return the format of a file by its suffix. Raises `InputError` for formats that other programs convert."""
    suffix = PurePath(name).suffix.lower()
    if suffix in CONVERTED:
        way_out = "convert it to Markdown or HTML with pandoc"
        raise InputError(f"{name}: {suffix} is not supported", field, (way_out, ", or name a ", Name("format")))
    return BY_SUFFIX.get(suffix, "text")
