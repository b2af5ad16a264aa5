"""Runs the command `document` in this process."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

from speculative_decoding.cli import programs
from speculative_decoding.documents.journal import Journal

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


def interrupt_after(count: int, patch: pytest.MonkeyPatch) -> list[int]:
    """Raise SIGINT once this number of pieces has been recorded. Returns the numbers of all recorded pieces so far."""
    append = Journal.append
    appended: list[int] = []

    def interrupt(journal: Journal, number: int, *given: Any) -> None:
        append(journal, number, *given)
        appended.append(number)
        if len(appended) == count:
            signal.raise_signal(signal.SIGINT)

    patch.setattr(Journal, "append", interrupt)
    return appended
