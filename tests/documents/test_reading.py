"""Documents in any encoding are validated, and can be written back byte for byte."""

from __future__ import annotations

import codecs
import io
import os
import re
import threading
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given

from speculative_decoding.documents import reading
from speculative_decoding.documents.options import DocumentOptions
from speculative_decoding.documents.pieces import parts_of
from speculative_decoding.documents.reading import DocumentFile
from speculative_decoding.errors import InputError
from tests.documents.properties import SMALL, TEXTS

UNICODE = {"utf-8": b"", "utf-8 ": codecs.BOM_UTF8, "utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}
TEXT = "Grüße\r\n\u2028你好 😀\rlone\n\n\ufeffend"


def content_of(content: bytes, name: str = "a.txt", **options: object) -> str:
    """Return the text of a document, after checking that it can be written back."""
    with DocumentFile(io.BytesIO(content), DocumentOptions(**options), name) as file:  # type: ignore[arg-type]
        lines = list(file.lines)
        assert lines == list(file.lines) and all(re.fullmatch(r"[^\r\n]*(\r\n|\r|\n)?", line) for line in lines)
        assert file.preamble + b"".join(map(file.encode, lines)) == content
    return "".join(lines)


@SMALL
@given(TEXTS)
@pytest.mark.parametrize("encoding", UNICODE)
def test_any_text_is_read_and_written_back(encoding: str, text: str) -> None:
    if not text.startswith("\ufeff"):
        for name in ["a.txt", "a.html"]:
            assert content_of(UNICODE[encoding] + text.encode(encoding.strip()), name) == text


@pytest.mark.parametrize("encoding", UNICODE)
def test_files_pipes_and_streams_have_the_same_lines(encoding: str, tmp_path: Path) -> None:
    content = UNICODE[encoding] + TEXT.encode(encoding.strip()) * 2000  # longer than one block, with any border
    path = tmp_path / "notes.md"
    path.write_bytes(content)
    start, end = os.pipe()
    with os.fdopen(start, "rb") as pipe, path.open("rb") as stream:
        writer = threading.Thread(target=write_all, args=(end, content))
        writer.start()
        for source in [path, pipe, stream]:
            with DocumentFile(source, DocumentOptions(), "notes.md") as file:  # type: ignore[arg-type]
                assert file.format == "markdown" and "".join(file.lines) == TEXT * 2000
        writer.join()
        assert not pipe.closed and not stream.closed


def write_all(descriptor: int, content: bytes) -> None:
    with os.fdopen(descriptor, "wb") as file, suppress(BrokenPipeError):
        file.write(content)


def test_the_format_is_named_or_that_of_the_suffix() -> None:
    for name, options, expected in [
        ("a.SRT", {}, "srt"), ("-", {}, "text"), ("a.unknown", {"format": "text"}, "text"),
        ("a.txt", {"format": "html"}, "html"),
    ]:  # fmt: skip
        assert DocumentFile(io.BytesIO(), DocumentOptions(**options), name).format == expected  # type: ignore[arg-type]
    with pytest.raises(InputError, match="pandoc"):
        DocumentFile(Path("a.docx"), DocumentOptions())


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (b"a\n" * 9000 + b"b\rc\r\n\xffd\n", "a.txt", "a.txt: line 9003: not UTF-8 .*convert it to UTF-8"),
        (b"a\n\xe4", "a.txt", "a.txt: line 2: not UTF-8 (.*unexpected end.*)"),
        (codecs.BOM_UTF16_LE + "a\n\ud800\n".encode("utf-16-le", "surrogatepass"), "a.txt", "line 2: not UTF-16-LE"),
        (b"a\nb\0\n", "a.txt", "a.txt: line 2: contains a NUL character .character 2"),
        ("ab".encode("utf-16-le"), "a.md", "UTF-16 without a byte-order mark"),
        (b"<meta charset=x-unknown>", "a.html", "a.html: declares the encoding x-unknown, which is not supported"),
        (
            b'<?xml version="1.0" encoding="x\0"?>',
            "a.xlf",
            r"declares the encoding x.*, which is not supported",
        ),
        (b"<meta charset=iso-2022-jp>", "a.html", "iso-2022-jp, which is not supported; convert it to UTF-8"),
        (b"<meta charset=sjis>\x87\x90", "a.html", "a.html: has characters that shift_jis can write in two ways"),
        (b"<meta charset=latin1>\x81", "a.html", "a.html: line 1: not windows-1252"),
        (b"<p>\xfc</p>", "a.html", "a.html: line 1: not UTF-8"),
    ],
)
def test_what_is_no_text_is_refused_when_it_is_opened(content: bytes, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message), DocumentFile(io.BytesIO(content), DocumentOptions(), name):
        pass


