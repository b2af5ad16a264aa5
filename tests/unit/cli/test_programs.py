"""The list of commands, their help, and the version that each program prints."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding.cli import convert, main, programs
from speculative_decoding.cli.parser import Parser
from speculative_decoding.rooms import has_room
from speculative_decoding.sampling.options import option_specs
from speculative_decoding.version import __version__
from tests.support.rooms import needs_room

PRESENT = [name for name, (_, room, _) in programs.COMMANDS.items() if room is None or has_room(room)]


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
        pytest.param(
            "train",
            ["--promts=x", "--output", "y"],
            "--promts: unknown option; did you mean --prompts?",
            marks=needs_room("training"),
        ),
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
    for name in PRESENT:
        *_, about = programs.COMMANDS[name]
        assert f"  {name} " in shown and about in shown
        with pytest.raises(SystemExit) as ended:
            programs.main([name, "--help"])
        assert ended.value.code == 0 and f"usage: speculative-decoding {name} " in capsys.readouterr().out
    assert programs.main(["dance"]) == 2
    assert capsys.readouterr().err == (
        "speculative-decoding: error: the first argument must be one of "
        + ", ".join(PRESENT)
        + "; for a prompt, generate\n"
    )
    for given, message in (
        ("tranlate this: fish", "the first argument must be one"),
        ("convrt", "did you mean convert?"),
        ("transcrib", "did you mean transcribe?" if has_room("speech") else "the first argument must be one"),
    ):
        assert programs.main([given]) == 2
        assert message in (err := capsys.readouterr().err) and "fish" not in err


LONGEST = {"generate": 60}  # lines of --help, which should fit on two screens


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
    assert len(help_of(name).splitlines()) <= LONGEST.get(name, 70)


@pytest.mark.parametrize("name", PRESENT)
def test_help_of_all_options_lists_every_flag(
    name: str, help_of: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    parsers: list[Parser] = []
    parse = Parser.parse_known_args

    def kept(self: Parser, *arguments: Any) -> Any:
        parsers.append(self)
        return parse(self, *arguments)

    monkeypatch.setattr(Parser, "parse_known_args", kept)
    shown = help_of(name)
    shown = help_of(name, "--help-all") if "--help-all" in shown else shown
    flags = {
        each for action in parsers[0]._actions if action.help != argparse.SUPPRESS for each in action.option_strings
    }
    shown = re.sub(r"--\[no-\]([\w-]+)", r"--\1 --no-\1", shown)
    assert flags <= set(re.findall(r"(?<![\w-])--?[\w-]+", shown))


def test_defaults_are_shown_as_a_user_would_type_them(help_of: Callable[..., str]) -> None:
    shown = " ".join(help_of("generate", "--help-all").split())
    for name in ("seed", "max_tokens", "num_draft_tokens", "max_ngram_size"):
        assert f"default: {option_specs()[name].default})" in shown
    assert "0 takes the most likely token (default: 0)" in shown and "(1: off; default: 1)" in shown


@pytest.mark.parametrize("room", sorted({room for _, room, _ in programs.COMMANDS.values() if room}))
def test_a_command_without_its_folder_is_not_listed_and_says_so(
    room: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = [name for name, (_, folder, _) in programs.COMMANDS.items() if folder == room]
    is_file = Path.is_file
    monkeypatch.setattr(Path, "is_file", lambda self: self.parts[-2:] != (room, "__init__.py") and is_file(self))
    for name in [each for each in sys.modules if each.startswith(f"speculative_decoding.{room}")]:
        monkeypatch.setitem(sys.modules, name, None)
    assert programs.main(["--help"]) == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")}
    assert listed == set(PRESENT) - set(own)
    message = f"needs the folder speculative_decoding/{room}, which this copy lacks; install the whole package"
    for name in own:
        assert programs.main([name, "--help"]) == 2
        assert capsys.readouterr().err == f"speculative-decoding: error: {name}: {message}\n"


def test_several_processes_without_the_folder_that_shares_the_work_are_one_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLX_RANK", "0")
    monkeypatch.setattr("speculative_decoding.rooms.has_room", lambda name: name != "distributed")
    assert main.main(["a"]) == 2
    assert capsys.readouterr().err == (
        "main.py: error: needs the folder speculative_decoding/distributed, which this copy lacks; install the whole "
        "package\n"
    )
