"""--memory in the commands: jobs with an earlier version, refusals before weights load, and the server."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding import GenerationOptions, Session
from speculative_decoding.cli import programs
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.loading.pair import ModelPair
from speculative_decoding.memory import TranslationMemory
from tests.support.paths import ROOT
from tests.support.subpackages import needs_subpackage
from tests.support.tiny import WHISPER, save_whisper, small_target, tiny_whisper

Command = Callable[..., tuple[int, str, str]]
PREFIX = "translate English to German: "
LINES = [line.removeprefix(PREFIX) for line in (ROOT / "data" / "translation.txt").read_text().splitlines()[:8]]
TMX = """<tmx version="1.4"><header srclang="*all*"/><body><tu>
<tuv xml:lang="en-US"><seg>The method returns the value.</seg></tuv><tuv xml:lang="fr"><seg>La méthode.</seg></tuv>
<tuv xml:lang="de-DE"><seg>Die Methode gibt den Wert zurück.</seg></tuv></tu></body></tmx>"""


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Command:
    """Run a command in this process and return (exit status, standard output, standard error)."""

    def call(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        try:
            status = programs.main([str(each) for each in arguments])
        except SystemExit as exit:  # raised by argparse
            status = int(exit.code or 0)
        return status, *capfd.readouterr()

    return call


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@needs_subpackage("jobs")
@pytest.mark.parametrize("flags", [["--prefix", PREFIX], []])
def test_a_changed_document_is_decoded_against_its_last_version(
    flags: list[str], command: Command, tmp_path: Path
) -> None:
    """The records are the same as without a memory, with fewer target calls."""
    start = "" if flags else PREFIX
    old, new = tmp_path / "old.txt", tmp_path / "new.txt"
    old.write_text("\n".join([*(start + line for line in LINES), "", "x " * 2000]))
    changed = [line if number % 4 else line.replace("the", "that", 1) for number, line in enumerate(LINES)]
    assert changed != LINES
    new.write_text("\n".join(start + line for line in changed))
    options = [*flags, "-m", "60", "--drafter", "text", "--num-draft", "10"]
    status, _, said = command("batch", old, "--output", tmp_path / "old.jsonl", *flags, "-m", "60", "--baseline")
    assert status == 1 and "10 lines, 1 of them an error (line 10: " in said
    prompts = [each.get("prompt") for each in records(tmp_path / "old.jsonl")]
    assert prompts == [*(start + line for line in LINES), None, None]

    calls = {}
    for name, own in (("without", ["--draft-text", ""]), ("with", ["--memory", tmp_path / "old.jsonl"])):
        stats = tmp_path / f"{name}.json"
        status, _, said = command("batch", new, "--output", tmp_path / name, "--stats-json", stats, *options, *own)
        assert status == 0, said
        assert ("memory of 8 pairs, " in said) == (name == "with")
        calls[name] = json.loads(stats.read_text())["target_calls"]
    assert (tmp_path / "with").read_bytes() == (tmp_path / "without").read_bytes()
    assert calls["with"] < 0.5 * calls["without"]


@needs_subpackage("jobs")
def test_a_job_records_its_memory_and_is_not_resumed_with_another(command: Command, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("\n".join(LINES[:3]))
    memory = tmp_path / "a.tsv"
    memory.write_text("a\tb\nc\td\n")
    output = tmp_path / "out"
    run = ["batch", tmp_path / "in.txt", "--output", output, "-m", "2", "--model", "t5-web-docs-draft", "--resume"]
    assert command(*run, "--memory", memory)[0] == 0
    settings = json.loads((tmp_path / "out.job").read_text())["settings"]
    assert settings["memory_sha256"] == hashlib.sha256(memory.read_bytes()).hexdigest()
    assert settings["memory_pairs"] == 2 and "memory" not in settings
    memory.rename(tmp_path / "moved.tsv")
    assert command(*run, "--memory", tmp_path / "moved.tsv")[0] == 0
    memory.write_text("a\tb\nc\te\n")
    for own in (["--memory", memory], []):
        status, _, said = command(*run, *own)
        assert status == 2 and "was written with other settings (memory_" in said


@needs_subpackage("jobs")
def test_the_memory_is_never_overwritten(command: Command, tmp_path: Path) -> None:
    old = tmp_path / "old.jsonl"
    old.write_text('{"prompt": "a", "text": "b"}\n')
    (tmp_path / "in.txt").write_text("a")
    status, _, said = command("batch", tmp_path / "in.txt", "--output", old, "--memory", old, "--force")
    assert status == 2 and f"--output: {old} is already used by --memory" in said
    assert old.read_text() == '{"prompt": "a", "text": "b"}\n'


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelPair, "load_weights", None)


PROGRAMS = (["batch", "in.txt"], ["console"], ["serve", "--port", "0"])
REFUSED = {
    "missing": (["--memory", "no.tsv"], "--memory: no.tsv: No such file or directory; name another file"),
    "suffix": (["--memory", "a.csv"], "--memory: a.csv has an unknown suffix; name a file of tab-separated columns"),
    "beams": (["--memory", "a.tsv", "--num-beams", "2"], "--memory: has no effect with --num-beams 2; leave one of"),
    "none": (["--memory", "a.tsv", "--drafter", "none"], "--memory: only applies to --drafter text or ngram or auto"),
    "baseline": (["--memory", "a.tsv", "--baseline"], "--memory: only applies to --drafter text or ngram or auto"),
    "length": (["--memory", "a.tsv", "--num-draft", "0"], "--memory: only applies to --drafter text or ngram or auto"),
    "model": (["--memory", "a.tsv", "--drafter", "model"], "--memory: only applies to --drafter text or ngram or auto"),
    "languages": (
        ["--memory", "a.tmx"],
        "--memory: a.tmx has texts in de-DE, en-US, fr; name --source-language and --target-language",
    ),
    "language": (
        ["--memory", "a.tmx", "--source-language", "en", "--target-language", "es"],
        "--memory: a.tmx has no texts in es, only in de-DE, en-US, fr; name another --target-language",
    ),
    "no memory": (["--source-language", "fr"], "--source-language: this model has prefixes for en to de, not for fr"),
    "tsv": (
        ["--memory", "a.tsv", "--source-language", "fr"],
        "--source-language: this model has prefixes for en to de, not for fr",
    ),
}


@pytest.mark.parametrize(
    ("program", "name"),
    [
        *((["generate", "text"], name) for name in REFUSED),
        *((program, name) for program in PROGRAMS for name in ("missing", "model", "language", "no memory")),
    ],
)
def test_what_has_no_effect_is_refused_in_one_line_before_weights_load(
    program: list[str], name: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_weights: None
) -> None:
    if program[0] == "serve" and name == "no memory":
        pytest.skip("the server checks the languages of each request")
    monkeypatch.chdir(tmp_path)
    for file, content in (("a.tsv", "a\tb\n"), ("a.csv", ""), ("a.tmx", TMX), ("in.txt", "a")):
        (tmp_path / file).write_text(content)
    flags, message = REFUSED[name]
    status, out, said = command(*program, *flags)
    errors = [line for line in said.splitlines() if "error" in line]
    assert status == 2 and out == "" and len(errors) == 1 and message in errors[0], said


@needs_subpackage("speech")
def test_speech_models_are_refused_before_weights_load(command: Command, tmp_path: Path, no_weights: None) -> None:
    folder = save_whisper(tiny_whisper(), tmp_path / "whisper", WHISPER)
    (tmp_path / "a.tsv").write_text("a\tb\n")
    for program in (["transcribe", ROOT / "data" / "jfk.wav"], ["batch", tmp_path / "a.tsv"]):
        status, _, said = command(*program, "--model", folder, "--memory", tmp_path / "a.tsv")
        assert status == 2 and "--memory: holds texts, but this model reads speech; leave it out" in said


def test_languages_choose_texts_of_a_tmx_file_for_a_model_without_languages(command: Command, tmp_path: Path) -> None:
    (tmp_path / "a.tmx").write_text(TMX)
    languages = ["--source-language", "English", "--target-language", "deu_Latn"]
    prompt = ["--prefix", PREFIX, "--prompt", "The method returns the value.", "-m", "12"]
    found = command("generate", *prompt, "--memory", tmp_path / "a.tmx", *languages, "--show-draft", "rounds")
    assert found[0] == 0 and "memory of 1 pair, " in found[2] and "accepted, memory" in found[2], found[2]
    assert found[1] == command("generate", *prompt, "--baseline")[1]


def test_the_console_strips_its_current_prefix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from speculative_decoding.cli.console import answer
    from speculative_decoding.cli.console_commands import ConsoleState, console_parser
    from speculative_decoding.cli.run_config import run_config_from

    asked = []
    monkeypatch.setattr(TranslationMemory, "similar", lambda self, source: asked.append(source) or [])
    (tmp_path / "a.tsv").write_text("a\tb\n")
    flags = ["--memory", str(tmp_path / "a.tsv"), "-m", "2", "--model", str(BUNDLED / "t5-web-docs-draft")]
    config = run_config_from(console_parser("console").parse_args(flags))
    with ConsoleState(config) as state:
        state.open(config)
        answer(state, "one")
        answer(state, "/prefix grammar:")
        answer(state, "two")
        answer(state, "/drafter none")
        answer(state, "three")
        answer(state, "/drafter ngram")
        answer(state, f"/model {BUNDLED / 't5-web-docs-draft'}")
        answer(state, "four")
    assert [each.strip() for each in asked] == ["one", "two", "four"]


@needs_subpackage("server")
def test_clients_never_see_the_text_of_a_memory_and_cannot_name_one(new_session: Callable[..., Session]) -> None:
    """Rejected drafts from a memory are counted but not sent."""
    from speculative_decoding.server.limits import Limits
    from tests.support.serving import events, serving

    prompt = f"{PREFIX}The method returns the value."
    memory = TranslationMemory.from_pairs([("The method returns the value", "Die Methode violet umbrella Rotterdam")])
    options = GenerationOptions(drafter="text", num_draft_tokens=6)
    session = new_session(draft_model=None, memory=memory, prompt_prefixes=[PREFIX], options=options)
    expected = new_session(draft_model=None).generate(prompt).text
    fields = {"prompt": prompt, "stream": True, "rounds": True, "stream_options": {"include_usage": True}}
    with serving(session, Limits(slots=2, max_prompts=2)) as server:
        with server.client() as client, client.stream("POST", "/v1/completions", json=fields) as response:
            *chunks, last = events(response)
        refused = server.post(prompt=prompt, memory="/etc/passwd")
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == expected
    assert last["usage"]["drafted_tokens"] > last["usage"]["accepted_tokens"] > 0
    assert not any(last["usage"]["completion_tokens_details"].values())  # they count only text of the client
    assert not any(chunk["choices"][0]["round"]["rejected"] for chunk in chunks)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "memory"


@needs_subpackage("jobs")
@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--temperature", "1"]], ids=["greedy", "coupled"])
def test_a_killed_job_with_a_memory_continues_byte_for_byte(options: list[str], tmp_path: Path) -> None:
    """1,000 lines, killed at moments spread over the run."""
    small_target(tmp_path)
    rng = random.Random(1)
    lines = ["".join(rng.choices("abcdefgh", k=rng.randrange(1, 9))) for _ in range(1000)]
    (tmp_path / "old.tsv").write_text("".join(f"{line}\t{line[::-1]} {line}\n" for line in lines))
    for place in range(0, 1000, 10):
        lines[place] = lines[place][1:] + "h"
    (tmp_path / "new.txt").write_text("\n".join(lines))
    run = [sys.executable, "-m", "speculative_decoding", "batch", "--model", "target", "-m", "16", *options]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    drafts = ["--memory", "old.tsv", "--drafter", "text", "--num-draft", "4"]

    def job(name: str, *more: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*run, name, *more], cwd=tmp_path, env=environment, stderr=subprocess.PIPE)

    started = time.monotonic()
    assert job("new.txt", "--output", "whole", *drafts).wait() == 0
    seconds = time.monotonic() - started
    expected = (tmp_path / "whole").read_bytes()
    assert len(expected.splitlines()) == 1000 and b"error" not in expected
    stages = set()
    for part in (0.6, 0.8, 0.9):
        process = job("new.txt", "--output", "made", "--resume", *drafts)
        time.sleep(seconds * part)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
        made = (tmp_path / "made").read_bytes() if (tmp_path / "made").exists() else b""
        assert expected.startswith(made[: made.rfind(b"\n") + 1])
        stages.add(made.count(b"\n"))
    assert job("new.txt", "--output", "made", "--resume", *drafts).wait() == 0
    assert (tmp_path / "made").read_bytes() == expected
    assert any(0 < lines < 1000 for lines in stages), "no run was killed between its first and its last record"
