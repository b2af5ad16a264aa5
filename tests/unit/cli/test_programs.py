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


def test_an_unknown_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert programs.main(["dance"]) == 2
    out, err = capsys.readouterr()
    assert not out and err.startswith("speculative-decoding: error: 'dance': unknown command; choose one of generate, ")
