"""Starts the next pass of a baseline before the host reads the tokens of the current one, as mlx-lm does.

A GPU then computes while the host commits tokens and builds the next graph (docs/decisions/host-time.md). The pass
ahead reads the next token on the device. It is dropped if the next round needs another pass. The cache then needs no
repair, because offsets are absolute.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx

from ..drafters.base import Draft, history_of
from ..sampling import leaves_logits_unchanged
from .batch import Batch
from .request import Request
from .verification import Verification, verify_draft


class PassAhead(NamedTuple):
    """A pass over one more token of each row, by slot."""

    requests: Sequence[Request | None]
    verification: Verification


def take_ahead(batch: Batch, draft: Draft) -> list[Verification] | None:
    """Return the result of the pass that the last round started, or None if this round needs another pass."""
    ahead, batch.ahead = batch.ahead, None
    rows = batch.rows
    if ahead is None or draft.num_tokens or len(rows) != len(ahead.requests):
        return None
    for request, expected in zip(rows, ahead.requests, strict=True):
        if request is not None and (request is not expected or request.needs_retry):
            return None
    batch.cache.advance(1)  # the last round rewound it
    return [ahead.verification._replace(requests=rows)]


def run_ahead(batch: Batch, requests: Sequence[Request], draft: Draft, verifications: Sequence[Verification]) -> None:
    """Start this round's pass and the next one, if the next round will surely need it."""
    if draft.num_tokens or not may_run_ahead(batch, requests):
        return
    mx.async_eval(verifications)  # type: ignore[no-untyped-call]
    empty = Draft.empty(draft.rows)
    batch.rewind(ahead=1)
    inputs = batch.target_inputs(empty, verifications[0].result.next_token[:, None])
    (verification,) = verify_draft(batch, requests, empty, batch.model.logits(batch.model.states(inputs, batch.cache)))
    mx.async_eval(verification)  # type: ignore[no-untyped-call]
    batch.ahead = PassAhead(batch.rows, verification)


def may_run_ahead(batch: Batch, requests: Sequence[Request]) -> bool:
    """Whether the next pass only needs the next tokens: greedy, without a draft, and without constraints."""
    options = [request.options for request in requests]
    return (
        batch.runs_ahead
        and not batch.cache.kept_layers  # a draft head reads the states of this round's pass
        and any(request.remaining_tokens > 1 for request in requests)
        and all(request.draft_length.never_drafts and not request.needs_retry for request in requests)
        and all(own.is_greedy and not own.timed for own in options)
        and leaves_logits_unchanged(options, history_of(requests, mx.zeros((len(requests), 1))), 2)
    )
