"""Runs the commands and the Python code of README.md and docs/.

A block that must not run follows a line `<!-- not run: REASON -->`. `SHORTER` shortens long commands.
"""

from __future__ import annotations

import io
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.subpackages import has_subpackage
from tests.support.tiny import CONFIG, save_hugging_face, tiny_model

pytestmark = pytest.mark.slow

ROOT = BUNDLED.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"((?:^<!-- [^\n]* -->\n)?)^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"<!-- not run: (.+) -->")
INSTALLING = (
    r'python3 -m venv \.venv && \. \.venv/bin/activate &&( echo "[^"]*" &&)?\s+pip install -q -r requirements\.txt &&\n'
)

IN_PROCESS = re.compile(
    r"(?P<input>(?:head|echo|printf) [^|]+\| )?"
    r"(?P<command>python (?:main\.py|-m (?:speculative_decoding(?:\.\w+)?|benchmarks)) [^;<>|&]*?)"
    r"(?: [12]?> ?[\w./]+)?"
)
QUANTIZABLE = {"d_model": 64, "d_kv": 32, "d_ff": 128}  # multiples of the quantization group size
TESTS = re.compile(r"^python -m pytest(.*)$", re.MULTILINE)

# Commands that take minutes, and the same commands over two prompts or with a tiny model.
SHORTER = (
    (INSTALLING, ""),
    (r"python -m speculative_decoding\.verify\b", "python -m speculative_decoding.verify two.txt -m 8"),
    (r"head -60 ", "head -28 "),
    (r" doctor\b", " doctor --model tiny --draft-model tiny"),
    (
        r"python -m speculative_decoding\.train\b",
        "python -m speculative_decoding.train --max-tokens 6 --frequent 64 --held-out 4",
    ),
    (r"--steps \d+", "--steps 2"),
    (r"python -m benchmarks\b", "python -m benchmarks two.txt --repeats 1 --warm-ups 0 --num-draft 3 -m 8"),
)


# The optional subpackages that a block needs, by its words.
NEEDS = {
    "beam_search": r"num[_-]beams",
    "speech": r"transcri|audio",
    "jobs": r"speculative[_-]decoding batch",
    "server": r"speculative[_-]decoding.serve|http://",
    "training": r"speculative[_-]decoding.train",
    "distributed": r"mlx\.launch",
    "memory": r"--memory|--write-memory|from_pairs",
    "documents": r"speculative[_-]decoding document|session\.document",
    "doctor": r"speculative[_-]decoding doctor",
}


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    text: str
    reason: str | None

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> list[Block]:
    content = page.read_text(encoding="utf-8")
    found = []
    for match in BLOCK.finditer(content):
        why = NOT_RUN.search(match[1])
        found.append(Block(page, content[: match.start()].count("\n") + 1, match[2], match[3], why and why[1]))
    return found


BLOCKS = [block for page in PAGES for block in blocks(page)]
SHELL = [block for block in BLOCKS if block.language == "sh"]
PYTHON = {page: [block for block in blocks(page) if block.language == "python"] for page in PAGES}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder that looks like the repository, so that commands do not write into the repository."""
    made = tmp_path_factory.mktemp("docs")
    for name in (
        "main.py",
        "convert.py",
        "data",
        "tests",
        "tools",
        "speculative_decoding",
        "benchmarks",
        "pyproject.toml",
        "README.md",
    ):
        (made / name).symlink_to(ROOT / name)
    (made / "models").mkdir()
    for model in ("t5-web-docs", "t5-web-docs-draft", "t5-web-docs-head"):
        (made / "models" / model).symlink_to(BUNDLED / model)
    save_hugging_face(tiny_model(scale=0.15, **QUANTIZABLE), made / "tiny", CONFIG | QUANTIZABLE)
    (made / "two.txt").write_text("grammar: It were a cod business.\ngrammar: He go home.\n")
    (made / "prompts.txt").write_text("grammar: It were a cod business.\n")
    (made / "prompts.jsonl").write_text('{"prompt": "grammar: It were a cod business.", "max_tokens": 8}\n')
    (made / "bin").mkdir()
    for name in ("python", "python3"):
        (made / "bin" / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        (made / "bin" / name).chmod(0o755)
    return made


def shell(command: str, folder: Path) -> str:
    """Return the standard output of a command that must succeed."""
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run(
        [bash, "-euo", "pipefail", "-c", f'PATH="$PWD/bin:$PATH"; {command}'],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def skip_without_subpackages(text: str) -> None:
    for subpackage, words in NEEDS.items():
        if re.search(words, text) and not has_subpackage(subpackage):
            pytest.skip(f"this copy lacks {subpackage}/")


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_documented_commands_succeed(block: Block, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if block.reason is not None:
        pytest.skip(f"{block}: {block.reason}")
    skip_without_subpackages(block.text)
    command = block.text
    for pattern, shorter in SHORTER:
        command = re.sub(pattern, shorter, command)
    for line in TESTS.sub("", command).replace("\\\n", " ").splitlines():
        if found := IN_PROCESS.fullmatch(line):
            entered = shell(found["input"].removesuffix("| "), folder) if found["input"] else ""
            run_in_process(shlex.split(found["command"], comments=True)[1:], entered, folder, monkeypatch)
        elif line.strip():
            shell(line, folder)


def run_in_process(arguments: list[str], entered: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run Python's arguments as a new interpreter would, in this process, which has imported the package.

    entered: the standard input.
    """
    with monkeypatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(entered.encode())))
        patch.setattr(sys, "argv", arguments[arguments[0] == "-m" :])
        with pytest.raises(SystemExit) as ended:
            if arguments[0] == "-m":
                runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(arguments[0], run_name="__main__")
    assert not ended.value.code, arguments


