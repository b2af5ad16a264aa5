"""Runs the command `document` in this process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from speculative_decoding.cli import programs

Command = Callable[..., tuple[int, str, str]]


def document_command(capfd: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs `document`. It returns the exit status, standard output and standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        try:
            status = programs.main(["document", *map(str, arguments)])
        except SystemExit as exit:  # raised by argparse
            status = int(exit.code or 0)
        return status, *capfd.readouterr()

    return call
