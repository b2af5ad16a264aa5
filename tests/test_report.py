"""Traces and what a report makes of them: each number against a count by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding.cli import main as main_command
from speculative_decoding.cli import report as report_command
from speculative_decoding.cli.report import accepted_by_position, markdown, read_trace, seconds_by_part

FIXED = ("--drafter", "model", "--num-draft", "5")
PROMPT = "translate English to German: The method returns the value of the property."


def line(
    request: int, number: int, position: int, drafted: int, accepted: int, tokens: int, **more: Any
) -> dict[str, Any]:
    return {
        "request": request,
        "round": number,
        "position": position,
        "tokens": [7] * tokens,
        "drafted": drafted,
        "accepted": accepted,
        "seconds": 1.0,
        "draft_seconds": 0.25,
        "verify_seconds": 0.5,
        "encode_seconds": 0.0,
    } | more


ROUNDS = [
    line(0, 0, 0, 3, 2, 3, encode_seconds=2.0),
    line(0, 1, 3, 3, 0, 1),
    line(0, 2, 4, 3, 3, 4),
    line(0, 3, 8, 3, 2, 2),  # ends inside the draft: its third token was never judged
    line(1, 0, 0, 0, 0, 1, encode_seconds=1.0),
]


def test_the_numbers_of_a_report() -> None:
    assert accepted_by_position(ROUNDS) == [3 / 4, 3 / 4, 1 / 3]
    assert seconds_by_part(ROUNDS) == {"encode": 3.0, "draft": 1.25, "verify": 2.5, "host": 1.25}
    cells = [cell.strip() for cell in markdown({"x": ROUNDS}).splitlines()[2].split("|")[1:-1]]
    assert cells == ["x", "2", "5", "11", "2.20", "58.3%", "75 75 33", "1.4", "3.000", "1.250", "2.500", "1.250"]


def test_main_writes_what_the_report_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, stats_file = tmp_path / "run.jsonl", tmp_path / "stats.json"
    assert main_command.main(["--prompt", PROMPT, *FIXED, "--trace", str(trace), "--stats-json", str(stats_file)]) == 0
    out, _ = capsys.readouterr()
    lines = [json.loads(each) for each in trace.read_text().splitlines()]
    stats = json.loads(stats_file.read_text())
    assert len(lines) == stats["target_calls"] == 2
    assert "".join(each["text"] for each in lines) + "\n" == out
    for name, key in (("accepted", "accepted_tokens"), ("drafted", "drafted_tokens")):
        assert sum(each[name] for each in lines) == stats[key]
    position = 0
    for number, each in enumerate(lines):
        assert (each["request"], each["round"], each["position"], each["kind"]) == (0, number, position, "model")
        assert each["proposed"][: each["accepted"]] == each["tokens"][: each["accepted"]]
        assert 0 < each["draft_seconds"] + each["verify_seconds"] < each["seconds"]
        position += len(each["tokens"])
    assert lines[-1]["finish_reason"] == "stop"

    assert report_command.main([str(trace)]) == 0
    table = capsys.readouterr().out
    assert "| run | 1 " in table and "90.0%" in table


def test_runs_of_the_same_name_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "run.jsonl").write_text("\n".join(map(json.dumps, ROUNDS)))
    paths = [str(tmp_path / folder / "run.jsonl") for folder in ("a", "b")]
    assert report_command.main(paths) == 0
    out = capsys.readouterr().out
    assert all(path in out for path in paths)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "holds no round"),
        ("{}", "line 1: not a round"),
        ("[1]", "line 1: not a round"),
        (json.dumps(ROUNDS[0]) + "\nnonsense", "line 2: not a round"),
        (json.dumps(ROUNDS[0] | {"draft_seconds": None}), "line 1: not a round"),
        (json.dumps(ROUNDS[0] | {"accepted": 4}), "line 1: not a round"),
        (json.dumps(ROUNDS[0] | {"tokens": []}), "line 1: not a round"),
    ],
)
def test_other_files_are_refused_with_their_line(
    content: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.jsonl").write_text(content)
    assert report_command.main([str(tmp_path / "x.jsonl")]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert named in said and "x.jsonl" in said


def test_a_trace_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "run.jsonl"
    trace.write_text(json.dumps(ROUNDS[0]))
    assert len(read_trace(trace)) == 1
    assert main_command.main(["--prompt", PROMPT, "--trace", "/nonexistent/x.jsonl"]) == 2
    assert "--trace /nonexistent/x.jsonl: cannot be written" in capsys.readouterr().err
