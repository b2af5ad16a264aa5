"""One round of speculative decoding: draft, verify, accept, commit.

A batch has a row for each request; a single request is a batch of one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from ..draft_length.base import DraftLength, DraftOutcome
from ..drafters.base import Draft, DraftRequest, token_rows
from .ahead import run_ahead, take_ahead
from .batch import Batch
from .request import Request
from .stats import Round
from .verification import Verification, verify_draft


def speculate(batch: Batch, on_phase: Callable[[Draft], None] = lambda draft: None) -> dict[int, Round]:
    """Run one round for all active requests; returns their rounds by slot (Leviathan et al. 2023, algorithm 1).

    on_phase: called with the draft when it has been proposed (still lazy), and again when it has been verified; the
        engine times both phases with it.
    """
    requests = batch.active
    slots = len(batch.requests)
    draft_requests = choose_draft_lengths(batch, requests)
    draft = batch.drafter.propose(draft_requests, slots) if draft_requests else Draft.empty(slots)  # (B, K)
    on_phase(draft)

    verifications = take_ahead(batch, draft)  # one for each acceptance rule in use
    if verifications is None:
        states = batch.model.states(batch.target_inputs(draft), batch.cache)  # (B, L, d), L >= K + 1
        verifications = verify_draft(batch, requests, draft, batch.model.logits(states))
    run_ahead(batch, requests, draft, verifications)
    mx.eval(verifications, draft.tokens)  # the only host sync of a round
    on_phase(draft)

    rounds = commit(batch, verifications, draft, {each.request.slot: each.kind for each in draft_requests})
    batch.rewind()  # the cache keeps every committed token but the last

    advanced = [request for request in requests if rounds[request.slot].tokens]
    batch.drafter.observe(advanced, [len(rounds[request.slot].tokens) for request in advanced])
    observe_draft_lengths(requests, rounds)
    for request in requests:
        if request.finish_reason:
            batch.drafter.end(request)
    return rounds


def commit(
    batch: Batch, verifications: Sequence[Verification], draft: Draft, kinds: Mapping[int, str]
) -> dict[int, Round]:
    """Give each request its accepted draft tokens and the next token.

    Args:
        batch: Its cache still holds the positions of the pass.
        verifications: Evaluated.
        draft: Evaluated.
        kinds: Where each draft came from ("model" or "copy"), by slot.
    """
    rounds = {}
    draft_ids = token_rows(draft.tokens)
    for verification in verifications:
        accepted, next_token, total_variation = map(as_lists, verification.result[:3])
        max_logits = as_lists(verification.max_logits)
        logprobs = as_lists(verification.logprobs)
        scores = None if verification.scores is None else np.asarray(verification.scores)
        for i, request in enumerate(verification.requests):
            if request is None:
                continue
            proposed = draft_ids[request.slot][: draft.length(request.slot)]
            kind = kinds.get(request.slot, "")
            if not all(map(math.isfinite, max_logits[i])):
                retry_or_fail(batch, request)
                rounds[request.slot] = Round(
                    tokens=[], proposed=proposed, accepted=0, kind=kind, finish_reason=request.finish_reason
                )
                continue
            request.needs_retry = False
            kept = accepted[i]  # position `kept` yields the next token, so it counts below
            tokens = request.commit([*proposed[:kept], next_token[i]])
            if scores is not None and request.evidence is not None:
                request.evidence.add(scores[i, : len(tokens)], tokens)
            own_logprobs = None
            if logprobs is not None and request.options.logprobs:
                own_logprobs = [*logprobs[i][:kept], logprobs[i][-1]][: len(tokens)]
            rounds[request.slot] = Round(
                tokens=tokens,
                proposed=proposed,
                accepted=min(kept, len(tokens)),
                kind=kind,
                finish_reason=request.finish_reason,
                total_variation=0.0 if total_variation is None else sum(total_variation[i][: kept + 1][: len(tokens)]),
                logprobs=own_logprobs,
            )
    return rounds


def as_lists(array: mx.array | None) -> Any:
    """The values as nested lists."""
    return None if array is None else array.tolist()


def retry_or_fail(batch: Batch, request: Request) -> None:
    """Handle logits that are not finite: clear the row's stale cache positions and retry once without a draft.

    A mask gives stale positions (rejected tokens, padding) probability 0, but 0 * inf is NaN. So a rejected token that
    overflowed could otherwise change later tokens. If the retry fails too, the request ends with an error.
    """
    if request.needs_retry:
        request.finish_reason = "error"
    batch.cache.zero_after(request.slot, 0 if request.finish_reason else request.num_cached)
    request.needs_retry = True


def choose_draft_lengths(batch: Batch, requests: Sequence[Request]) -> list[DraftRequest]:
    """The draft requests of this round. The last token of an output is never drafted: the target adds one itself."""
    if any(request.needs_retry for request in requests):
        return []  # a pass without a draft needs no padding, which could overflow too
    drafter = batch.drafter
    draft_requests = []
    for policy, own in by_policy(requests):
        if not policy.begin_round():
            continue
        kinds = [drafter.kind(request) for request in own]
        limits = [
            min(request.remaining_tokens - 1, batch.max_draft_tokens, drafter.longest(request, kind))
            for request, kind in zip(own, kinds, strict=True)
        ]
        for request, kind, count in zip(own, kinds, policy.choose(kinds, limits), strict=True):
            if count:
                draft_requests.append(DraftRequest(request, count, kind))
    return draft_requests


def observe_draft_lengths(requests: Sequence[Request], rounds: Mapping[int, Round]) -> None:
    for policy, own in by_policy(requests):
        found = [rounds[request.slot] for request in own]
        policy.observe([DraftOutcome(round.kind, round.drafted, round.accepted) for round in found])


def by_policy(requests: Sequence[Request]) -> list[tuple[DraftLength, list[Request]]]:
    """The requests that share each draft length policy."""
    groups: dict[int, tuple[DraftLength, list[Request]]] = {}
    for request in requests:
        groups.setdefault(id(request.draft_length), (request.draft_length, []))[1].append(request)
    return list(groups.values())
