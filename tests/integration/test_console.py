"""The console: its commands mean what the flags mean; their effects, interruptions, and a real terminal."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from speculative_decoding import GenerationOptions, InputError
from speculative_decoding.cli import console
from speculative_decoding.cli.compare import decoding_modes
from speculative_decoding.cli.console import answer, any_encoding, read_line
from speculative_decoding.cli.console_commands import (
    COMMANDS,
    FIXED_AT_START,
    NOT_IN_CONSOLE,
    ConsoleState,
    command_name,
    completions,
    console_parser,
    name_of,
)
from speculative_decoding.cli.help import help_text
from speculative_decoding.cli.main import PromptFlags
from speculative_decoding.cli.parser import flag, flags_from
from speculative_decoding.cli.run_config import run_config_from
from speculative_decoding.decoding.prompt import check_languages
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.loading.pair import ModelPair
from speculative_decoding.sampling.options import BEAMS_ONLY, SAMPLES_ONLY, option_specs
from speculative_decoding.sampling.values import PYTHON_ONLY, Bool, specs_of
from tests.support.subpackages import needs_subpackage
from tests.support.terminal import read_terminal

ROOT = BUNDLED.parent
GRAMMAR = "grammar: It were a cod business."
GERMAN = "translate English to German: The method returns the value of the property."
SHORT = GERMAN.removeprefix("translate English to German: ")
FIXED = ("--drafter", "model", "--num-draft", "5")
PAIR = ("--model", "t5-web-docs", "--draft-model", "t5-web-docs-draft")
TEXT = "Die Methode gibt den Wert der Eigenschaft zurück."
Talk = Callable[..., tuple[str, str]]


def open_console(*arguments: str) -> ConsoleState:
    config = run_config_from(console_parser("console").parse_args([*PAIR, *arguments]))
    state = ConsoleState(config)
    state.open(config)
    return state


@pytest.fixture(scope="module")
def loaded() -> ConsoleState:
    return open_console(*FIXED)


@pytest.fixture
def state(loaded: ConsoleState) -> ConsoleState:
    """A new console. The models are loaded once per module."""
    state = ConsoleState(loaded.config)
    state.session = replace(loaded.session, options=loaded.config.options)
    return state


@pytest.fixture
def talk(state: ConsoleState, capsys: pytest.CaptureFixture[str]) -> Talk:
    """Send lines to the console, and return (standard output, standard error)."""

    def talk(*lines: str) -> tuple[str, str]:
        capsys.readouterr()
        for line in lines:
            answer(state, line)
        out, err = capsys.readouterr()
        return out, err

    return talk


def in_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, *arguments: str
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    status = console.main([*arguments])
    return status, *capsys.readouterr()


# Commands and flags

SPECS = {**specs_of(PromptFlags), **option_specs()}
SETTINGS = [name for name in SPECS if command_name(name) in COMMANDS]
TEXTS = ["x", "0", "1", "-1", "2.5", "1e9", "9999", "1 2", "none", "auto", "coupled", "true", "text", ""]


def test_every_option_and_every_flag_of_prompts_is_a_command() -> None:
    flags = {name for name, spec in SPECS.items() if PYTHON_ONLY not in spec.marks}
    assert {*SETTINGS} == flags - {*NOT_IN_CONSOLE, *FIXED_AT_START}
    parser = console_parser("console")
    assert {name for name in SPECS if name in parser.flags} == flags - {*NOT_IN_CONSOLE}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_command_has_the_help_of_its_flag(name: str, talk: Talk) -> None:
    command = command_name(name)
    _, err = talk(f"/help {command}")
    assert talk(f"/help {command[1:]}")[1] == err
    usage, *meaning, now = err.splitlines()
    assert usage.startswith(f"usage: {command}") and now.startswith("now: ")
    assert help_text(SPECS[name], command_name).startswith(" ".join(meaning)[:-1])
    assert f"\n{command}" in talk("/help")[1] and command in completions(command[:-1])


@cache
def parser_of_flags() -> Any:
    return console_parser("console")


def set_by_flag(name: str, text: str, base: dict[str, Any], session: Any, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return the options and flags of a console that starts with flags, or the error message."""
    parser = parser_of_flags()
    is_bare = isinstance(SPECS[name].type, Bool) or (SPECS[name].flag.bare and not text)
    models = PAIR[:2] if "num_beams" in base else PAIR  # --draft-model has no effect with beams
    given = [*models, *(f"{flag(each)}={value}" for each, value in base.items())]
    try:
        chosen = parser.parse_args([*given, flag(name) if is_bare else f"{flag(name)}={text}"])
        config = run_config_from(chosen)
        if name == "eos_token_ids":
            config.open(use_draft=False)
        check_languages(session.model, session.tokenizer, config.options)
        options = config.options
        options = options if {"drafter", "baseline"} & vars(chosen).keys() else options.with_values(drafter=None)
        return replace(session, options=options).options, replace(flags_from(PromptFlags, chosen), baseline=False)
    except SystemExit:
        message = capsys.readouterr().err.splitlines()[-1].removeprefix("console: error: argument ")
        return message.removesuffix(" (--help-all lists the options)").replace("--", "/").replace("/-m:", ":")
    except InputError as error:
        return error.message(parser.name_of).replace("--", "/")


