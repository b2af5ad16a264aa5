"""The commands: text on standard output, and one-line errors on standard error."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

from speculative_decoding import models, session
from speculative_decoding.cli import convert as convert_command
from speculative_decoding.cli import main as main_command
from speculative_decoding.cli import runner
from speculative_decoding.cli import verify as verify_command
from speculative_decoding.cli.main import EXAMPLE, prompt_parser
from speculative_decoding.cli.parser import flag
from speculative_decoding.cli.runner import PromptRunner
from speculative_decoding.engine import Engine, Event
from speculative_decoding.loading.load import BUNDLED, ModelHandle
from speculative_decoding.loading.tokenizer import FastTokenizer
from speculative_decoding.models.cache import DecoderCache
from speculative_decoding.rows import blank_result
from speculative_decoding.sampling import DRAFTERS, GenerationOptions
from speculative_decoding.sampling.options import ACCEPTANCE, SCHEDULES, option_specs

ROOT = BUNDLED.parent
PROMPT = "translate English to German: The method returns the value."
HARDER = (
    "translate English to German: This function removes the last element of an array."  # the draft is partly accepted
)
FIXED = ("--drafter", "model", "--num-draft", "5")  # the same rounds in every run
FLOAT32 = ("--dtype", "float32")  # the same text in a process that uses a GPU


def start(*arguments: str, **options: object) -> subprocess.Popen[bytes]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, ROOT / "main.py", *arguments], cwd=ROOT, **(pipes | options))  # type: ignore[call-overload, no-any-return]


@pytest.fixture
def main_py(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """Run main.py in this process and return (exit status, standard output, standard error)."""

    def call(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        status, err = in_process(capsys, *arguments, out=(out := []))
        return status, out[0], err

    return call


def test_a_prompt_gives_its_text_and_statistics(tmp_path: Path) -> None:
    stats_file = tmp_path / "stats.json"
    process = start("--prompt", PROMPT, "--stats-json", str(stats_file), *FLOAT32)
    out, err = (each.decode() for each in process.communicate())
    assert process.returncode == 0 and out == "Die Methode gibt den Wert zurück.\n"
    for words in ("t5-web-docs, draft", "accepted", "target calls", "encode", "tokens/s", "peak memory"):
        assert words in err
    assert "LOSSY" not in err
    stats = json.loads(stats_file.read_text())
    assert stats["lossless"] and 0 < stats["accepted_tokens"] <= stats["drafted_tokens"]
    # Each call adds one token to the accepted ones, except the last call if it accepts a drafted end token.
    assert stats["accepted_tokens"] + stats["target_calls"] - stats["generated_tokens"] in (0, 1)
    assert stats["generated_tokens"] / stats["target_calls"] == stats["tokens_per_target_call"]
    assert "decode" in err and not {"draft_seconds", "verify_seconds"} & stats.keys()


def test_draft_and_verify_times_are_shown_with_show_draft_and_trace(tmp_path: Path, main_py) -> None:  # type: ignore[no-untyped-def]
    stats_file = tmp_path / "stats.json"
    for more in (["--show-draft"], ["--trace", str(tmp_path / "trace.jsonl")]):
        _, _, err = main_py("--prompt", PROMPT, "--stats-json", str(stats_file), *more)
        stats = json.loads(stats_file.read_text())
        assert stats["draft_seconds"] > 0 and stats["verify_seconds"] > 0
        assert " s, draft " in err and " s, verify " in err and "decode" not in err


def test_the_prompt_may_be_a_positional_argument(main_py) -> None:  # type: ignore[no-untyped-def]
    assert main_py(PROMPT)[:2] == main_py("--prompt", PROMPT)[:2]
    status, _, error = main_py(PROMPT, "--prompt", PROMPT)
    assert status == 2 and "argument --prompt: not allowed with argument PROMPT" in error


def test_the_users_own_prompts_print_once_that_the_bundled_target_is_a_demonstration(main_py) -> None:  # type: ignore[no-untyped-def]
    bundled = (ROOT / "data" / "describe.txt").read_text(encoding="utf-8").split("\n")[0]
    for typed, count in ((f"{EXAMPLE}\n{bundled}\n", 0), (f"{bundled}\nHe go.\nThey goes.\n", 1)):
        err = main_py("-m", "2", stdin=typed.encode())[2]
        assert err.count("note: t5-web-docs is a demonstration, trained on web documentation") == count
        assert err.count("use --model google/flan-t5-large --draft-model google/flan-t5-small\n") == count
    assert "demonstration" not in main_py("-m", "2", "--model", "t5-web-docs-draft", "He go.")[2]


def test_every_step_from_prompt_to_text_runs_once(monkeypatch: pytest.MonkeyPatch, main_py) -> None:  # type: ignore[no-untyped-def]
    calls: Counter[str] = Counter()

    def count(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def counted(*arguments: Any, **keywords: Any) -> Any:
            calls[name] += 1
            return original(*arguments, **keywords)

        monkeypatch.setattr(owner, name, counted)

    count(FastTokenizer, "encode")
    count(models, "build")
    count(session, "choose_drafter")
    count(GenerationOptions, "__post_init__")
    draft = ["--model", "t5-web-docs", "--draft-model", "t5-web-docs-draft"]
    for arguments, built in ((["--drafter", "ngram"], 1), (["--drafter", "model"], 2), (["--drafter", "auto"], 2)):
        calls.clear()
        assert main_py(PROMPT, *draft, *arguments, "--num-draft", "3", "-m", "5")[0] == 0
        assert calls == {"encode": 1, "build": built, "choose_drafter": 1, "__post_init__": 1}


def test_each_line_of_standard_input_gives_a_line_of_output(main_py) -> None:  # type: ignore[no-untyped-def]
    lines = [PROMPT, "", "grammar: It were a cod business."]
    status, out, _ = main_py(stdin="\n".join(lines).encode())
    assert status == 0 and [bool(line) for line in out.split("\n")] == [True, False, True, False]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16-le", "utf-16-be"])
def test_standard_input_with_a_byte_order_mark_is_decoded(encoding: str, main_py) -> None:  # type: ignore[no-untyped-def]
    text = f"{PROMPT}\r\n\r\ntranslate English to German: Grüße\r\n"
    mark = "" if encoding == "utf-8-sig" else "\ufeff"
    expected = main_py("-m", "8", stdin=text.encode())[:2]
    assert main_py("-m", "8", stdin=(mark + text).encode(encoding))[:2] == expected and expected[0] == 0


LINES_IN_A_TEXT = "eins\nzwei\r\n\ndrei\u2028vier"


@pytest.fixture
def with_line_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every text of a generation contains line breaks."""
    original = Engine.step

    def step(self: Engine) -> list[Event]:
        events = []
        for event in original(self):
            event.request.text = LINES_IN_A_TEXT
            events.append(event._replace(texts=[LINES_IN_A_TEXT, *event.texts[1:]]))
        return events

    monkeypatch.setattr(Engine, "step", step)


