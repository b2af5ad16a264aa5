"""The workflow of .github/ runs the README's commands on pinned actions, and dependencies resolve for a Mac."""

from __future__ import annotations

import re
import shlex

import pytest
import yaml

from speculative_decoding.models.device import gpu_generation
from tests.support.metal import pretend_gpu
from tests.support.paths import ROOT
from tools import resolve_for_mac

JOBS = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))["jobs"]
CHECKS, GPU = JOBS["checks"], JOBS["gpu"]
STEPS = [step for job in JOBS.values() for step in job["steps"]]
COMMANDS = [step["run"] for step in CHECKS["steps"] if "run" in step]


def test_workflow_runs_the_commands_of_the_readme() -> None:
    """.ci/run takes the test command from the README. Its environment is elsewhere, so that it is a fresh one."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    example = re.search(r"<!-- run -->\n```sh\n(.*?)```\n<!-- end -->", readme, re.DOTALL)
    assert example is not None and example[1] in COMMANDS
    assert ".ci/run" in COMMANDS


def test_ci_runs_the_slow_tests_as_well() -> None:
    addopts = re.search(r"^export PYTEST_ADDOPTS=(.*)$", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert addopts is not None and shlex.split(shlex.split(addopts[1])[0]) == ["-m", ""]


def test_actions_are_pinned() -> None:
    assert all(re.search(r"@[0-9a-f]{40}$", step["uses"]) for step in STEPS if "uses" in step)


def test_steps_on_the_gpu_of_a_hosted_mac_do_not_fail_the_job() -> None:
    on_gpu = [
        step
        for step in STEPS
        if re.search(
            r"\bpython (main\.py|-m speculative_decoding|-m benchmarks|-m pytest -k gpu)", str(step.get("run"))
        )
    ]
    assert len(on_gpu) == 7
    assert all(step["continue-on-error"] in (True, "${{ runner.os == 'macOS' }}") for step in on_gpu)


def test_workflow_and_resolver_use_the_same_versions_of_python() -> None:
    assert tuple(CHECKS["strategy"]["matrix"]["python"]) == resolve_for_mac.PYTHON_VERSIONS


def test_kernels_for_every_generation_without_tf32_are_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first job keeps the reported architecture. M5 is left out: its matmuls need matrix units."""
    generations = {}
    for job in GPU["strategy"]["matrix"]["include"]:
        pretend_gpu(monkeypatch, job["architecture"])
        generations[job["kernels"]] = gpu_generation()
    assert generations == {"M1": 13, "M2": 14, "M3": 15, "M4": 16}
    assert GPU["strategy"]["matrix"]["kernels"][1:] == [*generations]


def test_pages_and_the_issue_form_ask_for_the_same_report() -> None:
    form = ".github/ISSUE_TEMPLATE/mac.yml"
    body = yaml.safe_load((ROOT / form).read_text(encoding="utf-8"))["body"]
    for page in ("README.md", "docs/benchmarks.md"):
        text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
        assert "python -m speculative_decoding doctor --json figures.json" in text and form in text
    assert "python -m speculative_decoding doctor --json figures.json" in body[0]["attributes"]["value"]
    assert [field["id"] for field in body[1:] if field.get("validations")] == ["chip", "memory", "macos", "figures"]
