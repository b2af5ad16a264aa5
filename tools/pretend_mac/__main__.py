"""Runs the tests as on a Mac: `python -m tools.pretend_mac [pytest's options]`. sitecustomize.py lists the differences.

Prints pytest's output and one line with the totals. Fails as pytest does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.paths import ROOT

# Programs that macOS lacks, or that only its developer tools install.
MISSING = {
    "g++",
    "c++",
    "gcc",
    "cc",
    "clang",
    "clang++",
    "timeout",
    "nproc",
    "taskset",
    "setsid",
    "tac",
    "ip",
    "strace",
}


def environment(scratch: Path) -> dict[str, str]:
    """Return the environment of a process that pretends to run on a Mac; its children inherit the pretence."""
    (scratch / "private" / "var" / "folders").mkdir(parents=True)
    (scratch / "var").symlink_to(scratch / "private" / "var")
    programs = scratch / "bin"
    programs.mkdir()
    own, *folders = [str(Path(sys.executable).parent), *os.get_exec_path()]
    for folder in dict.fromkeys(folders):
        for name in set(os.listdir(folder) if os.path.isdir(folder) else ()) - MISSING:
            if not (programs / name).is_symlink():
                (programs / name).symlink_to(Path(folder, name))
    return os.environ | {
        "PATH": f"{own}:{programs}",
        "TMPDIR": str(scratch / "var" / "folders"),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH")))),
        "PRETEND_MAC": str(scratch),
        "PRETEND_MAC_PATH": os.environ.get(
            "PRETEND_MAC_PATH", os.environ["PATH"]
        ),  # MLX needs a compiler for its CPU kernels
    }


def main(options: list[str]) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pytest", *options]
        last = ""
        with subprocess.Popen(
            command, env=environment(Path(scratch)), cwd=ROOT, stdout=subprocess.PIPE, text=True
        ) as process:
            for line in process.stdout or ():
                print(line, end="", flush=True)
                last = line.strip("= \n") or last
    print(f"pretended Mac: {last}")
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
