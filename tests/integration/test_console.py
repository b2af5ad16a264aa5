"""The console: commands and their effects, wrong arguments, interruptions, and a real terminal."""

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
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from speculative_decoding import InputError, engine
from speculative_decoding.cli import console
from speculative_decoding.cli.compare import decoding_modes
from speculative_decoding.cli.console import answer, console_parser
from speculative_decoding.cli.console_commands import ConsoleState, Quit, completions
from speculative_decoding.cli.run_config import run_config_from
from speculative_decoding.decoding.round import speculate
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.loading.pair import ModelPair
from tests.support.rooms import needs_room
from tests.support.terminal import read_terminal

ROOT = BUNDLED.parent
GRAMMAR = "grammar: It were a cod business."
GERMAN = "translate English to German: The method returns the value of the property."
FIXED = ("--drafter", "model", "--num-draft", "5")
PAIR = ("--model", "t5-web-docs", "--draft-model", "t5-web-docs-draft")
TEXT = "Die Methode gibt den Wert der Eigenschaft zurück."


def open_console(*arguments: str) -> ConsoleState:
    config = run_config_from(console_parser("console").parse_args([*PAIR, *arguments]))
    state = ConsoleState(config)
    state.open(config)
    return state


NAMES = [
    *("/help", "/quit", "/stats", "/prefix", "/model", "/draft-model", "/compare", "/baseline"),
    *("/show-draft", "/drafter", "/num-draft", "/max-tokens", "/output-prefix", "/stop", "/eos-token-id", "/seed"),
    *("/temperature", "/top-k", "/top-p", "/min-p", "/repetition-penalty", "/acceptance", "/delta"),
    *("/no-repeat-ngram-size", "/min-tokens", "/source-language", "/target-language"),
    *("/strict", "/allow-long-prompt"),
]


@pytest.fixture(scope="module")
def loaded() -> ConsoleState:
    return open_console(*FIXED)