@pytest.mark.usefixtures("with_line_breaks")
def test_an_output_with_line_breaks_is_one_line_if_each_prompt_is_one(main_py) -> None:  # type: ignore[no-untyped-def]
    status, out, err = main_py("-m", "1", "--drafter", "none", stdin=b"a\nb\n\nc\n")
    line = "eins zwei   drei vier"
    assert status == 0 and out == f"{line}\n{line}\n\n{line}\n" and len(out.splitlines()) == 4
    assert err.count("note: an output has line breaks, which are written as spaces") == 1
    status, out, err = main_py("a", "-m", "1", "--drafter", "none")
    assert status == 0 and out == f"{LINES_IN_A_TEXT}\n" and "line breaks" not in err


def test_several_outputs_are_one_line_each(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    result = blank_result(GenerationOptions(num_return_sequences=2, temperature=1.0))
    result = replace(result, sequences=[replace(result, text=text) for text in ("a\nb", "c")])
    options = GenerationOptions(num_return_sequences=2, temperature=1.0)
    fake: Any = SimpleNamespace(model=None, tokenizer=None, options=options, generate=lambda tokens: result)
    monkeypatch.setattr(runner, "unknown_characters", lambda *arguments: [])
    PromptRunner(in_one_line=True).run(fake, "prompt", tokens=[1])
    assert capsys.readouterr().out == "a b\nc\n"


def test_a_prompt_that_is_the_name_of_a_file_gets_a_note(tmp_path: Path, main_py) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "three.txt"
    assert "name of a file" not in main_py(str(path), "-m", "1")[2]
    path.write_text("a\nb\nc\n")
    status, out, err = main_py(str(path), "-m", "1")
    (note,) = [line for line in err.splitlines() if "name of a file" in line]
    assert status == 0 and out.count("\n") == 1 and f"speculative-decoding batch {path}" in note and f"< {path}" in note
    assert "name of a file" not in main_py("-m", "1", stdin=f"{path}\n".encode())[2]


def test_output_has_as_many_lines_as_standard_input(main_py) -> None:  # type: ignore[no-untyped-def]
    prompts = [line for name in ("describe", "grammar") for line in read_lines(name)[:10]]
    for arguments, count in (([], 20), (["--show-draft"], 6), (["--output-prefix", "He"], 6)):
        status, out, _ = main_py("-m", "3", *arguments, stdin="\n".join(prompts[-count:]).encode())
        assert status == 0 and out.count("\n") == count and all(out.split("\n")[:count])


def read_lines(name: str) -> list[str]:
    return (ROOT / "data" / f"{name}.txt").read_text(encoding="utf-8").split("\n")


def test_the_draft_is_shown_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_command.main(["--prompt", HARDER, "--show-draft", *FIXED]) == 0
    out, err = capsys.readouterr()
    assert out == "Diese Funktion entfernt das letzte Element eines Arrays.\n"
    assert "Diese Funktion" in err and "[- " in err and "{+ " in err
    assert main_command.main(["--prompt", HARDER, "--show-draft", "rounds", "--baseline"]) == 0
    err = capsys.readouterr().err
    assert "round 10: no draft, " in err and "accepted" not in err.replace("accepted [-", "")


def test_an_output_prefix_is_continued(capsys: pytest.CaptureFixture[str]) -> None:
    for more in ([], ["--verify"], ["--verify", "--temperature", "0.5"]):
        assert main_command.main(["--prompt", PROMPT, "--output-prefix", "Diese Methode gibt", *more]) == 0
        out, err = capsys.readouterr()
        assert out.startswith(" den Wert ") and ("verify: identical" in err) == bool(more)


def test_texts_cut_at_max_tokens_are_reported(main_py) -> None:  # type: ignore[no-untyped-def]
    assert "stopped at" not in main_py("--prompt", PROMPT)[2]
    assert "\nstopped at --max-tokens 3\n" in main_py("--prompt", PROMPT, "-m", "3")[2]
    _, _, err = main_py("-m", "9", stdin=f"{PROMPT}\n{HARDER}\n".encode())
    assert "\nstopped at --max-tokens: 1 of 2 texts\n" in err


def test_baseline_decoding_does_not_mention_drafts(main_py) -> None:  # type: ignore[no-untyped-def]
    assert "accepted" not in main_py("--prompt", PROMPT, "--baseline")[2]


def test_delta_is_labeled_lossy(main_py) -> None:  # type: ignore[no-untyped-def]
    _, _, err = main_py("--prompt", PROMPT, "--delta", "0.5")
    assert "LOSSY: --delta 0.5" in err


def test_verify_reports_identical_output_or_the_first_divergence(capsys: pytest.CaptureFixture[str]) -> None:
    status, err = in_process(capsys, "--prompt", PROMPT, "--verify")
    assert status == 0 and "verify: identical, 8 tokens" in err
    status, err = in_process(capsys, "--prompt", PROMPT, "--verify", "--temperature", "1")
    assert status == 0 and "verify: identical" in err
    status, err = in_process(capsys, "--prompt", HARDER, "--verify", "--delta", "1", *FIXED)
    assert status == 1 and "verify: first divergence at token" in err and "; logit gap " in err
    assert "of the tokens are not the target's first choice" in err


def test_verify_tests_every_draft_length(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text(f"{PROMPT}\n\n")
    arguments = [str(tmp_path / "prompts.txt"), "-m", "12"]
    assert verify_command.main([*arguments, "--num-draft", "0", "2", "5", "--dtype", "bfloat16", "--strict"]) == 0
    assert "3 of 3 identical (24 tokens)" in capsys.readouterr().out
    coupled = ["--temperature", "1", "--seed", "1", "2", "--num-draft", "1", "4"]
    assert verify_command.main([*arguments, *coupled]) == 0
    out = capsys.readouterr().out
    for length, seed in product((1, 4), (1, 2)):
        assert f"drafter auto, num-draft {length}, seed {seed}, slots 1: 1 of 1 identical\n" in out
    assert out.endswith("\n4 of 4 identical (32 tokens)\n")
    (tmp_path / "prompts.txt").write_text(f"{HARDER}\n")
    assert verify_command.main([*arguments, "--delta", "1", *FIXED]) == 1
    assert "prompt 1, drafter model, num-draft 5, seed 0, slots 1: first divergence at token" in capsys.readouterr().out
    for cause in (["--acceptance", "block"], ["--delta", "0.1"]):
        assert verify_command.main([*arguments, "--temperature", "1", *cause]) == 2
        assert f"use --temperature 0, or leave out {' '.join(cause)}" in capsys.readouterr().err


def test_verify_compares_batches_with_single_prompts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [(ROOT / "data" / f"{name}.txt").read_text() for name in ("grammar", "describe")]
    lines = [line for text in texts for line in text.split("\n")[:2]]
    (tmp_path / "prompts.txt").write_text("\n".join(lines))
    arguments = [str(tmp_path / "prompts.txt"), "-m", "12", "--slots", "2", "3", "--drafter", "none", "auto"]
    assert verify_command.main(arguments) == 0
    assert "16 of 16 identical" in capsys.readouterr().out
    # A planted fault: every row is rewound to the largest offset.
    trim = DecoderCache.trim_to
    monkeypatch.setattr(
        DecoderCache, "trim_to", lambda self, offset: trim(self, offset if isinstance(offset, int) else max(offset))
    )
    assert verify_command.main(arguments) == 1
    assert "slots 3: first divergence at token" in capsys.readouterr().out


def test_verify_prints_its_progress_in_a_pipe(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prompts.txt").write_text("grammar: He go home.\ngrammar: It were a cod business.\n")
    monkeypatch.setattr("speculative_decoding.cli.progress.LINE_SECONDS", 0)
    assert (
        verify_command.main([str(tmp_path / "prompts.txt"), "-m", "8", "--drafter", "model", "--num-draft", "5"]) == 0
    )
    out, err = capsys.readouterr()
    assert "drafter model, num-draft 5, seed 0, slots 1: 2 of 2 baseline outputs" in err
    assert "slots 1: 2 of 2 outputs identical" in err
    assert out.startswith("2 of 2 identical (")


def test_a_stop_string_ends_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_command.main(["--prompt", PROMPT, "--stop", "xyz", "--stop", "n Wert"]) == 0
    assert capsys.readouterr().out == "Die Methode gibt de\n"


def test_every_sampling_option_reaches_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def sample(*arguments: str) -> str:
        shared = ["--prompt", PROMPT, "-m", "12", "--temperature", "2", "--seed", "7", *FIXED]
        assert main_command.main([*shared, *arguments]) == 0
        return capsys.readouterr().out

    free = sample()
    assert main_command.main(["--prompt", PROMPT]) == 0
    exact = capsys.readouterr().out
    for option in (["--top-k", "1"], ["--top-p", "0.0001"], ["--min-p", "1"]):
        assert sample(*option) == exact != free
    assert sample("--repetition-penalty", "0.1") != free
    stats_file = tmp_path / "stats.json"
    relaxed = ("--delta", "0.3", "--stats-json", str(stats_file))
    assert any(sample("--seed", seed, *relaxed) != sample("--seed", seed) for seed in "1234567")
    assert 0 < json.loads(stats_file.read_text())["delta_total_variation"] <= 0.3


def test_the_seed_determines_the_sample(main_py) -> None:  # type: ignore[no-untyped-def]
    sample = [
        main_py("--prompt", PROMPT, "--temperature", "1.5", "--seed", seed, *FIXED)[1] for seed in ("1", "1", "2")
    ]
    assert sample[0] == sample[1] != sample[2]


def in_process(capsys: pytest.CaptureFixture[str], *arguments: str, out: list[str] | None = None) -> tuple[int, str]:
    try:
        status = main_command.main(list(arguments))
    except SystemExit as exit:  # raised by argparse
        status = int(exit.code or 0)
    printed, err = capsys.readouterr()
    if out is not None:
        out.append(printed)
    return status, err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--num-draft", "-1"], "--num-draft: must be a whole number, 0 to 64 or one of auto"),
        (["--num-draft", "many"], "--num-draft"),
        (["--delta", "1.5"], "--delta: must be a number, 0 to 1, not '1.5'"),
        (["--delta", "nan"], "--delta"),
        (["--max-tokens", "0"], "--max-tokens"),
        (["-m", "0"], "--max-tokens"),
        (["--temperature", "-1"], "--temperature"),
        (["--temperature", "inf"], "--temperature"),
        (["--seed", "-3"], "--seed"),
        (["--top-k", "-1"], "--top-k: must be a whole number >= 0, not '-1'"),
        (["--top-p", "0"], "--top-p: must be a number above 0, at most 1, not '0'"),
        (["--min-p", "2"], "--min-p: must be a number, 0 to 1, not '2'"),
        (["--repetition-penalty", "0"], "--repetition-penalty: must be a number, 1e-10 to 1e+10, not '0'"),
        (["--acceptance", "typical"], "--acceptance: must be one of rejection, block, coupled, not 'typical'"),
        (
            ["--temperature", "1", "--acceptance", "block", "--delta", "0.1"],
            "--delta: relaxes --acceptance rejection only, not block",
        ),
        (["--top-k", "5"], "--top-k: has no effect at --temperature 0; leave one of them out"),
        (["--top-p", "0.5"], "--top-p: has no effect at --temperature 0"),
        (["--min-p", "0.5"], "--min-p: has no effect at --temperature 0"),
        (["--acceptance", "coupled"], "--acceptance: has no effect at --temperature 0"),
        (["--drafter", "none", "--num-draft", "3"], "--num-draft: has no effect with --drafter none"),
        (["--baseline", "--delta", "0.5"], "--delta: has no effect with --drafter none"),
        (["--confidence-threshold", "0.5"], "--confidence-threshold: unknown option; did you mean --num-draft?"),
        (["--min-ngram-size", "2"], "--min-ngram-size: unknown option; did you mean --max-ngram-size?"),
        (["--num-draft", "heuristic"], "--num-draft: must be a whole number, 0 to 64 or one of auto, not 'heuristic'"),
        (["--regular-decode"], "--regular-decode: unknown option; did you mean --baseline?"),
        (["--model-name", "t5-small"], "--model-name: unknown option; did you mean --model?"),
        (["--draft-model-name", "t5-small"], "--draft-model-name: unknown option; did you mean --draft-model?"),
        (["--drafter", "oracle"], "--drafter: must be one of model, ngram, auto, none, not 'oracle'"),
        (["--stop", ""], "--stop: must be text that is not empty, not ''"),
        (["--eos-token-id", "-1"], "--eos-token-id"),
        (["--eos-token-id", "99999"], "main.py: error: --eos-token-id: must be between 0 and"),
        (["--target-language", "xx"], "main.py: error: --target-language: 'xx' has no effect"),
        (
            ["--verify", "--temperature", "1", "--acceptance", "block"],
            "--verify: independent samples differ (got --temperature 1, expected 0); use --temperature 0",
        ),
        (["--verify", "--baseline"], "--verify: compares with and without a draft"),
        (["--compare", "--num-draft", "0"], "--compare: compares with and without a draft"),
        (["--compare", "--baseline"], "--compare: compares with and without a draft"),
        (["--trace", "x", "--stats-json", "x"], "--stats-json: x is already used by --trace; name another"),
        (
            ["--show-draft", "He go home."],
            "must be one of text, rounds; put a prompt before this flag, or use --prompt",
        ),
        (["--trace", "/nonexistent/t.jsonl"], "--trace: /nonexistent/t.jsonl cannot be written"),
        (["--verify", "--drafter", "none"], "--verify: compares with and without a draft"),
        (["--dtype", "int8"], "--dtype"),
        (["--gamma", "5"], "--gamma"),
        (["--prompt", "  "], "prompt: is empty"),
        (["--prompt", "word " * 600], "trained on at most 512"),
        (
            ["--model", "no-such-model"],
            "--model: model 'no-such-model' is neither a folder nor a name in models/ (t5-web-docs, ",
        ),
        (["--model", "t5-web-docs", "--draft-model", "nowhere"], "--draft-model: model 'nowhere'"),
        (["--stats-json", "/nonexistent/folder/s.json"], "--stats-json: /nonexistent/folder/s.json"),
    ],
)
def test_invalid_arguments_are_a_one_line_error_with_status_2(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModelHandle, "load_weights", lambda _: pytest.fail("loaded weights first"))
    if "--prompt" not in arguments:
        arguments = ["--prompt", PROMPT, *arguments]
    status, err = in_process(capsys, *arguments)
    lines = [line for line in err.splitlines() if not line.startswith("target ")]  # the line that names the models
    assert status == 2 and len(lines) == 1 and named in lines[0] and lines[0].startswith("main.py: error: ")


def test_a_prompt_after_two_dashes_is_not_a_flag(main_py) -> None:  # type: ignore[no-untyped-def]
    status, out, _ = main_py("-m", "2", "--", "--input")
    assert status == 0 and out


@pytest.mark.parametrize("prefix", ["translate English to German: ", "translate English to German:", " "])
def test_a_prefix_equals_writing_it_before_the_prompt(prefix: str, main_py) -> None:  # type: ignore[no-untyped-def]
    """Blank lines of standard input stay blank."""
    texts = ["The method returns the value.", "He go.", ""]
    assert main_py(texts[0], "--prefix", prefix, *FIXED)[:2] == main_py(prefix + texts[0], *FIXED)[:2]
    written = "\n".join(prefix + text if text else "" for text in texts)
    found = main_py("--prefix", prefix, *FIXED, stdin="\n".join(texts).encode())
    assert found[:2] == main_py(*FIXED, stdin=written.encode())[:2] and found[0] == 0
    status, out, err = main_py("", "--prefix", prefix)
    assert status == 2 and not out and err.endswith("prompt: is empty; give it some text\n")


def test_a_blank_line_gives_a_blank_line_before_the_model_loads(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModelHandle, "load_weights", lambda _: pytest.fail("loaded weights first"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\n \n")))
    assert main_command.main(["--prefix", "grammar: "]) == 2
    out, err = capsys.readouterr()
    assert out == "\n\n" and "standard input is empty" in err


def test_a_comparison_can_also_be_verified(main_py) -> None:  # type: ignore[no-untyped-def]
    status, out, err = main_py(PROMPT, "--compare", "--verify")
    assert status == 0 and out.count("\n") == 1 and "verify: identical" in err and "speedup" in err


def test_views_are_imported_only_if_they_are_used() -> None:
    code = "import sys; from speculative_decoding.cli.main import main; main(sys.argv[1:]); print(*sys.modules)"
    views = {f"speculative_decoding.cli.{name}" for name in ("views", "compare", "divergence", "verify", "modes")}
    found = []
    for more in ([], ["--show-draft"], ["--compare"], ["--verify"]):
        command = [sys.executable, "-c", code, "-m", "2", *more, "--prompt", PROMPT]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        found.append(views & {*done.stdout.split()} | {"rich"} & {*done.stdout.split()})
    assert found[0] == set() and found[1] == {"speculative_decoding.cli.views", "rich"}
    assert found[2] >= {"speculative_decoding.cli.compare"} and "speculative_decoding.cli.verify" in found[3]


SECRET = "translate English to German: my password is fish"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--num-drafts", "4", SECRET], "--num-drafts: unknown option; did you mean --num-draft?"),
        (["--num-draft-tokens=4", SECRET], "--num-draft-tokens: unknown option; did you mean --num-draft?"),
        (["--max-new-tokens", "4", SECRET], "--max-new-tokens: unknown option; did you mean --max-tokens?"),
        (["--tgt-lang", "de", SECRET], "--tgt-lang: unknown option; did you mean --target-language?"),
        (["--temprature", SECRET, SECRET], "--temprature: unknown option; did you mean --temperature?"),
        (["--zzz", SECRET], "--zzz: unknown option"),
        (["--draft-modle=t5", SECRET, f"- {SECRET}"], "--draft-modle: unknown option; did you mean --draft-model?"),
        (SECRET.split(), "unexpected argument; put a text with spaces in quotes, and give each argument once"),
        (["--prompt", "a", SECRET], "argument PROMPT: not allowed with argument --prompt"),
        (["--show-draft", SECRET], "argument --show-draft: must be one of text, rounds; put a prompt before this flag"),
    ],
)
def test_a_mistyped_flag_is_named_with_the_nearest_one_and_nothing_else_is_repeated(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, err = in_process(capsys, *arguments)
    assert status == 2 and len(err.splitlines()) == 1 and err.startswith(f"main.py: error: {message}")
    assert "password" not in err and "fish" not in err


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return shutil.copytree(BUNDLED / "t5-web-docs-draft", tmp_path / "copy")


def test_damaged_folders_are_a_one_line_error_with_status_2(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = copy / "weights.npz"
    weights.write_bytes(weights.read_bytes()[:-1000])
    for damage, named in (
        (lambda: None, "weights.npz: wrong size (got"),
        ((copy / "manifest.json").unlink, "weights.npz: the zip directory is damaged or truncated"),
        (weights.unlink, "no weights found"),
        ((copy / "config.json").unlink, "no config.json"),
    ):
        damage()
        status, err = in_process(capsys, "--prompt", PROMPT, "--model", str(copy))
        assert status == 2 and named in err.splitlines()[-1] and "Traceback" not in err


def test_weights_with_a_wrong_shape_are_named(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / "manifest.json").unlink()
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"d_ff": 256}))
    status, err = in_process(capsys, "--prompt", PROMPT, "--model", str(copy))
    assert status == 2 and "DenseReluDense.wi.weight' has shape (512, 128)" in err


