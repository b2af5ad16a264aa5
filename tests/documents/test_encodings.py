"""Legacy encodings are named by --encoding, and no character of an output is lost or replaced."""

from __future__ import annotations

import codecs
import io
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculative_decoding.documents.encodings import SUPPORTED, encoding_named, label_of
from speculative_decoding.documents.options import DocumentOptions
from speculative_decoding.documents.reading import DocumentFile
from speculative_decoding.errors import InputError
from speculative_decoding.loading.pair import ModelPair
from tests.documents.commands import Command, document_command
from tests.documents.properties import SMALL

PREFIX = "translate English to German: "
MODEL = ("--model", "t5-web-docs-draft", "--dtype", "float32", "--baseline", "-m", "40", "--unit", "line")
MODEL += ("--prefix", PREFIX)
TEXT = "Delete the file.\nOpen the page.\n"  # the second output has an umlaut


def opened(content: bytes, encoding: str | None = None, name: str = "a.txt", output: str | None = None) -> DocumentFile:
    options = DocumentOptions(encoding=encoding)
    return DocumentFile(io.BytesIO(content), options, name, output_encoding=output)


@SMALL
@given(st.binary(max_size=200))
@pytest.mark.parametrize("encoding", sorted(SUPPORTED))
def test_bytes_are_restored_or_the_document_is_refused(encoding: str, content: bytes) -> None:
    """An oracle: Python's codec. A byte-order mark takes precedence."""
    is_text = True
    try:
        is_text = "\0" not in (text := content.decode(encoding)) and text.encode(encoding) == content
    except UnicodeDecodeError:
        is_text = False
    if content.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return
    for name in ("a.txt", "a.md"):
        try:
            with opened(content, label_of(encoding), name) as file:
                assert is_text and "".join(file.lines) == content.decode(encoding)
                assert file.preamble + b"".join(map(file.encode, file.lines)) == content
        except InputError as error:
            assert not is_text and "\n" not in str(error)


@pytest.mark.parametrize("encoding", sorted(SUPPORTED))
def test_usual_names_and_pythons_names_select_an_encoding(encoding: str) -> None:
    for label in (label_of(encoding), encoding, f" {label_of(encoding).upper()} "):
        assert encoding_named(label) == encoding


@pytest.mark.parametrize(
    ("label", "encoding"),
    [
        ("latin1", "cp1252"), ("ISO-8859-1", "cp1252"), ("us-ascii", "cp1252"), ("cp1251", "cp1251"),
        ("gbk", "gb18030"), ("sjis", "cp932"), ("utf-16", "utf-16-le"), ("utf-16le", "utf-16-le"), ("utf8", "utf-8"),
        ("x-sjis", "cp932"),
        ("windows-31", None), ("utf-7", None), ("iso-2022-jp", None), ("hex", None), ("utf-32", None), ("a\0b", None),
        ("", None), ("é", None),
    ],
)  # fmt: skip
def test_names_are_those_of_browsers(label: str, encoding: str | None) -> None:
    assert encoding_named(label) == encoding


@pytest.mark.parametrize(
    ("content", "name", "own", "text"),
    [
        ("Пример".encode("cp1251"), "a.txt", None, "Пример"),
        ("Пример".encode("cp1251"), "a.html", None, "Пример"),
        (codecs.BOM_UTF8 + "Пример".encode(), "a.txt", "utf-8", "Пример"),
        (codecs.BOM_UTF16_BE + "Пример".encode("utf-16-be"), "a.md", "utf-16-be", "Пример"),
        ("<meta charset=utf-8>Пример".encode(), "a.html", "utf-8", "<meta charset=utf-8>Пример"),
        ("<meta charset=koi8-r>Пример".encode("koi8-r"), "a.html", "koi8-r", "<meta charset=koi8-r>Пример"),
        ("<meta charset=utf-8>Пример".encode("cp1251"), "a.txt", None, "<meta charset=utf-8>Пример"),
    ],
)
def test_a_mark_or_a_declaration_takes_precedence(content: bytes, name: str, own: str | None, text: str) -> None:
    with opened(content, "windows-1251", name) as file:
        assert file.own_encoding == own and "".join(file.lines) == text
        assert file.preamble + file.encode(text) == content


