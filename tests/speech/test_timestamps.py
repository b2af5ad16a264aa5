"""Greedy drafts from some of the ids follow two of the rules for timestamps."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import pytest

from speculative_decoding.drafters.base import DraftRequest, RequestView
from speculative_decoding.drafters.draft_model import OutputHead
from speculative_decoding.drafters.model import DraftSampler
from speculative_decoding.sampling import Constraints, GenerationOptions
from speculative_decoding.speech.timestamp_rules import TimestampRules

END, ZERO = 10, 20  # text below, timestamps from
IDS = [END, 3, 5, ZERO, ZERO + 1, ZERO + 2]


@pytest.mark.parametrize(
    ("tokens", "logits", "expected"),
    [
        ([15, ZERO, 3], [0.0, 0, 1.0, 0.4, 0.4, 0.5], [ZERO + 2, ZERO + 2]),  # together more likely than 5, then again
        ([15, ZERO, 3], [0.0, 0, 3.0, 0.4, 0.4, 0.5], [5, 5]),
        ([ZERO, 3, ZERO + 1], [0.0, 0, 3.0, 0, 0, 0], [ZERO + 1, 5]),  # the next segment starts, then its text
        ([ZERO, 3, ZERO + 1], [4.0, 0, 3.0, 0, 0, 0], [END, END]),
        ([15], [0.0, 0, 3.0, 0, 0, 0], [5, 5]),  # English-only models have no language
        ([14, 15, ZERO], [0.0, 0, 3.0, 0, 0, 0], [5, 5]),  # the first timestamp ends no segment
    ],
)
def test_drafts_repeat_and_prefer_timestamps(
    tokens: Sequence[int], logits: Sequence[float], expected: Sequence[int]
) -> None:
    constraints = Constraints(processor=TimestampRules(1, END, ZERO))
    request = RequestView(GenerationOptions(), [], list(tokens), constraints=constraints)
    head = OutputHead(lambda states: mx.array([logits]), mx.array(IDS, mx.uint32), ZERO + 5)
    sampler = DraftSampler([DraftRequest(request, 2)], 1, head)
    assert [sampler.choose(mx.zeros((1, 4))).item() for _ in range(2)] == expected


@pytest.mark.parametrize("ids", [[3, 5, END], [ZERO, ZERO + 1]], ids=["no timestamps", "only timestamps"])
def test_ids_of_one_kind_are_drafted_under_all_rules(ids: Sequence[int]) -> None:
    constraints = Constraints(processor=TimestampRules(1, END, ZERO))
    request = RequestView(GenerationOptions(), [], [15, ZERO, 3], constraints=constraints)
    head = OutputHead(lambda states: mx.array([[0.0, 1.0, 0.5][: len(ids)]]), mx.array(ids, mx.uint32), ZERO + 5)
    assert DraftSampler([DraftRequest(request, 1)], 1, head).choose(mx.zeros((1, 4))).item() == ids[1]