@pytest.mark.parametrize(
    ("head", "encoding"),
    [
        ("<meta charset=utf-8>", "utf-8"),
        ('<!-- <meta charset="koi8-r"> --><META name=x CharSet = "latin1">', "cp1252"),
        ('<meta http-equiv="Content-Type" content="text/html; charset=ISO-8859-1">', "cp1252"),
        ("<meta charset='us-ascii'/>", "cp1252"),
        ("<meta charset=windows-1251>", "cp1251"),
        ("<meta charset=x-sjis>", "cp932"),
        ("<meta charset=gb2312>", "gb18030"),
        ("<meta charset=utf-16>", "utf-8"),
        ('<?xml version="1.0" encoding="iso-8859-15"?>', "iso8859-15"),
        ("<p>charset=latin1</p>", "utf-8"),
        (" " * 1024 + "<meta charset=latin1>", "utf-8"),
        ("<meta " * 200, "utf-8"),
    ],
)
def test_html_is_read_in_the_encoding_that_it_declares(head: str, encoding: str) -> None:
    characters = "".join(each for each in "“é”Яж日本€ß" if each.encode(encoding, "ignore"))
    text = f"{head}<p>\r\n{characters}"
    assert content_of(text.encode(encoding), "a.html") == text
    assert content_of(codecs.BOM_UTF8 + text.encode(), "a.html") == text
    assert content_of(text.encode(), "a.txt") == text


def test_only_the_declaration_of_xml_determines_the_encoding_of_xliff() -> None:
    text = "<xliff version='1.2'><note><![CDATA[<meta charset=latin1>]]></note>\xe9</xliff>"
    assert content_of(text.encode(), "a.xlf") == text
    declared = f"<?xml version='1.0' encoding='iso-8859-15'?>{text}\u20ac"
    assert content_of(declared.encode("iso-8859-15"), "a.xlf") == declared


def test_html_writes_characters_that_its_encoding_lacks_as_references() -> None:
    with DocumentFile(io.BytesIO(b"<meta charset=latin1>"), DocumentOptions(), "a.html") as file:
        assert file.encode("ü“你") == b"\xfc\x93&#20320;"


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    for path in [tmp_path, tmp_path / "missing"]:
        with pytest.raises(InputError, match=f"{path}: not readable"), DocumentFile(path, DocumentOptions()):
            pass


class Endless(io.RawIOBase):
    """An endless pipe."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        buffer[:] = b"a" * len(buffer)
        return len(buffer)


def test_only_formats_that_are_read_as_a_whole_are_limited() -> None:
    content = b"text\n" * 100
    assert content_of(content, "a.txt", max_document=99)
    assert content_of(content, "a.md", max_document=500)
    endless = io.BufferedReader(Endless())
    for stream in [io.BytesIO(content), endless]:
        options = DocumentOptions(max_document=499)
        with pytest.raises(InputError, match="a.md: .*499 bytes.*max_document"), DocumentFile(stream, options, "a.md"):
            pass


def test_only_lines_of_formats_that_are_read_by_line_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_LINE", 9)
    assert content_of(b"12345678\n" * 3, "a.txt") and content_of(b"1234567890", "a.md")
    with pytest.raises(InputError, match="a.txt: line 2: longer than 9 characters"):
        content_of(b"12345678\n1234567890", "a.txt")


@pytest.mark.parametrize("encoding", [None, "windows-1252"])
@pytest.mark.parametrize(("name", "around"), [("a.txt", "*"), ("a.jsonl", '{"text": "*"}')])
def test_memory_does_not_depend_on_the_size(name: str, around: str, encoding: str | None, tmp_path: Path) -> None:
    line = ("Word and word. " * 500).join(around.split("*")) + "\n"
    peaks = []
    for lines in [10, 500]:
        path = tmp_path / name
        path.write_text(line * lines)
        tracemalloc.start()
        with DocumentFile(path, DocumentOptions(encoding=encoding)) as file:
            options = DocumentOptions(format=file.format, unit="line")
            assert sum(len(part.raw) for part in parts_of(file.lines, options, "en")) == lines * len(line)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 100_000
