"""Ctrl-C, once or repeatedly: one line, status 130, and no half-written output.

Each program stops at a progress line and waits there for the signal, so no result depends on the clock.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from tests.support import pausing
from tests.support.paths import ROOT
from tests.support.processes import launch
from tests.support.subpackages import needs_subpackage
from tests.support.tiny import small_target

pytestmark = pytest.mark.slow

TRAIN = "train --model target --prompts prompts.txt --output made --max-tokens 6 --steps 30 --held-out 8 --frequent 8"
TO_RESUME = "; run the same command with --resume to continue"
CASES = [  # command, part of the progress line at which it is interrupted, end of its last line
    ("convert --model target --output made", "shared.weight", ""),
    ("verify prompts.txt --model target --drafter ngram", "outputs identical", ""),
    pytest.param(TRAIN, " outputs,", TO_RESUME, marks=needs_subpackage("training")),
    pytest.param(TRAIN, "features of", TO_RESUME, marks=needs_subpackage("training")),
    pytest.param(TRAIN, "step 25", TO_RESUME, marks=needs_subpackage("training")),
    pytest.param("batch prompts.txt --model target --output made", "lines,", TO_RESUME, marks=needs_subpackage("jobs")),
    pytest.param("serve --model target --port 0", "ready when GET /health", "", marks=needs_subpackage("server")),
]


def write_inputs(folder: Path) -> Path:
    small_target(folder)
    (folder / "prompts.txt").write_text("".join(f"{'abcdefgh'[i % 8 :]}{'ab' * (i % 3)}\n" for i in range(40)))
    return folder


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("inputs"))


def interrupted(folder: Path, command: str, state: str, signals: int) -> tuple[int, str]:
    """Return the exit status of a command that gets one or two signals, and the text that it prints after the first."""
    said = folder.with_name(f"{folder.name}-said")
    said.unlink(missing_ok=True)  # of the previous command in this folder
    process = launch(pausing.main, state, signals, command.split(), out=Path(os.devnull), said=said, folder=folder)
    before = interrupt(state, said, process)
    process.join()
    assert process.exitcode is not None
    return process.exitcode, said.read_text().removeprefix(before)


def interrupt(state: str, said: Path, *processes: BaseProcess) -> str:
    """Send SIGINT to these processes as soon as the first one has printed `state`. Return the text before it."""
    before = ""
    while not (state in before and before.endswith("\n")):
        assert processes[0].exitcode is None, before
        time.sleep(0.01)
        before = said.read_text() if said.exists() else ""
    for process in processes:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)
    return before


@pytest.mark.parametrize(("command", "state", "last"), CASES)
def test_ctrl_c_ends_a_program_with_one_line(command: str, state: str, last: str, inputs: Path, tmp_path: Path) -> None:
    for name in ("target", "prompts.txt"):
        (tmp_path / name).symlink_to(inputs / name)
    complete = {"batch": {"made", "made.job"}, "train": {"made.training"}}.get(command.split()[0], set())
    for signals, expected in ((1, 130), (2, -signal.SIGINT)):  # a shell reports 130 for both
        status, said = interrupted(tmp_path, command, state, signals)
        pattern = rf"\n[\w. -]+: interrupted( after line \d+)?{re.escape(last)}\n"
        assert status == expected and re.fullmatch(pattern, said), said
        assert set(os.listdir(tmp_path)) == {"target", "prompts.txt", *complete}
        command += " --resume" if complete and signals == 1 else ""


INTERRUPTED_IMPORT = """
import signal, sys

class Interrupt:
    def find_spec(self, name, *_):
        if name == "mlx.core":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
sys.argv = sys.argv[1:2]
exec(sys.stdin.read())
"""


@pytest.mark.parametrize("program", ["main.py", "convert.py", "speculative-decoding"])
def test_ctrl_c_during_the_imports_prints_one_line(program: str) -> None:
    start = "import runpy; runpy.run_path(sys.argv[0], run_name='__main__')"
    if program not in os.listdir(ROOT):
        (entry,) = re.findall(rf'^{program} = "(\w+:\w+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
        start = "from {} import {} as start; start()".format(*entry.split(":"))
    command = [sys.executable, "-c", INTERRUPTED_IMPORT, program]
    done = subprocess.run(command, cwd=ROOT, input=start, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", f"\n{program}: interrupted\n")


@pytest.mark.parametrize("module", ["-m speculative_decoding", "-mspeculative_decoding.verify"])
def test_ctrl_c_during_the_imports_of_a_module_prints_one_line(module: str, tmp_path: Path) -> None:
    before, _, _ = INTERRUPTED_IMPORT.partition("sys.argv")
    (tmp_path / "sitecustomize.py").write_text(before)
    command = [sys.executable, *module.split(), "--help"]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\nspeculative_decoding: interrupted\n")


def test_importing_the_package_leaves_ctrl_c_to_other_programs(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app/__init__.py").write_text("import speculative_decoding")
    (tmp_path / "app/__main__.py").write_text("import signal; print(signal.getsignal(2) is signal.default_int_handler)")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    for arguments in ([], ["-m", "speculative_decoding.model"]):  # the second are the program's own
        command = [sys.executable, "-m", "app", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
