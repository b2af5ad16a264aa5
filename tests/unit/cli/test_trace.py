"""Traces: each number is compared with the statistics of the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from speculative_decoding.cli import main as main_command

FIXED = ("--drafter", "model", "--num-draft", "5")
PROMPT = "translate English to German: The method returns the value of the property."


def test_a_trace_adds_up_to_the_statistics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, stats_file = tmp_path / "run.jsonl", tmp_path / "stats.json"
    assert main_command.main(["--prompt", PROMPT, *FIXED, "--trace", str(trace), "--stats-json", str(stats_file)]) == 0
    out, _ = capsys.readouterr()
    lines = [json.loads(each) for each in trace.read_text().splitlines()]
    stats = json.loads(stats_file.read_text())
    assert len(lines) == stats["target_calls"] == 2
    assert "".join(each["text"] for each in lines) + "\n" == out
    for name, key in (("accepted", "accepted_tokens"), ("drafted", "drafted_tokens")):
        assert sum(each[name] for each in lines) == stats[key]
    for name in ("draft_seconds", "verify_seconds"):
        assert sum(each[name] for each in lines) == pytest.approx(stats[name])
    position = 0
    for number, each in enumerate(lines):
        assert (each["request"], each["round"], each["position"], each["kind"]) == (0, number, position, "model")
        assert each["proposed"][: each["accepted"]] == each["tokens"][: each["accepted"]]
        assert 0 < each["draft_seconds"] + each["verify_seconds"] < each["seconds"]
        position += len(each["tokens"])
    assert lines[0]["encode_seconds"] == stats["encode_seconds"] and "encode_seconds" not in lines[1]
    assert lines[-1]["finish_reason"] == "stop"


def test_an_unwritable_trace_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_command.main(["--prompt", PROMPT, "--trace", "/nonexistent/x.jsonl"]) == 2
    assert "--trace /nonexistent/x.jsonl: cannot be written" in capsys.readouterr().err