@pytest.mark.parametrize(
    "arguments", [each[1] for block in SHELL if block.reason is None for each in TESTS.finditer(block.text)]
)
def test_documented_pytest_commands_select_tests(arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pytest collects in this process, which has already imported the test modules."""
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)  # .ci/run selects the slow tests, too
    found = shlex.split(arguments, comments=True)
    assert pytest.main(["--collect-only", "-n", "0", "-p", "no:cacheprovider", "-p", "no:faulthandler", *found]) == 0


@pytest.mark.parametrize("page", [page for page in PAGES if PYTHON[page]], ids=lambda page: page.name)
def test_documented_python_code_runs(
    page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The blocks of a page run in order, as one program; those that download whisper-base, if it is present."""
    code = "\n\n".join(block.text for block in PYTHON[page])
    skip_without_subpackages(code)
    if any(block.reason for block in PYTHON[page]):
        assert "openai/whisper-base" in code
        if (whisper := os.environ.get("WHISPER_BASE")) is None:
            pytest.skip("WHISPER_BASE does not name a folder of openai/whisper-base")
        code = code.replace("openai/whisper-base", whisper)
    (folder / "page.py").write_text(code)
    monkeypatch.chdir(folder)
    runpy.run_path("page.py", run_name="__main__")
    assert bool(capsys.readouterr().out.strip()) == ("print(" in code)


def test_every_code_block_is_found_and_every_not_run_comment_has_one() -> None:
    for page in PAGES:
        content = page.read_text(encoding="utf-8")
        found = blocks(page)
        assert len(found) == len(re.findall(r"^```(?:sh|python|bash|shell|console|py)$", content, re.MULTILINE)), page
        assert len(NOT_RUN.findall(content)) == sum(block.reason is not None for block in found), page
    assert len(SHELL) > 20 and sum(block.reason is None for block in SHELL) > 12


DOCUMENTS = [
    *PAGES,
    *sorted((ROOT / "docs" / "decisions").glob("*.md")),
    ROOT / "models" / "README.md",
    ROOT / "data" / "README.md",
]


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_repository_lead_to_files_and_headings(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            name, _, anchor = target.partition("#")
            linked = page.parent / name if name else page
            assert linked.exists(), target
            assert not anchor or anchor in anchors(linked), target


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 160


def test_decision_records_are_short_and_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    records = sorted(each for each in folder.glob("*.md") if each.name != "README.md")
    for record in records:
        lines = record.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= 25 and max(map(len, lines)) <= 120, record.name
    listed = re.findall(r"\]\(([\w-]+\.md)\)", (folder / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == [record.name for record in records]


def test_documented_outputs_match_the_printed_ones(folder: Path) -> None:
    """Compare the view without colors in docs/cli.md, and the first output in README.md except its numbers.

    Both use float32, because a GPU would use the stored bfloat16, where it may decide near-ties differently.
    """
    shown = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```\n(accepted .*?)^```$", shown, re.MULTILINE | re.DOTALL)
    (command,) = (block.text for block in SHELL if block.page.name == "cli.md" and "NO_COLOR" in block.text)
    assert example in shell(f"({command.strip()} --dtype float32) 2>&1 >/dev/null", folder)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```\n(target models/.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    first = next(block for block in SHELL if block.page.name == "README.md")
    printed = shell(f"({re.sub(INSTALLING, '', first.text.strip())} --dtype float32) 2>&1", folder)
    assert without_numbers(printed) == without_numbers(example)


def without_numbers(text: str) -> str:
    return re.sub(r"\d+(\.\d+)?", "N", text)
