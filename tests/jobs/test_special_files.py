"""Files of a job that are no regular files: a named pipe would block, and /dev/zero is endless."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from speculative_decoding import InputError
from speculative_decoding.jobs.command import open_input
from speculative_decoding.jobs.output import read_journal


def test_an_input_that_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    (path := tmp_path / "input").symlink_to("/dev/null")
    with pytest.raises(InputError, match="not a regular file"):
        open_input(str(path))


def test_a_journal_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "out.jsonl.job")
    with pytest.raises(InputError, match=r"out\.jsonl\.job cannot be read"):
        read_journal(tmp_path / "out.jsonl", {})
