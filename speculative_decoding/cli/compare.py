"""Prompts decoded speculatively, with the target alone, with the draft alone: each text as it comes, and what these
ways took, side by side.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rich.console import Console
from rich.table import Table

from ..decoding.divergence import first_divergence
from ..decoding.results import GenerationResult
from ..decoding.stats import GenerationStats
from ..drafters import DraftHead, DraftModel
from ..engine import Event
from ..models.base import EncoderDecoder
from ..sampling import GenerationOptions
from ..session import Session
from .common import note_unknown, printing, say
from .flags import Views
from .parser import with_flags
from .views import INTERRUPTED, DraftView, Trace, Watcher, make_console, plain_text, watch

SPECULATIVE, TARGET, DRAFTER = "speculative", "target", "drafter"
IDENTICAL = "identical"
WARM_UP_TOKENS = 4


def ways(session: Session) -> list[str]:
    """Those that a comparison is of. The first gives the program's answer, alone where nobody compares."""
    is_head = isinstance(session.draft_model, DraftHead)  # it cannot decode alone
    speculative = [] if session.options_with({}).drafter == "none" else [SPECULATIVE]
    return [*speculative, TARGET, *([] if session.draft_model is None or is_head else [DRAFTER])]


def start(name: str, session: Session, prompt: str, *, timed: bool = False) -> Iterator[Event]:
    """Decode in that way."""
    if name == SPECULATIVE:
        return session.rounds(prompt, timed=timed)
    if name == TARGET:  # the baseline: the fastest passes, also where those with a draft are exact
        return session.rounds(prompt, timed=timed, drafter="none", strict=False)
    if name == DRAFTER:
        draft = session.draft_model
        model = draft.model if isinstance(draft, DraftModel) else draft
        assert isinstance(model, EncoderDecoder)
        session = Session(model, session.tokenizer, options=replace(session.options, drafter="none"))
    return session.rounds(prompt, timed=timed, drafter="none")


def warm_up(session: Session, prompt: str) -> None:
    """The first passes of a process are slower than the others; none of the ways is to pay for it. Nothing learns."""
    short = replace(session, ngram=None, options=replace(session.options, max_tokens=WARM_UP_TOKENS))
    for name in reversed(ways(short)):
        list(start(name, short, prompt))


def note_exactness(session: Session, slots: int = 1) -> None:
    """Say where tokens may differ from those without a draft, if they may."""
    if note := session.planner.exactness_note(session.options_with({}), slots):
        say(f"note: {with_flags(note)}")


@dataclass
class Runner:
    """Decodes prompts, shows them, and adds up what each way took.

    console: of standard error. show_draft: None, "text" or "rounds". traces: watch the answer.
    identical: how many of the `prompts` gave the target's text. cut: how many answers ended at max_tokens.
    """

    console: Console
    show_draft: str | None = None
    traces: Sequence[Watcher] = ()
    totals: dict[str, GenerationStats] = field(default_factory=dict)
    identical: Counter[str] = field(default_factory=Counter)
    prompts: int = 0
    cut: int = 0
    _explained: str | None = None  # the show_draft of the last legend
    _unknown: set[str] = field(default_factory=set)  # characters that were said to be

    @classmethod
    def of(cls, views: Views) -> Runner:
        return cls(make_console(), views.show_draft, [] if views.trace is None else [Trace(views.trace)])

    def run(
        self, session: Session, names: Sequence[str], prompt: str, is_stopped: Callable[[], bool] = lambda: False
    ) -> dict[str, GenerationResult]:
        """Decode in each of the ways, and compare them if there are several.

        The first is the answer: it comes last, and its text alone goes to standard output.
        """
        note_unknown(session.tokenizer, prompt, self._unknown)
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
        for name in (name for name in (TARGET, DRAFTER, SPECULATIVE) if name in runs):
            text = same_text(name, session, prompt, runs)
            rows[name] = (runs[name].stats, text)
            self.identical[name] += text == IDENTICAL
            self.totals.setdefault(name, GenerationStats()).add(runs[name].stats)
        self.prompts += 1
        self.cut += names[0] in runs and runs[names[0]].finish_reason == "length"
        if len(rows) > 1:
            self.console.print(table(rows, TARGET))
        return runs

    def run_several(self, session: Session, prompt: str) -> None:
        """All the outputs that are asked for, the best first, each in a line of standard output."""
        note_unknown(session.tokenizer, prompt, self._unknown)
        result = session.generate(prompt)
        for each in result.sequences:
            with printing():
                print(each.text, flush=True)
        if result.score is not None:
            say("scores " + ", ".join(f"{each.score:.4f}" for each in result.sequences))
        self.totals.setdefault(ways(session)[0], GenerationStats()).add(result.stats)
        self.prompts += 1
        self.cut += any(each.finish_reason == "length" for each in result.sequences)

    def _run_one(
        self, session: Session, name: str, prompt: str, is_stopped: Callable[[], bool], *, is_answer: bool
    ) -> GenerationResult:
        watchers: list[Watcher] = []
        shows_draft = self.show_draft is not None and (is_answer or name == SPECULATIVE)
        if shows_draft:
            watchers.append(DraftView(self.console, session.tokenizer, rounds=self.show_draft == "rounds"))
        if not shows_draft or (is_answer and not is_one_place()):
            watchers.append(plain_text(sys.stdout if is_answer else sys.stderr))
        traces = self.traces if is_answer else ()
        timed = shows_draft or bool(traces)
        return watch(start(name, session, prompt, timed=timed), [*watchers, *traces], is_stopped)

    def sum_up(self) -> None:
        """All prompts, if there was more than one."""
        if self.prompts > 1:
            texts = {name: f"{self.identical[name]} of {self.prompts} {IDENTICAL}" for name in self.totals}
            rows = {name: (stats, "" if name == TARGET else texts[name]) for name, stats in self.totals.items()}
            self.console.print(f"{self.prompts} prompts:", style="bold")
            self.console.print(table(rows, TARGET))


