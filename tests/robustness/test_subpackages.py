"""Copies of the package without some of its folders: the core works, and says what is missing."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from speculative_decoding.cli.programs import COMMANDS
from tests.support.paths import ROOT
from tests.support.subpackages import CORE_TESTS, SUBPACKAGES, copy_without, needs_subpackage, run_in

pytestmark = [pytest.mark.slow, *map(needs_subpackage, SUBPACKAGES)]

PROMPT = "translate English to German: The method returns the value of the property."  # README's first command
WITHOUT: dict[str, Sequence[str]] = {subpackage: [subpackage] for subpackage in SUBPACKAGES} | {"all": SUBPACKAGES}

# The tests that run without each single subpackage: imports, commands, extension points and whole runs. Without
# any optional subpackage, all tests of the core run; `python -m tools.leave_out SUBPACKAGE` runs them without one.
SUBSET = [
    "tests/unit/test_architecture.py",
    "tests/unit/cli/test_programs.py",
    "tests/unit/decoding/test_round.py",
    "tests/integration/test_cli.py",
]

TRANSCRIBE = """
import sys
from speculative_decoding import InputError, load
try:
    load("models/t5-web-docs").transcribe("data/jfk.wav")
except InputError as error:
    sys.exit(print(error, file=sys.stderr) or 2)
"""
DOCUMENT = TRANSCRIBE.replace('transcribe("data/jfk.wav")', 'document("The end.")')
# What a user asks an optional subpackage for, and how the line begins that says what is missing.
ASKED: dict[str, list[tuple[list[str], dict[str, str], str]]] = {
    "beam_search": [(["main.py", "a", "--num-beams", "2"], {}, "main.py: error: --num-beams")],
    "speech": [
        (["-m", "speculative_decoding", "transcribe", "a.wav"], {}, "speculative-decoding: error: transcribe"),
        (["-c", TRANSCRIBE], {}, "audio"),
    ],
    "jobs": [(["-m", "speculative_decoding", "batch", "a.txt"], {}, "speculative-decoding: error: batch")],
    "server": [
        (["-m", "speculative_decoding", "serve"], {}, "speculative-decoding: error: serve"),
        (["-m", "speculative_decoding.serve"], {}, "speculative-decoding: error: serve"),
    ],
    "training": [
        (["-m", "speculative_decoding", "train"], {}, "speculative-decoding: error: train"),
        (["-m", "speculative_decoding.train"], {}, "speculative-decoding: error: train"),
    ],
    "distributed": [(["main.py", "a"], {"MLX_RANK": "0"}, "main.py: error")],
    "memory": [(["main.py", "a", "--memory", "a.tsv"], {}, "main.py: error: --memory")],
    "documents": [
        (["-m", "speculative_decoding", "document", "a.txt"], {}, "speculative-decoding: error: document"),
        (["-c", DOCUMENT], {}, "text"),
    ],
    "doctor": [(["-m", "speculative_decoding", "doctor"], {}, "speculative-decoding: error: doctor")],
}


@pytest.fixture(scope="module", params=WITHOUT)
def copy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A name of `WITHOUT`, and the copy without these folders."""
    return request.param, copy_without(WITHOUT[request.param], tmp_path_factory.mktemp("copy"))


@pytest.fixture(scope="module")
def whole() -> str:
    done = run_in(ROOT, ["main.py", PROMPT])
    assert done.returncode == 0 and done.stdout.endswith(".\n"), done.stderr
    return done.stdout


def test_the_first_command_prints_the_same_sentence(copy: tuple[str, Path], whole: str) -> None:
    done = run_in(copy[1], ["main.py", PROMPT])
    assert (done.returncode, done.stdout) == (0, whole), done.stderr


def test_help_names_the_commands_that_are_there(copy: tuple[str, Path]) -> None:
    name, folder = copy
    shown = run_in(folder, ["-m", "speculative_decoding", "--help"]).stdout
    present = {
        each for each, (_, subpackage, _) in COMMANDS.items() if subpackage is None or subpackage not in WITHOUT[name]
    }
    assert set(re.findall(r"^  ([a-z]+) ", shown, re.MULTILINE)) == present


def test_what_needs_a_missing_folder_is_refused_in_one_line(copy: tuple[str, Path]) -> None:
    name, folder = copy
    for subpackage in WITHOUT[name]:
        for arguments, variables, start in ASKED.get(subpackage, []):
            done = run_in(folder, arguments, **variables)
            missing = f"needs the folder speculative_decoding/{subpackage}, which this copy lacks"
            assert (done.returncode, done.stdout, done.stderr) == (
                2,
                "",
                f"{start}: {missing}; install the whole package\n",
            )


def test_every_room_but_that_of_linux_is_asked_for() -> None:
    assert {*ASKED} == {*SUBPACKAGES} - {"cpu"}


def test_a_model_that_asks_for_beams_is_decoded_greedily(tmp_path: Path) -> None:
    folder = copy_without(["beam_search"], tmp_path / "copy")
    model = tmp_path / "model"
    shutil.copytree(ROOT / "models" / "t5-web-docs", model, ignore=lambda *_: ["manifest.json"])
    (model / "generation_config.json").write_text(json.dumps({"num_beams": 4}))
    command = ["main.py", PROMPT, "--model", str(model), "--drafter", "ngram"]
    found = run_in(folder, command)
    expected = run_in(folder, [*command, "--num-beams", "1"])
    assert (found.returncode, found.stdout) == (0, expected.stdout) and expected.returncode == 0, found.stderr
    assert re.search(r"^main\.py: note: .*num_beams 4 is ignored", found.stderr, re.MULTILINE)
    assert "num_beams" not in expected.stderr


@pytest.mark.parametrize("subpackage", SUBPACKAGES)
def test_a_subset_of_the_tests_of_the_core_passes_without_one(subpackage: str, tmp_path: Path) -> None:
    check_tests(copy_without([subpackage], tmp_path / "copy"), SUBSET)


@pytest.mark.parametrize("tests", CORE_TESTS)
def test_all_tests_of_the_core_pass_without_optional_subpackages(tests: str, tmp_path: Path) -> None:
    check_tests(copy_without(WITHOUT["all"], tmp_path / "copy"), [tests])


def check_tests(folder: Path, tests: Sequence[str]) -> None:
    done = run_in(folder, ["-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "-m", "not slow", *tests])
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
