"""The list of commands, and the version that each program prints."""

from __future__ import annotations

from typing import Any

import pytest

from speculative_decoding.cli import convert, main, programs
from speculative_decoding.version import __version__


@pytest.mark.parametrize("program", [main, convert, programs])
def test_each_program_prints_the_version(program: Any, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        assert program.main(["--version"]) == 0
    except SystemExit as ended:
        assert ended.code == 0
    assert capsys.readouterr().out == f"speculative-decoding {__version__}\n"


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("convert", ["--modle", "x"], "--modle: unknown option; did you mean --model?"),
        ("train", ["--promts=x", "--output", "y"], "--promts: unknown option; did you mean --prompts?"),
        (
            "generate",
            ["--temprature", "1", "--top-p", "5"],
            "--temprature: unknown option; did you mean --temperature?",
        ),
        ("convert", [], "one of the arguments --model --verify is required"),
        ("generate", ["--top-p", "5", "--", "--x"], "argument --top-p: must be a number above 0, at most 1, not '5'"),
    ],
)
def test_a_mistyped_flag_is_reported_before_what_is_missing_or_wrong(
    command: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        programs.main([command, *arguments])
    err = capsys.readouterr().err
    assert ended.value.code == 2 and err.startswith(f"speculative-decoding {command}: error: {message}")


def test_commands_are_listed_and_unknown_ones_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert programs.main([]) == programs.main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name, (*_, about) in programs.COMMANDS.items():
        assert f"{name} " in shown and about in shown
        with pytest.raises(SystemExit) as ended:
            programs.main([name, "--help"])
        assert ended.value.code == 0 and f"usage: speculative-decoding {name} " in capsys.readouterr().out
    assert programs.main(["dance"]) == 2
    assert capsys.readouterr().err == (
        "speculative-decoding: error: the first argument must be one of "
        + ", ".join(programs.COMMANDS)
        + "; for a prompt, generate\n"
    )
    for given, message in (
        ("tranlate this: fish", "the first argument must be one"),
        ("transcrib", "did you mean transcribe?"),
    ):
        assert programs.main([given]) == 2
        assert message in (err := capsys.readouterr().err) and "fish" not in err
