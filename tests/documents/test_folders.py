"""`document FOLDER` decodes each document exactly as if it were the only one, and reports the other files."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from speculative_decoding.loading.pair import ModelPair
from tests.documents.commands import Command, document_command, interrupt_after

MODEL = ("--model", "t5-web-docs-draft", "--dtype", "float32", "--baseline", "-m", "12", "--unit", "line")
DOCUMENTS = {
    "index.md": "# The first page\n\nOpen the *page*.\n",
    "guide/a.txt": "The method returns the value.\r\nIt is cached.\n",
    "guide/deep/b.SRT": "1\n00:00:01,000 --> 00:00:02,000\nDelete the file.\n",
    "guide/empty.txt": "",
}
OTHERS = {"logo.png": "", "guide/b.png": "", "conf.yml": "a: b", "LICENSE": "", ".git/c.txt": "Hidden.", ".d.md": "x"}


@pytest.fixture
def document(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return `document`, which runs next to the folder "docs"."""
    for name, text in (DOCUMENTS | OTHERS).items():
        (tmp_path / "docs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "docs" / name).write_text(text, newline="")
    monkeypatch.chdir(tmp_path)
    return document_command(capfd)


def outputs(folder: str) -> dict[str, bytes]:
    found = (path for path in Path(folder).rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_each_document_is_decoded_as_alone_and_other_files_are_counted(document: Command) -> None:
    Path("docs/out.md").symlink_to("../a.md")
    Path("docs/copy.txt").symlink_to("guide/a.txt")
    Path("a.md").write_text("Not in the folder.\n")
    status, out, said = document("docs", "-o", "docs/de", *MODEL, "--stats-json", "stats.json")
    assert (status, out) == (0, "") and " of 5 documents; " in said, said
    assert (
        "docs: neither decoded nor copied: 2 .png, 1 .yml, 1 without a suffix, 1 links that lead out of the folder"
        in said.replace("1 without a suffix, 1 .yml", "1 .yml, 1 without a suffix")
    )
    first = outputs("docs/de")
    assert set(first) == {*DOCUMENTS, "copy.txt"} and first["copy.txt"] == first["guide/a.txt"]
    for name in DOCUMENTS:
        assert document(f"docs/{name}", "-o", "alone", "--force", *MODEL)[0] == 0
        assert Path("alone").read_bytes() == first[name]
    assert json.loads(Path("stats.json").read_text())["failures"] == []
    status, _, said = document("docs", "-o", "docs/de", *MODEL)
    assert status == 2 and "docs/de/copy.txt already exists" in said
    assert document("docs", "-o", "docs/de", "--force", *MODEL)[0] == 0 and outputs("docs/de") == first


def test_a_format_selects_its_files(document: Command) -> None:
    Path("docs/page.mdx").write_text("The page\n")
    assert document("docs", "-o", "de", "--format", "markdown", *MODEL)[0] == 0
    assert set(outputs("de")) == {"index.md", "page.mdx"}
    status, _, said = document("docs", "-o", "fr", *MODEL[:-2], "--unwrap")  # it applies to text only
    assert status == 0 and set(outputs("fr")) == {*DOCUMENTS, "page.mdx"}, said


def test_unreadable_documents_do_not_stop_the_others_and_are_named_at_the_end(document: Command) -> None:
    Path("docs/bad.txt").write_bytes(b"Good.\n\xff\n")
    Path("docs/guide/list.jsonl").write_text("[1]\n")
    Path("docs/guide/deep/large.md").write_text("A word.\n" * 20)
    os.mkfifo("docs/pipe.txt")
    arguments = ("docs", "-o", "de", *MODEL, "--check", "--max-document", "100", "--stats-json", "stats.json")
    status, _, said = document(*arguments)
    assert status == 2 and set(outputs("de")) == {*DOCUMENTS} and "4 files cannot be read, and will be named" in said
    _, *named = said[said.index("4 of 8 documents were not written:") :].splitlines()
    assert [line.split(": ")[0] for line in named] == [
        "docs/bad.txt", "docs/pipe.txt", "docs/guide/list.jsonl", "docs/guide/deep/large.md",
    ]  # fmt: skip
    assert "line 2: not UTF-8" in named[0] and "split it, or raise --max-document" in named[3]
    failures = json.loads(Path("stats.json").read_text())["failures"]
    assert [each["error"] for each in failures] == named and failures[0]["file"] == "docs/bad.txt"


def test_an_interrupted_run_is_continued(document: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("docs/bad.txt").write_bytes(b"Good.\n\xff\n")
    arguments = ("docs", "-o", "de", *MODEL)
    assert document("docs", "-o", "whole", *MODEL)[0] == 2
    appended = interrupt_after(3, monkeypatch)
    assert document(*arguments)[0] == 130 and set(outputs("de")) < {".documents.journal", *DOCUMENTS}
    status, _, said = document(*arguments)
    assert status == 2 and "continuing an interrupted run; de/.documents.journal has" in said
    assert outputs("de") == outputs("whole") and len(appended) == len(set(appended)) == 5


REFUSED = {
    ("docs",): "--output: several documents need a folder (got 4); name one",
    ("docs", "-o", "a.md"): "--output: a.md is not a folder",
    ("docs", "-o", "docs"): "--output: docs/guide/deep/b.SRT is already used by FILE",
    ("docs", "a.md", "docs/index.md", "-o", "de"): "FILE: two documents are named index.md",
    ("docs", "GUIDE", "-o", "de"): "FILE: two documents are named guide",
    ("docs", "-", "-o", "de"): "--output: standard input has no name for a file in a folder",
    ("docs", "bad.txt", "-o", "de"): "bad.txt: line 1: not UTF-8",
    ("docs", "-o", "no/where"): "--output: no/where cannot be written",
    ("docs", "-o", "full"): "--output: full/guide is not a folder",
    ("images", "-o", "de"): "FILE: images is a folder without documents; name its files, or a folder with documents",
    ("docs", "-o", "de", "--format", "vtt"): "FILE: docs is a folder without documents; name its files, or a folder "
    "with documents (of the suffixes .vtt)",
    ("docs", "-o", "de", "--field", "a"): "--field: has no effect on the formats of these documents (markdown, srt, "
    "text); leave it out",
    ("docs", "-o", "de", "--columns", "a"): "--columns: has no effect on the formats of these documents (",
    ("messages", "-o", "de"): "FILE: messages is a folder without documents; decode its data with --format json or csv",
    ("locale", "-o", "de", "--target-language", "de"): "locale/fr.po: line 2: the document is for translations into fr",
    ("damaged", "-o", "de"): "damaged/a.txt: line 1: not UTF-8",
    ("damaged", "worse", "-o", "de"): "FILE: none of the documents can be read (damaged/a.txt: line 1: not UTF-8",
}


@pytest.mark.parametrize("arguments", REFUSED, ids=" ".join)
def test_bad_arguments_are_one_line_with_status_2_before_weights_load(
    arguments: tuple[str, ...], document: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModelPair, "load_weights", None)
    for name in ("images", "damaged", "worse", "full"):
        Path(name).mkdir()
    Path("images/a.png").touch()
    for name in ("messages/app.arb", "messages/a.csv", "locale/fr.po"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text('msgid ""\nmsgstr "Language: fr"\n\nmsgid "Open"\nmsgstr ""\n')
    Path("GUIDE").touch()
    Path("full/guide").touch()
    Path("a.md").touch()
    for name in ("bad.txt", "damaged/a.txt", "worse/b.txt"):
        Path(name).write_bytes(b"\xff")
    before = outputs(".")
    status, out, said = document(*arguments, *MODEL[:2])
    lines = [line for line in said.splitlines() if not line.startswith(("target ", "docs: neither"))]
    assert status == 2 and not out and len(lines) == 1, lines
    assert lines[0].startswith(f"speculative-decoding document: error: {REFUSED[arguments]}")
    assert outputs(".") == before and not Path("de").exists()


def test_a_missing_package_stops_a_folder(document: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelPair, "load_weights", None)
    monkeypatch.setitem(sys.modules, "markdown_it", None)
    for name in [name for name in sys.modules if name.startswith("speculative_decoding.documents.markdown")]:
        monkeypatch.delitem(sys.modules, name)
    status, _, said = document("docs", "-o", "de", *MODEL)
    assert status == 2 and "--format: markdown requires markdown_it" in said
