"""`python -m tools` and the benchmarks' index name all programs, and each program starts."""

from __future__ import annotations

import re
import runpy
import sys
from importlib import import_module
from pathlib import Path

import pytest

import benchmarks
import tools
from tests.support.subpackages import SUBPACKAGES, needs_subpackage

pytestmark = [*map(needs_subpackage, SUBPACKAGES)]  # which some tools import

BENCHMARKS = [
    path.stem
    for path in sorted(Path(benchmarks.__path__[0]).glob("*.py"))
    if "\ndef main(" in path.read_text() and path.stem != "__main__"
]
TOOLS = [path.stem for path in sorted(Path(tools.__path__[0]).iterdir()) if not path.stem.startswith("__")]
WITHOUT_HELP = ("goldens", "pretend_mac", "resolve_for_mac", "call_trace")  # no options, or those of others


def test_the_indices_name_all_programs() -> None:
    assert set(TOOLS) <= {*re.findall(r"^  (\w+)/? ", tools.__doc__ or "", re.MULTILINE)}
    assert sorted(re.findall(r"^\.(\w+) ", benchmarks.__doc__ or "", re.MULTILINE)) == BENCHMARKS


@pytest.mark.parametrize("name", ["__main__", *BENCHMARKS])
def test_each_benchmark_explains_its_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        import_module(f"benchmarks.{name}").main(["--help"])
    assert "--help" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:'tools")  # runpy: already imported
@pytest.mark.parametrize("name", [name for name in TOOLS if name not in WITHOUT_HELP])
def test_each_tool_explains_its_options(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module(f"tools.{name}", run_name="__main__", alter_sys=True)
    assert "--help" in capsys.readouterr().out
