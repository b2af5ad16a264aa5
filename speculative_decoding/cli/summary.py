"""Formats the statistics of a run."""

from __future__ import annotations

from ..decoding.results import GenerationStats
from ..drafters.base import MEMORY, TEXT
from ..sampling import GenerationOptions


def tokens_per_second(stats: GenerationStats) -> float:
    """Return the speed of whole requests, including the encoder."""
    return stats.generated_tokens / max(stats.encode_seconds + stats.decode_seconds, 1e-9)


def run_summary(stats: GenerationStats, options: GenerationOptions, num_texts: int, num_cut: int) -> str:
    """Summarize prompts that were decoded one after another. num_cut: the number of texts that ended at max_tokens."""
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
    """Return the notes that apply to this run: acceptance, texts cut at max_tokens, lossy decoding."""
    notes: list[str] = []
    if stats.drafted_tokens:
        note = f"accepted {stats.accepted_tokens} of {stats.drafted_tokens} draft tokens ({stats.acceptance_rate:.1%})"
        notes.append(note + kinds_of_draft(stats))
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


def kinds_of_draft(stats: GenerationStats) -> str:
    """Return the counts of each kind of draft, to follow their sums; "" for a single kind, unless it is a text."""
    drafted, accepted = stats.drafted_by_kind, stats.accepted_by_kind
    if len(drafted) < 2 and not {TEXT, MEMORY} & drafted.keys():
        return ""
    return ": " + ", ".join(f"{kind} {accepted[kind]} of {drafted[kind]}" for kind in drafted)