@pytest.fixture
def talk(loaded: ConsoleState, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    """Return a function that sends lines to a fresh console and returns (standard output, standard error).

    The models are loaded once per module.
    """
    state = ConsoleState(loaded.config)
    state.session = replace(loaded.session, options=loaded.config.options)

    def talk(*lines: str) -> tuple[str, str]:
        capsys.readouterr()
        for line in lines:
            answer(state, line)
        out, err = capsys.readouterr()
        return out, err

    talk.state = state  # type: ignore[attr-defined]
    return talk


def in_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, *arguments: str
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    status = console.main([*arguments])
    return status, *capsys.readouterr()


def test_prompts_are_decoded(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = in_process(monkeypatch, capsys, f"\n  \n{GERMAN}\n//x\n/quit\nnever read\n", *FIXED)
    assert status == 0
    first, second, *rest = out.splitlines()
    assert first == TEXT and second and not rest
    assert "t5-web-docs is a demonstration" in err and "use /model google/flan-t5-large google/flan-t5-small" in err
    assert "t5-web-docs" in err and "/help for the commands" in err and " draft tokens" in err
    status, out, err = in_process(
        monkeypatch, capsys, GERMAN, "--show-draft", *FIXED
    )  # the end of the input also ends the console
    assert status == 0 and out == f"{TEXT}\n" and "accepted [-rejected-]" in err


@needs_room("cpu")  # whose compiler's errors it shows
def test_the_console_continues_after_a_kernel_that_cannot_be_compiled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail_once(*arrays: Any) -> None:
        monkeypatch.setattr(engine, "speculate", speculate)
        raise RuntimeError("[Compile::eval_cpu] Failed to compile function f:\nNo space left")

    monkeypatch.setattr(engine, "speculate", fail_once)
    status, out, err = in_process(monkeypatch, capsys, f"{GERMAN}\n{GERMAN}\n", *FIXED)
    assert status == 0 and out == f"{TEXT}\n"
    assert err.count("error: MLX cannot compile kernels (No space left)") == 1


def test_mistakes_are_reported_and_the_console_continues(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = in_process(
        monkeypatch,
        capsys,
        f"/max-token 3\n/qqq\n/eos-token-id 9999\nword\n/eos-token-id\n/max-tokens x\n{'word ' * 600}\n{GERMAN}\n",
    )
    assert status == 0 and out == f"{TEXT}\n"
    for words in (
        "did you mean /max-tokens?",
        "/help lists all commands",
        "error: /eos-token-id: must be between 0 and 8191, not 9999",
        "usage: /max-tokens N",
        "trained on at most 512",
    ):
        assert words in err


def test_every_command_is_in_the_help(talk) -> None:  # type: ignore[no-untyped-def]
    _, err = talk("/help")
    for name in NAMES:
        assert f"\n{name}" in f"\n{err}"
        assert f"usage: {name}" in talk(f"/help {name}")[1] and f"usage: {name}" in talk(f"/help {name[1:]}")[1]
    assert "now: 100" in talk("/help max-tokens")[1]
    assert "it gives the same text with any draft" in talk("/help seed")[1]


WRONG = {
    "/max-tokens": ["", "x", "0", "1 2"],
    "/num-draft": ["", "-1", "65", "many", "1 2"],
    "/drafter": ["", "beam", "model auto"],
    "/delta": ["", "2", "x"],
    "/temperature": ["", "-1", "x", "1 2"],
    "/top-k": ["", "5", "x"],  # 5: no effect at temperature 0
    "/seed": ["", "-1", "x", str(2**32)],
    "/eos-token-id": ["-1", "x"],
    "/acceptance": ["", "typical", "coupled"],
    "/show-draft": ["everything", "rounds rounds"],
    "/model": ["a b c"],
    "/draft-model": ["", "nowhere"],
    "/help": ["a b"],
    "/strict": ["x"],
    "/compare": ["x"],
    "/baseline": ["x"],
    "/stats": ["x"],
    "/quit": ["now"],
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_print_the_usage_and_change_nothing(
    name: str, talk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # type: ignore[no-untyped-def]
    state: ConsoleState = talk.state
    before = (state.options, state.runner.is_on, state.session)
    lines = iter(f"{name} {each}" for each in WRONG[name])

    def read() -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("speculative_decoding.cli.console.read_line", read)
    assert console.run(state) == 0
    err = capsys.readouterr().err
    assert err.count(f"usage: {name}") == err.count(f"{name}: ") == len(WRONG[name])
    assert (state.options, state.runner.is_on, state.session) == before


def test_settings_change_the_text(talk) -> None:  # type: ignore[no-untyped-def]
    out, err = talk("/max-tokens 3", GERMAN)
    assert out == "Die Methode gibt\n" and "; stopped at --max-tokens 3" in err
    assert "stopped" not in talk("/max-tokens 100", GERMAN)[1]
    assert "drafts 2 tokens a round" in talk("/num-draft 2")[1]
    assert talk(GERMAN)[0] == f"{TEXT}\n" and "accepted 7 of 8 draft tokens" in talk(GERMAN)[1]
    assert "accepted" not in talk("/num-draft 0", GERMAN)[1]
    talk("/num-draft auto")
    assert talk(GERMAN)[0] == f"{TEXT}\n"
    assert talk("/stop Wert", GERMAN)[0] == "Die Methode gibt den \n" and "stop: not set" in talk("/stop")[1]
    talk("/num-draft 5", "/temperature 2")
    texts = [talk(f"/seed {seed}", GERMAN)[0] for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert talk("/top-k 1", GERMAN)[0] == f"{TEXT}\n"


def test_every_switch_turns_on_and_off(talk) -> None:  # type: ignore[no-untyped-def]
    for name in ("strict", "allow-long-prompt"):
        assert f"{name}: on" in talk(f"/{name}")[1] and f"{name}: off" in talk(f"/{name}")[1]


def test_delta_is_lossy_and_requires_the_rejection_rule(talk) -> None:  # type: ignore[no-untyped-def]
    assert "LOSSY" in talk("/delta 1", GERMAN)[1]
    with pytest.raises(ValueError, match="/delta: relaxes /acceptance rejection only"):
        talk("/acceptance block")
    with pytest.raises(ValueError, match="^/acceptance: has no effect at /temperature 0"):
        talk("/delta 0", "/acceptance coupled")
    sampled = talk("/temperature 1", GERMAN)[0]
    assert talk("/baseline", GERMAN)[0] == sampled
    talk("/baseline", "/temperature 0")
    assert talk(GERMAN)[0] == f"{TEXT}\n"


def test_prefixes_apply_until_they_are_cleared(talk) -> None:  # type: ignore[no-untyped-def]
    short = GERMAN.removeprefix("translate English to German: ")
    for pinned in ("/prefix translate English to German: ", "/prefix translate English to German:"):
        assert talk(pinned, short)[0] == f"{TEXT}\n"
    assert talk("/prefix", GERMAN)[0] == f"{TEXT}\n"
    assert talk("/output-prefix Diese Methode", GERMAN)[0].startswith(" gibt")
    assert talk("/output-prefix", GERMAN)[0] == f"{TEXT}\n"


def test_a_prefix_flag_is_the_first_prefix(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    short = GERMAN.removeprefix("translate English to German: ")
    typed = f"{short}\n/prefix\n{GERMAN}\n"
    status, out, err = in_process(monkeypatch, capsys, typed, "--prefix", "translate English to German: ", *FIXED)
    assert status == 0 and out == f"{TEXT}\n{TEXT}\n" and "prefix: not set" in err


def test_modes_are_compared_and_the_baseline_has_no_draft(talk) -> None:  # type: ignore[no-untyped-def]
    assert "compare: on" in talk("/compare")[1]
    out, err = talk("translate English to German: The page is loaded by the browser.")
    assert out == "Die Seite wird vom Browser geladen.\n" and "differs" in err
    assert re.search(r"speculative +8 .*% +identical", err)
    out, err = talk("/compare", "/baseline", GERMAN)
    assert out == f"{TEXT}\n" and "10 tokens at" in err and "accepted" not in err
    assert "drafter: auto" in talk("/baseline", "/drafter auto")[1] and talk(GERMAN)[0] == f"{TEXT}\n"


def test_unknown_characters_are_reported_once(talk) -> None:  # type: ignore[no-untyped-def]
    err = talk("grammar: 你好你", "grammar: 好 ж")[1]
    assert "note: the vocabulary has no '你' '好'; the model reads <unk> instead\n" in err
    assert err.count("'好'") == 1 and "no 'ж'" in err and "note" not in talk("grammar: ж He go.")[1]


def test_help_shows_values_as_the_user_types_them(talk) -> None:  # type: ignore[no-untyped-def]
    talk("/stop Wert", "/eos-token-id 5", "/temperature 0.5")
    for name, value in {
        "stop": "Wert",
        "eos-token-id": "5",
        "temperature": "0.5",
        "top-p": "1",
        "prefix": "not set",
        "source-language": "not set",
        "strict": "off",
    }.items():
        assert talk(f"/help {name}")[1].endswith(f"\nnow: {value}\n")


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("/nonsense", "/help lists all commands"),
        ("/foo", "/help lists all commands"),
        ("/", "/help lists all commands"),
        ("/temp", "did you mean /temperature?"),
        ("/top_k", "did you mean /top-k?"),
        ("/modle", "did you mean /model?"),
    ],
)
def test_only_similar_commands_are_suggested(typed: str, hint: str, talk) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=rf"^{typed}: unknown command; {re.escape(hint)}"):
        talk(typed)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["/num-draft x"], "^/num-draft: must be a whole number, 0 to 64 or one of auto, not 'x'; usage: /num-draft N"),
        (["/min-tokens 200"], r"^/min-tokens: must be <= /max-tokens \(100\), not 200"),
        (["/model nosuch"], r"is neither a folder nor a name in models/ \(t5-web-docs, t5-web-docs-draft, "),
    ],
)
def test_errors_name_the_command(lines: list[str], message: str, talk) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=message):
        talk(*lines)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be"])
