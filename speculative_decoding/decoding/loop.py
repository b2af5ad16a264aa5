"""A round: a drafter proposes, the target verifies in one pass, a rule decides. Token ids only, no text.

A batch has a row for each slot, and a single request is a batch of one: there is no other loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import mlx.core as mx

from ..backend.kernels import clock, without_compiler
from ..draft_length.base import Choice, Drafted, DraftLength
from ..drafters.base import BatchDrafter, Draft, Verified, Wanted, token_rows
from ..models.compiled import Compiled
from .batch import Batch, DecodedRow
from .judge import Judged, Outcome, commit, judge
from .stats import Round


def speculate(batch: Batch) -> dict[int, Round]:
    """One round for all rows that are not finished; what came of it, by slot (Leviathan et al. 2023, algorithm 1)."""
    rows, timer = batch.active, Timer()
    wanted = choose_lengths(rows, batch.drafter)
    draft, states, judged = without_compiler(lambda: verify(batch, rows, wanted, timer), undo=batch.rewind)
    proposed = [ids[: draft.length(slot)] for slot, ids in enumerate(token_rows(draft.tokens))]
    outcomes = commit(judged, proposed)
    batch.rewind()
    verified = Verified(states, {slot: len(each.tokens) for slot, each in outcomes.items()})
    batch.drafter.observe([row for row in rows if row.slot in outcomes], verified)
    outcomes |= judged_again(batch, [row for row in rows if row.slot not in outcomes])
    observe_lengths(rows, wanted, proposed, outcomes, timer.informative_seconds)
    for row in rows:
        if row.finish_reason:
            batch.drafter.end(row)
    kinds = {each.row.slot: each.kind for each in wanted}
    return {row.slot: timer.round(row, proposed[row.slot], outcomes[row.slot], kinds.get(row.slot, "")) for row in rows}


def verify(
    batch: Batch, rows: Sequence[DecodedRow], wanted: Sequence[Wanted], timer: Timer
) -> tuple[Draft, mx.array, list[Judged]]:
    """The draft and what the target says of it: all that the device does in a round. Nothing is committed yet."""
    draft = batch.drafter.propose(wanted, len(batch.rows)) if wanted else Draft.empty(len(batch.rows))
    if any(row.options.timed for row in rows):
        timer.wait_for(draft)
    states = batch.model.states(batch.fed(draft), batch.cache)  # (B, K + 1, d)
    logits = batch.model.logits(states)  # (B, K + 1, V)
    judged = judge(batch, rows, draft, logits)  # a verdict for each kind of rule
    mx.eval([each.arrays for each in judged], draft.tokens)  # the round's only wait
    timer.verified()
    return draft, states, judged


def judged_again(batch: Batch, rows: Sequence[DecodedRow]) -> dict[int, Outcome]:
    """Of rows whose logits were not finite: once more, without a draft and with nothing behind the tokens in the cache.

    What a mask hides has probability 0, but 0 times infinity is NaN: a token that was never committed must not decide.
    A row whose logits still are not finite ends with an error.
    """
    if not rows:
        return {}
    for row in rows:
        batch.cache.clear_behind(row.slot)
    *_, judged = without_compiler(lambda: verify(batch, rows, (), Timer()), undo=batch.rewind)
    outcomes = commit(judged, [()] * len(batch.rows))
    batch.rewind()
    for row in rows:
        if row.slot not in outcomes:
            row.finish_reason = "error"
    return {row.slot: Outcome([], 0, 0.0, None) for row in rows} | outcomes


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
            parts.append(Drafted(count, len(proposed[row.slot]), outcomes[row.slot].accepted, kind))
        length.observe(parts, seconds)


def by_length(rows: Sequence[DecodedRow]) -> list[tuple[DraftLength, list[DecodedRow]]]:
    """Each length with the rows that share it."""
    groups: dict[int, tuple[DraftLength, list[DecodedRow]]] = {}
    for row in rows:
        groups.setdefault(id(row.length), (row.length, []))[1].append(row)
    return list(groups.values())


class Timer:
    """The time of a round, and of its two parts where a row is `timed`: that takes a second wait for the device."""

    def __init__(self) -> None:
        self._started, self._traced = clock(), Compiled.traced
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
        return clock() - self._started

    @property
    def informative_seconds(self) -> float:
        """0 for a round in which a shape was traced: it says nothing of those to come."""
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
            total_variation=outcome.total_variation,
            logprobs=outcome.logprobs,
        )