def is_one_place() -> bool:
    """Whether standard output and standard error end in the same terminal, pipe or file: then text on both would be
    seen twice, in pieces.
    """
    try:
        return os.path.samestat(os.fstat(sys.stdout.fileno()), os.fstat(sys.stderr.fileno()))
    except OSError:  # an object of Python's in their place
        return False


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


def speed(stats: GenerationStats) -> float:
    """Tokens per second of whole requests: encoding, and all rounds with their drafts."""
    return stats.generated_tokens / max(stats.encode_seconds + stats.decode_seconds, 1e-9)


def accepted(stats: GenerationStats) -> str:
    return f"accepted {stats.accepted_tokens} of {stats.drafted_tokens} drafted tokens"


def summary(stats: GenerationStats, options: GenerationOptions, texts: int, cut: int) -> str:
    times = f"decode {stats.decode_seconds:.3f} s"
    if stats.draft_seconds is not None and stats.verify_seconds is not None:
        times = f"draft {stats.draft_seconds:.3f} s, verify {stats.verify_seconds:.3f} s"
    lines = [
        f"{stats.generated_tokens} tokens at {stats.generation_tps:.1f} tokens/s; "
        f"{stats.target_calls} target calls, {stats.tokens_per_target_call:.2f} tokens per call",
        *summary_notes(stats, options, texts, cut),
        f"encode {stats.encode_seconds:.3f} s, {times}; peak memory {stats.peak_memory_bytes / 1e9:.2f} GB",
    ]
    return "\n".join(lines)


def summary_notes(stats: GenerationStats, options: GenerationOptions, texts: int, cut: int) -> list[str]:
    """What is not to be said of every run. cut: how many of the texts ended at max_tokens."""
    notes = [f"{accepted(stats)} ({stats.acceptance_rate:.1%})"] if stats.drafted_tokens else []
    if cut:
        notes.append(f"stopped at --max-tokens{f': {cut} of {texts} texts' if texts > 1 else f' {options.max_tokens}'}")
    return notes if stats.lossless else [*notes, lossy(stats, options)]


def lossy(stats: GenerationStats, options: GenerationOptions) -> str:
    """What a lossy run is to be told of."""
    price = stats.delta_total_variation
    measured = f"measured total variation {price:.4f} per token"
    if options.is_greedy:
        measured = f"{price:.1%} of the tokens are not the target's first choice"
    return f"LOSSY: --delta {options.delta:g} accepts tokens that the target alone would not write; {measured}"


def table(rows: Mapping[str, tuple[GenerationStats, str]], regular: str = "") -> Table:
    """rows: for each way its statistics, and how its text relates to the target's. regular: the way whose speed the
    others are compared with; only for the same prompts.
    """
    made = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("", "tokens", "calls", "tokens/s", "speed-up", "accepted", "text"):
        made.add_column(heading, justify="left" if heading in ("", "text") else "right")
    base = None if regular not in rows else speed(rows[regular][0])
    for way, (stats, text) in rows.items():
        gain = "" if base is None or way == regular else f"{speed(stats) / base - 1:+.1%}"
        kept = f"{stats.acceptance_rate:.1%}" if stats.drafted_tokens else ""
        counts = str(stats.generated_tokens), str(stats.target_calls)
        made.add_row(way, *counts, f"{speed(stats):.1f}", gain, kept, text)
    return made
