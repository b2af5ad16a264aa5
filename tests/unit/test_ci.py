"""The workflow of .github/ runs the README's commands on pinned actions, and dependencies resolve for a Mac."""

from __future__ import annotations

import re
import shlex

import yaml

from tests.support.paths import ROOT
from tools import resolve_for_mac

JOB = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))["jobs"]["checks"]
COMMANDS = [step["run"] for step in JOB["steps"] if "run" in step]


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
    assert all(re.search(r"@[0-9a-f]{40}$", step["uses"]) for step in JOB["steps"] if "uses" in step)


def test_steps_on_the_gpu_of_a_hosted_mac_do_not_fail_the_job() -> None:
    on_gpu = [
        step
        for step in JOB["steps"]
        if re.search(
            r"\bpython (main\.py|-m speculative_decoding|-m benchmarks|-m pytest -k gpu)", str(step.get("run"))
        )
    ]
    assert len(on_gpu) == 4
    assert all(step["continue-on-error"] in (True, "${{ runner.os == 'macOS' }}") for step in on_gpu)


def test_workflow_and_resolver_use_the_same_versions_of_python() -> None:
    assert tuple(JOB["strategy"]["matrix"]["python"]) == resolve_for_mac.PYTHON_VERSIONS
