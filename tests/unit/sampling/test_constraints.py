"""Constraints against a naive implementation for one position, and against Hugging Face's processors."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import pytest

from speculative_decoding.models.generation_config import GenerationConfig
from speculative_decoding.sampling import (
    Constraints,
    GenerationOptions,
    History,
    logprobs,
    perturbed_logprobs,
    processed_logits,
)
from speculative_decoding.sampling.constraints import is_constrained
from speculative_decoding.sampling.masking import constrain
from tests.support.paths import GOLDENS

GOLDEN = json.loads((GOLDENS / "constraints.json").read_text())
VOCAB = 7
ROWS = [
    Constraints(no_repeat_ngram_size=2),
    Constraints(no_repeat_ngram_size=3, banned=((4,), (5, 6), (1, 2, 3))),
    Constraints(),
    Constraints(no_repeat_ngram_size=1),
    Constraints(not_before=((1, 6), (3, 5)), forced=((4, (2,)), (8, (0, 1)))),
    Constraints(no_repeat_ngram_size=2, banned=((0,),), not_before=((1, 9),), forced=((5, (0,)), (5, (3,)))),
]
OPTIONS = [GenerationOptions(), GenerationOptions(repetition_penalty=1.5), *[GenerationOptions()] * 4]
RNG = random.Random(3)
PAST = [[0, *RNG.choices(range(VOCAB), k=count)] for count in (4, 9, 0, 1, 2, 3)]
DRAFTED = [RNG.choices(range(VOCAB), k=4) for _ in ROWS]
LOGITS = 2 * mx.random.normal((len(ROWS), 5, VOCAB), key=mx.random.key(1))


def naive_forbidden(own: Constraints, before: Sequence[int], vocab_size: int) -> set[int]:
    """Check every id separately."""
    found = set()
    for token in range(vocab_size):
        after, size = [*before, token], own.no_repeat_ngram_size
        ngrams = [tuple(after[i : i + size]) for i in range(len(after) - size + 1)] if size else []
        is_repeated = bool(ngrams) and ngrams[-1] in ngrams[:-1]
        is_banned = any(tuple(after[-len(ids) :]) == ids for ids in own.banned)
        is_early = any(token == each and len(before) < position for each, position in own.not_before)
        if is_repeated or is_banned or is_early:
            found.add(token)
    return found


def naive_constrain(logits: Sequence[float], own: Constraints, before: Sequence[int]) -> list[float]:
    forbidden = naive_forbidden(own, before, len(logits))
    found = list(logits)
    if len(forbidden) < len(logits):
        found = [-mx.inf if token in forbidden else value for token, value in enumerate(found)]
    for position, ids in own.forced:
        if position == len(before):
            found = [0.0 if token in ids else -mx.inf for token in range(len(logits))]
    return found


def history(rows: Sequence[int], drafted: int = 4) -> History:
    ids = mx.array([DRAFTED[row][:drafted] for row in rows], mx.uint32).reshape(len(rows), drafted)
    return History([PAST[row] for row in rows], ids, [ROWS[row] for row in rows])


def test_every_position_of_every_row_equals_the_naive_result() -> None:
    found = constrain(LOGITS, history(range(len(ROWS))))
    forbidden = 0
    for row, own in enumerate(ROWS):
        for i in range(5):
            expected = naive_constrain(LOGITS[row, i].tolist(), own, [*PAST[row], *DRAFTED[row][:i]])  # type: ignore[arg-type]
            assert found[row, i].tolist() == expected
            forbidden += expected.count(-mx.inf)
    assert forbidden > 30


@pytest.mark.parametrize("compute", [processed_logits, logprobs, perturbed_logprobs])
def test_rows_and_positions_are_constrained_independently(compute: Any) -> None:
    """The bits equal those of a separate row, and of a position whose draft ids are committed."""
    together = compute(LOGITS, OPTIONS, history(range(len(ROWS))))
    for row, own in enumerate(ROWS):
        single = compute(LOGITS[row : row + 1], OPTIONS[row : row + 1], history([row]))
        assert mx.array_equal(together[row : row + 1], single)
        for i in range(5):
            past = History([[*PAST[row], *DRAFTED[row][:i]]], constraints=[own])
            assert mx.array_equal(
                single[:, i : i + 1], compute(LOGITS[row : row + 1, i : i + 1], OPTIONS[row : row + 1], past)
            )


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: f"{case['settings']}-{len(case['history'])}")
def test_scores_equal_those_of_hugging_face(case: dict[str, Any]) -> None:
    """Options come from the file's fields. Any number of the last ids may be draft ids."""
    config = GenerationConfig.from_dict(case["settings"], GOLDEN["vocab_size"], [GOLDEN["eos_token_id"]])
    options = config.with_defaults(GenerationOptions(max_tokens=GOLDEN["max_new_tokens"]), 1)
    own = config.constraints(options, [GOLDEN["eos_token_id"]], 1, config.forced_bos_token_id)
    expected = [-mx.inf if value is None else value for value in case["scores"]]
    for drafted in range(min(4, len(case["history"]))):
        count = len(case["history"]) - drafted
        ids = mx.array(case["history"][count:], mx.uint32).reshape(1, drafted)
        logits = mx.broadcast_to(mx.array(case["logits"]), (1, drafted + 1, GOLDEN["vocab_size"]))
        found: list[float] = processed_logits(logits, [options], History([case["history"][:count]], ids, [own]))[
            0, -1
        ].tolist()  # type: ignore[assignment]
        assert found == pytest.approx(expected, abs=1e-6)


def test_a_position_without_allowed_ids_stays_unchanged() -> None:
    """The draft model may propose only two ids."""
    logits = mx.where(mx.arange(VOCAB) < 2, LOGITS[:1, :1], -mx.inf)
    past = History([[0, 5]], constraints=[Constraints(banned=((0,), (1,)))])
    assert mx.array_equal(constrain(logits, past), logits)
    assert constrain(logits, History([[0, 5]], constraints=[Constraints(banned=((0,),))])).tolist()[0][0][0] == -mx.inf


def test_the_dtype_of_the_logits_is_kept() -> None:
    for dtype in (mx.float16, mx.bfloat16):
        assert constrain(LOGITS.astype(dtype), history(range(len(ROWS)))).dtype == dtype


def test_unused_constraints_cost_nothing() -> None:
    late = Constraints(not_before=((1, 5),), forced=((3, (2,)),))  # applies to later positions only
    greedy = [GenerationOptions()] * 6
    assert processed_logits(LOGITS, greedy, History(PAST[:1] * 6)) is LOGITS
    assert processed_logits(LOGITS, greedy, History([[0] * 9] * 6, constraints=[late] * 6)) is LOGITS
    assert is_constrained(History([[0, 1, 2]], constraints=[late]), 1)
