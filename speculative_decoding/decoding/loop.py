"""A round: a drafter proposes, the target verifies in one pass, a rule decides. Token ids only, no text.

A batch has a row for each slot, and a single request is a batch of one: there is no other loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import mlx.core as mx

from ..draft_length.base import Choice, Drafted, DraftLength
from ..drafters.base import Draft, Verified, Wanted, token_rows
from .batch import Batch, DecodedRow
from .judge import Judged, Outcome, commit, judge
from .stats import Round

OnPhase = Callable[[Draft], None]


def speculate(batch: Batch, on_phase: OnPhase | None = None) -> dict[int, Round]:
    """One round for all rows that are not finished; what came of it, by slot (Leviathan et al. 2023, algorithm 1).

    on_phase: is called with the draft when it was proposed, still lazy, and again when it was verified.
    """
    rows = batch.active
    wanted = choose_lengths(batch, rows)
    draft = batch.drafter.propose(wanted, len(batch.rows)) if wanted else Draft.empty(len(batch.rows))
    if on_phase is not None:
        on_phase(draft)
    states, judged = verify(batch, rows, draft)
    if on_phase is not None:
        on_phase(draft)
    proposed = [ids[: draft.length(slot)] for slot, ids in enumerate(token_rows(draft.tokens))]
    outcomes = commit(judged, proposed)
    batch.rewind()
    verified = Verified(states, {slot: len(each.tokens) for slot, each in outcomes.items()})
    batch.drafter.observe([row for row in rows if row.slot in outcomes], verified)
    outcomes |= judged_again(batch, [row for row in rows if row.slot not in outcomes])
    observe_lengths(rows, wanted, proposed, outcomes)
    for row in rows:
        if row.finish_reason:
            batch.drafter.end(row)
    kinds = {each.row.slot: each.kind for each in wanted}
    return {row.slot: round_of(row, proposed[row.slot], outcomes[row.slot], kinds.get(row.slot, "")) for row in rows}


def verify(batch: Batch, rows: Sequence[DecodedRow], draft: Draft) -> tuple[mx.array, list[Judged]]:
    """What the target says of the draft. Nothing is committed yet."""
    states = batch.model.states(batch.fed(draft), batch.cache)  # (B, L >= K + 1, d)
    logits = batch.model.logits(states)  # (B, L, V)
    judged = judge(batch, rows, draft, logits)  # a verdict for each kind of rule
    mx.eval([each.arrays for each in judged], draft.tokens)  # the round's only wait
    return states, judged


def judged_again(batch: Batch, rows: Sequence[DecodedRow]) -> dict[int, Outcome]:
    """Of rows whose logits were not finite: once more, without a draft and with nothing behind the tokens in the cache.

    What a mask hides has probability 0, but 0 times infinity is NaN: a token that was never committed must not decide.
    A row whose logits still are not finite ends with an error.
    """
    if not rows:
        return {}
    for row in rows:
        batch.cache.zero_after(row.slot)
    _, judged = verify(batch, rows, Draft.empty(len(batch.rows)))
    outcomes = commit(judged, [()] * len(batch.rows))
    batch.rewind()
    for row in rows:
        if row.slot not in outcomes:
            row.finish_reason = "error"
    return {row.slot: Outcome([], 0, 0.0, None) for row in rows} | outcomes


def choose_lengths(batch: Batch, rows: Sequence[DecodedRow]) -> list[Wanted]:
    """The rows that are to have a draft. The last token that may come is never drafted."""
    wanted = []
    for length, own in by_length(rows):
        if length.skips_round():
            continue
        choices = [choice_of(batch, row) for row in own]
        for row, choice, count in zip(own, choices, length.choose(choices), strict=True):
            if count:
                wanted.append(Wanted(row, count, choice.kind))
    return wanted


def choice_of(batch: Batch, row: DecodedRow) -> Choice:
    kind = batch.drafter.kind(row)
    return Choice(min(row.room - 1, batch.most_drafted, batch.drafter.longest(row, kind)), kind)


def observe_lengths(
    rows: Sequence[DecodedRow],
    wanted: Sequence[Wanted],
    proposed: Sequence[Sequence[int]],
    outcomes: Mapping[int, Outcome],
) -> None:
    """Tell each length what came of its rows."""
    asked = {each.row.slot: each for each in wanted}
    for length, own in by_length(rows):
        parts = []
        for row in own:
            count, kind = (asked[row.slot].count, asked[row.slot].kind) if row.slot in asked else (0, "")
            parts.append(Drafted(count, len(proposed[row.slot]), outcomes[row.slot].accepted, kind))
        length.observe(parts)


def by_length(rows: Sequence[DecodedRow]) -> list[tuple[DraftLength, list[DecodedRow]]]:
    """Each length with the rows that share it."""
    groups: dict[int, tuple[DraftLength, list[DecodedRow]]] = {}
    for row in rows:
        groups.setdefault(id(row.length), (row.length, []))[1].append(row)
    return list(groups.values())


def round_of(row: DecodedRow, proposed: list[int], outcome: Outcome, kind: str) -> Round:
    return Round(
        tokens=outcome.tokens,
        proposed=proposed,
        accepted=outcome.accepted,
        kind=kind,
        finish_reason=row.finish_reason,
        total_variation=outcome.total_variation,
        logprobs=outcome.logprobs,
    )
