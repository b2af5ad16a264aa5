"""--compare: a table of decoding modes on standard error, and only the text on standard output."""

from __future__ import annotations

import re

import pytest
from rich.console import Console

from speculative_decoding import GenerationStats
from speculative_decoding.cli import main as main_command
from speculative_decoding.cli.compare import comparison_table

PROMPT = "translate English to German: The method returns the value of the property."
FIXED = ("--drafter", "model", "--num-draft", "5", "--model", "t5-web-docs", "--draft-model", "t5-web-docs-draft")
TEXT = "Die Methode gibt den Wert der Eigenschaft zurück."


def compare(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    assert main_command.main(["--compare", "--prompt", PROMPT, *arguments]) == 0
    return tuple(capsys.readouterr())  # type: ignore[return-value]


def row(err: str, mode: str) -> list[str]:
    (line,) = (line for line in err.splitlines() if re.match(rf"{mode} +\d", line))
    return line.split()


def test_three_modes_are_compared_in_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = compare(capsys, *FIXED, "--prompt", "translate English to German: The page is loaded by the browser.")
    text = "Die Seite wird vom Browser geladen."
    assert out == f"{text}\n"
    drafted = "Die Seite geladen wird von der Browser geladen."
    assert err.splitlines()[2:7] == ["draft:", drafted, "baseline:", text, "speculative:"]
    assert len(row(err, "baseline")) == 4
    tokens, calls, _, speedup, accepted, text = row(err, "speculative")[1:]
    assert (tokens, calls, accepted, text) == ("8", "2", "70.0%", "identical") and re.fullmatch(r"\d+\.\d\dx", speedup)
    assert row(err, "draft")[-1] == "differs"


def test_a_lossy_text_is_reported_as_different(capsys: pytest.CaptureFixture[str]) -> None:
    prompt = "translate English to German: The browser shows the page again."
    _, err = compare(capsys, "--delta", "1", *FIXED, "--prompt", prompt)
    assert re.search(r"speculative .* differs at token \d", err) and "LOSSY" in err


def test_samples_are_identical_unless_another_rule_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    _, err = compare(capsys, "--temperature", "1.5", "--seed", "3", "--acceptance", "rejection")
    assert "another sample" in err
    _, err = compare(capsys, "--temperature", "1.5", "--seed", "3")
    assert row(err, "speculative")[-1] == "identical"


def test_ngram_drafts_are_compared_without_a_draft_model(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = compare(capsys, "--drafter", "ngram")
    assert out == f"{TEXT}\n" and "draft:" not in err and row(err, "speculative")[-1] == "identical"


def test_the_draft_is_shown_with_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = compare(capsys, "--show-draft", *FIXED)
    assert out == f"{TEXT}\n" and "accepted [-rejected-] {+correction or bonus+}" in err
    assert "Die Methode gibt den Wert{+ der+} Eigenschaft" in err


def test_several_prompts_get_a_total(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "prompts.txt").write_text(f"{PROMPT}\n\n{PROMPT}\n")
    with (tmp_path / "prompts.txt").open() as file:
        monkeypatch.setattr("sys.stdin", file)
        assert main_command.main(["--compare", *FIXED]) == 0
    out, err = capsys.readouterr()
    assert out == f"{TEXT}\n\n{TEXT}\n"
    assert "2 prompts:" in err and re.search(r"speculative +20 +4 .* 2 of 2 identical", err)


def test_the_table_fits_the_terminal() -> None:
    console = Console(width=80, file=None, record=True, force_terminal=False)
    stats = GenerationStats(
        generated_tokens=100, target_calls=20, drafted_tokens=90, accepted_tokens=80, decode_seconds=0.5
    )
    slow = GenerationStats(generated_tokens=100, target_calls=100, decode_seconds=1.0)
    with console.capture() as captured:
        console.print(comparison_table({"baseline": (slow, ""), "speculative": (stats, "identical")}, "baseline"))
    lines = captured.get().splitlines()
    assert len(lines) == 3 and all(len(line) <= 80 for line in lines)
    assert "200.0" in lines[2] and "2.00x" in lines[2] and "88.9%" in lines[2] and "identical" in lines[2]
