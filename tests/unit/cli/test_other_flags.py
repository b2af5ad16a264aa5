"""Mistakes of people who know other programs: each gets one line that names what this program has instead.

The flags and commands are documented by openai-whisper, whisper-ctranslate2 (faster-whisper), CTranslate2,
LibreTranslate, transformers and its example scripts, mlx-lm and llama.cpp.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from speculative_decoding.cli import other_flags, programs
from speculative_decoding.cli.convert import convert_parser
from speculative_decoding.cli.main import prompt_parser
from speculative_decoding.loading.pair import ModelPair
from speculative_decoding.sampling.options import option_specs
from speculative_decoding.subpackages import has_subpackage

WRITTEN = "name a model that `speculative-decoding convert --quantize` wrote"
DEVICE = "MLX computes on the GPU of a Mac and on the CPU of other machines; leave it out"
URL = "https://example.org/downloads/2024/a/long/path/that/is/not/cut/off/talk"
LANGUAGES = "did you mean --source-language or --target-language?"

FLAGS = [
    ("generate", "--language de", LANGUAGES),
    ("document", "--language de", LANGUAGES),
    ("batch", "--lang de", LANGUAGES),
    ("transcribe", "--language de", "did you mean --source-language?"),  # openai-whisper
    ("document", "--source en", "did you mean --source-language?"),  # LibreTranslate
    ("document", "--target de", "did you mean --target-language?"),
    ("document", "--from en", "did you mean --source-language?"),
    ("generate", "--to de", "did you mean --target-language?"),
    ("batch", "--source_lang en", "did you mean --source-language?"),  # run_translation.py; a guard
    ("document", "--target_lang de", "did you mean --target-language?"),  # a guard
    ("transcribe", "--target-language en", "did you mean --task?"),
    ("generate", "--device cuda", DEVICE),
    ("document", "--device cpu", DEVICE),
    ("transcribe", "--device mps", DEVICE),
    ("transcribe", "--device_index 0", DEVICE),
    ("serve", "--device cuda", DEVICE),
    ("train", "--device cuda", DEVICE),
    ("doctor", "--device cpu", DEVICE),
    ("convert", "--device cpu", DEVICE),
    ("generate", "--device_map auto", DEVICE),
    ("transcribe", "--fp16 False", "did you mean --dtype?"),
    ("document", "--fp16", "did you mean --dtype?"),
    ("generate", "--torch_dtype float16", "did you mean --dtype?"),
    ("convert", "--bf16", "did you mean --dtype?"),
    ("transcribe", "--compute_type int8", WRITTEN),
    ("document", "--compute-type int8", WRITTEN),
    ("generate", "--quantize 8", WRITTEN),
    ("serve", "--quantization int8", WRITTEN),
    ("generate", "--load_in_8bit", WRITTEN),
    ("generate", "-q 8", WRITTEN),
    ("convert", "--quantization int8", "did you mean --quantize?"),  # ct2-transformers-converter; a guard
    ("convert", "--q-bits 4", "did you mean --quantize?"),  # mlx_lm.convert
    ("transcribe", "--threads 4", "MLX chooses the number of threads; leave it out"),
    ("transcribe", "--verbose False", "progress and notes go to standard error, which 2>/dev/null hides; leave it out"),
    ("transcribe", "--model_dir x", "name a model's folder with --model, or set HF_HOME to the folder for downloads"),
    ("transcribe", "--hotwords x", "did you mean --initial-prompt?"),
    ("transcribe", "--batch_size 8", "did you mean --slots?"),
    ("transcribe", "--local_files_only True", "set HF_HUB_OFFLINE=1"),
    ("transcribe", "--hf_token x", "set HF_TOKEN"),
    ("document", "-f html", "did you mean --format?"),
    ("document", "--output_format html", "did you mean --format?"),
    ("batch", "-f jsonl", "did you mean --input-format?"),
    ("batch", "--output_dir x", "did you mean --output?"),  # a guard
    ("generate", "--model_name_or_path x", "did you mean --model?"),
    ("generate", "--assistant_model x", "did you mean --draft-model?"),
    ("generate", "--lora x", "did you mean --adapter?"),  # llama.cpp
    ("generate", "--trust-remote-code", "code from the Hub is never run; leave it out"),
    ("generate", "--source_prefix x", "did you mean --prefix?"),
    ("document", "--glossary x", "did you mean --keep?"),
    ("train", "--epochs 3", "did you mean --steps or --minutes?"),
    ("train", "--train_file x", "did you mean --prompts?"),
    ("train", "--lr 3", "did you mean --learning-rate?"),
    ("serve", "--api-keys x", "did you mean --token-file?"),
]
COMMANDS = [
    ("translate", "document"),
    ("translation", "document"),
    ("subtitles", "transcribe"),
    ("whisper", "transcribe"),
    ("chat", "console"),
    ("run", "generate"),
    ("quantize", "convert"),
    ("server", "serve"),  # a guard
    ("finetune", "train"),
    ("benchmark", "doctor"),
]


def error_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the last line that a command prints, which has exit status 2."""
    try:
        status: Any = programs.main(arguments)
    except SystemExit as ended:
        status = ended.code
    out, err = capsys.readouterr()
    assert status == 2 and out == "" and err.count(": error: ") == 1
    return str(err.splitlines()[-1].partition(": error: ")[2])


