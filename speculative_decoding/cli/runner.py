"""Decodes prompts one after another, prints each output as it is generated, and summarizes the statistics."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ..decoding.prompt import encode_prompt
from ..decoding.results import GenerationResult, GenerationStats
from ..draft_length.store import COMPARISON
from ..drafters.base import MEMORY, MODEL, TEXT
from ..engine import Event
from ..errors import shown
from ..loading.tokenizer import unknown_characters
from ..sampling import GenerationOptions
from ..session import Session
from .common import printing, say
from .parser import flag

if TYPE_CHECKING:
    from rich.console import Console

    from ..runs.log import Log

SPECULATIVE, BASELINE = "speculative", "baseline"  # modes of decoding
INTERRUPTED = "interrupted"  # finish_reason of a generation that the user stopped
SPACES = dict.fromkeys(map(ord, "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"), " ")  # a space for each line break

Watcher = Callable[[Event | None], None]  # shows an event; called with None after the last event
IsStopped = Callable[[], bool] | None  # whether the user has stopped the output
OPTIONS: dict[str, dict[str, Any]] = {  # keyed by mode; the baseline uses the fastest passes, exact or not
    SPECULATIVE: {},
    BASELINE: {"drafter": "none", "strict": False},
}


def note_exactness(session: Session, slots: int = 1) -> None:
    """Print a note if drafting or batching may change the output."""
    if note := session.planner.exactness_note(session.options_with({}), slots):
        say(f"note: {shown(note, flag)}")


def settle_exactness(session: Session, slots: int, log: Log | None) -> None:
    """Decide whether passes are exact, unless an earlier run has made this decision.

    log: The log of a resumable output. "exact" and the comparison method are added to the log's settings.
    """
    recorded = {} if log is None else log.settings
    options = session.options_with({})
    if options.num_beams > 1:
        return
    if options.strict is not None or "exact" not in recorded:
        note_exactness(session, slots)
    if options.strict is None:
        if "exact" not in recorded:
            recorded["exact"] = session.planner.widths(options, slots).exact
        session.options = session.options.with_values(strict=recorded["exact"])
    if session.options_with({}).strict and session.planner.exact_widths is not None:
        if log is None or log.is_new:
            recorded["comparison"] = COMPARISON
        elif recorded.get("comparison") != COMPARISON:
            say(
                "note: an earlier version compared passes less strictly when this output was started; the tokens of "
                "its first records may differ at near-ties"
            )


def answer_mode(session: Session) -> str:
    """Return the mode that produces the answer."""
    return BASELINE if session.options_with({}).drafter == "none" else SPECULATIVE


class PromptRunner:
    """Decodes prompts, shows their outputs, and adds up statistics.

    Attributes:
        show_draft: None, "text" or "rounds".
        in_one_line: Whether to print an answer on one line, with its line breaks replaced by spaces.
        total: Statistics of the answers.
        num_prompts: The number of prompts so far.
        num_cut: The number of answers that ended at max_tokens.
    """

    def __init__(self, show_draft: str | None = None, trace: Path | None = None, *, in_one_line: bool = False) -> None:
        self.show_draft = show_draft
        self.in_one_line = in_one_line
        self.total = GenerationStats()
        self.num_prompts = 0
        self.num_cut = 0
        self._trace: Watcher | None = None
        if trace is not None:
            from .views import Trace

            self._trace = Trace(trace)
        self._explained: str | None = None  # the show_draft value whose legend was printed last
        self._unknown: set[str] = set()  # unknown characters reported so far
        self._joined = False  # whether a note about line breaks was printed

    @cached_property
    def console(self) -> Console:
        """A console that writes to standard error."""
        from .views import make_console

        return make_console()

    def run(
        self, session: Session, prompt: str, is_stopped: IsStopped = None, *, tokens: Sequence[int] | None = None
    ) -> GenerationResult | None:
        """Decode a prompt, and print the answer to standard output.

        Args:
            session: The session to decode with.
            prompt: The source text.
            is_stopped: Checked after each round.
            tokens: The source tokens, if the prompt is already tokenized.

        Returns:
            The answer, or None if the user stopped decoding before the answer began.
        """
        model, tokenizer, options = session.model, session.tokenizer, session.options
        if tokens is None:
            tokens = encode_prompt(
                model, tokenizer, prompt, options.allow_long_prompt, options.src_lang, options.tgt_lang
            )
        if found := [each for each in unknown_characters(tokenizer, prompt, tokens) if each not in self._unknown]:
            self._unknown.update(found)
            say(f"note: the vocabulary has no {' '.join(map(repr, found))}; the model reads <unk> instead")
        if options.num_return_sequences > 1:
            result: GenerationResult | None = self.several(session, tokens)
        else:
            result = self.answer(session, tokens, is_stopped)
        self.num_prompts += 1
        if result is not None:
            self.total.add(result.stats)
            self.num_cut += any(each.finish_reason == "length" for each in result.sequences or [result])
        return result

    def answer(self, session: Session, tokens: Sequence[int], is_stopped: IsStopped = None) -> GenerationResult | None:
        """Decode source tokens and print the text to standard output. Returns what `run` returns."""
        watchers: list[Watcher] = []
        if self.show_draft is not None:
            from .views import DraftView

            watchers.append(view := DraftView(self.console, session.tokenizer, rounds=self.show_draft == "rounds"))
            if self.show_draft != self._explained:
                view.legend()
        self._explained = self.show_draft
        if self.show_draft is None or not have_same_destination():
            watchers.append(partial(print_text, file=sys.stdout, convert=self._printed))
        if self._trace is not None:
            watchers.append(self._trace)
        timed = self.show_draft is not None or self._trace is not None
        events = session.rounds(tokens, timed=timed, **OPTIONS[answer_mode(session)])
        result = watch(events, watchers, is_stopped)
        if is_stopped is not None and is_stopped():
            self.console.print("stopped")
        return result

    def several(self, session: Session, tokens: Sequence[int]) -> GenerationResult:
        """Print all requested outputs to standard output, one per line, best first."""
        result = session.generate(tokens)
        for sequence in result.sequences:
            with printing():
                print(self._printed(sequence.text), flush=True)
        if result.score is not None:
            say("scores " + ", ".join(f"{sequence.score:.4f}" for sequence in result.sequences))
        return result

    def finish(self, session: Session) -> GenerationStats:
        """Print a summary of all prompts, and return the statistics of the answers."""
        options = session.options_with({})
        say(run_summary(self.total, options, self.num_prompts, self.num_cut))
        if self.show_draft and isinstance(options.num_draft_tokens, str) and answer_mode(session) != BASELINE:
            say(f"--num-draft {options.num_draft_tokens}: {session.planner.draft_length(options).describe()}")
        return self.total

    def _printed(self, text: str) -> str:
        """Return the text as it should be printed. Prints a note the first time that line breaks are replaced."""
        if not self.in_one_line:
            return text
        line = text.translate(SPACES)
        if line != text and not self._joined:
            self._joined = True
            say("note: an output has line breaks, which are written as spaces; the records of a batch keep them")
        return line


def watch(events: Iterator[Event], watchers: Sequence[Watcher] = (), is_stopped: IsStopped = None) -> GenerationResult:
    """Pass each event of a generation to the watchers, until it finishes or `is_stopped()` is true after a round."""
    for event in events:
        if not event.texts:  # beam search yields an output only in its last round
            continue
        for watcher in watchers:
            watcher(event)
        if is_stopped is not None and is_stopped():
            break
    for watcher in watchers:
        watcher(None)
    request = event.request
    return GenerationResult(request.text, request.tokens, request.finish_reason or INTERRUPTED, request.stats)


def print_text(event: Event | None, file: TextIO, convert: Callable[[str], str] = str) -> None:
    """Watcher that prints the text as it is generated, and a final newline. convert: applied to each piece of text."""
    with printing():
        print("\n" if event is None else convert("".join(event.texts)), end="", flush=True, file=file)


def have_same_destination() -> bool:
    """Return whether standard output and standard error are the same terminal, pipe or file."""
    try:
        return os.path.samestat(os.fstat(sys.stdout.fileno()), os.fstat(sys.stderr.fileno()))
    except OSError:  # a stream that replaces the original may have no file descriptor
        return False


def tokens_per_second(stats: GenerationStats) -> float:
    """Return the tokens per second, including the time for encoding."""
    return stats.generated_tokens / max(stats.encode_seconds + stats.decode_seconds, 1e-9)


def run_summary(stats: GenerationStats, options: GenerationOptions, num_texts: int, num_cut: int) -> str:
    """Summarize prompts that were decoded one after another. num_cut: how many outputs ended at max_tokens."""
    times = f"decode {stats.decode_seconds:.3f} s"
    if stats.draft_seconds is not None and stats.verify_seconds is not None:
        times = f"draft {stats.draft_seconds:.3f} s, verify {stats.verify_seconds:.3f} s"
    lines = [
        f"{stats.generated_tokens} tokens at {stats.generation_tps:.1f} tokens/s; "
        f"{stats.target_calls} target calls, {stats.tokens_per_target_call:.2f} tokens per call",
        *summary_notes(stats, options, num_texts, num_cut),
        f"encode {stats.encode_seconds:.3f} s, {times}; peak memory {stats.peak_memory_bytes / 1e9:.2f} GB",
    ]
    return "\n".join(lines)


def summary_notes(stats: GenerationStats, options: GenerationOptions, num_texts: int, num_cut: int) -> list[str]:
    """Return the notes that apply to this run: acceptance, outputs cut at max_tokens, lossy decoding."""
    notes: list[str] = []
    if stats.drafted_tokens:
        note = f"accepted {stats.accepted_tokens} of {stats.drafted_tokens} draft tokens ({stats.acceptance_rate:.1%})"
        drafted, accepted = stats.drafted_by_kind, stats.accepted_by_kind
        if len(drafted) > 1 or {TEXT, MEMORY} & drafted.keys():
            note += ": " + ", ".join(f"{kind} {accepted[kind]} of {drafted[kind]}" for kind in drafted)
        notes.append(note)
    if stats.declined_by_kind[MODEL] > (tried := stats.drafted_by_kind[MODEL]):
        result = f"dropped after {tried} draft tokens" if tried else "not used"
        notes.append(f"the draft model was {result}, because no draft length promised a speedup")
    if num_cut:
        which = f": {num_cut} of {num_texts} texts" if num_texts > 1 else f" {options.max_tokens}"
        notes.append(f"stopped at --max-tokens{which}")
    if not stats.lossless:
        variation = stats.delta_total_variation
        measured = f"measured total variation {variation:.4f} per token"
        if options.is_greedy:
            measured = f"{variation:.1%} of the tokens are not the target's first choice"
        delta = f"--delta {options.delta:g}" if options.delta else "the delta of a line"
        notes.append(f"LOSSY: {delta} accepts tokens that the baseline would not generate; {measured}")
    return notes
