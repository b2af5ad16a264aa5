"""main.py: where prompts come from, what is refused before weights load, and notes about the bundled target."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

from speculative_decoding import InputError, Session
from speculative_decoding.cli import main as main_command
from speculative_decoding.cli.main import (
    EXAMPLE,
    PromptFlags,
    decode_each,
    given_prompts,
    prompt_parser,
)
from speculative_decoding.cli.runner import PromptRunner
from speculative_decoding.sampling import GenerationOptions
from tests.support.paths import ROOT
from tests.support.tiny import tiny_model
from tests.support.together import Letters

PROMPT = "translate English to German: The method returns the value."


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> io.BytesIO:
    """The standard input: write to it before the program reads it."""
    stdin = io.BytesIO()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stdin))
    return stdin


def prompts_of(stdin: io.BytesIO, content: bytes, **flags: str) -> list[str]:
    stdin.write(content)
    stdin.seek(0)
    return list(given_prompts(PromptFlags(**flags)))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_each_line_of_standard_input_is_a_prompt_after_the_prefix_and_blank_lines_stay_blank(
    encoding: str, typed: io.BytesIO, capsys: pytest.CaptureFixture[str]
) -> None:
    content = "He go.\r\n\r\nGrüße\n  \n".encode(encoding)
    assert prompts_of(typed, content, prefix="grammar: ") == ["grammar: He go.", "grammar: Grüße"]
    assert capsys.readouterr().out == "\n\n"
    assert list(given_prompts(PromptFlags(prefix="a ", prompt="b"))) == ["a b"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"a\n\xff\xfe bad\n", "standard input, line 2: not UTF-8"),
        (b"\n \n", "standard input is empty"),
        (b"a\0b", "standard input, line 1: contains a NUL character"),
    ],
)
def test_invalid_standard_input_is_refused_with_its_line(content: bytes, problem: str, typed: io.BytesIO) -> None:
    with pytest.raises(InputError, match=problem):
        prompts_of(typed, content)


def test_a_prompt_that_is_the_name_of_a_file_gets_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], typed: io.BytesIO
) -> None:
    path = tmp_path / "three.txt"
    for is_file in (False, True):
        assert list(given_prompts(PromptFlags(prompt=str(path)))) == [str(path)]
        said = capsys.readouterr().err
        assert (f"speculative-decoding batch {path}" in said and f"< {path}" in said) == is_file == bool(said)
        path.touch()
    assert prompts_of(typed, f"{path}\n".encode()) == [str(path)] and not capsys.readouterr().err


def test_the_users_own_prompts_print_a_note_once(capsys: pytest.CaptureFixture[str]) -> None:
    class AnyText(Letters):
        def encode(self, text: str, language: str | None = None) -> list[int]:
            return super().encode("abc")

    session = Session(tiny_model(), AnyText(), options=GenerationOptions(max_tokens=2))
    bundled = (ROOT / "data" / "describe.txt").read_text(encoding="utf-8").split("\n")[0]
    for prompts, count in (([EXAMPLE, bundled], 0), ([bundled, "He go.", "They goes."], 1)):
        assert decode_each(prompts, None, session, PromptRunner(), "a demonstration", verify=True)
        out, err = capsys.readouterr()
        assert err.count("a demonstration") == count and out.count("\n") == len(prompts)


@pytest.mark.parametrize(
    ("prompt", "has_languages", "is_noted"),
    [
        ("translate English to German: The method returns the value. It is cached.", False, True),
        ('Translate English to German: "Read it closely!" (Then stop.)', False, True),
        ("The method returns the value.  It is cached.", True, True),
        ("方法返回该值。它被缓存。", True, True),
        ("summarize: The method returns the value. It is cached.", False, False),
        ("translate English to German: Ask Dr. Smith and Prof. Miller of Acme Inc. They know.", False, False),
        ("translate English to German: The method returns a value. e.g. 5.", False, False),
        ("方法返回该值。", True, False),
        (PROMPT, True, False),
    ],
)
def test_a_translation_of_several_sentences_gets_a_note_once(
    prompt: str,
    has_languages: bool,
    is_noted: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for has_documents in (False, True):
        monkeypatch.setattr(main_command, "has_subpackage", {"documents": has_documents}.__getitem__)
        tokens = ({"de": 1}, {}) if has_languages else ({},)
        for languages in tokens:  # the languages of a model without tokens are fixed by its config.json
            tasks = {"translation_en_to_de": "" if has_languages else "translate English to German: "}
            tokenizer, model = SimpleNamespace(languages=languages), SimpleNamespace(task_prefixes=tasks)
            session: Any = SimpleNamespace(tokenizer=tokenizer, model=model)
            runner: Any = SimpleNamespace(run=lambda *_, **__: None)
            assert decode_each([prompt, prompt], None, session, runner, None, verify=False)
            said = capsys.readouterr().err
            assert said.count("python -m speculative_decoding document") == (is_noted and has_documents)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--top-p", "0"], "argument --top-p: must be a number above 0, at most 1, not '0'"),
        (["--prompt", "  "], "prompt: is empty"),
        (["--top-k", "5", "a"], "--top-k: has no effect at --temperature 0; leave one of them out"),
        (["--verify", "--temperature", "1", "--acceptance", "block", "a"], "--verify: independent samples differ (got"),
        (["--verify", "--baseline", "a"], "--verify: compares with and without a draft"),
        (["--compare", "--num-draft", "0", "a"], "--compare: compares with and without a draft"),
        (["--trace", "x", "--stats-json", "x", "a"], "--stats-json: x is already used by --trace; name another"),
        (
            ["--model", "nowhere", "a"],
            "--model: model 'nowhere' is neither a folder nor a name in models/ (t5-web-docs",
        ),
        (["--model", "t5-web-docs", "--draft-model", "nowhere", "a"], "--draft-model: model 'nowhere'"),
        (["--eos-token-id", "99999", "a"], "--eos-token-id: must be between 0 and"),
        (["--target-language", "xx", "a"], "--target-language: this model has prefixes for en to de, not for xx"),
        (["word " * 600], "prompt: has 601 tokens, but the model was trained on at most 512 tokens"),
    ],
)
def test_bad_arguments_are_one_line_with_status_2_before_weights_load(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    try:
        status = main_command.main(arguments)
    except SystemExit as ended:  # raised by argparse
        status = ended.code  # type: ignore[assignment]
    out, err = capsys.readouterr()
    (line,) = [line for line in err.splitlines() if not line.startswith("target ")]  # the line that names the models
    assert status == 2 and not out and line.startswith(f"main.py: error: {message}")
    assert mx.get_peak_memory() - before < 1e6


def test_a_prompt_may_be_positional_and_after_two_dashes_it_may_look_like_a_flag() -> None:
    parse = prompt_parser().parse_args
    assert parse([PROMPT]) == parse(["--prompt", PROMPT]) == parse(["--", PROMPT])
    assert parse(["-m", "2", "--", "--input"]).prompt == "--input"


@pytest.mark.parametrize(
    ("arguments", "needed", "unneeded"),
    [
        (("--help",), {"argparse"}, {"rich", "tokenizers", "transformers", "huggingface_hub", "matplotlib"}),
        (
            ("--prompt", PROMPT),
            {"tokenizers"},
            {"rich", "transformers", "huggingface_hub", "matplotlib"}
            | {f"speculative_decoding.cli.{name}" for name in ("views", "compare", "divergence", "verify", "modes")},
        ),
    ],
)
def test_commands_import_only_what_they_need(arguments: tuple[str, ...], needed: set[str], unneeded: set[str]) -> None:
    command = [sys.executable, "-X", "importtime", ROOT / "main.py", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=True)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    imported = {line.split("|")[-1].strip() for line in lines}
    assert needed <= imported and not unneeded & imported
