"""A round fits one screen, has one host sync, and runs as many device operations for one row as for many."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest

from speculative_decoding.decoding import round as loop
from speculative_decoding.draft_length import FixedLength
from speculative_decoding.drafters import (
    AutoDrafter,
    BatchDrafter,
    BatchModelDrafter,
    Draft,
    NgramDrafter,
    SeparateDrafters,
)
from speculative_decoding.engine import Engine
from tests.support.operations import counted, operations, total_without_masks
from tests.support.tiny import VOCAB, head_drafter, model_drafter, noisy_copy, tiny_model
from tests.support.together import Letters, options_of

LINES = 30
TARGET = tiny_model(7, 0.3, num_layers=2, eos_token_id=[])  # never ends
DRAFT = noisy_copy(TARGET, 0.1)
COPIES = NgramDrafter(min_chance=0.0)
BY_NAME: dict[str, Callable[[], BatchDrafter]] = {
    "model": lambda: model_drafter(TARGET, DRAFT),
    "head": lambda: head_drafter(TARGET, range(12)),
    "ngram": lambda: SeparateDrafters(COPIES.fresh, VOCAB),
    "auto": lambda: AutoDrafter(COPIES, model_drafter(TARGET, DRAFT), VOCAB),
}


def running(drafter: str, rows: int, **options: Any) -> Engine:
    """Return an engine after three rounds, with rows at different positions."""
    engine = Engine(TARGET, Letters(), BY_NAME[drafter](), slots=rows)
    for number in range(rows):
        chosen = options_of(max_tokens=100, **options)
        engine.submit("abcdefgh"[number % 8 :] + "ab", chosen, FixedLength(int(chosen.num_draft_tokens)))
    for _ in range(3):
        engine.step()
    return engine


def test_speculate_fits_one_screen() -> None:
    assert len(inspect.getsource(loop.speculate).splitlines()) <= LINES


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("drafter", BY_NAME)
def test_a_round_has_one_host_sync(drafter: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`timed` adds a sync for the draft."""
    waits: list[str] = []
    evaluate = mx.eval
    monkeypatch.setattr(mx, "eval", lambda *arrays: (waits.append("eval"), evaluate(*arrays))[1])
    for timed in (False, True):
        engine = running(drafter, rows, timed=timed)
        waits.clear()
        for _ in range(3):
            assert len(engine.step()) == rows
        assert len(waits) == 3 * (1 + timed)


def test_arrays_read_after_the_host_sync_are_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tolist` on a lazy array would be a hidden second sync."""
    left: list[Counter[str]] = []
    on_host, ids = loop.on_host, Draft.ids

    def watched_on_host(verification: loop.Verification) -> Any:
        left.extend(operations(array) for array in verification if array is not None)
        return on_host(verification)

    def watched_ids(draft: Draft) -> Any:
        left.append(operations(draft.tokens))
        return ids(draft)

    monkeypatch.setattr(loop, "on_host", watched_on_host)
    monkeypatch.setattr(Draft, "ids", watched_ids)
    for drafter in BY_NAME:
        running(drafter, 3, logprobs=True)
    assert len(left) > 30 and not any(left)


def operations_of_rounds(drafter: str, rows: int, **options: Any) -> list[Counter[str]]:
    engine = running(drafter, rows, num_draft_tokens=3, **options)
    found = []
    for _ in range(4):
        with counted() as seen:
            assert len(engine.step()) == rows
        found.append(seen)
    return found


RAGGED = {"Arange", "Less", "AsType", "Multiply"}  # mask the positions after the end of a shorter draft


@pytest.mark.parametrize("drafter", ["model", "head", "ngram"])
def test_a_greedy_round_runs_as_many_operations_for_one_row_as_for_many(drafter: str) -> None:
    """Copies of different lengths add the four operations of `RAGGED`, for any number of rows."""
    one, eight, many = (operations_of_rounds(drafter, rows) for rows in (1, 8, 32))
    most = max(one, key=Counter.total)
    for found in (*eight, *many):
        more = RAGGED if drafter == "ngram" and "Less" in found else ()
        assert total_without_masks(found) == total_without_masks(most) + len(more), (found - most, most - found)
    if drafter == "model":
        assert len({found.total() for found in one}) == 1


def test_planted_operations_for_each_row_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    propose = BatchModelDrafter.propose

    def row_by_row(self: BatchModelDrafter, *arguments: Any) -> Draft:
        draft = propose(self, *arguments)
        return Draft(mx.stack([draft.tokens[row] + 0 for row in range(draft.rows)]), None, draft.lengths)

    monkeypatch.setattr(BatchModelDrafter, "propose", row_by_row)
    with pytest.raises(AssertionError, match="Add"):
        test_a_greedy_round_runs_as_many_operations_for_one_row_as_for_many("model")
