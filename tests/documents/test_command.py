"""`document` equals the Python API, resumes runs, writes memories, and refuses bad arguments before weights load."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding import Session, load
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.loading.pair import ModelPair
from tests.documents.commands import Command, document_command, interrupt_after
from tests.support.paths import ROOT
from tests.support.subpackages import needs_subpackage
from tests.support.tiny import WHISPER, save_whisper, tiny_whisper

PREFIX = "translate English to German: "
MODEL = ("--model", "t5-web-docs-draft", "--dtype", "float32", "--baseline", "-m", "12", "--unit", "line")
TEXT = "The method returns the value.\nIt is cached for later calls.\r\n\n--- 12\n\tOpen the page {name} first.\n"
OTHER = "\ufeffDelete the file.\nThe page shows a list"


@pytest.fixture
def document(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return `document`, which runs in a folder with two texts."""
    (tmp_path / "a.txt").write_text(TEXT, newline="")
    (tmp_path / "b.txt").write_text(OTHER, newline="")
    monkeypatch.chdir(tmp_path)
    return document_command(capfd)


@pytest.fixture(scope="module")
def session() -> Session:
    return load(BUNDLED / "t5-web-docs-draft", dtype="float32", drafter="none")


def expected(session: Session, text: str, **options: Any) -> str:
    return session.document(text, prefix=PREFIX, unit="line", max_tokens=12, **options).text


def content(path: str) -> str:
    return Path(path).read_bytes().decode()