def test_lines_of_a_pipe_may_begin_with_a_byte_order_mark(
    encoding: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = "\ufeff/max-tokens 7\n/prefix grammar: ü\n/quit\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines.encode(encoding)), "utf-8"))
    assert console.main([*PAIR]) == 0
    err = capsys.readouterr().err
    assert "max-tokens: 7" in err and "prefix: grammar: ü" in err and "error" not in err


def test_stats_sum_up_all_prompts(talk) -> None:  # type: ignore[no-untyped-def]
    assert "no prompt has been decoded yet" in talk("/stats")[1]
    talk(GERMAN, GRAMMAR)
    err = talk("/stats")[1]
    assert re.search(r"speculative +18 .*%", err)


def test_the_draft_is_shown_in_the_text_or_by_round(talk) -> None:  # type: ignore[no-untyped-def]
    assert "show-draft: text" in talk("/show-draft")[1]
    out, err = talk(GERMAN)
    assert out == f"{TEXT}\n" and "accepted [-rejected-] {+correction or bonus+}" in err and "{+ " in err
    _, err = talk("/show-draft rounds", GERMAN)
    assert "round 1: 5 of 5 accepted, model, " in err and "round 2: " in err
    assert "show-draft: off" in talk("/show-draft rounds")[1] and "round" not in talk(GERMAN)[1]


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


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["x"], "unexpected argument"),
        (["--prompt", "x"], "--prompt: unknown option"),
        (["--compare"], "--compare: unknown option"),
        (["--verify"], "--verify: unknown option"),
        (["--stats-json", "x.json"], "--stats-json: unknown option"),
        (["--num-return-sequences", "2"], "--num-return-sequences: unknown option"),
    ],
)
def test_options_without_effect_in_the_console_are_refused(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        console.main(arguments)
    assert ended.value.code == 2
    assert named in capsys.readouterr().err


def test_commands_and_their_values_are_completed() -> None:
    assert completions("/s") == ["/seed", "/source-language", "/stop", "/strict", "/show-draft", "/stats"]
    assert completions("/acceptance c") == ["coupled"]
    assert completions("/num-draft ") == ["auto"]
    assert completions("The /s") == completions("/max-tokens ") == completions("/x y") == []
    assert completions("/model t5-web-docs-") == ["t5-web-docs-draft", "t5-web-docs-head"]
    assert completions("/draft-model t5-web-docs-h") == ["t5-web-docs-head"]
    assert completions("/draft-model self") == ["self-8bit"]


# Interruptions.

SETTINGS = {
    "default": [],
    "model": FIXED,
    "store": ["--ngram-store", "STORE"],
    "adapting": ["--num-draft", "auto"],
    "samples": ["--temperature", "1", "--seed", "5", *FIXED],
}


def interrupted(state: ConsoleState, moment: int, interrupt: Callable[[], None]) -> bool:
    """Decode, and call `interrupt` at the `moment`-th `mx.eval`. Return whether decoding got that far."""
    evaluate, calls = mx.eval, 0

    def evaluated(*arrays: object) -> None:
        nonlocal calls
        calls += 1
        if calls == moment:
            interrupt()
        evaluate(*arrays)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mx, "eval", evaluated)
        answer(state, GERMAN)
    return calls >= moment


