"""The summary of a run says only what applies to it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from speculative_decoding import GenerationOptions, GenerationStats
from speculative_decoding.cli.runner import run_summary

STATS = GenerationStats(generated_tokens=30, target_calls=10, encode_seconds=0.5, decode_seconds=1.0)
DRAFTED = replace(STATS, drafted_tokens=40, accepted_tokens=20)


def of_kinds(**counts: tuple[int, int]) -> GenerationStats:
    """Return statistics with (accepted, drafted) tokens by kind."""
    accepted, drafted = (Counter({kind: each[i] for kind, each in counts.items()}) for i in range(2))
    return replace(DRAFTED, drafted_by_kind=drafted, accepted_by_kind=accepted)


@pytest.mark.parametrize(
    ("stats", "options", "num_texts", "num_cut", "notes"),
    [
        (STATS, {}, 1, 0, []),
        (DRAFTED, {}, 2, 0, ["accepted 20 of 40 draft tokens (50.0%)"]),
        (of_kinds(copy=(20, 40)), {}, 2, 0, ["accepted 20 of 40 draft tokens (50.0%)"]),
        (of_kinds(text=(20, 40)), {}, 2, 0, ["accepted 20 of 40 draft tokens (50.0%): text 20 of 40"]),
        (
            of_kinds(copy=(0, 2), model=(15, 28), memory=(5, 10)),
            {},
            2,
            0,
            ["accepted 20 of 40 draft tokens (50.0%): copy 0 of 2, model 15 of 28, memory 5 of 10"],
        ),
        (
            replace(STATS, declined_by_kind=Counter(model=2)),
            {},
            1,
            0,
            ["the draft model was not used, because no draft length promised a speedup"],
        ),
        (
            replace(of_kinds(copy=(19, 36), model=(1, 4)), declined_by_kind=Counter(model=5, copy=3)),
            {},
            1,
            0,
            [
                "accepted 20 of 40 draft tokens (50.0%): copy 19 of 36, model 1 of 4",
                "the draft model was dropped after 4 draft tokens, because no draft length promised a speedup",
            ],
        ),
        (
            replace(of_kinds(model=(20, 40)), declined_by_kind=Counter(model=5)),
            {},
            1,
            0,
            ["accepted 20 of 40 draft tokens (50.0%)"],
        ),
        (STATS, {"max_tokens": 3}, 1, 1, ["stopped at --max-tokens 3"]),
        (STATS, {}, 4, 2, ["stopped at --max-tokens: 2 of 4 texts"]),
        (
            replace(DRAFTED, lossless=False, total_variation=3.0),
            {"delta": 0.5},
            1,
            0,
            [
                "accepted 20 of 40 draft tokens (50.0%)",
                "LOSSY: --delta 0.5 accepts tokens that the baseline would not generate; 10.0% of the tokens are not "
                "the target's first choice",
            ],
        ),
        (
            replace(STATS, lossless=False, total_variation=3.0),
            {"temperature": 1.0, "acceptance": "rejection"},
            1,
            0,
            [
                "LOSSY: the delta of a line accepts tokens that the baseline would not generate; measured total "
                "variation 0.1000 per token"
            ],
        ),
    ],
)
def test_a_summary_has_the_notes_that_apply(
    stats: GenerationStats, options: dict[str, object], num_texts: int, num_cut: int, notes: list[str]
) -> None:
    first, *found, last = run_summary(stats, GenerationOptions(**options), num_texts, num_cut).splitlines()  # type: ignore[arg-type]
    assert first.startswith("30 tokens at ") and first.endswith("; 10 target calls, 3.00 tokens per call")
    assert found == notes and last.startswith("encode 0.500 s, decode 1.000 s; peak memory ")


def test_the_times_of_drafting_and_verification_replace_the_time_of_decoding() -> None:
    timed = replace(DRAFTED, draft_seconds=0.25, verify_seconds=0.5)
    assert "encode 0.500 s, draft 0.250 s, verify 0.500 s; " in run_summary(timed, GenerationOptions(), 1, 0)
