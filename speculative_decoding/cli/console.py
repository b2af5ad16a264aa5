"""main.py --interactive: a line is a prompt, or a command that begins with /. Ctrl-C stops a text, not the console."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from ..errors import InputError
from .commands import Quit, find
from .compare import Runner
from .drafting import Plan
from .line_input import edit_lines, read_line
from .main_flags import Views
from .state import State
from .summaries import accepted, lossy, speed
from .trace import traces_to
from .views import has_colour, make_console
from .ways import NGRAM, SPECULATIVE


def interact(plan: Plan, views: Views) -> int:
    """The exit status."""
    with traces_to(views.trace) as traces, State(plan, Runner(make_console(), views.show_draft, traces)) as state:
        state.open(plan)
        return Conversation(state).run()


@contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Ctrl-C while a text is written: the first wants it to stop behind the next token, of which the function tells;
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
        edit_lines()
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
        prompt = state.prepare_prompt(text)
        try:
            with interrupts() as is_stopped:
                runs = state.runner.run(state.session, state.ways, prompt, is_stopped)
        except KeyboardInterrupt:
            state.recover()
            self.state.console.print("\nstopped at once")
            return
        if len(runs) == 1:
            ((way, run),) = runs.items()
            line = f"{len(run.tokens)} tokens at {speed(run.stats):.1f} tokens/s"
            if way in (SPECULATIVE, NGRAM):
                line += f"; {accepted(run.stats)}"
            state.console.print(line, style="dim" if has_colour(state.console) else "")
        for run in runs.values():
            if not run.stats.lossless:
                self.state.console.print(lossy(run.stats, state.options))
