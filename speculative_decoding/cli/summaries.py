"""Statistics for readers: a few lines, a table of several ways of decoding, bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from ..decoding.stats import GenerationStats
from ..sampling import GenerationOptions
from .ways import DRAFTER, NGRAM, SPECULATIVE, TARGET

NARROW = 60  # columns: below it a table shows what matters most
SHORT = {SPECULATIVE: "spec.", NGRAM: "ngram", TARGET: "target", DRAFTER: "draft"}


def share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def speed(stats: GenerationStats) -> float:
    """Tokens per second of whole requests: encoding, and all rounds with their drafts."""
    return stats.generated_tokens / max(stats.encode_seconds + stats.decode_seconds, 1e-9)


def accepted(stats: GenerationStats) -> str:
    return f"accepted {stats.accepted_tokens} of {stats.drafted_tokens} drafted tokens"


def summary(stats: GenerationStats, options: GenerationOptions) -> str:
    times = f"decode {stats.decode_seconds:.3f} s"
    if stats.draft_seconds is not None and stats.verify_seconds is not None:
        times = f"draft {stats.draft_seconds:.3f} s, verify {stats.verify_seconds:.3f} s"
    lines = [
        f"{stats.generated_tokens} tokens at {stats.generation_tps:.1f} tokens/s; "
        f"{stats.target_calls} target calls, {stats.tokens_per_target_call:.2f} tokens per call",
        f"{accepted(stats)} ({stats.acceptance_rate:.1%})",
        f"encode {stats.encode_seconds:.3f} s, {times}; peak memory {stats.peak_memory_bytes / 1e9:.2f} GB",
    ]
    return "\n".join(lines if stats.lossless else [*lines, lossy(stats, options)])


def lossy(stats: GenerationStats, options: GenerationOptions) -> str:
    """What a lossy run is to be told of."""
    price = stats.delta_total_variation
    measured = f"measured total variation {price:.4f} per token"
    if options.is_greedy:
        measured = f"{price:.1%} of the tokens are not the target's first choice"
    return f"LOSSY: --delta {options.delta:g} accepts tokens that the target alone would not write; {measured}"


def table(console: Console, rows: Mapping[str, tuple[GenerationStats, str]], *, same_prompts: bool = True) -> Table:
    """rows: for each way its statistics, and how its text relates to the target's.

    same_prompts: only then can speeds be compared.
    """
    regular = speed(rows[TARGET][0]) if same_prompts and TARGET in rows else None
    is_narrow = console.width < NARROW
    made = Table(box=None, padding=(0, 1 if is_narrow else 2, 0, 0), header_style="bold")
    wide = ("", "tokens", "calls", "tokens/s", "speed-up", "accepted", "text")
    for heading in ("", "tok/s", "gain", "acc.", "") if is_narrow else wide:
        made.add_column(heading, justify="left" if heading in ("", "text") else "right")
    for way, (stats, text) in rows.items():
        made.add_row(
            SHORT[way] if is_narrow else way,
            *([] if is_narrow else [str(stats.generated_tokens), str(stats.target_calls)]),
            f"{speed(stats):.1f}",
            "" if regular is None or way == TARGET else f"{speed(stats) / regular - 1:+.1%}",
            share(stats.accepted_tokens, stats.drafted_tokens) if way in (SPECULATIVE, NGRAM) else "",
            text,
        )
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
