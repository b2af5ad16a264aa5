"""main.py --interactive: a line is a prompt, or a command that begins with /. Ctrl-C stops a text, not the console."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from rich.table import Table
from rich.text import Text

from ..errors import InputError
from .command import Command, Wrong, by_name, find, words
from .commands import COMMANDS
from .compare import same_text, table
from .drafting import Plan
from .line_input import edit_lines, read_line
from .main_flags import Views
from .screen import has_colour, make_console
from .state import State
from .trace import traces_to
from .views import accepted_bars, lossy
from .watching import Run
from .ways import NGRAM, SPECULATIVE, Audience, run_ways


def interact(plan: Plan, views: Views) -> int:
    """The exit status."""
    with traces_to(views.trace) as traces, State(plan, traces, show_draft=views.show_draft) as state:
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


class Quit(Exception):
    """The user wants to leave."""


@dataclass
class Conversation:
    """A state, and the screen."""

    state: State

    def __post_init__(self) -> None:
        self.console = make_console()
        self._shown: str | None = None  # as what the draft was shown last
        self.commands = by_name(
            Command("/help [COMMAND]", "this list, or one of it", self._help),
            *COMMANDS.values(),
            Command("/stats", "what was decoded so far, and how fast", self._stats),
            Command("/clear", "clear the screen", self._clear),
            Command("/quit", "leave; Ctrl-D too", self._quit),
        )

    def run(self) -> int:
        edit_lines(self.commands)
        self._say(f"{self.state.plan.describe()}\nEvery line is a prompt. /help lists the commands, /quit leaves.")
        while True:
            try:
                self.answer(read_line())
            except (EOFError, Quit):
                return 0
            except Wrong as error:
                self._say(str(error))
            except InputError as error:
                self._say(f"error: {error}")
            except KeyboardInterrupt:
                self._say("")

    def answer(self, line: str) -> None:
        """Do what one line says."""
        if not line.strip():
            return
        if line.startswith("//"):
            self._decode(line[1:])
        elif line.startswith("/"):
            command, text = find(self.commands, line)
            try:
                said = command.run(self.state, text)
            except Wrong as error:
                raise Wrong(f"{command.name}: {error}\nusage: {command.usage}") from error
            if said:
                self._say(said)
        else:
            self._decode(line)

    def _say(self, text: str) -> None:
        self.console.print(text)

    def _decode(self, text: str) -> None:
        state = self.state
        prompt = state.prepare_prompt(text)
        audience = Audience(self.console, state.show_draft, state.traces)
        if state.show_draft != self._shown:
            audience.legend(state.session)
            self._shown = state.show_draft
        try:
            with interrupts() as is_stopped:
                runs = run_ways(state.ways, state.session, prompt, audience, is_stopped)
        except KeyboardInterrupt:
            state.recover()
            self._say("\nstopped at once")
            return
        state.spend(runs)
        if is_stopped():
            self._say("stopped")
        self._sum_up(prompt, runs)

    def _sum_up(self, prompt: str, runs: Mapping[str, Run]) -> None:
        state = self.state
        if len(runs) > 1:
            rows = {way: (run.stats, same_text(way, state.session, prompt, runs)) for way, run in runs.items()}
            self.console.print(table(self.console, rows))
        else:
            ((way, run),) = runs.items()
            line = f"{len(run.tokens)} tokens at {run.tokens_per_second:.1f} tokens/s"
            if way in (SPECULATIVE, NGRAM):
                line += f"; accepted {run.stats.accepted_tokens} of {run.stats.drafted_tokens} drafted tokens"
            self.console.print(line, style="dim" if has_colour(self.console) else "")
        for run in runs.values():
            if not run.stats.lossless:
                self._say(lossy(run.stats, state.options.delta, is_greedy=state.options.is_greedy))

    def _help(self, state: State, text: str) -> str:
        if names := words(text, 0, 1):
            name = names[0] if names[0].startswith("/") else f"/{names[0]}"
            command, _ = find(self.commands, name)
            value = f"\nnow: {command.now(state)}" if command.now(state) else ""
            return f"usage: {command.usage}\n{command.meaning}{value}"
        listed = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        for command in self.commands.values():
            value = command.now(state)
            listed.add_row(Text(command.usage), Text(command.meaning + (f" (now {value})" if value else "")))
        self.console.print(listed)
        return "Any other line is a prompt; one that begins with / is written with two."

    def _stats(self, state: State, text: str) -> str:
        words(text, 0)
        if not state.totals:
            return "nothing was decoded yet"
        rows = {way: (stats, "") for way, stats in state.totals.items()}
        self.console.print(table(self.console, rows, same_prompts=False))
        for way, stats in state.totals.items():
            if stats.drafted_tokens:
                self._say(
                    "\n".join([f"{way}, by round:", *accepted_bars(stats.accepted_histogram, self.console.width)])
                )
        return ""

    def _clear(self, state: State, text: str) -> str:
        words(text, 0)
        self.console.clear()
        return ""

    def _quit(self, state: State, text: str) -> str:
        words(text, 0)
        raise Quit
