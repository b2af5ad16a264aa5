"""Prompts decoded in one way or several: each text as it comes, and what the ways took, side by side."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from rich.console import Console

from ..decoding.divergence import first_divergence
from ..decoding.results import GenerationResult
from ..decoding.stats import GenerationStats
from ..session import Session
from .summaries import table
from .views import DraftView
from .watching import INTERRUPTED, Watcher, never, plain_text, watch
from .ways import DRAFTER, NGRAM, SPECULATIVE, TARGET, start

IDENTICAL = "identical"


@dataclass
class Runner:
    """Decodes prompts, shows them, and adds up what each way took.

    console: of standard error. show_draft: None, "text" or "rounds". traces: watch the answer.
    identical: how many of the `prompts` gave the target's text.
    """

    console: Console
    show_draft: str | None = None
    traces: Sequence[Watcher] = ()
    totals: dict[str, GenerationStats] = field(default_factory=dict)
    identical: Counter[str] = field(default_factory=Counter)
    prompts: int = 0
    _explained: str | None = None  # the show_draft of the last legend

    def run(
        self, session: Session, names: Sequence[str], prompt: str, is_stopped: Callable[[], bool] = never
    ) -> dict[str, GenerationResult]:
        """Decode in each of the ways, and compare them if there are several.

        The first is the answer: it comes last, and its text alone goes to standard output.
        """
        if self.show_draft not in (None, self._explained):
            DraftView(self.console, session.tokenizer).legend()
        self._explained = self.show_draft
        runs = {}
        for name in reversed(names):
            if len(names) > 1:
                self.console.print(f"{name}:", style="bold")
            runs[name] = self._run_one(session, name, prompt, is_stopped, is_answer=name == names[0])
            if is_stopped():
                self.console.print("stopped")
                break
        rows = {}
        for name in (name for name in (TARGET, DRAFTER, NGRAM, SPECULATIVE) if name in runs):
            text = same_text(name, session, prompt, runs)
            rows[name] = (runs[name].stats, text)
            self.identical[name] += text == IDENTICAL
            self.totals.setdefault(name, GenerationStats()).add(runs[name].stats)
        self.prompts += 1
        if len(rows) > 1:
            self.console.print(table(self.console, rows))
        return runs

    def _run_one(
        self, session: Session, name: str, prompt: str, is_stopped: Callable[[], bool], *, is_answer: bool
    ) -> GenerationResult:
        watchers: list[Watcher] = []
        shows_draft = self.show_draft is not None and (is_answer or name in (SPECULATIVE, NGRAM))
        if shows_draft:
            watchers.append(DraftView(self.console, session.tokenizer, rounds=self.show_draft == "rounds"))
        one_screen = sys.stdout.isatty() and sys.stderr.isatty()  # then text on both would be seen twice
        if not shows_draft or (is_answer and not one_screen):
            watchers.append(plain_text(sys.stdout if is_answer else sys.stderr))
        traces = self.traces if is_answer else ()
        timed = shows_draft or bool(traces)
        begin = partial(start, name=name, session=session, prompt=prompt, timed=timed)
        return watch(begin, [*watchers, *traces], is_stopped)

    def sum_up(self) -> None:
        """All prompts, if there was more than one."""
        if self.prompts > 1:
            texts = {name: f"{self.identical[name]} of {self.prompts} {IDENTICAL}" for name in self.totals}
            rows = {name: (stats, "" if name == TARGET else texts[name]) for name, stats in self.totals.items()}
            self.console.print(f"{self.prompts} prompts:", style="bold")
            self.console.print(table(self.console, rows))


def same_text(name: str, session: Session, prompt: str, runs: Mapping[str, GenerationResult]) -> str:
    """How the output of a way relates to the target's own; empty where that is not known."""
    run, regular = runs[name], runs.get(TARGET)
    if regular is None or name == TARGET or INTERRUPTED in (run.finish_reason, regular.finish_reason):
        return ""
    if run.tokens == regular.tokens:
        return IDENTICAL
    if name == DRAFTER:
        return "differs"
    if not session.options.is_comparable:
        return "another sample"
    difference = first_divergence(session.model, session.tokenizer, prompt, regular.tokens, run.tokens, session.options)
    assert difference is not None
    return f"differs at token {difference.position}"
