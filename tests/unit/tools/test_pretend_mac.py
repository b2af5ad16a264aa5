"""Under tools/pretend_mac, a test fails if it needs what a Mac lacks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="a Mac need not pretend")]

FAILING = {
    "needs_dev_full": 'open("/dev/full", "w")',
    "needs_proc": 'Path("/proc/self/status").read_text()',
    "needs_affinity": "os.sched_getaffinity(0)",
    "needs_fork": "os.fork()",
    "needs_a_compiler": 'subprocess.run(["g++", "--version"], check=True)',
    "needs_distinct_case": '(tmp_path / "a").touch(), (tmp_path / "A").touch()',
    "needs_linux": 'assert sys.platform == "linux"',
}
PASSING = {
    "children_pretend_too": 'subprocess.run([sys.executable, "-c", IS_MAC], check=True)',
    "folders_are_swapped": 'assert exchange(made(tmp_path / "a"), made(tmp_path / "b"))',
}
HEADER = """
import os, subprocess, sys
from pathlib import Path
from speculative_decoding.runs.places import exchange

IS_MAC = "import sys; assert sys.platform == 'darwin'"

def made(path):
    path.mkdir()
    return path
"""


def test_a_test_that_needs_what_a_mac_lacks_fails(tmp_path: Path) -> None:
    tests = "".join(f"def test_{name}(tmp_path):\n    {code}\n" for name, code in (FAILING | PASSING).items())
    (tmp_path / "test_planted.py").write_text(HEADER + tests)
    command = [sys.executable, "-m", "tools.pretend_mac", "-qq", "-n", "0", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    last = done.stdout.splitlines()[-1]
    assert done.returncode == 1 and last.startswith(f"pretended Mac: {len(FAILING)} failed, {len(PASSING)} passed")
    assert all(f"::test_{name}" in done.stdout for name in FAILING)