def test_a_declaration_that_is_no_name_is_refused() -> None:
    with pytest.raises(InputError, match="declares the encoding"), opened(b"<meta charset=a\0b>", None, "a.html"):
        pass


@pytest.mark.parametrize(
    ("content", "encoding", "is_utf8"),
    [
        ("Grüße".encode(), "latin1", True),
        ("Grüße".encode("cp1252"), "latin1", False),
        (b"Hello", "latin1", False),
        ("Grüße".encode(), "utf-8", False),
        (codecs.BOM_UTF8 + "Grüße".encode(), "latin1", False),
        ("ab".encode("utf-16-le"), "utf-16-le", False),
        (b"abcd", "utf-16-le", True),
    ],
)
def test_text_that_is_also_utf8_is_recognized(content: bytes, encoding: str, is_utf8: bool) -> None:
    with opened(content, encoding) as file:
        assert file.is_utf8 == is_utf8


def test_outputs_have_the_requested_encoding_and_mark() -> None:
    marked = codecs.BOM_UTF8 + b"a"
    for content, encoding, output, expected in [
        (b"\xcf", "cp1251", None, "Я".encode("cp1251")),
        (b"\xcf", "cp1251", "utf-8", "Я".encode()),
        (b"\xcf", "cp1251", "utf-16-be", codecs.BOM_UTF16_BE + "Я".encode("utf-16-be")),
        (marked, None, "utf-8", codecs.BOM_UTF8 + "Я".encode()),
        (marked, None, "koi8-r", "Я".encode("koi8-r")),
    ]:
        with opened(content, encoding, output=output) as file:
            assert file.preamble + file.encode("Я") == expected
    with opened(b"\xcf", "cp1251", "a.html", "utf-8") as file:
        assert file.encode("Я你") == b"\xdf&#20320;" and file.can_write_all
    with opened(b"\xcf", "cp1251") as file, pytest.raises(InputError, match=r"windows-1251 cannot write 'ü' \(U\+00FC"):
        assert not file.can_write_all and file.encode("Яü")


