"""Runs the core's tests without some optional subpackages: `python -m tools.leave_out SUBPACKAGE ...`, or `all`.

All of the given subpackages are left out at the same time. Other arguments are passed to pytest, such as `-m ""` for
the slow tests.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.subpackages import CORE_TESTS, SUBPACKAGES, copy_without, environment_of


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "subpackages",
        nargs="+",
        choices=[*SUBPACKAGES, "all"],
        metavar="SUBPACKAGE",
        help=", ".join([*SUBPACKAGES, "all"]),
    )
    chosen, others = parser.parse_known_args()
    subpackages = SUBPACKAGES if "all" in chosen.subpackages else chosen.subpackages
    with tempfile.TemporaryDirectory() as name:
        folder = copy_without(subpackages, Path(name))
        print("without", *subpackages, flush=True)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *CORE_TESTS, *others]
        return subprocess.run(command, cwd=folder, env=environment_of(folder)).returncode


if __name__ == "__main__":
    sys.exit(main())
