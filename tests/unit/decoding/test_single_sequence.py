"""The method on one screen gives the engine's tokens, with the same random numbers."""

from __future__ import annotations

import pytest

from speculative_decoding.decoding.single_sequence import speculative_decode
from tests.support.tiny import SOURCES, model_drafter, noisy_copy, run, tiny_model, tokens_of

TARGET = tiny_model()
DRAFT = noisy_copy(TARGET, 0.2)
BASELINE = [tokens_of(run(TARGET, source)) for source in SOURCES]


@pytest.mark.parametrize("num_draft_tokens", [0, 1, 8])
def test_greedy_tokens_equal_those_of_the_engine_and_the_baseline(num_draft_tokens: int) -> None:
    for source, baseline in zip(SOURCES, BASELINE, strict=True):
        found = speculative_decode(TARGET, DRAFT, source, num_draft_tokens=num_draft_tokens, max_tokens=30)
        assert found == baseline
        assert found == tokens_of(run(TARGET, source, model_drafter(TARGET, DRAFT), num_draft_tokens=num_draft_tokens))


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("num_draft_tokens", "temperature"), [(0, 1.0), (1, 1.0), (4, 0.6), (4, 2.0)])
def test_sampled_tokens_equal_those_of_the_engine(num_draft_tokens: int, temperature: float) -> None:
    """Therefore they follow the target's distribution: test_sampling_distribution.py tests this for the engine."""
    accepted = 0
    for seed, source in enumerate(SOURCES):
        options = {"num_draft_tokens": num_draft_tokens, "temperature": temperature, "seed": seed, "max_tokens": 20}
        rounds = run(TARGET, source, model_drafter(TARGET, DRAFT), **options)
        assert speculative_decode(TARGET, DRAFT, source, **options) == tokens_of(rounds)
        accepted += sum(round.accepted for round in rounds)
    assert accepted > 10 or num_draft_tokens == 0