def test_files_standard_input_and_pipes_give_what_python_gives(
    document: Command, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [expected(session, TEXT), "\ufeff" + expected(session, OTHER.removeprefix("\ufeff"))]
    status, out, said = document("a.txt", "--prefix", PREFIX, *MODEL)
    assert (status, out) == (0, wanted[0].replace("\r\n", "\r\n")), said
    assert "3 pieces of 1 document; " in said and " tokens of " in said and os.listdir() != ["a.txt"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    assert document("-", "-o", "new.txt", "--prefix", PREFIX, *MODEL)[0] == 0 and content("new.txt") == wanted[0]
    monkeypatch.setattr("speculative_decoding.cli.progress.LINE_SECONDS", 0)
    status, out, said = document("a.txt", "b.txt", "-o", "out", "--prefix", PREFIX, *MODEL)
    counts = [line.split(" pieces, ")[0] for line in said.splitlines() if " pieces, " in line]
    assert counts == sorted(counts) and {*counts} == {
        *"012345"
    }  # progress is also shown before the first piece is complete
    assert (status, out) == (0, "") and "5 pieces of 2 documents; " in said
    assert sorted(os.listdir("out")) == ["a.txt", "b.txt"]
    assert [content("out/a.txt"), content("out/b.txt")] == wanted
    status, *_ = document("b.txt", "-o", "out", "--force", "--prefix", PREFIX, *MODEL)
    assert (
        status == 0
        and content("out/b.txt") == wanted[1]
        and sorted(os.listdir()) == ["a.txt", "b.txt", "new.txt", "out"]
    )


def test_an_interrupted_run_is_continued_with_the_same_bytes(
    document: Command, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds above temperature 0, too. Outputs of other runs are never replaced."""
    arguments = ("a.txt", "-o", "out.txt", "--prefix", PREFIX, *MODEL, "--temperature", "1", "--seed", "5")
    with monkeypatch.context() as patch:
        interrupt_after(2, patch)
        status, out, said = document(*arguments)
    assert (status, out) == (130, "") and sorted(os.listdir()) == ["a.txt", "b.txt", "out.txt.journal"]
    assert "document: interrupted after 2 pieces; run the same command again to continue" in said
    status, _, said = document(*arguments[:-1], "6")
    assert status == 2 and "(seed was 5, is 6); give the same settings, or start over with --force" in said
    status, _, said = document(*arguments, "--stats-json", "stats.json")
    assert status == 0 and "continuing an interrupted run; out.txt.journal has its finished pieces" in said
    assert sorted(os.listdir()) == ["a.txt", "b.txt", "out.txt", "stats.json"]
    assert document(*arguments, "--force", "--stats-json", "whole.json")[0] == 0
    stats, whole = (json.loads(content(f"{name}.json")) for name in ("stats", "whole"))
    assert stats["pieces"] == whole["pieces"] == 3 and stats["prompts"] == whole["prompts"] - 2
    assert content("out.txt") == expected(session, TEXT, temperature=1.0, seed=5)
    status, _, said = document(*arguments)
    assert status == 2 and "--output: out.txt already exists; move it, name another --output, or replace" in said
    assert sorted(os.listdir()) == ["a.txt", "b.txt", "out.txt", "stats.json", "whole.json"]


def test_findings_are_listed_with_their_lines_and_fail_only_a_check(document: Command) -> None:
    Path("terms.txt").write_text("page\n\nnot here\n")
    for more, wanted in (((), 0), (("--check",), 1)):
        status, _, said = document("a.txt", *MODEL, "--keep", "terms.txt", "-m", "2", *more)
        assert status == wanted and "\na.txt:1: cut" in said and "\na.txt:5: " in said
    Path("numbers.txt").write_text("12\n")
    assert document("numbers.txt", *MODEL, "--check")[:2] == (0, "12\n")


def test_an_option_applies_to_those_documents_on_whose_formats_it_has_an_effect(document: Command) -> None:
    Path("table.csv").write_text("1;The page\n2;The list\n")
    Path("words.tsv").write_text("1\tThe value\n")
    status, _, said = document("a.txt", "table.csv", "words.tsv", "-o", "out", *MODEL, "--columns", "2")
    assert status == 0, said
    for name in ("table.csv", "words.tsv"):
        assert document(name, "-o", "alone", *MODEL, "--columns", "2", "--force")[0] == 0
        assert content(f"out/{name}") == content("alone") != content(name)
    assert document("a.txt", "-o", "alone", *MODEL, "--force")[0] == 0 and content("out/a.txt") == content("alone")


@needs_subpackage("memory")
def test_a_written_memory_has_the_decoded_pieces_and_makes_the_next_run_cheap(document: Command) -> None:
    arguments = ("a.txt", "--model", "t5-web-docs-draft", "--dtype", "float32", "--unit", "line", "-m", "40")
    arguments += ("--source-language", "en", "--target-language", "de", "--drafter", "text", "--num-draft", "8")
    status, first, said = document(*arguments, "--write-memory", "new.tmx", "--stats-json", "first.json")
    assert status == 0, said
    memory = content("new.tmx")
    assert memory.count("<tu>") == 3 and 'srclang="en"' in memory and memory.count('<tuv xml:lang="de">') == 3
    assert "<seg>Open the page {name} first.</seg>" in memory
    status, second, said = document(*arguments, "--memory", "new.tmx", "--stats-json", "second.json")
    assert status == 0 and second == first and "memory of 3 pairs" in said
    calls = [json.loads(content(f"{name}.json"))["target_calls"] for name in ("first", "second")]
    assert calls[1] < calls[0]
    status, _, said = document(*arguments, "--write-memory", "new.tmx")
    assert status == 2 and "--write-memory: new.tmx already exists" in said and content("new.tmx") == memory
    status, _, said = document(*arguments, "--memory", "new.tmx", "--write-memory", "new.tmx", "--force")
    assert status == 2 and "--write-memory: new.tmx is already used by --memory" in said


REFUSED = {
    ("missing.txt",): "missing.txt: not readable",
    ("a.docx",): "FILE: a.docx: .docx is not supported; convert it to Markdown or HTML with pandoc",
    ("a.txt", "app.resx", "-o", "out"): "FILE: app.resx: .resx is not supported; convert it to PO with the "
    "Translate Toolkit",
    ("notes.de",): "FILE: notes.de: the suffix .de is unknown; read it with --format text",
    ("a.txt", "-o", "a.txt"): "--output: a.txt is already used by FILE",
    ("a.txt", "-o", "link"): "--output: link is already used by FILE",
    ("a.txt", "b.txt"): "--output: several documents need a folder (got 2)",
    ("a.txt", "b.txt", "-o", "terms"): "--output: terms is not a folder",
    ("a.txt", "./a.txt", "-o", "out"): "FILE: two documents are named a.txt",
    ("a.txt", "-", "-o", "out"): "--output: standard input has no name for a file in a folder",
    ("a.txt", "-o", "no/where"): "--output: no/where cannot be written",
    ("a.txt", "-o", "/dev/null"): "--output: /dev/null is not a regular file",
    ("a.txt", "b.txt", "-o", "no/where"): "--output: no/where cannot be written",
    ("a.txt", "--force"): "--force: has no effect without --output",
    ("a.txt", "--max-document", "5", "--format", "srt"): "a.txt: has more than 5 bytes",
    ("a.txt", "--keep", "none"): "--keep: none: not readable",
    ("a.txt", "-o", "terms.txt", "--keep", "terms.txt"): "--output: terms.txt is already used by --keep",
    ("a.txt", "--columns", "1"): "--columns: has no effect on the formats of these documents (text); leave it out",
    ("a.txt", "--unwrap", "--format", "jsonl"): "--unwrap: has no effect with --format jsonl",
    ("a.txt", "--num-beams", "2", "--num-return-sequences", "2"): "--num-return-sequences: must be 1 for documents",
    ("a.txt", "--write-memory", "new.txt"): "--write-memory: new.txt is not a .tmx file",
    ("a.txt", "--write-memory", "new.tmx"): "--write-memory: needs the languages of the sources and the outputs; "
    "name them with --source-language and --target-language",
    (
        "a.txt",
        "--write-memory",
        "new.tmx",
        "--source-language",
        "en",
        "--target-language",
        "eng_Latn",
    ): "--write-memory: a memory has two languages, not en twice",
    ("a.txt", "-o", "new.txt", "--stats-json", "new.txt"): "--output: new.txt is already used by --stats-json",
    ("a.txt", "-o", "new", "--stats-json", "new.journal"): "--output: new.journal is already used by --stats-json",
}


@pytest.mark.parametrize("arguments", REFUSED, ids=" ".join)
def test_bad_arguments_are_one_line_with_status_2_before_weights_load(
    arguments: tuple[str, ...], document: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "--write-memory" in arguments:
        pytest.importorskip("speculative_decoding.memory")
    monkeypatch.setattr(ModelPair, "load_weights", None)
    for name in ("a.docx", "app.resx", "notes.de"):
        Path(name).touch()
    Path("terms").touch()
    Path("terms.txt").touch()
    Path("link").symlink_to("a.txt")
    before = sorted(os.listdir())
    status, out, said = document(*arguments, *MODEL[:2])
    (line,) = [line for line in said.splitlines() if not line.startswith("target ")]
    assert status == 2 and not out and line.startswith(f"speculative-decoding document: error: {REFUSED[arguments]}"), (
        line
    )
    assert sorted(os.listdir()) == before and content("a.txt") == TEXT


def test_a_missing_package_is_named_before_weights_load(document: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelPair, "load_weights", None)
    monkeypatch.setitem(sys.modules, "markdown_it", None)
    for name in [name for name in sys.modules if name.startswith("speculative_decoding.documents.markdown")]:
        monkeypatch.delitem(sys.modules, name)
    Path("a.md").write_text("# Title\n")
    status, _, said = document("a.md", *MODEL)
    assert status == 2 and '--format: markdown requires markdown_it; run pip install "spec' in said


@pytest.mark.slow
def test_a_model_that_reads_speech_is_refused(document: Command, tmp_path: Path) -> None:
    folder = save_whisper(tiny_whisper(), tmp_path / "whisper", WHISPER)
    status, _, said = document("a.txt", "--model", folder)
    assert status == 2 and "--model: this model transcribes speech and cannot decode documents" in said


@pytest.mark.slow
def test_a_killed_process_is_continued_with_the_same_bytes(tmp_path: Path) -> None:
    lines = (ROOT / "data" / "translation.txt").read_text().splitlines()[:30]
    (tmp_path / "a.txt").write_text("\n".join(line.removeprefix(PREFIX) for line in lines))
    command = [sys.executable, "-m", "speculative_decoding", "document", "a.txt", "--prefix", PREFIX, "--unit", "line"]
    command += ["--slots", "2", "--dtype", "float32", "-m", "40", "-o"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([*command, "whole"], cwd=tmp_path, env=environment, check=True, capture_output=True)
    journal = tmp_path / "out.journal"
    for kept in (1, 9):
        process = subprocess.Popen([*command, "out"], cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
        while not (journal.exists() and journal.read_bytes().count(b"\n") > kept):
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
        process.wait()
        assert not (tmp_path / "out").exists()
    done = subprocess.run([*command, "out"], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
    assert "continuing an interrupted run" in done.stderr
    assert (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "out", "whole"]
