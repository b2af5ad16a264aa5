"""Checks that every dependency, including those of all extras, has wheels for Macs: `python -m tools.resolve_for_mac`.

It uses uv's resolver, because pip can resolve dependencies only for the system on which it runs. Install uv with
`pip install uv`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

PYTHON_VERSIONS = ("3.11", "3.14")  # the oldest and newest versions that .github/workflows/ci.yml tests
MACOS = "14.0"  # the oldest version that MLX's wheels support
OPTIONS = "--all-extras --python-platform aarch64-apple-darwin --only-binary :all: --no-python-downloads --quiet"


def main() -> int:
    if find_spec("uv") is None:
        print("resolve_for_mac: uv is not installed; install it with: pip install uv", file=sys.stderr)
        return 2
    failures = 0
    for version in PYTHON_VERSIONS:
        command = [sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", "--python-version", version]
        done = subprocess.run(
            [*command, *OPTIONS.split(), "--no-header", "--no-annotate"],
            cwd=Path(__file__).parents[1],
            env={**os.environ, "MACOSX_DEPLOYMENT_TARGET": MACOS},
            capture_output=True,
            text=True,
        )
        failures += done.returncode != 0
        found = done.stdout.splitlines()
        mlx = [package for package in found if package.startswith("mlx")]
        result = f"{len(found)} packages, with {' and '.join(mlx)}" if not done.returncode else "failed"
        print(f"macOS {MACOS}, arm64, Python {version}: {result}", flush=True)
        print(done.stderr, end="", file=sys.stderr)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
