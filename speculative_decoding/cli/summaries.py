"""Statistics for readers: a few lines, a table of several ways of decoding, bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from ..decoding.stats import GenerationStats
from ..sampling import GenerationOptions


def share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def speed(stats: GenerationStats) -> float:
    """Tokens per second of whole requests: encoding, and all rounds with their drafts."""
    return stats.generated_tokens / max(stats.encode_seconds + stats.decode_seconds, 1e-9)


def accepted(stats: GenerationStats) -> str:
    return f"accepted {stats.accepted_tokens} of {stats.drafted_tokens} drafted tokens"


def summary(stats: GenerationStats, options: GenerationOptions, texts: int, cut: int) -> str:
    """cut: how many of the texts ended at max_tokens."""
    times = f"decode {stats.decode_seconds:.3f} s"
    if stats.draft_seconds is not None and stats.verify_seconds is not None:
        times = f"draft {stats.draft_seconds:.3f} s, verify {stats.verify_seconds:.3f} s"
    lines = [
        f"{stats.generated_tokens} tokens at {stats.generation_tps:.1f} tokens/s; "
        f"{stats.target_calls} target calls, {stats.tokens_per_target_call:.2f} tokens per call",
        f"encode {stats.encode_seconds:.3f} s, {times}; peak memory {stats.peak_memory_bytes / 1e9:.2f} GB",
    ]
    if stats.drafted_tokens:
        lines.insert(1, f"{accepted(stats)} ({stats.acceptance_rate:.1%})")
    if cut:
        lines.append(f"stopped at --max-tokens {options.max_tokens}" + (f": {cut} of {texts} texts" * (texts > 1)))
    return "\n".join(lines if stats.lossless else [*lines, lossy(stats, options)])


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
        kept = share(stats.accepted_tokens, stats.drafted_tokens) if stats.drafted_tokens else ""
        counts = str(stats.generated_tokens), str(stats.target_calls)
        made.add_row(way, *counts, f"{speed(stats):.1f}", gain, kept, text)
    return made


def accepted_bars(histogram: Mapping[int, int], width: int) -> Sequence[str]:
    """A line for each number of accepted tokens, from 0 to the most: how many rounds had it."""
    rounds, most = sum(histogram.values()), max(histogram.values(), default=0)
    room = max(width - 24, 8)
    return [
        f"{count:3d} accepted {share(histogram.get(count, 0), rounds):>6} "
        + "#" * round(room * histogram.get(count, 0) / most)
        for count in range(max(histogram, default=-1) + 1)
    ]
