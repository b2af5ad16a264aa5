"""Decodes prompts in one or several modes, shows each text as it is generated, and compares speed and output."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rich.console import Console

from ..decoding.prompt import encode_prompt
from ..decoding.results import GenerationResult
from ..decoding.stats import GenerationStats
from ..engine import Event
from ..errors import written
from ..models.base import EncoderDecoder
from ..session import Session
from .common import note_unknown, printing, say
from .divergence import first_divergence
from .flags import Views
from .parser import flag
from .summary import comparison_table
from .views import INTERRUPTED, DraftView, Trace, Watcher, make_console, plain_text, watch

SPECULATIVE, BASELINE, DRAFT = "speculative", "baseline", "draft"  # DRAFT: the draft model without the target
IDENTICAL = "identical"
SPACES = dict.fromkeys(map(ord, "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"), " ")  # for each line break


def decoding_modes(session: Session) -> list[str]:
    """Return the modes that this session supports. The first one produces the answer."""
    modes = [BASELINE] if session.options_with({}).drafter == "none" else [SPECULATIVE, BASELINE]
    if isinstance(session.draft_model, EncoderDecoder):  # a head needs the target
        modes.append(DRAFT)
    return modes


def decode(session: Session, mode: str, prompt: str | Sequence[int], *, timed: bool = False) -> Iterator[Event]:
    """Decode the prompt in this mode."""
    if mode == SPECULATIVE:
        return session.rounds(prompt, timed=timed)
    if mode == DRAFT:
        assert isinstance(session.draft_model, EncoderDecoder)
        session = Session(session.draft_model, session.tokenizer, options=replace(session.options, drafter="none"))
    # The baseline uses the fastest passes, even if speculative decoding uses exact ones.
    return session.rounds(prompt, timed=timed, drafter="none", strict=False)


def warm_up(session: Session, prompt: str | Sequence[int]) -> None:
    """Decode a few tokens in each mode, because the first passes of a process are slow."""
    # Use a copy of the session, so that the drafter does not learn from these tokens.
    session = replace(session, ngram=None, options=replace(session.options, max_tokens=4))
    for mode in reversed(decoding_modes(session)):
        list(decode(session, mode, prompt))


def note_exactness(session: Session, slots: int = 1) -> None:
    """Print a note if drafting or batching may change the output."""
    if note := session.planner.exactness_note(session.options_with({}), slots):
        say(f"note: {written(note, flag)}")


@dataclass
class PromptRunner:
    """Decodes prompts, displays the texts, and accumulates statistics for each mode.

    Args:
        console: Writes to standard error.
        show_draft: None, "text" or "rounds".
        traces: Additional watchers of the answer.
        in_one_line: Print an answer in one line: write a space for each of its line breaks.
    """

    console: Console
    show_draft: str | None = None
    traces: Sequence[Watcher] = ()
    in_one_line: bool = False

    totals: dict[str, GenerationStats] = field(default_factory=dict)  # by mode
    num_prompts: int = 0
    num_cut: int = 0  # answers that ended at max_tokens
    num_identical: Counter[str] = field(default_factory=Counter)  # by mode: texts identical to the baseline's
    _explained: str | None = None  # the show_draft value whose legend was printed last
    _unknown: set[str] = field(default_factory=set)  # unknown characters reported so far
    _joined: bool = False  # whether a note about line breaks was printed

    @classmethod
    def from_views(cls, views: Views) -> PromptRunner:
        return cls(make_console(), views.show_draft, [] if views.trace is None else [Trace(views.trace)])

    def run(
        self,
        session: Session,
        modes: Sequence[str],
        prompt: str,
        is_stopped: Callable[[], bool] = lambda: False,
        *,
        tokens: Sequence[int] | None = None,
    ) -> dict[str, GenerationResult]:
        """Decode the prompt in each mode, and print a comparison if there are several.

        The first mode produces the answer: it runs last, and only its text goes to standard output.

        Args:
            session: The session to decode with.
            modes: From `decoding_modes`.
            prompt: The source text.
            is_stopped: Checked after each round.
            tokens: The source tokens, if the prompt is already tokenized.
        """
        if tokens is None:
            tokens = source_tokens(session, prompt)
        note_unknown(session.tokenizer, prompt, tokens, self._unknown)
        if self.show_draft not in (None, self._explained):
            DraftView(self.console, session.tokenizer).legend()
        self._explained = self.show_draft

        results = {}
        for mode in reversed(modes):
            if len(modes) > 1:
                self.console.print(f"{mode}:", style="bold")
            results[mode] = self._run_mode(session, mode, tokens, is_stopped, is_answer=mode == modes[0])
            if is_stopped():
                self.console.print("stopped")
                break

        rows = {}
        for mode in (mode for mode in (BASELINE, DRAFT, SPECULATIVE) if mode in results):
            agreement = agreement_with_baseline(mode, session, tokens, results)
            rows[mode] = (results[mode].stats, agreement)
            self.num_identical[mode] += agreement == IDENTICAL
            self.totals.setdefault(mode, GenerationStats()).add(results[mode].stats)
        self.num_prompts += 1
        self.num_cut += modes[0] in results and results[modes[0]].finish_reason == "length"
        if len(rows) > 1:
            self.console.print(comparison_table(rows, BASELINE))
        return results

    def run_several(self, session: Session, prompt: str, *, tokens: Sequence[int] | None = None) -> None:
        """Print all requested outputs to standard output, one per line, best first. tokens: see `run`."""
        if tokens is None:
            tokens = source_tokens(session, prompt)
        note_unknown(session.tokenizer, prompt, tokens, self._unknown)
        result = session.generate(tokens)
        for sequence in result.sequences:
            with printing():
                print(self._printed(sequence.text), flush=True)
        if result.score is not None:
            say("scores " + ", ".join(f"{sequence.score:.4f}" for sequence in result.sequences))
        self.totals.setdefault(decoding_modes(session)[0], GenerationStats()).add(result.stats)
        self.num_prompts += 1
        self.num_cut += any(sequence.finish_reason == "length" for sequence in result.sequences)

    def print_totals(self) -> None:
        """Print a comparison of all prompts, if there was more than one."""
        if self.num_prompts > 1:
            rows = {
                mode: (
                    stats,
                    "" if mode == BASELINE else f"{self.num_identical[mode]} of {self.num_prompts} {IDENTICAL}",
                )
                for mode, stats in self.totals.items()
            }
            self.console.print(f"{self.num_prompts} prompts:", style="bold")
            self.console.print(comparison_table(rows, BASELINE))

    def _printed(self, text: str) -> str:
        """Return the text as it is printed. Says once if it changes the line breaks of an output."""
        if not self.in_one_line:
            return text
        line = text.translate(SPACES)
        if line != text and not self._joined:
            self._joined = True
            say("note: an output has line breaks, which are written as spaces; the records of --input keep them")
        return line

    def _run_mode(
        self, session: Session, mode: str, tokens: Sequence[int], is_stopped: Callable[[], bool], *, is_answer: bool
    ) -> GenerationResult:
        watchers: list[Watcher] = []
        shows_draft = self.show_draft is not None and (is_answer or mode == SPECULATIVE)
        if shows_draft:
            watchers.append(DraftView(self.console, session.tokenizer, rounds=self.show_draft == "rounds"))
        if not shows_draft or (is_answer and not have_same_destination()):
            watchers.append(plain_text(sys.stdout, self._printed) if is_answer else plain_text(sys.stderr))
        traces = self.traces if is_answer else ()
        timed = shows_draft or bool(traces)
        return watch(decode(session, mode, tokens, timed=timed), [*watchers, *traces], is_stopped)


def source_tokens(session: Session, prompt: str) -> list[int]:
    """Tokenize a prompt with the session's options. Raises `InputError` for an unsuitable prompt."""
    options = session.options
    return encode_prompt(session.model, session.tokenizer, prompt, options.allow_long_prompt, options.src_lang)


def have_same_destination() -> bool:
    """Return whether standard output and standard error are the same terminal, pipe or file."""
    try:
        return os.path.samestat(os.fstat(sys.stdout.fileno()), os.fstat(sys.stderr.fileno()))
    except OSError:  # a replaced stream may have no file descriptor
        return False


def agreement_with_baseline(
    mode: str, session: Session, tokens: Sequence[int], results: Mapping[str, GenerationResult]
) -> str:
    """Compare the output of a mode with the baseline's in a few words; empty if there is nothing to compare."""
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
    difference = first_divergence(
        session.model, session.tokenizer, tokens, baseline.tokens, result.tokens, session.options
    )
    assert difference is not None
    return f"differs at token {difference.position}"
