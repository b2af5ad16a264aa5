"""Side by side: what each way of decoding a prompt took, and whether its text is the target's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rich.console import Console
from rich.table import Table

from ..decoding.divergence import first_divergence
from ..decoding.stats import GenerationStats
from ..session import Session
from .views import share
from .watching import Run
from .ways import DRAFTER, NGRAM, SPECULATIVE, TARGET, Audience, available, run_ways, start

NARROW = 60  # columns: below it a table shows what matters most
WARM_UP_TOKENS = 4
IDENTICAL = "identical"
SHORT = {SPECULATIVE: "spec.", NGRAM: "ngram", TARGET: "target", DRAFTER: "draft"}


@dataclass
class Comparison:
    """--compare, over one prompt after another."""

    session: Session
    audience: Audience
    ways: list[str] = field(init=False)
    totals: dict[str, GenerationStats] = field(default_factory=dict)
    identical: dict[str, int] = field(default_factory=dict)
    prompts: int = 0

    def __post_init__(self) -> None:
        self.ways = [way for way in available(self.session) if way != NGRAM]

    def add(self, prompt: str) -> Run:
        """Decode in each way and show the table; the speculative run."""
        if not self.prompts:
            warm_up(self.session, prompt)
        self.prompts += 1
        runs = run_ways(self.ways, self.session, prompt, self.audience)
        texts = {way: same_text(way, self.session, prompt, runs) for way in runs}
        for way, run in runs.items():
            self.totals.setdefault(way, GenerationStats()).add(run.stats)
            self.identical[way] = self.identical.get(way, 0) + (texts[way] == IDENTICAL)
        rows = {way: (run.stats, texts[way]) for way, run in runs.items()}
        self.audience.console.print(table(self.audience.console, rows))
        return runs[SPECULATIVE]

    def finish(self) -> None:
        """The sum, if there was more than one prompt."""
        if self.prompts < 2:
            return
        rows = {
            way: (stats, "" if way == TARGET else f"{self.identical[way]} of {self.prompts} {IDENTICAL}")
            for way, stats in self.totals.items()
        }
        self.audience.console.print(f"{self.prompts} prompts:", style="bold")
        self.audience.console.print(table(self.audience.console, rows))


def warm_up(session: Session, prompt: str) -> None:
    """The first passes of a process are slower than the others; none of the ways is to pay for it. No store learns."""
    short = replace(session, options=replace(session.options, drafter=None, max_tokens=WARM_UP_TOKENS))
    for way in (TARGET, DRAFTER, SPECULATIVE):
        if way in available(short):
            list(start(way, short, prompt))


def same_text(way: str, session: Session, prompt: str, runs: Mapping[str, Run]) -> str:
    """How the output of a way relates to the target's own; empty where that is not known."""
    run, regular = runs[way], runs.get(TARGET)
    if regular is None or way == TARGET or None in (run.finish_reason, regular.finish_reason):
        return ""
    if run.tokens == regular.tokens:
        return IDENTICAL
    if way == DRAFTER:
        return "differs"
    if not session.options.is_comparable:
        return "another sample"
    difference = first_divergence(session.model, session.tokenizer, prompt, regular.tokens, run.tokens, session.options)
    assert difference is not None
    return f"differs at token {difference.position}"


def table(console: Console, rows: Mapping[str, tuple[GenerationStats, str]], *, same_prompts: bool = True) -> Table:
    """rows: for each way its statistics, and how its text relates to the target's. Speeds include encoding.

    same_prompts: only then can they be compared.
    """
    speeds = {way: stats.generated_tokens / seconds_of(stats) for way, (stats, _) in rows.items()}
    regular = speeds.get(TARGET) if same_prompts else None
    is_narrow = console.width < NARROW
    made = Table(box=None, padding=(0, 1 if is_narrow else 2, 0, 0), header_style="bold")
    made.add_column("")
    for heading in ("tok/s",) if is_narrow else ("tokens", "calls", "tokens/s"):
        made.add_column(heading, justify="right")
    made.add_column("gain" if is_narrow else "speed-up", justify="right")
    made.add_column("acc." if is_narrow else "accepted", justify="right")
    made.add_column("" if is_narrow else "text")
    for way, (stats, text) in rows.items():
        faster = speeds[way] / regular - 1 if regular else None
        made.add_row(
            SHORT[way] if is_narrow else way,
            *([] if is_narrow else [str(stats.generated_tokens), str(stats.target_calls)]),
            f"{speeds[way]:.1f}",
            "" if faster is None or way == TARGET else f"{faster:+.1%}",
            share(stats.accepted_tokens, stats.drafted_tokens) if way in (SPECULATIVE, NGRAM) else "",
            text,
        )
    return made


def seconds_of(stats: GenerationStats) -> float:
    return max(stats.encode_seconds + stats.decode_seconds, 1e-9)