def raise_at_once() -> None:
    raise KeyboardInterrupt


def send_sigint() -> None:
    signal.raise_signal(signal.SIGINT)


def send_sigint_twice() -> None:
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("setting", "interrupt"),
    [
        *((setting, raise_at_once) for setting in SETTINGS),
        ("model", send_sigint),
        ("store", send_sigint),
        ("default", send_sigint_twice),
    ],
)
def test_an_interruption_at_any_moment_leaves_the_next_output_unchanged(
    setting: str, interrupt: Callable[[], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = open_console(*(str(tmp_path / each) if each == "STORE" else each for each in SETTINGS[setting]))
    capsys.readouterr()
    answer(state, GERMAN)
    expected = capsys.readouterr().out
    moment = 1
    while interrupted(state, moment, interrupt):
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

    def wait_for(self, text: str) -> str:
        """Read until `text` appears, and return the output up to its end."""
        end = time.monotonic() + TIMEOUT
        while text not in self.seen:
            self._read(end, text)
        before, _, self.seen = self.seen.partition(text)
        return before + text

    def interrupt_line(self) -> None:
        """Press Ctrl-C until a new prompt appears.

        Python's readline ignores a signal that arrives just before it waits for a key.
        """
        end = time.monotonic() + TIMEOUT
        while "> " not in self.seen:
            self.type("\x03")
            while "> " not in self.seen and select.select([self.master], [], [], 2)[0]:
                self._read(end, "> ")
            assert time.monotonic() < end, f"Ctrl-C had no effect, saw {self.seen!r}"
        self.wait_for("> ")

    def wait_for_letters(self) -> None:
        """Wait until a text begins. The output stays available to the next call."""
        end = time.monotonic() + TIMEOUT
        while not re.search(r"[^\W\d_]{2}", re.sub(r"\x1b\[[?\d;]*[a-zA-Z]", "", self.seen)):
            self._read(end, "a text")

    def _read(self, end: float, text: str) -> None:
        ready, _, _ = select.select([self.master], [], [], max(0, end - time.monotonic()))
        assert ready, f"waited for {text!r}, saw {self.seen!r}"
        data = read_terminal(self.master)
        assert data, f"the console ended; saw {self.seen!r}"
        self.seen += data.decode(errors="replace")

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    found = Terminal(tmp_path, *FIXED, "--dtype", "float32")  # the same text on a GPU
    yield found
    found.process.kill()
    found.process.wait()
    os.close(found.master)


def test_completion_history_and_ctrl_c_work_in_a_terminal(terminal: Terminal, tmp_path: Path) -> None:
    terminal.wait_for("> ")
    terminal.type("/max\t3\n")  # Tab completes it
    terminal.wait_for("max-tokens: 3")
    terminal.type(f"{GERMAN}\n")
    terminal.wait_for("Die Methode gibt\r\n")
    terminal.wait_for("> ")
    terminal.type("/max-tokens 100\n")
    terminal.wait_for("max-tokens: 100")
    terminal.type("\x1b[A\x1b[A\n")  # arrow up, twice: the prompt again
    terminal.wait_for(f"{TEXT}\r\n")
    terminal.wait_for("> ")
    terminal.type("half a line")
    terminal.wait_for("half a line")
    terminal.interrupt_line()  # discards the line
    terminal.type("/max-tokens 100000\n/temperature 50\n")  # a very long text
    terminal.wait_for("temperature: 50")
    terminal.wait_for("> ")
    terminal.type(f"{GERMAN}\n")
    terminal.wait_for("\r\n")  # the echo
    terminal.wait_for_letters()
    terminal.type("\x03")
    terminal.wait_for("stopped")
    terminal.wait_for("> ")
    terminal.type(f"/temperature 0\n{GERMAN}\n")
    terminal.wait_for(f"{TEXT}\r\n")
    terminal.wait_for("> ")
    terminal.type("/show-draft\n")
    terminal.wait_for("> ")
    terminal.type(f"{GERMAN}\n")
    shown = terminal.wait_for("tokens/s")
    assert "\x1b[32mDie" in shown and "\x1b[9;31mrejected" in shown and shown.count(TEXT) == 0
    terminal.type("/quit\n")
    assert terminal.process.wait(timeout=TIMEOUT) == 0
    history = tmp_path / ".speculative_decoding_history"
    assert history.stat().st_mode & 0o777 == 0o600
    lines = history.read_text().replace(r"\040", " ").splitlines()  # libedit, on a Mac, escapes spaces
    assert lines[lines[0] == "_HiStOrY_V2_"] == "/max-tokens 3"


def test_the_end_of_input_ends_the_console(terminal: Terminal) -> None:
    terminal.wait_for("> ")
    terminal.type("\x04")
    assert terminal.process.wait(timeout=TIMEOUT) == 0


def test_quit_ends_the_console() -> None:
    with pytest.raises(Quit):
        answer(ConsoleState(run_config_from(console_parser("console").parse_args([]))), "/quit")
