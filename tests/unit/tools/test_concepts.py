"""The counts of tools/concepts.py, on a small package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT

FILES = {
    "__init__.py": "from .session import Session",
    "session.py": "from .decoding import loop\nLIMIT: int = 3\n\n@dataclass(frozen=True)\nclass Session:\n    x: int\n",
    "decoding/__init__.py": "",
    "decoding/loop.py": (
        "def late():\n    from ..models.base import Model\n\n"
        "class Round(NamedTuple):\n    def f(self, a, b, c, d, /, e, f, *, g, h): ...\n"
        "    def g(self, a, b, c, d, e, f, g, h, i): ...\n"
    ),
    "models/__init__.py": "",
    "models/base.py": "A, B = 1, 2\nlower = 3\n\n@dataclass\nclass Model: ...\n",
}


def test_counts_of_a_small_package(tmp_path: Path) -> None:
    for name, text in FILES.items():
        path = tmp_path / "speculative_decoding" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    command = [sys.executable, "-m", "tools.concepts", str(tmp_path)]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert [line.strip() for line in out.splitlines()] == [
        "18 lines in 6 files",
        "6 decoding",
        "6 session",
        "5 models",
        "1 __init__",
        "3 classes",
        "3 functions",
        "3 module constants",
        "3 modules in the longest import path: session > decoding.loop > models.base",
        "2 record types between a prompt and its text",
        "1 decoding.loop: Round",
        "1 session: Session",
        "1 functions with more than 8 parameters",
        "decoding.loop:6 g",
    ]