@pytest.fixture
def document(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return `document`, which runs in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return document_command(capfd)


def test_the_output_keeps_the_encoding(document: Command) -> None:
    Path("a.txt").write_bytes("“12”\r\nOpen the page.".encode("cp1252"))
    status, _, said = document("a.txt", "-o", "b.txt", "--encoding", "iso-8859-1", *MODEL)
    written = Path("b.txt").read_bytes()
    assert status == 0 and b"\x93" in written and b"\xdcffnen" in written, said
    Path("a.html").write_bytes("<p>“12”<p>Open the page.".encode("cp1251"))
    status, out, _ = document("a.html", "--encoding", "cp1251", *MODEL)  # HTML has references
    assert status == 0 and "&#2" in out and "ffnen" in out


def test_an_output_that_its_encoding_cannot_express_is_written_later_without_decoding_again(document: Command) -> None:
    Path("docs").mkdir()
    Path("docs/a.txt").write_text(TEXT)
    Path("docs/b.txt").write_text("Delete the file.\n")
    arguments = ("docs", "-o", "de", "--encoding", "windows-1251", *MODEL, "--stats-json", "stats.json")
    status, _, said = document(*arguments)
    reason = "docs/a.txt: line 2: windows-1251 cannot write 'Ü' (U+00DC), so de/a.txt is not written"
    assert status == 2 and f"\nnote: {reason}" in said, said
    assert f"\n1 of 2 documents were not written:\n{reason}; run the same command with --output-encoding utf-8" in said
    assert sorted(os.listdir("de")) == [".documents.journal", "b.txt"]
    assert json.loads(Path("stats.json").read_text())["failures"][0]["file"] == "docs/a.txt"
    status, _, said = document(*arguments, "--output-encoding", "utf-8")
    assert status == 0 and json.loads(Path("stats.json").read_text())["prompts"] == 0, said
    assert sorted(os.listdir("de")) == ["a.txt", "b.txt"] and "Üffnen" in Path("de/a.txt").read_text()
    Path("old.txt").write_text("years of work")
    status, *_ = document("docs/a.txt", "-o", "old.txt", "--force", "--encoding", "windows-1251", *MODEL)
    assert status == 2 and Path("old.txt").read_text() == "years of work"


def test_doubts_about_the_encoding_are_noted(document: Command) -> None:
    Path("a.txt").write_text("Grüße\n")
    Path("b.html").write_text("<meta charset=utf-8><p>1")
    Path("c.txt").write_bytes(b"1\n")
    status, _, said = document("a.txt", "b.html", "c.txt", "-o", "de", "--encoding", "latin1", *MODEL)
    notes = [line for line in said.splitlines() if line.startswith("note: ")]
    assert status == 0 and notes == [
        "note: a.txt is read as latin1, but is also valid UTF-8",
        "note: b.html is read as UTF-8, which it declares, not as latin1",
    ]


REFUSED = {
    ("a.txt",): "a.txt: line 2: not UTF-8 (invalid start byte); name its --encoding, or convert it to UTF-8",
    ("a.txt", "--encoding", "euc-kr", "-o", "b"): "a.txt: line 2: not euc-kr (illegal multibyte sequence); name "
    "another --encoding, or convert it to UTF-8",
    ("a.txt", "--encoding", "utf-7"): "--encoding: utf-7 is not supported; name one of utf-8, utf-16-le, ",
    ("a.txt", "--output-encoding", "x"): "--output-encoding: x is not supported; name one of utf-8, ",
    ("a.txt", "--encoding", "latin1"): "--output-encoding: windows-1252 may lack characters of the output; name utf-8, "
    "or name a file with --output",
    ("wide.txt",): "wide.txt: line 1: contains a NUL character (character 2), so it is binary, or UTF-16 without a "
    "byte-order mark; name its --encoding, or convert it to UTF-8",
    (
        "b.html",
        "--output-encoding",
        "utf-8",
    ): "--output-encoding: has no effect on html, whose documents keep their encoding",
    ("d.po", "--output-encoding", "utf-16"): "d.po: --output-encoding: gettext does not read UTF-16; name utf-8",
    ("d.po", "--output-encoding", "latin1", "-o", "b"): "d.po: --output-encoding: has no header that could declare it; "
    "add one, or name utf-8",
    ("c.html", "--encoding", "latin1"): "c.html: line 1: not UTF-8 (invalid start byte); convert it to UTF-8",
}


@pytest.mark.parametrize("arguments", REFUSED, ids=" ".join)
def test_bad_arguments_are_one_line_with_status_2_before_weights_load(
    arguments: tuple[str, ...], document: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModelPair, "load_weights", None)
    Path("a.txt").write_bytes(b"One\n\xff\n")
    Path("b.html").write_text("<p>A word")
    Path("c.html").write_bytes(b"<meta charset=utf-8><p>\xff")
    Path("d.po").write_text('msgid "A word"\nmsgstr ""\n')
    Path("wide.txt").write_bytes("One".encode("utf-16-le"))
    status, out, said = document(*arguments, *MODEL[:2])
    (line,) = [line for line in said.splitlines() if not line.startswith("target ")]
    assert status == 2 and not out and line.startswith(f"speculative-decoding document: error: {REFUSED[arguments]}"), (
        line
    )


def test_the_encoding_is_a_setting_of_an_interrupted_run(document: Command) -> None:
    Path("a.txt").write_text(TEXT)
    assert document("a.txt", "-o", "b", "--encoding", "windows-1251", *MODEL)[0] == 2
    status, _, said = document("a.txt", "-o", "b", "--encoding", "koi8-r", "--output-encoding", "utf-8", *MODEL)
    assert status == 2 and '(encoding was "windows-1251", is "koi8-r")' in said
