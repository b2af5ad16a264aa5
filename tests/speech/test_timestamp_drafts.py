"""Greedy drafts from some of the ids follow two of the rules for timestamps."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

from speculative_decoding.drafters.base import RequestView
from speculative_decoding.drafters.draft_sampler import DraftSampler, OutputHead
from speculative_decoding.sampling import Constraints, GenerationOptions
from speculative_decoding.speech.timestamp_rules import TimestampRules

END, ZERO = 10, 20  # text below, timestamps from
IDS = [END, 3, 5, ZERO, ZERO + 1, ZERO + 2]
VOCAB = ZERO + 5


def head_of(ids: Sequence[int], logits: Sequence[float]) -> OutputHead:
    """A head over these ids, which gives them these logits at every position."""
    whole = mx.zeros((1, VOCAB))
    whole[:, mx.array(ids)] = mx.array([logits])
    model: Any = SimpleNamespace(
        config=SimpleNamespace(vocab_size=VOCAB), logits=None, head_of=lambda some: lambda states: whole[:, some]
    )
    model.embed = lambda tokens: mx.zeros((*tokens.shape, 4))
    head = OutputHead(model, VOCAB, ids)
    head.use_sources([[]])
    return head


@pytest.mark.usefixtures("device")
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
    sampler = DraftSampler({request: 2}, 1, head_of(IDS, logits))
    assert [sampler.choose(mx.zeros((1, 4))).item() for _ in range(2)] == expected


@pytest.mark.parametrize("ids", [[3, 5, END], [ZERO, ZERO + 1]], ids=["no timestamps", "only timestamps"])
def test_ids_of_one_kind_are_drafted_under_all_rules(ids: Sequence[int]) -> None:
    constraints = Constraints(processor=TimestampRules(1, END, ZERO))
    request = RequestView(GenerationOptions(), [], [15, ZERO, 3], constraints=constraints)
    head = head_of(ids, [0.0, 1.0, 0.5][: len(ids)])
    assert DraftSampler({request: 1}, 1, head).choose(mx.zeros((1, 4))).item() == ids[1]
