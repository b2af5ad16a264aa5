"""The core's tests in a copy of the package without some of its rooms: `python -m tools.leave_out ROOM ...`, or `all`.

Rooms that are named together are left out together. Other arguments go to pytest, such as `-m ""` for the slow tests.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.rooms import CORE_TESTS, ROOMS, copy_without, environment_of


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="+", choices=[*ROOMS, "all"], metavar="ROOM", help=", ".join([*ROOMS, "all"]))
    chosen, others = parser.parse_known_args()
    rooms = ROOMS if "all" in chosen.rooms else chosen.rooms
    with tempfile.TemporaryDirectory() as name:
        folder = copy_without(rooms, Path(name))
        print("without", *rooms, flush=True)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *CORE_TESTS, *others]
        return subprocess.run(command, cwd=folder, env=environment_of(folder)).returncode


if __name__ == "__main__":
    sys.exit(main())
