"""What one request loads, calls and makes, and how long functions are. Limits that the core must not outgrow."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from tests.support.paths import ROOT
from tests.support.rooms import ROOMS, copy_without
from tests.unit.test_architecture import MODULES, PACKAGE, functions, nodes

# For README's first command. Lower them when the code gets smaller.
MODULES_WITHOUT_CPU = 95
FUNCTIONS = 590
CLASSES = 70

AVERAGE_LINES = 11
LINES_OF_NINE_IN_TEN = 24
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


def walk_in(root: Path, folder: Path) -> dict[str, list[str]]:
    """Return the counts of tools/walk.py for README's first command, in a process of its own."""
    file = folder / "walk.json"
    command = [sys.executable, str(root / "tools" / "walk.py"), "--json", str(file)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0 and "Methode" in done.stdout, done.stderr
    return json.loads(file.read_text())


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return walk_in(ROOT, tmp_path_factory.mktemp("walk"))


def modules_of_rooms(loaded: Iterable[str]) -> list[str]:
    """Return the loaded modules of all rooms but cpu/, which Linux imports first."""
    return [name for name in loaded if name.split(".")[1:2] and name.split(".")[1] in {*ROOMS} - {"cpu"}]


def over(walked: Mapping[str, Collection[str]]) -> dict[str, int]:
    """Return the counts above their limits."""
    limits = {"modules_without_cpu": MODULES_WITHOUT_CPU, "functions": FUNCTIONS, "classes": CLASSES}
    return {name: len(walked[name]) for name, limit in limits.items() if len(walked[name]) > limit}


def test_a_request_loads_no_room_and_stays_within_its_limits(walked: dict[str, list[str]]) -> None:
    assert len(walked["modules"]) > 50 and len(walked["functions"]) > 300 and len(walked["classes"]) > 30
    assert modules_of_rooms(walked["modules"]) == []
    assert over(walked) == {}


def test_planted_modules_and_counts_are_caught(walked: dict[str, list[str]]) -> None:
    planted = ["speculative_decoding.cli.main", "speculative_decoding.speech.api", "speculative_decoding.cpu.blas"]
    assert modules_of_rooms([*planted, "speculative_decoding", "speculative_decoding.jobs"]) == [
        "speculative_decoding.speech.api",
        "speculative_decoding.jobs",
    ]
    many: dict[str, Any] = walked | {"classes": [""] * (CLASSES + 1), "modules_without_cpu": [""] * 96}
    assert over(many) == {"classes": CLASSES + 1, "modules_without_cpu": 96}


def lengths(modules: Mapping[str, str]) -> list[int]:
    """Return the lines of each function, sorted."""
    found = (node for text in modules.values() for _, node in functions(nodes(text)[0]))
    return sorted((node.end_lineno or 0) - node.lineno + 1 for node in found)


def are_short(lines: list[int]) -> bool:
    return mean(lines) <= AVERAGE_LINES and lines[int(0.9 * len(lines))] <= LINES_OF_NINE_IN_TEN


def test_functions_are_short() -> None:
    found = lengths(MODULES)
    assert len(found) == sum(isinstance(node, FUNCTION) for text in MODULES.values() for node in nodes(text))
    assert are_short(found)


def test_long_functions_are_caught() -> None:
    assert lengths({"a": "def f():\n    return 1\n\nclass A:\n    def g(self): ...\n"}) == [1, 2]
    assert not are_short([12] * 10) and not are_short([1] * 9 + [25]) and are_short([11] * 9 + [2])


@pytest.mark.slow
@pytest.mark.skipif(not (PACKAGE / "jobs").is_dir(), reason="this copy lacks jobs/")
def test_a_planted_import_of_a_room_is_caught(tmp_path: Path) -> None:
    copy = copy_without([], tmp_path / "copy")
    main = copy / "speculative_decoding" / "cli" / "main.py"
    main.write_text(f"{main.read_text()}\nfrom ..jobs import messages  # noqa\n")
    (copy / "tools").unlink()
    (copy / "tools").mkdir()
    (copy / "tools" / "walk.py").write_text((ROOT / "tools" / "walk.py").read_text())
    assert "speculative_decoding.jobs.messages" in modules_of_rooms(walk_in(copy, tmp_path)["modules"])
