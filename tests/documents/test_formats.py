"""The suffix determines the format of a file. Other formats are refused, and the message names a converter."""

from __future__ import annotations

import io
from pathlib import PurePath

import pytest

from speculative_decoding import InputError
from speculative_decoding.documents.formats import BY_SUFFIX, CONVERSIONS, format_of
from speculative_decoding.documents.options import DocumentOptions
from speculative_decoding.documents.reading import DocumentFile

READ = {
    **{"README": "text", "notes.txt": "text", "a.TEXT": "text", "build.log": "text", "standard input": "text"},
    **{"-": "text", "/dev/fd/63": "text", ".hidden": "text", "page.md": "markdown", "a.b.HTML": "html"},
    **{"talk.SRT": "srt", "talk.de.vtt": "vtt", "data.ndjson": "jsonl", "folder.po/notes": "text"},
    **{"page.mdx": "markdown", "page.qmd": "markdown", "page.Rmd": "markdown", "page.mkdn": "markdown"},
    **{"de.po": "po", "messages.POT": "po"},
    **{"de.json": "json", "app_de.arb": "json", "a.csv": "csv", "a.psv": "csv", "a.TSV": "tsv", "a.tab": "tsv"},
    **{"app.xlf": "xliff", "app.de.XLIFF": "xliff", "a.docx.sdlxliff": "xliff", "a.mqxliff": "xliff"},
}
# A tool that documents support for each: pandoc --list-input-formats, ffmpeg -demuxers, converters of the Translate
# Toolkit. docx, odt, rtf and epub are guards
CONVERTED = {
    **{"Main.strings": "Translate Toolkit", "app.properties": "Translate Toolkit", "strings.resx": "Translate Toolkit"},
    **{"app_de.ts": "Translate Toolkit", "app.ini": "Translate Toolkit", "lang.php": "Translate Toolkit"},
    **{"Localizable.stringsdict": "yq", "de.yaml": "yq", "de.yml": "yq", "a.toml": "yq", "app.ftl": "Fluent"},
    **{"a.json5": "json5", "a.jsonc": "json5", "a.geojson": "jq", "a.xlsx": "CSV", "strings.xml": "xsltproc"},
    **{
        "talk.ass": "FFmpeg",
        "talk.ssa": "FFmpeg",
        "talk.sub": "FFmpeg",
        "talk.ttml": "ttconv",
        "a.sbv": "Subtitle Edit",
    },
    **{
        "a.docx": "pandoc",
        "a.odt": "pandoc",
        "a.rtf": "pandoc",
        "a.epub": "pandoc",
        "a.rst": "pandoc",
        "a.tex": "pandoc",
    },
    **{
        "a.org": "pandoc",
        "a.ipynb": "pandoc",
        "a.adoc": "asciidoctor",
        "a.pptx": "LibreOffice",
        "a.doc": "LibreOffice",
    },
    **{
        "a.pdf": "pdftotext",
        "main.py": "xgettext",
        "main.js": "xgettext",
        "talk.mp3": "transcribe",
        "a.txt.gz": "unpack",
    },
}
UNKNOWN = ["a.xyz", "README.de", "notes.txt~", "v1.2"]


@pytest.mark.parametrize(("name", "format"), READ.items(), ids=[f"guard: {name}" for name in READ])
def test_the_suffix_determines_the_format(name: str, format: str) -> None:
    assert format_of(name) == format


@pytest.mark.parametrize(("name", "tool"), CONVERTED.items())
def test_another_known_format_is_refused_with_the_tool_that_converts_it(name: str, tool: str) -> None:
    suffix = PurePath(name).suffix.lower()
    with pytest.raises(InputError) as refused:
        DocumentFile(io.BytesIO(), DocumentOptions(), name)
    message = refused.value.message(lambda option: f"--{option}")
    assert message.startswith(f"--files: {name}: {suffix} is not supported; ") and "\n" not in message
    assert tool in message and "--format" not in message
    assert DocumentFile(io.BytesIO(), DocumentOptions(format="text"), name).format == "text"


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_suffix_is_refused_with_a_format_to_name(name: str) -> None:
    with pytest.raises(InputError) as refused:
        format_of(name)
    suffix = PurePath(name).suffix
    wanted = f"--files: {name}: the suffix {suffix} is unknown; read it with --format text"
    assert refused.value.message(lambda option: f"--{option}") == wanted


def test_each_suffix_has_one_meaning() -> None:
    suffixes = [f".{suffix}" for each in CONVERSIONS.values() for suffix in each.split()]
    assert len({*suffixes}) == len(suffixes) and not {*suffixes} & BY_SUFFIX.keys()
