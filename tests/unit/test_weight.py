"""What one request loads, calls and makes, and how long functions are. Limits that the core must not outgrow."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from statistics import mean

from tests.support.paths import ROOT
from tests.support.subpackages import SUBPACKAGES
from tests.unit.test_architecture import MODULES, functions, nodes

# For README's first command. Lower them when the code gets smaller.
MODULES_WITHOUT_CPU = 84
FUNCTIONS = 638
CLASSES = 73

AVERAGE_LINES = 11
LINES_OF_NINE_IN_TEN = 24
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


def test_a_request_loads_no_optional_subpackage_and_stays_within_its_limits(tmp_path: Path) -> None:
    """The command runs in a process of its own. Of the optional subpackages, only cpu/ is imported, on Linux."""
    command = [sys.executable, str(ROOT / "tools" / "call_trace.py"), "--json", str(tmp_path / "trace.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "Methode" in done.stdout, done.stderr
    traced = json.loads((tmp_path / "trace.json").read_text())
    assert len(traced["modules"]) > 50 and len(traced["functions"]) > 300 and len(traced["classes"]) > 30
    assert not {name.split(".")[1] for name in traced["modules"] if "." in name} & SUBPACKAGES.keys() - {"cpu"}
    limits = {"modules_without_cpu": MODULES_WITHOUT_CPU, "functions": FUNCTIONS, "classes": CLASSES}
    assert {name: len(traced[name]) for name, limit in limits.items() if len(traced[name]) > limit} == {}


def test_functions_are_short() -> None:
    found = [node for text in MODULES.values() for _, node in functions(nodes(text)[0])]
    assert len(found) == sum(isinstance(node, FUNCTION) for text in MODULES.values() for node in nodes(text))
    lines = sorted((node.end_lineno or 0) - node.lineno + 1 for node in found)
    assert mean(lines) <= AVERAGE_LINES and lines[int(0.9 * len(lines))] <= LINES_OF_NINE_IN_TEN
