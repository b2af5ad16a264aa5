"""Decodes prompts in several modes, and compares speed and output. Used by --compare and the console."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rich.table import Table

from ..decoding.results import GenerationResult, GenerationStats
from ..engine import Event
from ..models.base import EncoderDecoder
from ..session import Session
from .divergence import first_divergence
from .runner import (
    BASELINE,
    INTERRUPTED,
    OPTIONS,
    SPECULATIVE,
    IsStopped,
    PromptRunner,
    answer_mode,
    print_text,
    tokens_per_second,
    watch,
)

DRAFT = "draft"  # the draft model without the target
IDENTICAL = "identical"


def decoding_modes(session: Session) -> list[str]:
    """Return the modes that this session supports. The first mode produces the answer."""
    modes = [BASELINE] if answer_mode(session) == BASELINE else [SPECULATIVE, BASELINE]
    # A draft head cannot run without the target, and tokens of another vocabulary cannot be compared with the target's
    if isinstance(session.draft_model, EncoderDecoder) and not session.drafts_text:
        modes.append(DRAFT)
    return modes


def decode(session: Session, mode: str, prompt: str | Sequence[int]) -> Iterator[Event]:
    """Decode the prompt in this mode."""
    if mode == DRAFT:
        assert isinstance(session.draft_model, EncoderDecoder)
        session = Session(session.draft_model, session.tokenizer, options=replace(session.options, drafter="none"))
        mode = BASELINE
    return session.rounds(prompt, **OPTIONS[mode])


def warm_up(session: Session, prompt: str | Sequence[int]) -> None:
    """Decode a few tokens in each mode, because the first passes of a process are slow."""
    # Use a copy of the session, so that the drafter does not learn from these tokens.
    session = replace(session, ngram=None, options=replace(session.options, max_tokens=4))
    for mode in reversed(decoding_modes(session)):
        list(decode(session, mode, prompt))


class Comparison(PromptRunner):
    """Decodes each prompt in all modes, and prints a comparison.

    Attributes:
        is_on: Whether to compare. If False, only the answer is decoded.
        totals: Statistics for each mode.
        num_identical: For each mode, the number of outputs identical to the baseline's.
    """

    def __init__(self, *arguments: Any, is_on: bool = True, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.is_on = is_on
        self.totals: dict[str, GenerationStats] = {}
        self.num_identical: Counter[str] = Counter()

    def answer(self, session: Session, tokens: Sequence[int], is_stopped: IsStopped = None) -> GenerationResult | None:
        """Decode in each mode. The answer comes last, and only its text goes to standard output."""
        last, *others = decoding_modes(session)
        results: dict[str, GenerationResult] = {}
        for mode in reversed(others) if self.is_on else ():
            self.console.print(f"{mode}:", style="bold")
            results[mode] = watch(decode(session, mode, tokens), [partial(print_text, file=sys.stderr)], is_stopped)
            if is_stopped is not None and is_stopped():
                self.console.print("stopped")
                break
        else:
            if results:
                self.console.print(f"{last}:", style="bold")
            if (answer := super().answer(session, tokens, is_stopped)) is not None:
                results[last] = answer
        results = {mode: results[mode] for mode in (BASELINE, DRAFT, SPECULATIVE) if mode in results}
        self._print_comparison(session, tokens, results)
        for mode, result in results.items():
            self.totals.setdefault(mode, GenerationStats()).add(result.stats)
        return results.get(last)

    def finish(self, session: Session) -> GenerationStats:
        if self.num_prompts > 1:
            rows = {}
            for mode, stats in self.totals.items():
                agreement = f"{self.num_identical[mode]} of {self.num_prompts} {IDENTICAL}"
                rows[mode] = (stats, "" if mode == BASELINE else agreement)
            self.console.print(f"{self.num_prompts} prompts:", style="bold")
            self.console.print(comparison_table(rows, BASELINE))
        return super().finish(session)

    def _print_comparison(
        self, session: Session, tokens: Sequence[int], results: Mapping[str, GenerationResult]
    ) -> None:
        rows = {}
        for mode, result in results.items():
            agreement = agreement_with_baseline(mode, session, tokens, results)
            self.num_identical[mode] += agreement == IDENTICAL
            rows[mode] = (result.stats, agreement)
        if len(rows) > 1:
            self.console.print(comparison_table(rows, BASELINE))


def agreement_with_baseline(
    mode: str, session: Session, tokens: Sequence[int], results: Mapping[str, GenerationResult]
) -> str:
    """Return a short comparison of the mode's output with the baseline's, or "" if they cannot be compared."""
    result = results[mode]
    baseline = results.get(BASELINE)
    if baseline is None or mode == BASELINE or INTERRUPTED in (result.finish_reason, baseline.finish_reason):
        return ""
    if result.tokens == baseline.tokens:
        return IDENTICAL
    if mode == DRAFT:
        return "differs"
    if not session.options.is_comparable:
        return "another sample"
    return str(first_divergence(session, tokens, baseline.tokens, result.tokens))


def comparison_table(rows: Mapping[str, tuple[GenerationStats, str]], baseline: str | None = None) -> Table:
    """Compare decoding modes.

    rows: for each mode, its statistics and a comparison of its text with the baseline's.
    baseline: the reference mode for speedups; None if the modes decoded different prompts.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("", "tokens", "calls", "tokens/s", "speedup", "accepted", "text"):
        table.add_column(heading, justify="left" if heading in ("", "text") else "right")
    baseline_speed = tokens_per_second(rows[baseline][0]) if baseline is not None and baseline in rows else None
    for mode, (stats, agreement) in rows.items():
        speedup = ""
        if baseline_speed is not None and mode != baseline:
            speedup = f"{tokens_per_second(stats) / baseline_speed:.2f}x"
        table.add_row(
            mode,
            str(stats.generated_tokens),
            str(stats.target_calls),
            f"{tokens_per_second(stats):.1f}",
            speedup,
            f"{stats.acceptance_rate:.1%}" if stats.drafted_tokens else "",
            agreement,
        )
    return table
