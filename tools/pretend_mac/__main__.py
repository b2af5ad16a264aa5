"""Runs the tests in a simulated macOS environment: `python -m tools.pretend_mac [pytest's options]`.

sitecustomize.py lists the differences that are simulated. The last line of output shows the totals. The exit status is
pytest's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.paths import ROOT

# Programs that macOS lacks, or that are installed only with its developer tools.
MISSING = {"g++", "c++", "gcc", "cc", "clang", "clang++", "timeout", "nproc", "taskset", "setsid", "tac"}


def environment(scratch: Path) -> dict[str, str]:
    """Return the environment of a process that pretends to run on a Mac. Its children inherit it."""
    (scratch / "private" / "var" / "folders").mkdir(parents=True)
    (scratch / "var").symlink_to(scratch / "private" / "var")
    programs = scratch / "bin"
    programs.mkdir()
    for folder in filter(os.path.isdir, os.get_exec_path()):
        for name in set(os.listdir(folder)) - MISSING:
            if not (programs / name).is_symlink():
                (programs / name).symlink_to(Path(folder, name))
    return os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{programs}",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH")))),
        "PRETEND_MAC": str(scratch),
        "PRETEND_MAC_PATH": os.environ["PATH"],  # MLX needs a compiler for its CPU kernels
    }


def main(options: list[str]) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        mac = environment(Path(scratch))
        # pytest prints no totals if -q is given twice, and addopts already contains one
        command = [sys.executable, "-m", "pytest", "-v", "-m", "", *options]
        last = ""
        with subprocess.Popen(command, env=mac, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout or ():
                print(line, end="", flush=True)
                last = line.strip("= \n") or last
    print(f"pretended Mac: {last}")
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
