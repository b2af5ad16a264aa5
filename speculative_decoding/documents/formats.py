"""The document formats with their suffixes and parsers, and the tools that convert other formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import PurePath
from typing import Any, cast

from ..errors import InputError, Message
from .tokens import Part

# (lines of a document with their line ends, `DocumentOptions`, BCP 47 tag of the output's language or None if unknown)
# -> parts of the document
Parse = Callable[[Iterable[str], Any, str | None], Iterator[Part]]
INSTALL = 'pip install "speculative-decoding[documents]"'


@dataclass(frozen=True)
class Format:
    """A document format.

    Args:
        module: The module in this folder that defines `parse`.
        suffixes: The suffixes of its files.
        streams: Whether documents are read line by line, so that memory use does not depend on their size.
        has_errors: Whether `parse` may raise `InputError`.
        has_references: Whether characters that a document's encoding lacks are written as references such as "&#8222;".
            The output then keeps the encoding.
        is_bilingual: Whether a document contains both sources and targets. See `tokens.py`.
        is_data: Whether files with these suffixes are often not documents, such as package.json. They are left out when
            a folder is searched for documents of all formats.
    """

    module: str
    suffixes: tuple[str, ...]
    streams: bool = False
    has_errors: bool = False
    has_references: bool = False
    is_bilingual: bool = False
    is_data: bool = False

    @property
    def parse(self) -> Parse:
        """The parser of this format. Raises `InputError` if a required package is missing."""
        try:
            return cast(Parse, import_module(f".{self.module}", __package__).parse)
        except ModuleNotFoundError as error:
            problem = f"{self.module} requires {error.name}"
            raise InputError(problem, "format", f"run {INSTALL}") from error


MARKDOWN_SUFFIXES = (
    *(".md", ".markdown", ".mdown", ".mdtext", ".mdwn", ".mkd", ".mkdn"),
    *(".mdx", ".qmd", ".rmd", ".livemd"),  # MDX, Quarto, R Markdown, Livebook
)
FORMATS = {
    "text": Format("plain", (".txt", ".text", ".log"), streams=True),
    "markdown": Format("markdown", MARKDOWN_SUFFIXES, has_errors=True),
    "html": Format("html", (".html", ".htm", ".xhtml"), has_references=True),
    "srt": Format("subtitles", (".srt",)),
    "vtt": Format("subtitles", (".vtt",)),
    "json": Format("json_tree", (".json", ".arb"), has_errors=True, is_data=True),
    "jsonl": Format("json_lines", (".jsonl", ".ndjson"), streams=True, has_errors=True),
    "csv": Format("table", (".csv", ".psv"), streams=True, has_errors=True, is_data=True),
    "tsv": Format("table", (".tsv", ".tab"), streams=True, has_errors=True, is_data=True),
    "po": Format("po", (".po", ".pot"), has_errors=True, is_bilingual=True),
    "xliff": Format(
        "xliff",
        (".xlf", ".xliff", ".mqxliff", ".mxliff", ".sdlxliff"),
        has_errors=True,
        is_bilingual=True,
        has_references=True,
    ),
}
BY_SUFFIX = {suffix: name for name, each in FORMATS.items() for suffix in each.suffixes}
# How to convert other well-known formats -> their suffixes
CONVERSIONS = {
    "convert it to Markdown or HTML with pandoc": (
        "bib dbk docbook docx epub fb2 ipynb latex mediawiki muse odt opml org rst rtf t2t tex textile typ wiki"
    ),
    "convert it to HTML with asciidoctor": "adoc asciidoc",
    "convert it to HTML with LibreOffice": "doc dotx odp pages pps ppsx ppt pptx wpd wps",
    "convert it to HTML with Calibre": "azw azw3 lit mobi",
    "convert it to text with pdftotext": "pdf",
    "convert it to SRT with FFmpeg": "aqt ass jss mpl2 pjs rt sami smi ssa stl sub",
    "convert it to SRT with ttconv": "dfxp itt scc ttml",
    "convert it to SRT with Subtitle Edit": "sbv sup usf",
    "convert it to PO with the Translate Toolkit": ("catkeys dtd ini lang php properties qm resw resx strings ts wxl"),
    "extract its strings with xgettext": "c cc cpp cs go h hpp java js jsx lua mjs pl py rb rs sh tsx",
    "convert it to JSON with json5 (npm)": "json5 jsonc",
    "convert it to JSON lines with jq": "geojson xcstrings",
    "convert it to JSON with yq": "plist stringsdict toml yaml yml",
    "save it as CSV": "numbers ods xls xlsm xlsx",
    "convert its texts to HTML with xsltproc": "dita fodt rss svg tbx tmx xml xsl",
    "convert its texts to JSON lines with a Fluent parser": "ftl",
    "unpack it": "7z bz2 gz rar tar tgz xz zip zst",
    "transcribe it": "aac flac m4a m4v mkv mov mp3 mp4 oga ogg opus wav webm wma",
}
CONVERSION_OF = {f".{suffix}": how for how, suffixes in CONVERSIONS.items() for suffix in suffixes.split()}


def format_of(name: str, field: str = "files") -> str:
    """Return a file's format based on its suffix, or "text" if it has none. Raises `InputError` for other suffixes."""
    suffix = PurePath(name).suffix.lower()
    if suffix in ("", "."):
        return "text"
    if suffix in BY_SUFFIX:
        return BY_SUFFIX[suffix]
    if suffix in CONVERSION_OF:
        raise InputError(f"{name}: {suffix} is not supported", field, CONVERSION_OF[suffix])
    way_out = Message("read it with {format} {value}", value="text")
    raise InputError(f"{name}: the suffix {suffix} is unknown", field, way_out)
