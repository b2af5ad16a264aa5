"""What the target's pass says of the drafts: one verdict for each kind of rule, then the tokens of each row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from ..drafters.base import Draft, Row
from ..sampling import token_logprobs
from .acceptance import Verdict, kind_of_rule, rule_for
from .batch import Batch, DecodedRow


class Judged(NamedTuple):
    """The verdict on some rows; lazy. Row i of its arrays is `rows[i]`, None for one that takes no part.

    largest: (B, K + 1) of the target's logits; NaN or infinite where these can decide nothing.
    logprobs: (B, K + 1) of the drafted tokens, and behind them of the next one; None where no row asks for them.
    """

    rows: Sequence[DecodedRow | None]
    verdict: Verdict
    largest: mx.array
    logprobs: mx.array | None

    @property
    def arrays(self) -> list[mx.array]:
        """What is to be evaluated before `outcomes`."""
        return [each for each in (*self.verdict, self.largest, self.logprobs) if each is not None]


class Outcome(NamedTuple):
    """A row's part of a round. tokens: committed; the first `accepted` were drafted. total_variation: see `Verdict`,
    summed over them.
    """

    tokens: list[int]
    accepted: int
    total_variation: float
    logprobs: list[float] | None


def judge(batch: Batch, active: Sequence[DecodedRow], draft: Draft, logits: mx.array) -> list[Judged]:
    """active: the rows that are judged. logits (B, L >= K + 1, V), raw. Lazy."""
    if logits.shape[1] > draft.num_tokens + 1:
        logits = logits[:, : draft.num_tokens + 1]
    groups: dict[type, list[DecodedRow]] = {}
    for row in active:
        groups.setdefault(kind_of_rule(row.options), []).append(row)
    if len(groups) == 1:  # all rows as they stand, with those that take no part
        rows = [row if row in active else None for row in batch.rows]
        return [judged(rows, active[0], draft, logits)]
    found = []
    for rows_of_kind in groups.values():
        slots = [row.slot for row in rows_of_kind]
        own = mx.take(logits, mx.array(slots), axis=0)
        found.append(judged(rows_of_kind, rows_of_kind[0], draft.select(slots), own))
    return found


def judged(rows: Sequence[DecodedRow | None], stand_in: Row, draft: Draft, logits: mx.array) -> Judged:
    """stand_in: a row whose options and tokens serve where there is none; nobody reads what comes of it."""
    each: list[Row] = [stand_in if row is None else row for row in rows]
    verdict = rule_for([row.options for row in each]).verdict(draft, logits, each)
    wants = any(row.options.logprobs for row in each)
    return Judged(rows, verdict, logits.max(axis=-1), logprobs_of(draft, verdict, logits) if wants else None)


def logprobs_of(draft: Draft, verdict: Verdict, logits: mx.array) -> mx.array:
    """(B, K + 1): of the drafted tokens, and behind them of the verdict's next token."""
    next_logits = mx.take_along_axis(logits, verdict.accepted[:, None, None], axis=1)  # (B, 1, V)
    following = token_logprobs(next_logits, verdict.next_token[:, None])
    if not draft.num_tokens:
        return following
    return mx.concatenate([token_logprobs(logits[:, : draft.num_tokens], draft.tokens), following], axis=1)


def commit(judged: Sequence[Judged], proposed: Sequence[Sequence[int]]) -> dict[int, Outcome]:
    """Give each row its new tokens; by slot. proposed: the draft's ids. All arrays have been evaluated.

    A row whose logits are not finite gets none, and has no outcome.
    """
    outcomes = {}
    for each in judged:
        accepted, following, variations = map(as_lists, each.verdict)
        logprobs, largest = as_lists(each.logprobs), as_lists(each.largest)
        for i, row in enumerate(each.rows):
            if row is None or not all(map(math.isfinite, largest[i])):
                continue
            kept = accepted[i]
            new = row.commit([*proposed[row.slot][:kept], following[i]])
            variation = 0.0 if variations is None else sum(variations[i][: kept + 1][: len(new)])
            own = None
            if logprobs is not None and row.options.logprobs:
                *drafted, last = logprobs[i]
                own = [*drafted[:kept], last][: len(new)]
            outcomes[row.slot] = Outcome(new, min(kept, len(new)), variation, own)
    return outcomes


def as_lists(array: mx.array | None) -> Any:
    """Python numbers, in lists."""
    return None if array is None else array.tolist()
