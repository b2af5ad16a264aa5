"""Ctrl-C while several processes work on a job: all of them end, and one prints the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.robustness.test_ctrl_c import interrupt, write_inputs
from tests.support import pausing
from tests.support.processes import start

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("to_all", [False, True])
def test_ctrl_c_ends_all_processes_of_a_job(to_all: bool, tmp_path: Path) -> None:
    write_inputs(tmp_path)
    job = f"batch {tmp_path / 'prompts.txt'} --model {tmp_path / 'target'} --output {tmp_path / 'made'}"
    started = start(2, tmp_path, pausing.main, "lines,", 1, job.split())
    interrupt("lines,", tmp_path / "said-0", *(started if to_all else started[:1]))
    for process in started:
        process.join()
    assert [process.exitcode for process in started] == [130, 130]
    assert (tmp_path / "said-0").read_text().count("interrupted") == 1
    assert not (tmp_path / "said-1").read_text() and "Traceback" not in (tmp_path / "said-0").read_text()
