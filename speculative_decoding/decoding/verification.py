"""Applies the acceptance rules to the target's logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx

from ..drafters.base import Draft, RequestView, history_of
from ..sampling import scores, token_logprobs
from .acceptance import AcceptanceResult, Greedy, kind_of_rule, rule_for
from .batch import Batch
from .request import Request


class Verification(NamedTuple):
    """The decisions for requests with the same kind of rule. Lazy.

    Args:
        requests: One for each row of the arrays; None for a row that takes no part.
        result: What the rule decided.
        max_logits: (B, K + 1), the largest target logit of each position; not finite if the position is undecidable.
        logprobs: (B, K + 1), of the draft tokens and, in the last column, of the next token; None if not requested.
        scores: (B, K + 1, V) float32, the logits with penalties and constraints; None unless a request has `evidence`.
    """

    requests: Sequence[Request | None]
    result: AcceptanceResult
    max_logits: mx.array
    logprobs: mx.array | None
    scores: mx.array | None


def verify_draft(batch: Batch, active: Sequence[Request], draft: Draft, logits: mx.array) -> list[Verification]:
    """Decide which draft tokens are accepted, with one computation for each kind of rule. Lazy.

    Args:
        batch: The requests of all slots.
        active: The requests that take part.
        draft: (B, K).
        logits: (B, L, V), L >= K + 1, raw.
    """
    if logits.shape[1] > draft.num_tokens + 1:
        logits = logits[:, : draft.num_tokens + 1]  # without padding

    groups: dict[type, list[Request]] = {}
    for request in active:
        groups.setdefault(kind_of_rule(request.options), []).append(request)
    if len(groups) == 1:  # keep all rows in place
        return [verify(batch.rows, active[0], draft, logits)]

    verifications = []
    for requests in groups.values():
        slots = [request.slot for request in requests]
        own_logits = mx.take(logits, mx.array(slots), axis=0)
        verifications.append(verify(requests, requests[0], draft.select(slots), own_logits))
    return verifications


def verify(requests: Sequence[Request | None], placeholder: Request, draft: Draft, logits: mx.array) -> Verification:
    """Verify rows with the same kind of rule.

    Args:
        requests: One for each row; None for a row whose result is discarded.
        placeholder: Used for the rows without a request.
        draft: (B, K).
        logits: (B, K + 1, V), raw.
    """
    rows: list[RequestView] = [placeholder if request is None else request for request in requests]
    options = [row.options for row in rows]
    rule = rule_for(options)
    result = rule.decide(draft, logits, rows)
    logprobs = logprobs_of(draft, result, logits) if any(row.logprobs for row in options) else None
    values = None
    if any(request is not None and request.evidence is not None for request in requests):
        values = result.scores if type(rule) is Greedy else None
        if values is None:
            values = scores(logits, options, history_of(rows, draft.tokens))
        values = values.astype(mx.float32)
    return Verification(requests, result._replace(scores=None), logits.max(axis=-1), logprobs, values)


def logprobs_of(draft: Draft, result: AcceptanceResult, logits: mx.array) -> mx.array:
    """(B, K + 1): the log-probabilities of the draft tokens and, last, of the next token."""
    next_logits = mx.take_along_axis(logits, result.accepted[:, None, None], axis=1)  # (B, 1, V)
    following = token_logprobs(next_logits, result.next_token[:, None])
    if not draft.num_tokens:
        return following
    return mx.concatenate([token_logprobs(logits[:, : draft.num_tokens], draft.tokens), following], axis=1)
