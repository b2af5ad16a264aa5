"""The document formats with their suffixes and parsers, and the tools that convert other formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import PurePath
from typing import Any, cast

from ..errors import InputError, Message
from .tokens import Part

# (lines of a document with their line ends, `DocumentOptions`) -> parts of the document
Parse = Callable[[Iterable[str], Any], Iterator[Part]]
INSTALL = 'pip install "speculative-decoding[documents]"'


@dataclass(frozen=True)
class Format:
    """A document format.

    Args:
        module: The module in this folder that defines `parse`.
        suffixes: The suffixes of its files.
        streams: Whether documents are read line by line, so that memory use does not depend on their size.
        has_errors: Whether `parse` may raise `InputError`.
    """

    module: str
    suffixes: tuple[str, ...]
    streams: bool = False
    has_errors: bool = False

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
    "html": Format("html", (".html", ".htm", ".xhtml")),
    "srt": Format("subtitles", (".srt",)),
    "vtt": Format("subtitles", (".vtt",)),
    "jsonl": Format("json_lines", (".jsonl", ".ndjson"), streams=True, has_errors=True),
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
    "convert it to text with po2txt (Translate Toolkit)": "po pot",
    "convert it to PO and then to text with the Translate Toolkit": (
        "catkeys dtd ini lang php properties qm resw resx strings ts wxl xlf xliff"
    ),
    "extract its strings with xgettext": "c cc cpp cs go h hpp java js jsx lua mjs pl py rb rs sh tsx",
    "convert it to JSON lines with jq": "arb geojson json json5 jsonc xcstrings",
    "convert it to JSON lines with yq": "plist stringsdict toml yaml yml",
    "convert it to JSON lines with Miller (mlr)": "csv psv tab tsv",
    "save it as CSV, and convert the CSV file to JSON lines with Miller (mlr)": "numbers ods xls xlsm xlsx",
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
