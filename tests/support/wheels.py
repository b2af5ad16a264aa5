"""Builds the sdist and wheels of the package, and installs them outside the checkout."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.paths import ROOT


def build(kind: str, source: Path, into: Path, **environment: str) -> Path:
    """Build an sdist or a wheel as pip does, but with the installed setuptools. Returns its path."""
    code = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(into)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=source,
        capture_output=True,
        text=True,
        env=os.environ | environment | {"CFLAGS": "-g0"},  # debug information slows the compiler down
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return into / done.stdout.splitlines()[-1]


def wheel_of(source: Path, into: Path, **environment: str) -> Path:
    """Build a wheel from a copy of this source, because a build leaves compiled files in its source folder."""
    copy = into.with_name(f"{into.name}-source")
    shutil.copytree(source, copy)
    into.mkdir()
    return build("wheel", copy, into.parent, **environment)


def unpacked(source: Path, into: Path, **environment: str) -> Path:
    """Build a wheel and unpack it into a folder. Returns the folder."""
    with zipfile.ZipFile(wheel_of(source, into, **environment)) as wheel:
        wheel.extractall(into)
    return into


def unpacked_sdist(folder: Path) -> Path:
    """Return the source that the sdist contains."""
    copy = folder / "copy"
    shutil.copytree(
        ROOT / "speculative_decoding",
        copy / "speculative_decoding",
        ignore=shutil.ignore_patterns("__pycache__", "*.so"),
    )
    for name in ("pyproject.toml", "setup.py", "speculative_decoding_program.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.unpack_archive(build("sdist", copy, folder), folder)
    (source,) = folder.glob("speculative_decoding-*/")
    return source


def shared_sdist(factory: pytest.TempPathFactory) -> Path:
    """Return the source that the sdist contains. All pytest processes of a run share it."""
    with locked_folder(factory) as folder:
        if not any(folder.glob("speculative_decoding-*/")):
            unpacked_sdist(folder)
    return next(folder.glob("speculative_decoding-*/"))


def installed(factory: pytest.TempPathFactory) -> Path:
    """Install the wheel of the sdist with pip. All pytest processes of a run share it, because compiling is slow."""
    source = shared_sdist(factory)
    with locked_folder(factory) as folder:
        site = folder / "site"
        if not site.exists():
            wheel = wheel_of(source, folder / "build")
            pip = [
                sys.executable,
                "-m",
                "pip",
                "--disable-pip-version-check",
                "-q",
                "install",
                "--no-deps",
                "--no-index",
            ]
            subprocess.run([*pip, "--target", site, wheel], check=True, timeout=600)
    return site


@contextmanager
def locked_folder(factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a folder that all pytest processes of a run share, to one of them at a time."""
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    (folder := root / "wheel").mkdir(exist_ok=True)
    with (root / "wheel.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
