"""The list of commands, their help, and the version that each program prints."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any

import pytest

from speculative_decoding.cli import convert, main, programs
from speculative_decoding.cli.convert import convert_parser
from speculative_decoding.cli.main import prompt_parser
from speculative_decoding.cli.parser import Parser
from speculative_decoding.cli.verify import verify_parser
from speculative_decoding.subpackages import has_subpackage
from speculative_decoding.version import __version__

PRESENT = [
    name for name, (_, subpackage, _) in programs.COMMANDS.items() if subpackage is None or has_subpackage(subpackage)
]
LONGEST = {"generate": 60, "transcribe": 80, "document": 80}  # lines of --help; live speech, and formats of documents


@pytest.mark.parametrize("program", [main, convert, programs])
def test_each_program_prints_the_version(program: Any, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        assert program.main(["--version"]) == 0
    except SystemExit as ended:
        assert ended.code == 0
    assert capsys.readouterr().out == f"speculative-decoding {__version__}\n"


def test_commands_are_listed_and_unknown_ones_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert programs.main([]) == programs.main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name in PRESENT:
        assert f"  {name} " in shown and programs.COMMANDS[name][2] in shown
    choices = f"the first argument must be one of {', '.join(PRESENT)}; for a prompt, generate\n"
    for given, message in (("dance: fish", choices), ("convrt", "convrt: unknown command; did you mean convert?\n")):
        assert programs.main([given]) == 2
        assert capsys.readouterr().err == f"speculative-decoding: error: {message}"


@pytest.fixture
def help_of(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return the help of a command, at a terminal of this width."""

    def call(name: str, flag: str = "--help", columns: int = 80) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit) as ended:
            programs.main([name, flag])
        assert ended.value.code == 0
        return capsys.readouterr().out

    return call


@pytest.mark.parametrize("name", PRESENT)
def test_help_fits_the_terminal(name: str, help_of: Callable[..., str]) -> None:
    for columns in (80, 60):
        shown = help_of(name, columns=columns)
        whole = help_of(name, "--help-all", columns) if "--help-all" in shown else shown
        for text in (shown, whole):
            assert max(map(len, text.splitlines())) <= columns
            assert not re.search(r"default: (\(\)|None|True|False|\d+\.0)[);]|--[\w-]*-\n", text)
        assert set(re.findall(r"--[\w-]+", shown)) <= set(re.findall(r"--[\w-]+", whole)) | {"--help"}
    shown = help_of(name)
    assert shown.startswith(f"usage: speculative-decoding {name} ")
    assert len(shown.splitlines()) <= LONGEST.get(name, 70)


@pytest.mark.parametrize(
    ("name", "parser"),
    [
        ("generate", prompt_parser("generate")),
        ("convert", convert_parser("convert")),
        ("verify", verify_parser("verify")),
    ],
)
def test_help_of_all_options_lists_every_flag(name: str, parser: Parser, help_of: Callable[..., str]) -> None:
    shown = help_of(name, "--help" if name == "convert" else "--help-all")
    shown = re.sub(r"--\[no-\]([\w-]+)", r"--\1 --no-\1", shown)
    listed = (action for action in parser._actions if action.help != argparse.SUPPRESS)
    assert {each for action in listed for each in action.option_strings} <= {*re.findall(r"(?<![\w-])--?[\w-]+", shown)}
