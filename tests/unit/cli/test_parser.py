"""Flags made from options, and errors in one line that repeat no prompt."""

from __future__ import annotations

from pathlib import Path

import pytest

from speculative_decoding import InputError
from speculative_decoding.cli import programs
from speculative_decoding.cli.flags import check_files
from speculative_decoding.cli.main import prompt_parser
from speculative_decoding.cli.parser import flag
from speculative_decoding.sampling import DRAFTERS
from speculative_decoding.sampling.options import ACCEPTANCE, SCHEDULES, option_specs

SECRET = "translate English to German: my password is fish"


def test_every_option_has_a_flag_that_accepts_every_valid_name() -> None:
    without = {"logprobs", "timed"}  # options of the Python API only
    flags = {name for action in prompt_parser()._actions for name in action.option_strings}
    assert {flag(name) for name in option_specs()} - flags == {flag(name) for name in without}
    for option, names in (("acceptance", ACCEPTANCE), ("drafter", DRAFTERS), ("num_draft_tokens", SCHEDULES)):
        for name in names:
            assert vars(prompt_parser().parse_args([flag(option), name])) == {option: name}
    assert not vars(prompt_parser().parse_args([]))


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("convert", ["--modle", "x"], "--modle: unknown option; did you mean --model?"),
        ("generate", ["--temprature", "1", "--top-p", "5"], "--temprature: unknown option; did you mean --temperature"),
        ("generate", ["--tgt-lang", "de", SECRET], "--tgt-lang: unknown option; did you mean --target-language?"),
        ("generate", ["--input", SECRET], "--input: unknown option (--help-all lists the options)"),
        ("generate", ["--draft-modle=t5", SECRET, f"- {SECRET}"], "--draft-modle: unknown option; did you mean --draf"),
        ("generate", SECRET.split(), "unexpected argument; put a text with spaces in quotes, and give each argument"),
        ("generate", ["--prompt", "a", SECRET], "argument PROMPT: not allowed with argument --prompt"),
        ("generate", ["--show-draft", SECRET], "argument --show-draft: must be one of text, rounds; put a prompt befo"),
        ("generate", ["--top-p", "5", "--", "--x"], "argument --top-p: must be a number above 0, at most 1, not '5'"),
        ("convert", [], "one of the arguments --model --verify is required"),
    ],
)
def test_a_mistyped_flag_is_named_first_and_nothing_else_is_repeated(
    command: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        programs.main([command, *arguments])
    err = capsys.readouterr().err
    assert ended.value.code == 2 and err.count("\n") == 1
    assert err.startswith(f"speculative-decoding {command}: error: {message}")
    assert "password" not in err and "fish" not in err


def test_a_file_to_write_has_a_folder_and_no_other_purpose(tmp_path: Path) -> None:
    check_files({"trace": tmp_path / "a", "stats_json": tmp_path / "b", "draft_vocab_text": tmp_path / "c"})
    same = tmp_path / "folder" / ".." / "a"
    on_a_mac = tmp_path / "A"
    for given in (
        {"trace": same, "stats_json": tmp_path / "a"},
        {"trace": same, "stats_json": on_a_mac},
        {"trace": same, "draft_vocab_text": tmp_path / "a"},
    ):
        with pytest.raises(InputError, match="is already used by"):
            check_files(given)
    for path in (tmp_path, tmp_path / "nowhere" / "a"):
        with pytest.raises(InputError, match="^ngram_store: .* cannot be written"):
            check_files({"ngram_store": path})
