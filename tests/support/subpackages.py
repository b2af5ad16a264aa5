"""Tests of the core that need an optional subpackage, and copies of the package without some of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from speculative_decoding.subpackages import has_subpackage
from tests.support.paths import ROOT

# Folders that may be left out, and the other optional subpackages that each one uses if they are there.
SUBPACKAGES: dict[str, set[str]] = {
    "beam_search": set(),
    "speech": {"beam_search"},
    "jobs": {"speech", "distributed"},
    "server": {"speech", "documents"},
    "training": {"speech"},
    "distributed": set(),
    "doctor": {"speech"},
    "memory": set(),
    "documents": {"memory"},
    "cpu": set(),
}
CORE_TESTS = ("tests/unit", "tests/integration", "tests/parity", "tests/robustness")
COPIED = ("main.py", "convert.py", "speculative_decoding_program.py", "pyproject.toml", "setup.py")
LINKED = ("models", "data", "tools", "benchmarks", "docs", "README.md", "CHANGELOG.md", "LICENSE", "requirements.txt")
LINKED += (".ci", ".github", ".gitignore")
CACHES = shutil.ignore_patterns("__pycache__")


def needs_subpackage(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not has_subpackage(name), reason=f"this copy lacks {name}/")


def copy_without(subpackages: Collection[str], folder: Path) -> Path:
    """Copy the package and its tests, without these optional subpackages and their tests."""
    for name in ("speculative_decoding", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=CACHES)
        for subpackage in subpackages:
            shutil.rmtree(folder / name / subpackage, ignore_errors=True)
    for name in COPIED:
        shutil.copy(ROOT / name, folder / name)
    for name in LINKED:
        if (ROOT / name).exists():
            (folder / name).symlink_to(ROOT / name)
    return folder


def environment_of(folder: Path) -> dict[str, str]:
    """Return the environment in which Python imports the package from such a copy."""
    return {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"} | {"PYTHONPATH": str(folder)}


def run_in(folder: Path, arguments: Sequence[str], **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python in such a copy."""
    environment = environment_of(folder) | variables
    return subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True)
