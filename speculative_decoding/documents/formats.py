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


@dataclass(frozen=True)
class Format:
    """A format of documents.

    Args:
        module: The module of this folder with its function `parse`.
        suffixes: The suffixes of its files.
        streams: Whether it is read line by line, so that memory does not depend on the size.
    """

    module: str
    suffixes: tuple[str, ...]
    streams: bool = False

    @property
    def parse(self) -> Parse:
        return cast(Parse, import_module(f".{self.module}", __package__).parse)


FORMATS = {
    "text": Format("plain", (".txt", ".text"), streams=True),
    "markdown": Format("markdown", (".md", ".markdown", ".mkd")),
    "html": Format("html", (".html", ".htm", ".xhtml")),
    "srt": Format("subtitles", (".srt",)),
    "vtt": Format("subtitles", (".vtt",)),
    "jsonl": Format("json_lines", (".jsonl", ".ndjson"), streams=True),
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
