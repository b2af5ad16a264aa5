"""main.py --interactive: a line is a prompt, or a command that begins with /. Ctrl-C stops a text, not the console."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from ..errors import InputError
from .commands import Quit, State, completions, find
from .common import say
from .compare import Runner, note_exactness, speed, summary_notes
from .drafting import Plan
from .flags import Views
from .views import has_colour

PROMPT = "> "
HISTORY = "~/.speculative_decoding_history"
HISTORY_LINES = 1000


def interact(plan: Plan, views: Views) -> int:
    """The exit status."""
    with State(plan, Runner.of(views)) as state:
        state.open(plan)
        note_exactness(state.session)
        with edited_lines():
            return Conversation(state).run()


@contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Ctrl-C while a text is written: the first wants it to stop behind the round that runs, as the function tells;
    the second stops it at once.
    """
    is_wanted = False

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal is_wanted
        if is_wanted:
            raise KeyboardInterrupt
        is_wanted = True

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield lambda: is_wanted
    finally:
        signal.signal(signal.SIGINT, before)


@dataclass
class Conversation:
    """Lines come in, and each is answered on the screen."""

    state: State

    def run(self) -> int:
        """Answer line by line, until the user leaves; the exit status."""
        self.state.console.print(
            f"{self.state.plan.describe()}\nEvery line is a prompt. /help lists the commands, /quit leaves."
        )
        while True:
            try:
                self.answer(read_line())
            except (EOFError, Quit):
                return 0
            except InputError as error:
                self.state.console.print(f"error: {error}")
            except KeyboardInterrupt:
                self.state.console.print("")

    def answer(self, line: str) -> None:
        """Do what one line says."""
        if line.startswith("/") and not line.startswith("//"):
            name, _, text = line.partition(" ")
            find(name).do(self.state, text)
        elif line.strip():
            self._decode(line[1:] if line.startswith("//") else line)

    def _decode(self, text: str) -> None:
        state = self.state
        gap = "" if not state.prefix or state.prefix[-1].isspace() else " "
        try:
            with interrupts() as is_stopped:
                runs = state.runner.run(state.session, state.ways, f"{state.prefix}{gap}{text}", is_stopped)
        except KeyboardInterrupt:
            state.recover()
            state.console.print("\nstopped at once")
            return
        if (run := runs.get(state.ways[0])) is not None:
            notes = summary_notes(run.stats, state.options, 1, run.finish_reason == "length")
            line = "; ".join([f"{len(run.tokens)} tokens at {speed(run.stats):.1f} tokens/s", *notes])
            state.console.print(line, style="dim" if has_colour(state.console) else "")


def read_line() -> str:
    """One line, edited where there is a terminal. Raises EOFError at the end."""
    prompt = PROMPT if sys.stdin.isatty() else ""
    if not sys.stdout.isatty():  # `input` would write it into our output
        print(end=prompt, file=sys.stderr, flush=True)
    try:
        line = input(prompt if sys.stdout.isatty() else "")
        line.encode("utf-8")
    except EOFError:
        print(end="\n" if prompt else "", file=sys.stderr)
        raise
    except UnicodeError as error:
        raise InputError("this line is not UTF-8; type it again") from error
    return line


@contextmanager
def edited_lines() -> Iterator[None]:
    """At a terminal lines are edited, words completed by the Tab key, and lines kept for the next time, where Python
    was built with readline.
    """
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
        history = Path(HISTORY).expanduser()
        os.close(os.open(history, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600))
        history.chmod(0o600)  # prompts are nobody else's business
        if history.stat().st_size:  # macOS refuses an empty one
            readline.read_history_file(history)
        readline.set_history_length(HISTORY_LINES)
    except (OSError, RuntimeError) as error:
        say(f"lines are not kept for the next time: {error}")
        yield
        return
    try:
        yield
    finally:
        readline.write_history_file(history)