def present(rows: list[Any], command: Any) -> list[Any]:
    """Return the rows whose command is installed."""
    subpackages = {name: subpackage for name, (_, subpackage, _) in programs.COMMANDS.items()}
    return [row for row in rows if subpackages[command(row)] is None or has_subpackage(str(subpackages[command(row)]))]


@pytest.mark.parametrize(("command", "given", "way_out"), present(FLAGS, lambda row: row[0]))
def test_a_flag_of_another_program_is_answered_with_ours(
    command: str, given: str, way_out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *value = given.split()
    files = ["x"] if command in ("document", "batch", "transcribe") else []
    error = error_of([command, *files, name, *value], capsys)
    assert error.partition(" (--help")[0] == f"{name}: unknown option; {way_out}"


@pytest.mark.parametrize(("given", "command"), present(COMMANDS, lambda row: row[1]))
def test_a_command_of_another_program_is_answered_with_ours(
    given: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert error_of([given, "x"], capsys) == f"{given}: unknown command; did you mean {command}?"


def test_the_table_names_existing_options_only() -> None:
    """A guard. Options of commands that other folders add are tested above."""
    parsers = (prompt_parser(), convert_parser("convert"))
    known = {action.dest for parser in parsers for action in parser._actions} | option_specs().keys()
    own = (
        "task language initial_prompt keep learning_rate held_out steps minutes prompts slots output_dir output_format"
    )
    named = {field for fields in other_flags.OPTIONS.values() for field in fields.split()}
    assert named <= known | {*own.split(), "format", "input_format", "token_file", "resume"}
    assert not {name for table in (other_flags.OPTIONS, other_flags.TEXTS) for name in table if "-" in name}


ADDRESSES = [
    ("document", f"{URL}.md", f"FILE: {URL}.md is an address, not a file; download it, and name the file"),
    (
        "document",
        "s3://bucket/a.md",
        "FILE: s3://bucket/a.md is an address, not a file; download it, and name the file",
    ),
    ("document", f"a.md -o {URL}", f"--output: {URL} is an address; name a file or a folder"),
    (
        "document",
        f"a.md --keep {URL}",
        f"argument --keep: must be the path of a file (- is not supported), not '{URL}'",
    ),
    ("document", f"a.md --memory {URL}", "argument --memory: must be the path of a file (- is not supported), not "),
    ("batch", f"{URL}.jsonl", f"FILE: {URL}.jsonl is an address, not a file; download it, and name the file"),
    ("transcribe", f"{URL}.mp3", f"FILE: {URL}.mp3 is an address, not a file; download it, and name the file"),
    ("transcribe", f"{URL}.mp3 -o x", f"FILE: {URL}.mp3 is an address, not a file; download it, and name the file"),
    ("transcribe", f"--live {URL}.mp3", f"--live: {URL}.mp3 is an address, not a file; download it, and name the file"),
    ("generate", f"a --draft-text-file {URL}", "argument --draft-text-file: must be the path of a file (- is not"),
    (
        "generate",
        f"a --model {URL}",
        f"--model: model '{URL}' is an address; download the model, and name its folder",
    ),
    ("convert", f"--model {URL}", f"model '{URL}' is an address; download the model, and name its folder"),
    (
        "convert",
        f"--model t5-web-docs --output {URL}",
        "argument --output: must be the path of a file (- is not suppor",
    ),
    ("train", f"--prompts {URL} --model t5-web-docs --output x --steps 1", "argument --prompts: must be the path of a"),
    ("serve", f"--token-file {URL}", "argument --token-file: must be the path of a file (- is not supported), not "),
]


@pytest.mark.parametrize(("command", "arguments", "message"), present(ADDRESSES, lambda row: row[0]))
def test_an_address_is_no_file_and_shown_whole(
    command: str,
    arguments: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ModelPair, "load_weights", None)
    (tmp_path / "a.md").write_text("a")
    error = error_of([command, *arguments.split()], capsys)
    assert error.startswith(message)
    assert next(each for each in arguments.split() if "://" in each) in error
    assert [path.name for path in tmp_path.iterdir()] == ["a.md"]
