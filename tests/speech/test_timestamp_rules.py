"""The rules for timestamps against openai-whisper's loop over one position, and with drafts against no drafts."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import mlx.core as mx
import pytest

from speculative_decoding.sampling import Constraints, History, processed_logits
from speculative_decoding.sampling.options import GenerationOptions
from speculative_decoding.speech.timestamp_rules import TimestampRules
from tests.support.tiny import DRAFTERS, SOURCES, noisy_copy, run, tiny_model, tokens_of
from tests.support.together import drafter_of_rows, options_of, together

VOCAB = 24
TEXT_END = 10  # also the end token
ZERO = 14
BLANK = 3


def naive_rules(logits: Sequence[float], before: Sequence[int], own: TimestampRules) -> list[float]:
    """openai-whisper 20250625, `ApplyTimestampRules.apply`, for one row.

    Ids from `added_from` on, which OpenAI's vocabularies do not have, are like other text.
    """
    found = list(logits)
    stop = len(found) if own.added_from is None else own.added_from
    times = range(own.zero, stop)
    sampled = list(before[own.begin :])

    def forbid(start: int, end: int) -> None:
        for token in range(start, end):
            found[token] = -math.inf

    last_was_timestamp = len(sampled) >= 1 and sampled[-1] in times
    penultimate_was_timestamp = len(sampled) < 2 or sampled[-2] in times
    if last_was_timestamp and penultimate_was_timestamp:
        forbid(own.zero, stop)
    if last_was_timestamp and not penultimate_was_timestamp:
        forbid(0, own.text_end)
        forbid(stop, len(found))
    timestamps = [token for token in sampled if token in times]
    if timestamps:
        may_repeat = last_was_timestamp and not penultimate_was_timestamp
        forbid(own.zero, timestamps[-1] + (0 if may_repeat else 1))
    if len(before) == own.begin:
        forbid(0, own.zero)
        forbid(stop, len(found))
        if own.max_initial is not None:
            forbid(own.max_initial + 1, stop)
    total = math.log(sum(math.exp(value) for value in found[own.zero : stop]) or 1e-300)
    if total > max(found[: own.zero] + found[stop:]):
        forbid(0, own.zero)
        forbid(stop, len(found))
    return found if max(found) > -math.inf else list(logits)


def random_cases(count: int) -> list[tuple[mx.array, History]]:
    """Batches of rows with random prefixes, tokens, drafts and rules."""
    rng = random.Random(1)
    cases = []
    for number in range(count):
        added_from = rng.choice([None, VOCAB - 3])
        rows = rng.randint(1, 3)
        drafted = rng.randint(0, 4)
        length = rng.randint(1, drafted + 1)
        tokens, constraints = [], []
        for _ in range(rows):
            prefix = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 4))]
            timestamps = sorted(rng.choices(range(ZERO, VOCAB), k=8))
            output = [
                timestamps.pop(0) if rng.random() < 0.6 else rng.randrange(ZERO) for _ in range(rng.randint(0, 6))
            ]
            rules = TimestampRules(len(prefix), TEXT_END, ZERO, rng.choice([None, ZERO + 2]), added_from)
            tokens.append(prefix + output)
            banned = rng.choice([(), ((ZERO - 1,), (0,))])
            constraints.append(Constraints(banned=banned, processor=rng.choice([rules, rules, rules, None])))
        draft = [
            [rng.choice([rng.randrange(VOCAB), rng.randrange(ZERO, VOCAB)]) for _ in range(drafted)] for _ in tokens
        ]
        logits = 2 * mx.random.normal((rows, length, VOCAB), key=mx.random.key(number))
        ids = mx.array(draft, mx.uint32).reshape(rows, drafted)
        cases.append((logits, History(tokens, ids, constraints)))
    return cases


@pytest.mark.usefixtures("device")
def test_every_position_of_every_row_obeys_the_rules() -> None:
    for logits, history in random_cases(400):
        values: list[Any] = processed_logits(logits, [GenerationOptions()] * logits.shape[0], history).tolist()  # type: ignore[assignment]
        assert history.drafted is not None
        drafted: list[list[int]] = history.drafted.tolist()  # type: ignore[assignment]
        first = history.drafted.shape[1] + 1 - logits.shape[1]
        for row, own in enumerate(history.constraints):
            for i in range(logits.shape[1]):
                before = [*history.tokens[row], *drafted[row][: first + i]]
                expected: list[float] = logits[row, i].tolist()  # type: ignore[assignment]
                expected = [-math.inf if (token,) in own.banned else value for token, value in enumerate(expected)]
                if own.processor is not None:
                    expected = naive_rules(expected, before, own.processor)
                assert values[row][i] == expected


TARGET = tiny_model(eos_token_id=TEXT_END, scale=0.5)
DRAFT = noisy_copy(TARGET)
CONSTRAINTS = Constraints(
    banned=((ZERO - 1,),),
    not_before=((BLANK, 2), (TEXT_END, 2)),
    processor=TimestampRules(1, TEXT_END, ZERO, ZERO + 3),
)


DECODED: dict[str, dict[str, Any]] = {"greedy": {}, "coupled": {"temperature": 1.0, "acceptance": "coupled"}}


@cache
def baselines(decoded: str) -> list[list[int]]:
    return [tokens_of(run(TARGET, source, constraints=CONSTRAINTS, **DECODED[decoded])) for source in SOURCES]


@pytest.mark.parametrize("decoded", DECODED)
def test_baselines_obey_the_rules(decoded: str) -> None:
    timestamps = 0
    for baseline in baselines(decoded):
        assert ZERO <= baseline[0] <= ZERO + 3 and ZERO - 1 not in baseline
        own = [token for token in baseline if token >= ZERO]
        assert own == sorted(own)
        timestamps += len(own)
    assert timestamps > 2 * len(SOURCES)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("decoded", DECODED)
def test_batches_with_drafts_equal_single_outputs_without(drafter: str, decoded: str) -> None:
    expected = baselines(decoded)
    made = drafter_of_rows(drafter, TARGET, DRAFT, lambda row: expected[SOURCES.index([*row.source_tokens])])
    requests = [(source, options_of(**DECODED[decoded])) for source in SOURCES]
    found = together(TARGET, requests, made, constraints=CONSTRAINTS)
    assert [each.tokens for each in found] == expected
