"""The console: each line is a prompt or a command that begins with /."""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..checkpoints.text import require_no_nul
from ..checkpoints.text_stream import as_utf8
from ..errors import InputError
from .common import interrupts, say
from .compare import Comparison
from .console_commands import ConsoleState, Quit, completions, console_parser, find, name_of
from .flags import check_files
from .main import PromptFlags
from .parser import flags_from
from .run_config import run_config_from
from .runner import note_exactness, summary_notes, tokens_per_second
from .start import start
from .views import has_color


def main(argv: Sequence[str] | None = None, program: str = "speculative-decoding console") -> int:
    return start(console_parser(program), argv, interact)


def interact(chosen: argparse.Namespace, processes: Any = None) -> int:
    """Open the models, run the console, and return the exit status. processes: see `decode_prompts`."""
    flags = flags_from(PromptFlags, chosen)
    check_files(vars(chosen))
    config = run_config_from(chosen, processes=processes)
    with ConsoleState(config, Comparison(trace=flags.trace), flags) as state:
        state.open(config)
        state.set("compare", flags.compare)
        note_exactness(state.session)
        if note := config.demonstration_note("/model google/flan-t5-large google/flan-t5-small"):
            say(note)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # Ctrl-C stops the current output, not the console
        with any_encoding(), line_editing():
            return run(state)


def run(state: ConsoleState) -> int:
    """Process input lines until the user quits, and return the exit status."""
    models = state.config.describe(state.pair)
    state.console.print(f"{models}\nEnter a prompt, /help for the commands, or /quit to exit.")
    while True:
        try:
            answer(state, read_line())
        except (EOFError, Quit):
            return 0
        except InputError as error:
            state.console.print(f"error: {error.message(name_of)}")
        except KeyboardInterrupt:
            state.console.print("")


def answer(state: ConsoleState, line: str) -> None:
    """Execute a command or decode a prompt."""
    if line.startswith("/") and not line.startswith("//"):
        name, _, text = line.partition(" ")
        find(name).execute(state, text)
    elif line.strip():
        decode_prompt(state, line[1:] if line.startswith("//") else line)


def decode_prompt(state: ConsoleState, text: str) -> None:
    """Decode a prompt with the prefix prepended, and print its statistics."""
    prefix = state.flags.prefix
    gap = "" if not prefix or prefix[-1].isspace() else " "
    state.session.prompt_prefixes = (prefix,)
    state.runner.show_draft, state.runner.is_on = state.flags.show_draft, state.flags.compare
    try:
        with interrupts() as is_stopped:
            result = state.runner.run(state.session, f"{prefix}{gap}{text}", is_stopped)
    except KeyboardInterrupt:
        state.recover()
        state.console.print("\nstopped immediately")
        return
    if result is not None:
        notes = summary_notes(result.stats, state.options, 1, result.finish_reason == "length")
        speed = f"{len(result.tokens)} tokens at {tokens_per_second(result.stats):.1f} tokens/s"
        state.console.print("; ".join([speed, *notes]), style="dim" if has_color(state.console) else "")


def read_line() -> str:
    """Read a line, with editing at a terminal. Raises EOFError at the end of the input."""
    prompt = "> " if sys.stdin.isatty() else ""
    if not sys.stdout.isatty():  # `input` would write the prompt to standard output
        print(end=prompt, file=sys.stderr, flush=True)
    try:
        line = input(prompt if sys.stdout.isatty() else "")
        line.encode("utf-8")
        require_no_nul(line)
    except EOFError:
        print(end="\n" if prompt else "", file=sys.stderr)
        raise
    except UnicodeError as error:
        raise InputError("input line: not valid UTF-8; type it again") from error
    return line


@contextmanager
def any_encoding() -> Iterator[None]:
    """Unless standard input is a terminal, decode it as UTF-8, or as UTF-16 if it starts with a byte-order mark."""
    before = sys.stdin
    if isinstance(before, io.TextIOWrapper) and not before.isatty():
        sys.stdin = io.TextIOWrapper(as_utf8(before.buffer), "utf-8-sig", "surrogateescape")
    try:
        yield
    finally:
        sys.stdin = before


@contextmanager
def line_editing() -> Iterator[None]:
    """Enable line editing, completion with Tab, and a history file, if Python was built with readline."""
    try:
        import readline
    except ImportError:
        yield
        return

    def complete(word: str, number: int) -> str | None:
        found = completions(readline.get_line_buffer()[: readline.get_endidx()])
        return f"{found[number]} " if number < len(found) else None

    readline.set_completer(complete)
    readline.set_completer_delims(" ")
    is_libedit = "libedit" in (readline.__doc__ or "")  # macOS
    readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
    if not sys.stdin.isatty():
        yield
        return
    try:
        history = Path("~/.speculative_decoding_history").expanduser()
        os.close(os.open(history, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600))
        history.chmod(0o600)  # prompts are private
        if history.stat().st_size:  # macOS cannot read an empty history
            readline.read_history_file(history)
        readline.set_history_length(1000)
    except (OSError, RuntimeError) as error:
        say(f"history: lines are not saved ({error})")
        yield
        return
    try:
        yield
    finally:
        readline.write_history_file(history)
