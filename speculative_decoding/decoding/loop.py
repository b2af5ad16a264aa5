"""A round: a drafter proposes, the target verifies in one pass, a rule decides. Token ids only, no text.

A batch has a row for each slot, and a single request is a batch of one: there is no other loop.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import mlx.core as mx

from ..draft_length.base import Choice, Drafted, DraftLength
from ..drafters.base import BatchDrafter, Draft, Verified, Wanted, token_rows
from ..models.compiled import Compiled
from .batch import Batch, DecodedRow
from .judge import Outcome, commit, judge
from .stats import Round


def speculate(batch: Batch) -> dict[int, Round]:
    """One round for all rows that are not finished; what came of it, by slot (Leviathan et al. 2023, algorithm 1)."""
    rows, clock = batch.active, Clock()
    wanted = choose_lengths(rows, batch.drafter)
    draft = batch.drafter.propose(wanted, len(batch.rows)) if wanted else Draft.empty(len(batch.rows))
    if any(row.options.timed for row in rows):
        clock.wait_for(draft)

    states = batch.model.states(batch.fed(draft), batch.cache)  # (B, K + 1, d)
    logits = batch.model.logits(states)  # (B, K + 1, V)
    judged = judge(batch, draft, logits)  # a verdict for each kind of rule
    mx.eval([each.arrays for each in judged], draft.tokens)  # the round's only wait
    clock.verified()

    proposed = [ids[: draft.length(slot)] for slot, ids in enumerate(token_rows(draft.tokens))]
    outcomes = commit(judged, proposed)
    batch.rewind()
    batch.drafter.observe(rows, Verified(states, {slot: len(each.tokens) for slot, each in outcomes.items()}))
    observe_lengths(rows, wanted, proposed, outcomes, clock.informative_seconds)
    for row in rows:
        if row.finish_reason:
            batch.drafter.end(row)
    kinds = {each.row.slot: each.kind for each in wanted}
    return {row.slot: clock.round(row, proposed[row.slot], outcomes[row.slot], kinds.get(row.slot, "")) for row in rows}


def choose_lengths(rows: Sequence[DecodedRow], drafter: BatchDrafter) -> list[Wanted]:
    """The rows that are to have a draft. The last token that may come is never drafted."""
    wanted = []
    for length, own in by_length(rows):
        if length.skips_round():
            continue
        choices = [Choice(row.room - 1, drafter.kind(row)) for row in own]
        for row, choice, count in zip(own, choices, length.choose(choices), strict=True):
            if count:
                wanted.append(Wanted(row, count, choice.kind))
    return wanted


def observe_lengths(
    rows: Sequence[DecodedRow],
    wanted: Sequence[Wanted],
    proposed: Sequence[Sequence[int]],
    outcomes: Mapping[int, Outcome],
    seconds: float,
) -> None:
    """Tell each length what came of its rows. seconds: 0 if they say nothing."""
    asked = {each.row.slot: each for each in wanted}
    for length, own in by_length(rows):
        parts = []
        for row in own:
            count, kind = (asked[row.slot].count, asked[row.slot].kind) if row.slot in asked else (0, "")
            parts.append(Drafted(count, len(proposed[row.slot]), outcomes[row.slot].judged, kind))
        length.observe(parts, seconds)


def by_length(rows: Sequence[DecodedRow]) -> list[tuple[DraftLength, list[DecodedRow]]]:
    """Each length with the rows that share it."""
    groups: dict[int, tuple[DraftLength, list[DecodedRow]]] = {}
    for row in rows:
        groups.setdefault(id(row.length), (row.length, []))[1].append(row)
    return list(groups.values())


class Clock:
    """The time of a round, and of its two parts where a row is `timed`: that takes a second wait for the device."""

    def __init__(self) -> None:
        self._started, self._traced = time.perf_counter(), Compiled.traced
        self._draft: float | None = None
        self._verify: float | None = None

    def wait_for(self, draft: Draft) -> None:
        mx.eval(draft.tokens)
        self._draft = self._seconds

    def verified(self) -> None:
        if self._draft is not None:
            self._verify = self._seconds - self._draft

    @property
    def _seconds(self) -> float:
        return time.perf_counter() - self._started

    @property
    def informative_seconds(self) -> float:
        """0 for a round in which a shape was compiled: it says nothing of those to come."""
        return self._seconds if Compiled.traced == self._traced else 0.0

    def round(self, row: DecodedRow, proposed: list[int], outcome: Outcome, kind: str) -> Round:
        return Round(
            tokens=outcome.tokens,
            proposed=proposed,
            accepted=outcome.accepted,
            kind=kind,
            seconds=self._seconds,
            draft_seconds=self._draft,
            verify_seconds=self._verify,
            finish_reason=row.finish_reason,
            total_variation=outcome.price,
            logprobs=outcome.logprobs,
        )
