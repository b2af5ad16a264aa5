"""--compare: a table of decoding modes on standard error, and only the text on standard output."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from rich.console import Console

from speculative_decoding import GenerationOptions, GenerationStats, Session
from speculative_decoding.cli import main as main_command
from speculative_decoding.cli.compare import Comparison, comparison_table

PROMPT = "translate English to German: The method returns the value of the property."
TEXT = "Die Methode gibt den Wert der Eigenschaft zurück."
Compare = Callable[..., tuple[str, str]]


@pytest.fixture
def compare(new_session: Callable[..., Session], capsys: pytest.CaptureFixture[str]) -> Compare:
    """Compare the modes of the bundled pair with 5 draft tokens, and return standard output and standard error."""

    def call(*prompts: str, **options: object) -> tuple[str, str]:
        chosen = GenerationOptions(**{"drafter": "model", "num_draft_tokens": 5} | options)  # type: ignore[arg-type]
        runner = Comparison(None, in_one_line=True)
        session = new_session(options=chosen)
        for prompt in prompts or [PROMPT]:
            runner.run(session, prompt)
        runner.finish(session)
        return tuple(capsys.readouterr())  # type: ignore[return-value]

    return call


def row(err: str, mode: str) -> list[str]:
    (line,) = (line for line in err.splitlines() if re.match(rf"{mode} +\d", line))
    return line.split()


def test_three_modes_are_compared_in_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    prompt = "translate English to German: The page is loaded by the browser."
    pair = ("--model", "t5-web-docs", "--draft-model", "t5-web-docs-draft", "--drafter", "model", "--num-draft", "5")
    assert main_command.main(["--compare", "--verify", *pair, "--prompt", prompt]) == 0
    out, err = capsys.readouterr()
    text = "Die Seite wird vom Browser geladen."
    assert out == f"{text}\n" and "verify: identical" in err
    drafted = "Die Seite geladen wird von der Browser geladen."
    assert err.splitlines()[2:7] == ["draft:", drafted, "baseline:", text, "speculative:"]
    assert len(row(err, "baseline")) == 4
    tokens, calls, _, speedup, accepted, text = row(err, "speculative")[1:]
    assert (tokens, calls, accepted, text) == ("8", "2", "70.0%", "identical") and re.fullmatch(r"\d+\.\d\dx", speedup)
    assert row(err, "draft")[-1] == "differs"


@pytest.mark.parametrize(
    ("options", "agreement"),
    [
        ({"delta": 1.0}, r"differs at token \d+, *\n +logit gap \S+"),
        ({"temperature": 1.5, "seed": 3, "acceptance": "rejection"}, "another sample"),
        ({"temperature": 1.5, "seed": 3}, "identical"),
    ],
)
def test_the_text_is_compared_with_the_baseline(options: dict[str, object], agreement: str, compare: Compare) -> None:
    out, err = compare("translate English to German: The browser shows the page again.", **options)
    assert out.count("\n") == 1 and re.search(rf"^speculative .* {agreement} *$", err, re.MULTILINE)
    assert "draft:" in err and ("LOSSY" in err) == ("delta" in options)


def test_several_prompts_get_a_total(compare: Compare) -> None:
    out, err = compare(PROMPT, PROMPT)
    assert out == f"{TEXT}\n{TEXT}\n"
    assert "2 prompts:" in err and re.search(r"speculative +20 +4 .* 2 of 2 identical", err)


def test_the_table_fits_the_terminal() -> None:
    console = Console(width=80, file=None, record=True, force_terminal=False)
    counts = {"generated_tokens": 100, "target_calls": 20, "drafted_tokens": 90, "accepted_tokens": 80}
    stats = GenerationStats(**counts, decode_seconds=0.5)  # type: ignore[arg-type]
    slow = GenerationStats(generated_tokens=100, target_calls=100, decode_seconds=1.0)
    with console.capture() as captured:
        console.print(comparison_table({"baseline": (slow, ""), "speculative": (stats, "identical")}, "baseline"))
    lines = captured.get().splitlines()
    assert len(lines) == 3 and all(len(line) <= 80 for line in lines)
    assert "200.0" in lines[2] and "2.00x" in lines[2] and "88.9%" in lines[2] and "identical" in lines[2]
