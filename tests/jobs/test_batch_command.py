"""`batch`: encodings, prefixes, full disks, and exactness of resumed jobs."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding import Session
from speculative_decoding.cli.common import read_prompts
from speculative_decoding.draft_length import planner
from speculative_decoding.draft_length.exact_widths import ExactWidths
from speculative_decoding.engine import Engine, Event
from speculative_decoding.jobs import command as batch_command
from speculative_decoding.jobs.output import journal_path
from speculative_decoding.loading.pair import ModelPair
from tests.integration.test_cli import FIXED, PROMPT
from tests.support.paths import ROOT
from tests.unit.cli.test_common import FullDisk

Batch = Callable[..., tuple[int, str, str]]


@pytest.fixture
def batch(capsys: pytest.CaptureFixture[str]) -> Batch:
    """Run `batch` in this process and return (exit status, standard output, standard error)."""

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = batch_command.main([*arguments])
        return status, *capsys.readouterr()

    return call


def test_files_with_a_byte_order_mark_are_decoded(tmp_path: Path, batch: Batch) -> None:
    records = []
    for name, encoding in (("plain", "utf-8"), ("marked", "utf-16")):
        path = tmp_path / f"{name}.txt"
        path.write_bytes(f"{PROMPT}\n\nGrüße\n".encode(encoding))
        assert read_prompts(path) == [PROMPT, "Grüße"]
        status, out, _ = batch(str(path), "-m", "8", "--drafter", "none")
        assert status == 0
        records.append(out)
    assert records[0] == records[1]


LINES_IN_A_TEXT = "eins\nzwei\r\n\ndrei\u2028vier"


@pytest.fixture
def with_line_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every text of a generation contains line breaks."""
    original = Engine.step

    def step(self: Engine) -> list[Event]:
        events = []
        for event in original(self):
            event.request.text = LINES_IN_A_TEXT
            events.append(event._replace(texts=[LINES_IN_A_TEXT, *event.texts[1:]]))
        return events

    monkeypatch.setattr(Engine, "step", step)


@pytest.mark.usefixtures("with_line_breaks")
def test_records_keep_line_breaks(batch: Batch, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("a\n")
    _, out, _ = batch(str(tmp_path / "in.txt"), "-m", "1", "--drafter", "none")
    assert json.loads(out)["text"] == LINES_IN_A_TEXT


def test_a_delta_of_a_line_is_labeled_lossy(batch: Batch, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps({"prompt": PROMPT, "delta": 0.5}))
    _, _, err = batch(str(tmp_path / "in.jsonl"))
    assert "LOSSY: the delta of a line accepts tokens" in err


def test_a_resumed_job_keeps_its_exactness_and_a_finished_one_needs_no_model(
    tmp_path: Path, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    arguments = [str(prompts), "--output", str(output), "-m", "2"]
    used: list[bool | None] = []
    decode = Session.prompt_scheduler

    def noted(self: Session, *given: Any, **options: Any) -> Any:
        used.append(self.options.strict)
        return decode(self, *given, **options)

    def settings() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(journal_path(output).read_text())["settings"]
        return found

    monkeypatch.setattr(Session, "prompt_scheduler", noted)
    monkeypatch.setattr(planner, "gives_any_width_the_same_bits", lambda target: False)
    decided = True
    monkeypatch.setattr(ExactWidths, "is_exact_by_default", lambda *given: decided)
    prompts.write_text("a\n")
    assert batch(*arguments)[0] == 0
    assert settings()["exact"] is True and settings()["strict"] is False and used == [True]
    decided = False
    prompts.write_text("a\nb\n")
    assert batch(*arguments, "--resume")[0] == 0
    assert settings()["exact"] is True and used == [True, True]
    status, _, err = batch(*arguments, "--resume", "--no-strict")
    assert status == 2 and "exact was true, is false" in err

    monkeypatch.setattr(ModelPair, "load_weights", None)
    status, _, err = batch(*arguments, "--resume")
    assert status == 0 and "2 lines" in err and len(output.read_text().splitlines()) == 2
    monkeypatch.undo()

    former = json.loads(journal_path(output).read_text())  # earlier versions did not record it
    del former["settings"]["exact"]
    journal_path(output).write_text(json.dumps(former))
    prompts.write_text("a\nb\nc\n")
    assert batch(*arguments, "--resume")[0] == 0 and "exact" in settings()


@pytest.mark.parametrize("prefix", ["grammar: ", "grammar:", " "])
def test_a_prefix_equals_writing_it_before_each_prompt(prefix: str, batch: Batch, tmp_path: Path) -> None:
    """Blank lines stay blank. Options, seeds and other fields of a line are kept."""
    for name, lines in {
        "in.txt": ["He go home.", "", "It were a cod business."],
        "in.jsonl": [{"prompt": "He go home.", "id": 1}, {"prompt": " "}, {"prompt": "It were.", "temperature": 1.0}],
    }.items():
        found = []
        for each in (prefix, ""):
            written = [with_prefix(line, "" if each else prefix) for line in lines]
            (tmp_path / name).write_text("\n".join(written))
            found.append(batch(str(tmp_path / name), "--prefix", each, "-m", "6", *FIXED)[:2])
        assert found[0] == found[1] and found[0][0] == 0 and len(found[0][1].splitlines()) == 3


def with_prefix(line: Any, prefix: str) -> str:
    text = line if isinstance(line, str) else line["prompt"]
    text = prefix + text if text.strip() else text
    return text if isinstance(line, str) else json.dumps(line | {"prompt": text})


def test_a_job_is_not_resumed_with_another_prefix(batch: Batch, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("He go home.\n")
    arguments = [str(tmp_path / "in.txt"), "--output", str(tmp_path / "out"), "-m", "2", *FIXED, "--resume"]
    for more, status in (([], 0), (["--prefix", "grammar: "], 2)):
        assert batch(*arguments, *more)[0] == status
    (tmp_path / "out").unlink()
    for prefix, status in (("grammar: ", 0), ("grammar: ", 0), ("x", 2), ("", 2)):
        assert batch(*arguments, "--prefix", prefix)[0] == status


def test_a_full_disk_is_a_one_line_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with io.TextIOWrapper(FullDisk(tmp_path / "full", "w"), write_through=True) as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert batch_command.main([str(ROOT / "data/grammar.txt"), "-m", "1"]) == 2
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "error" in line]
    assert line.endswith("error: standard output: No space left on device; redirect it to another disk")