def set_by_command(name: str, text: str, state: ConsoleState) -> Any:
    """Return the options and flags after a command, or the error message without the usage."""
    try:
        answer(state, f"{command_name(name)} {text}".strip())
        return state.options, state.flags
    except InputError as error:
        message, _, usage = error.message(name_of).partition("; usage: ")
        assert usage == COMMANDS[command_name(name)].usage
        return message


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=needs_subpackage("beam_search")) if BEAMS_ONLY in SPECS[name].marks else name
        for name in SETTINGS
    ],
)
def test_a_command_sets_and_refuses_what_its_flag_does(
    name: str, loaded: ConsoleState, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = SPECS[name]
    is_optional = spec.default in ("", (), None)  # without a value, such a command clears the option
    bases: list[dict[str, Any]] = [{}]
    bases += [{"temperature": 1.0}] if SAMPLES_ONLY in spec.marks else []
    bases += [{"num_beams": 2}] if BEAMS_ONLY in spec.marks else []
    has_accepted = False
    for base in bases:
        options = GenerationOptions(**base)
        for text in [""] if isinstance(spec.type, Bool) else TEXTS[:-1] if is_optional else TEXTS:
            state = ConsoleState(loaded.config)
            state.session = replace(loaded.session, options=options)
            expected = set_by_flag(name, text, base, state.session, capsys)
            found = set_by_command(name, text, state)
            if isinstance(expected, str):
                assert (state.options, state.flags) == (options, PromptFlags())
            has_accepted |= not isinstance(expected, str)
            assert found == expected, (base, text)
    assert has_accepted or name in ("src_lang", "tgt_lang")  # which the bundled pair does not have


@pytest.mark.parametrize("name", [name for name in SETTINGS if isinstance(SPECS[name].type, Bool)])
def test_a_switch_turns_on_and_off(name: str, state: ConsoleState, talk: Talk) -> None:
    command = command_name(name)
    for now in ("on", "off"):
        assert f"{command[1:]}: {now}\n" in talk(command)[1]
        assert bool(state.value(name)) is (now == "on")
        assert talk(f"/help {command}")[1].endswith(f"\nnow: {now}\n")
    assert state.value(name) is SPECS[name].default


@pytest.mark.parametrize(
    "line",
    ["/model a b c", "/model nosuch", "/draft-model", "/help a b", "/strict x", "/stats x"],
)
def test_a_wrong_argument_prints_the_usage_and_changes_nothing(line: str, state: ConsoleState, talk: Talk) -> None:
    before = (state.options, state.flags, state.session, state.config)
    name = line.split()[0]
    with pytest.raises(InputError, match=rf"^{name}: .*; usage: {name}"):
        talk(line)
    assert (state.options, state.flags, state.session, state.config) == before


def test_flags_set_the_initial_values(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The end of the input also ends the console."""
    arguments = ("--prefix", "translate English to German: ", "--compare", "--show-draft", *PAIR, *FIXED)
    status, out, err = in_process(monkeypatch, capsys, f"{SHORT}\n/prefix\n/compare\n{GERMAN}", *arguments)
    assert status == 0 and out == f"{TEXT}\n{TEXT}\n"
    assert "prefix: not set" in err and "compare: off" in err and err.count("speedup") == 1
    assert re.search(r"speculative +10 .*% +identical", err) and re.search(r"\ndraft +\d+ ", err)
    assert "accepted [-rejected-]" in err
    status, _, err = in_process(monkeypatch, capsys, "", "--model", "t5-web-docs-draft", "--baseline", "--compare")
    assert status == 2 and "--compare: has no draft to compare; turn --baseline off, or choose a --draft-model" in err


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("/nonsense", "/help lists all commands"),
        ("/top_k", "did you mean /top-k?"),
        ("/modle", "did you mean /model?"),
    ],
)
def test_only_similar_commands_are_suggested(typed: str, hint: str, talk: Talk) -> None:
    with pytest.raises(InputError, match=rf"^{typed}: unknown command; {re.escape(hint)}"):
        talk(typed)


def test_commands_and_their_values_are_completed() -> None:
    assert completions("/st") == ["/stop", "/strict", "/stats"]
    assert completions("/acceptance c") == ["coupled"] and completions("/show-draft r") == ["rounds"]
    assert completions("/num-draft ") == ["auto"]
    assert completions("The /s") == completions("/max-tokens ") == completions("/x y") == []
    assert completions("/model t5-web-docs-") == ["t5-web-docs-draft", "t5-web-docs-head"]
    assert completions("/draft-model self") == ["self-4bit", "self-8bit"]


# Effects


def test_prompts_are_decoded_and_mistakes_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = f"\n  \n{GERMAN}\n//x\n/qqq\n/eos-token-id 9999\n{'word ' * 600}\n{GERMAN}\n/quit\nnever read\n"
    status, out, err = in_process(monkeypatch, capsys, typed, *FIXED)
    first, second, third = out.splitlines()
    assert status == 0 and first == third == TEXT and second
    assert "t5-web-docs is a demonstration" in err and "use /model google/flan-t5-large google/flan-t5-small" in err
    assert "/help for the commands" in err and " draft tokens" in err
    for words in ("/help lists all commands", "error: /eos-token-id: must be between 0 and 8191", "at most 512"):
        assert err.count(words) == 1


def test_settings_change_the_text(talk: Talk) -> None:
    out, err = talk("/max-tokens 3", GERMAN)
    assert out == "Die Methode gibt\n" and "; stopped at --max-tokens 3" in err
    assert "stopped" not in talk("/max-tokens 100", GERMAN)[1]
    assert "drafts 2 tokens a round" in talk("/num-draft 2")[1]
    out, err = talk(GERMAN)
    assert out == f"{TEXT}\n" and "accepted 7 of 8 draft tokens" in err
    assert "accepted" not in talk("/num-draft 0", GERMAN)[1] + talk("/num-draft 2", "/baseline", GERMAN)[1]
    assert "accepted" in talk("/baseline", GERMAN)[1]
    assert talk("/num-draft auto", "/stop Wert", GERMAN)[0] == "Die Methode gibt den \n"
    assert talk("/help stop")[1].endswith("\nnow: Wert\n") and "stop: not set" in talk("/stop")[1]
    talk("/num-draft 5", "/temperature 2")
    texts = [talk(f"/seed {seed}", GERMAN)[0] for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert talk("/top-k 1", GERMAN)[0] == f"{TEXT}\n"


def test_draft_texts_are_set_cleared_and_kept_for_other_models(tmp_path: Path) -> None:
    (tmp_path / "draft.txt").write_text(f"{TEXT}\nDie Methode gibt nichts zurück." + " und" * 40)
    with open_console("--draft-text", "a", "--drafter", "text") as state:
        for line, texts in [
            ("/draft-text-file " + str(tmp_path / "draft.txt"), 1),
            ("/model t5-web-docs t5-web-docs-draft", 1),
            ("/draft-text", 0),
            (f"/draft-text {TEXT}", 1),
        ]:
            answer(state, line)
            assert len(state.options.draft_text) == texts, line
        stats = state.runner.run(state.session, GERMAN).stats  # type: ignore[union-attr]
        assert stats.target_calls < 4 and stats.drafted_by_kind.keys() == {"text"}
        for wrong, words in [
            ("/draft-text-file nosuch", r"^/draft-text-file: nosuch: not readable .*; usage: /draft-text-file FILE"),
            ("/draft-text-file", "^/draft-text-file: must be the path of a file"),
        ]:
            with pytest.raises(InputError, match=words):
                answer(state, wrong)
        answer(state, "/baseline")
        with pytest.raises(InputError, match="^/draft-text: has no effect with /drafter none"):
            answer(state, "/draft-text b")


def test_a_long_draft_text_is_shown_in_one_short_line(talk: Talk, tmp_path: Path) -> None:
    (tmp_path / "draft.txt").write_text("line\n" * 10_000)
    talk("/drafter ngram", f"/draft-text-file {tmp_path / 'draft.txt'}")
    now = talk("/help draft-text")[1].splitlines()[-1]
    assert now.startswith("now: line\\nline") and now.endswith("...") and len(now) < 100


def test_options_that_conflict_are_refused(talk: Talk) -> None:
    talk("/delta 1")
    with pytest.raises(InputError, match="^/acceptance: /delta: relaxes /acceptance rejection only"):
        talk("/acceptance block")


def test_prefixes_apply_until_they_are_cleared(talk: Talk) -> None:
    for prefix in ("/prefix translate English to German: ", "/prefix translate English to German:"):
        assert talk(prefix, SHORT)[0] == f"{TEXT}\n"
    assert talk("/prefix", "/output-prefix Diese Methode", GERMAN)[0].startswith(" gibt")
    assert talk("/output-prefix", GERMAN)[0] == f"{TEXT}\n"


def test_unknown_characters_are_reported_once(talk: Talk) -> None:
    err = talk("grammar: 你好你", "grammar: 好 ж")[1]
    assert "note: the vocabulary has no '你' '好'; the model reads <unk> instead\n" in err
    assert err.count("'好'") == 1 and "no 'ж'" in err and "note" not in talk("grammar: ж He go.")[1]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be"])
def test_lines_of_a_pipe_may_begin_with_a_byte_order_mark(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "\ufeff/max-tokens 7\n/prefix grammar: ü\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines.encode(encoding)), "utf-8"))
    with any_encoding():
        assert [read_line(), read_line()] == lines[1:].splitlines()
        with pytest.raises(EOFError):
            read_line()


def test_stats_sum_up_all_prompts(talk: Talk) -> None:
    assert "no prompt has been decoded yet" in talk("/stats")[1]
    assert re.search(r"speculative +18 .*%", talk(GERMAN, GRAMMAR, "/stats")[1])


def test_the_draft_is_shown_in_the_text_or_by_round(talk: Talk) -> None:
    assert "show-draft: text" in talk("/show-draft")[1]
    out, err = talk(GERMAN)
    assert out == f"{TEXT}\n" and "accepted [-rejected-] {+correction or bonus+}" in err and "{+ " in err
    _, err = talk("/show-draft rounds", GERMAN)
    assert "round 1: 5 of 5 accepted, model, " in err and "round 2: " in err
    assert "show-draft: not set" in talk("/show-draft rounds")[1] and "round" not in talk(GERMAN)[1]


def test_models_are_replaced_or_kept_on_an_error() -> None:
    with open_console() as state:
        for wrong in ("/model nowhere", "/model t5-web-docs nowhere", "/draft-model nowhere"):
            with pytest.raises(ValueError, match="nowhere"):
                answer(state, wrong)
        both = "draft models/t5-web-docs-draft and copies of the text"
        assert both in state.config.describe() and decoding_modes(state.session)[0] == "speculative"
        answer(state, "/max-tokens 7")
        answer(state, "/model t5-web-docs-draft")
        assert state.config.describe() == "target models/t5-web-docs-draft, drafts copied from the text"
        with pytest.raises(ValueError, match="/drafter: model needs a draft model"):
            answer(state, "/drafter model")
        answer(state, "/draft-model t5-web-docs-draft")
        assert (
            both in state.config.describe()
            and decoding_modes(state.session)[0] == "speculative"
            and state.options.max_tokens == 7
        )
        answer(state, "/drafter model")
        with pytest.raises(
            ValueError, match="^/model: /drafter: model has no effect without a draft model; name one with /draft-model"
        ):
            answer(state, "/model t5-web-docs")
        assert "draft models/t5-web-docs-draft" in state.config.describe()


def test_previous_models_are_reopened_if_weights_fail_to_load(monkeypatch: pytest.MonkeyPatch) -> None:
    state = open_console()
    load, calls = ModelPair.load_weights, []

    def fail_once(self: ModelPair, *arguments: Any) -> None:
        calls.append(self)
        if len(calls) == 1:
            raise KeyboardInterrupt
        load(self)

    monkeypatch.setattr(ModelPair, "load_weights", fail_once)
    with pytest.raises(KeyboardInterrupt):
        answer(state, "/model t5-web-docs-draft")
    assert len(calls) == 2 and "draft models/t5-web-docs-draft" in state.config.describe()
    assert state.session.generate(GERMAN).text == TEXT


def test_an_ngram_store_is_saved(tmp_path: Path) -> None:
    path = tmp_path / "store.json"
    with open_console("--drafter", "ngram", "--ngram-store", str(path)) as state:
        answer(state, GERMAN)
    assert path.stat().st_size > 200


# Interruptions.


def interrupted(state: ConsoleState, moment: int, signals: int) -> bool:
    """Decode, and press Ctrl-C at the `moment`-th `mx.eval`. Return whether decoding got that far.

    signals: how often; 0 raises KeyboardInterrupt at once.
    """
    evaluate, calls = mx.eval, 0

    def evaluated(*arrays: object) -> None:
        nonlocal calls
        calls += 1
        if calls == moment:
            for _ in range(signals):
                signal.raise_signal(signal.SIGINT)
            if not signals:
                raise KeyboardInterrupt
        evaluate(*arrays)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mx, "eval", evaluated)
        answer(state, GERMAN)
    return calls >= moment


@pytest.mark.parametrize(
    ("arguments", "signals"),
    [
        ([], 0),
        (["--ngram-store", "store"], 1),
        (["--temperature", "1", "--seed", "5", *FIXED], 2),
    ],
)
def test_an_interruption_at_any_moment_leaves_the_next_output_unchanged(
    arguments: list[str],
    signals: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    state = open_console(*arguments)
    capsys.readouterr()
    answer(state, GERMAN)
    expected = capsys.readouterr().out
    moment = 1
    while interrupted(state, moment, signals):
        _, err = capsys.readouterr()
        assert "stopped" in err
        answer(state, GERMAN)
        assert capsys.readouterr().out == expected
        moment += 1
    assert moment > 2


# A real terminal.

TIMEOUT = 180  # seconds; generous, for slow machines


class Terminal:
    """The console in a pseudo-terminal."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self.master, slave = pty.openpty()
        caches = {"XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))}  # compiled kernels
        environment = {**os.environ, **caches, "TERM": "xterm", "COLUMNS": "80", "LINES": "24", "HOME": str(home)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "speculative_decoding", "console", *arguments],
            cwd=ROOT,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
        )
        os.close(slave)
        self.seen = ""

    def read_until(self, pattern: str, seconds: float = TIMEOUT) -> bool:
        """Read until the new output, without escape sequences, matches. Return False after `seconds`."""
        end = time.monotonic() + seconds
        while not re.search(pattern, re.sub(r"\x1b\[[?\d;]*[a-zA-Z]", "", self.seen)):
            if not select.select([self.master], [], [], max(0, end - time.monotonic()))[0]:
                return False
            data = read_terminal(self.master)
            assert data, f"the console ended; saw {self.seen!r}"
            self.seen += data.decode(errors="replace")
        return True

    def type(self, text: str, awaited: str, prompt: str = r"\n> $") -> str:
        """Type a text, and wait for output and a new prompt. Returns the output."""
        self.seen = ""
        os.write(self.master, text.encode())
        assert self.read_until(awaited) and self.read_until(prompt), f"waited for {awaited!r}, saw {self.seen!r}"
        return self.seen


def test_completion_history_and_ctrl_c_work_in_a_terminal(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, *FIXED, "--dtype", "float32")  # the same text on a GPU
    try:
        terminal.type("", "/quit to exit")
        terminal.type("/max\t3\n", "max-tokens: 3")  # Tab completes it
        terminal.type(f"{GERMAN}\n", "Die Methode gibt\r\n")
        terminal.type("/max-tokens 100\n", "max-tokens: 100")
        terminal.type("\x1b[A\x1b[A\n", f"{TEXT}\r\n")  # arrow up, twice: the prompt again
        terminal.type("half a line", "half a line", "line$")
        for _ in range(TIMEOUT // 2):  # Python's readline ignores a signal that arrives just before it waits for a key
            os.write(terminal.master, b"\x03")  # discards the line
            if terminal.read_until(r"\n> $", 2):
                break
        terminal.type("/max-tokens 100000\n", "max-tokens: 100000")
        terminal.type("/temperature 50\n", "temperature: 50")
        terminal.type(f"{GERMAN}\n", r"\r\n.*[^\W\d_]{2}", "")  # a very long text has begun
        terminal.type("\x03", "stopped")
        terminal.type("/temperature 0\n", "temperature: 0")
        terminal.type("/show-draft\n", "show-draft: text")
        shown = terminal.type(f"{GERMAN}\n", "tokens/s")
        assert "\x1b[32mDie" in shown and "\x1b[9;31mrejected" in shown and shown.count(TEXT) == 0
        os.write(terminal.master, b"\x04")  # the end of the input
        assert terminal.process.wait(timeout=TIMEOUT) == 0
    finally:
        terminal.process.kill()
        terminal.process.wait()
        os.close(terminal.master)
    history = tmp_path / ".speculative_decoding_history"
    assert history.stat().st_mode & 0o777 == 0o600
    lines = history.read_text().replace(r"\040", " ").splitlines()  # libedit, on a Mac, escapes spaces
    assert lines[lines[0] == "_HiStOrY_V2_"] == "/max-tokens 3"
