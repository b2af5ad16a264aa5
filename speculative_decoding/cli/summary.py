"""Formats statistics: the summary of a run or of a file of prompts, and a table that compares decoding modes."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from ..decoding.stats import GenerationStats
from ..jobs import JobTotals
from ..sampling import GenerationOptions


def tokens_per_second(stats: GenerationStats) -> float:
    """Return the speed of whole requests, including the encoder."""
    return stats.generated_tokens / max(stats.encode_seconds + stats.decode_seconds, 1e-9)


def run_summary(stats: GenerationStats, options: GenerationOptions, num_texts: int, num_cut: int) -> str:
    """Summarize prompts that were decoded one after another. num_cut: texts that ended at max_tokens."""
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


def job_summary(totals: JobTotals, options: GenerationOptions) -> str:
    """Summarize a file of prompts."""
    stats = totals.stats
    errors = ""
    if totals.errors:
        lines = ", ".join(map(str, totals.error_lines))
        errors = f", {totals.errors} of them errors" + (f" (first errors of this run: lines {lines})" if lines else "")
    text = (
        f"{totals.lines} lines{errors}; {stats.generated_tokens} tokens of {totals.rows} rows in {totals.seconds:.1f} s"
    )
    if totals.rows:
        text += (
            f"\nfirst token after {totals.mean_time_to_first_token:.3f} s on average; "
            f"decoding {totals.decode_tps:.1f} tokens/s, end to end {totals.end_to_end_tps:.1f} tokens/s"
            f"\n{stats.target_calls} iterations, {stats.tokens_per_target_call:.2f} tokens per iteration"
            f"\nencode {totals.encode_seconds:.3f} s, decode {totals.decode_seconds:.3f} s; "
            f"peak memory {stats.peak_memory_bytes / 1e9:.2f} GB"
        )
    return "\n".join([text, *summary_notes(stats, options, totals.rows, totals.cut)])


def summary_notes(stats: GenerationStats, options: GenerationOptions, num_texts: int, num_cut: int) -> list[str]:
    """Return the notes that apply to this run: acceptance, texts cut at max_tokens, lossy decoding."""
    notes = []
    if stats.drafted_tokens:
        notes.append(
            f"accepted {stats.accepted_tokens} of {stats.drafted_tokens} draft tokens ({stats.acceptance_rate:.1%})"
        )
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