def test_a_draft_with_other_tokens_is_refused(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / "manifest.json").unlink()
    tokenizer = json.loads((copy / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab[500], vocab[501] = vocab[501], vocab[500]
    (copy / "tokenizer.json").write_text(json.dumps(tokenizer))
    status, err = in_process(capsys, "--prompt", PROMPT, "--draft-model", str(copy))
    assert status == 2 and "token 500 is" in err


@pytest.mark.parametrize(
    ("stdin", "named"),
    [
        (b"\xff\xfe bad\n", "standard input, line 1: not UTF-8"),
        (b"", "standard input is empty"),
        (b"a\0b", "standard input, line 1: contains a NUL character"),
    ],
)
def test_invalid_standard_input_is_a_one_line_error_with_status_2(stdin: bytes, named: str, main_py) -> None:  # type: ignore[no-untyped-def]
    status, out, err = main_py(stdin=stdin)
    assert status == 2 and named in err and "Traceback" not in err and not out.strip()


def test_ctrl_c_exits_with_status_130_and_no_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Send SIGINT at the 1st, 2nd, 4th, 8th ... `mx.eval`, until the text is finished before the signal."""
    evaluate, statuses = mx.eval, []
    while statuses[-1:] != [0]:
        left = 2 ** len(statuses)

        def evaluated(*arrays: object) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                signal.raise_signal(signal.SIGINT)
            evaluate(*arrays)

        monkeypatch.setattr(mx, "eval", evaluated)
        status, err = in_process(capsys, "--prompt", PROMPT)
        statuses.append(status)
        assert ("main.py: interrupted" in err) == (status == 130) and "Traceback" not in err
    signal.signal(signal.SIGINT, signal.default_int_handler)  # after Ctrl-C, a program keeps SIG_DFL until it exits
    assert len(statuses) > 3 and set(statuses[:-1]) == {130}


def test_a_closed_pipe_gives_no_traceback() -> None:
    process = start("--temperature", "50", "--max-tokens", "100000", "--prompt", PROMPT)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(5)
    process.stdout.close()
    err = process.stderr.read()
    process.wait()
    assert process.returncode == 1 and b"Traceback" not in err and b"Exception" not in err


class FullDisk(io.FileIO):
    """A file on a full disk."""

    def write(self, data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_a_one_line_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    full = tmp_path / "full"
    with io.TextIOWrapper(FullDisk(full, "w"), write_through=True) as stdout:  # write_through: no data is buffered
        monkeypatch.setattr(sys, "stdout", stdout)
        monkeypatch.chdir(ROOT)
        assert main_command.main(["--prompt", EXAMPLE]) == 2
        err = capfd.readouterr().err
    assert err.splitlines()[1:] == [
        "main.py: error: standard output: No space left on device; redirect it to another disk"
    ]
    opened = io.open

    def open_on_full_disk(path: Any, *arguments: Any, **options: Any) -> Any:
        return io.TextIOWrapper(FullDisk(path, "w")) if path == full else opened(path, *arguments, **options)

    monkeypatch.setattr(io, "open", open_on_full_disk)
    for name in ("--stats-json", "--trace"):
        monkeypatch.setattr(sys, "stdout", io.StringIO())
        assert main_command.main(["--prompt", PROMPT, name, str(full)]) == 2
        assert f"main.py: error: {name}: {full} cannot be written (No space left" in capfd.readouterr().err


def test_characters_that_standard_output_cannot_encode_are_escaped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with io.TextIOWrapper(io.BytesIO(), "ascii", write_through=True) as ascii_only:
        monkeypatch.setattr(sys, "stdout", ascii_only)
        monkeypatch.chdir(ROOT)
        assert main_command.main(["--prompt", PROMPT]) == 0
        print("ü, ß")  # several in one text get no further note
        text = rb"Die Methode gibt den Wert zur\xfcck." + b"\n" + rb"\xfc, \xdf" + b"\n"
        assert ascii_only.buffer.getvalue() == text  # type: ignore[attr-defined]
    assert (
        capsys.readouterr().err.count(r"note: standard output is ascii; characters that it lacks are written as") == 1
    )


def test_a_closed_standard_stream_is_never_written_to(tmp_path: Path) -> None:
    """A file opened later gets the descriptor of a closed stream, so output must not go there."""
    command = f'{sys.executable} main.py --dtype float32 --stats-json "$1/s" --prompt "$2"'
    shell = ["sh", "-c", f'{command} >&- 2>"$1/err"; echo $?; {command} <&- 2>&-; echo $?', "sh", str(tmp_path), PROMPT]
    out = subprocess.run(shell, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert out.split("\n") == ["2", "Die Methode gibt den Wert zurück.", "0", ""]
    assert (tmp_path / "err").read_text() == (
        "main.py: error: standard output is closed; redirect it to a file or to /dev/null\n"
    )
    assert json.loads((tmp_path / "s").read_text())["lossless"]


def test_text_and_draft_in_one_pipe_are_not_mixed() -> None:
    process = start("--show-draft", *FIXED, *FLOAT32, "--prompt", HARDER, stderr=subprocess.STDOUT)
    lines = process.communicate()[0].decode().splitlines()
    assert "[- " in lines[3] and "{+ " in lines[3]
    assert re.sub(r"\[-.*?-\]|\{\+|\+\}", "", lines[3]) == "Diese Funktion entfernt das letzte Element eines Arrays."
    assert lines[4].startswith("11 tokens at ")


@pytest.mark.parametrize(
    ("arguments", "needed", "unneeded"),
    [
        (("--help",), {"argparse"}, {"rich", "tokenizers", "transformers", "huggingface_hub", "matplotlib"}),
        (("--prompt", PROMPT), {"tokenizers"}, {"transformers", "huggingface_hub", "matplotlib"}),
    ],
)
def test_commands_import_only_what_they_need(arguments: tuple[str, ...], needed: set[str], unneeded: set[str]) -> None:
    process = start(*arguments, env=os.environ | {"PYTHONPROFILEIMPORTTIME": "1"})
    lines = process.communicate()[1].decode().splitlines()
    imported = {line.split("|")[-1].strip() for line in lines if line.startswith("import time:")}
    assert process.returncode == 0 and needed <= imported and not unneeded & imported


def test_every_option_has_a_flag_that_accepts_every_valid_name() -> None:
    without = {"logprobs", "timed"}  # options of the Python API only
    flags = {name for action in prompt_parser()._actions for name in action.option_strings}
    assert {flag(name) for name in option_specs()} - flags == {flag(name) for name in without}
    for option, names in (("acceptance", ACCEPTANCE), ("drafter", DRAFTERS), ("num_draft_tokens", SCHEDULES)):
        for name in names:
            assert vars(prompt_parser().parse_args([flag(option), name])) == {option: name}
    assert not vars(prompt_parser().parse_args([]))


def test_convert_writes_a_folder_and_replaces_it_only_with_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = BUNDLED / "t5-web-docs-draft"
    assert convert_command.main(["--model", str(source), "--output", str(tmp_path / "x"), "--dtype", "float32"]) == 0
    side_files = {"special_tokens_map.json", "spiece.model", "tokenizer_config.json"}  # tokenizer.json says it all
    assert {*os.listdir(tmp_path / "x")} == {*os.listdir(source)} - side_files
    capsys.readouterr()
    assert convert_command.main(["--model", str(source), "--output", str(tmp_path / "x")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("convert.py: error: --output") and "--force" in line


def test_options_of_convert_without_effect_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for more in (["--group-size", "32"], ["--revision", "main"]):
        assert (
            convert_command.main(["--model", str(BUNDLED / "t5-web-docs-draft"), "--output", "/nowhere/x", *more]) == 2
        )
        assert more[0] in capsys.readouterr().err


def test_convert_quantizes_and_verifies_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "x"
    source = str(BUNDLED / "t5-web-docs-draft")
    assert convert_command.main(["--model", source, "--output", str(output), "--quantize", "8"]) == 0
    assert convert_command.main(["--verify", str(output)]) == 0
    weights = bytearray((output / "weights.npz").read_bytes())
    weights[1000] ^= 1
    (output / "weights.npz").write_bytes(weights)
    capsys.readouterr()
    assert convert_command.main(["--verify", str(output)]) == 2
    assert "weights.npz: checksum mismatch" in capsys.readouterr().err
    assert convert_command.main(["--verify", str(tmp_path)]) == 2
    assert "no manifest.json" in capsys.readouterr().err
