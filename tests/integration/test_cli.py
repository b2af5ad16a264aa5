"""main.py as users run it: text on standard output, everything else on standard error. Parts: tests/unit/cli."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from speculative_decoding.cli import main as main_command
from tests.support.paths import ROOT

PROMPT = "translate English to German: The method returns the value."
HARDER = (
    "translate English to German: This function removes the last element of an array."  # the draft is partly accepted
)
FIXED = ("--drafter", "model", "--num-draft", "5")  # the same rounds in every run
FLOAT32 = ("--dtype", "float32")  # the same text in a process that uses a GPU


def in_new_process(*arguments: str, **options: int) -> subprocess.CompletedProcess[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.run([sys.executable, ROOT / "main.py", *arguments, *FLOAT32], cwd=ROOT, text=True, **pipes)  # type: ignore[call-overload, no-any-return]


def test_a_prompt_gives_its_text_and_statistics(tmp_path: Path) -> None:
    stats_file = tmp_path / "stats.json"
    done = in_new_process("--prompt", PROMPT, "--stats-json", str(stats_file))
    assert done.returncode == 0 and done.stdout == "Die Methode gibt den Wert zurück.\n"
    for words in ("t5-web-docs, draft", "accepted", "target calls", "encode", "decode", "tokens/s", "peak memory"):
        assert words in done.stderr
    stats = json.loads(stats_file.read_text())
    assert stats["lossless"] and 0 < stats["accepted_tokens"] <= stats["drafted_tokens"]
    # Each call adds one token to the accepted ones, except the last call if it accepts a drafted end token.
    assert stats["accepted_tokens"] + stats["target_calls"] - stats["generated_tokens"] in (0, 1)
    assert stats["generated_tokens"] / stats["target_calls"] == stats["tokens_per_target_call"]
    assert not {"draft_seconds", "verify_seconds"} & stats.keys()


def test_text_and_draft_in_one_pipe_are_not_mixed() -> None:
    lines = in_new_process("--show-draft", *FIXED, "--prompt", HARDER, stderr=subprocess.STDOUT).stdout.splitlines()
    assert "[- " in lines[3] and "{+ " in lines[3]
    assert re.sub(r"\[-.*?-\]|\{\+|\+\}", "", lines[3]) == "Diese Funktion entfernt das letzte Element eines Arrays."
    assert lines[4].startswith("11 tokens at ")


def test_each_line_of_standard_input_gives_a_line_and_is_verified(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{PROMPT}\n\n{HARDER}\n".encode())))
    assert main_command.main(["--verify", "-m", "9", *FIXED]) == 0
    out, err = capsys.readouterr()
    assert [bool(line) for line in out.split("\n")] == [True, False, True, False]
    assert err.count("verify: identical") == 2 and "\nstopped at --max-tokens: 1 of 2 texts\n" in err


def test_a_text_that_differs_from_the_baseline_gives_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_command.main(["--prompt", HARDER, "--verify", "--delta", "1", *FIXED]) == 1
    err = capsys.readouterr().err
    assert "verify: differs at token" in err and "LOSSY: --delta 1 accepts tokens" in err
