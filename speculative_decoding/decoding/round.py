"""One round of speculative decoding for a batch: draft, verify, accept, commit.

This is the loop in `single_sequence.py` for many requests at once. Read that file first.

- A *slot* is a place in the batch. It holds a request, or it is free. A pass computes a *row* for each of the B slots,
  free or not, so its shape stays the same.
- A *draft* (`Draft`) has up to K tokens in each row. Shorter rows are padded to K tokens; `Draft.lengths` holds the
  number of draft tokens in each row, and no rule accepts the padding. Its *kind* is "model" if a draft model or draft
  head generated it, "copy" if it was copied from the source or earlier tokens, "text" or "memory" if it follows a given
  text or a text from a translation memory, and by default "custom" for a user's drafter. Kinds differ in cost and
  acceptance rate, so each has its own draft length.
- A *drafter* (`BatchDrafter`) rolls back by itself: `propose` receives the committed tokens of each request.
- A *policy* (`DraftLength`) chooses the maximum draft length of each row before drafting. Requests may share a policy,
  which then learns from all of them.
- A *pass* of the target reads L >= K + 1 tokens of each row: the last committed token and the draft tokens. L is the
  *width* of the pass. `PassWidths` decides whether a pass is padded to a greater width: one that has been measured to
  be fast, or one that yields the same bits as other widths. `UNPADDED`, the default, adds no padding.
- Arrays are *lazy*. MLX computes them at `mx.eval`, where the host waits for the device: a *host sync*.
- A *baseline* decodes without drafts: every round has K = 0.

Shapes: B rows, or R of them; K draft tokens; V ids of the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from ..draft_length.base import DraftLength
from ..draft_length.passes import UNPADDED, PassWidths
from ..drafters.base import BatchDrafter, Draft, RequestView, num_shared, token_history
from ..models.base import EncoderDecoder
from ..models.cache import DecoderCache
from ..models.compiled import joined_columns
from ..sampling import leaves_logits_unchanged, processed_logits, token_logprobs
from .acceptance import AcceptanceResult, rule_class, rule_for_rows
from .request import Request
from .results import Round


class Batch:
    """The requests that are decoded together. Between rounds, the cache holds every committed token but the last.

    Args:
        model: The target.
        drafter: The drafter for all requests, whose `begin` has been called for each of them.
        cache: The target's KV cache.
        slots: The unfinished request in each slot, None in a free slot. Between rounds, the engine fills and frees
            slots, and may change their number.
        widths: The widths that passes may have.
        overlap_baseline_passes: Whether a baseline's next pass may start before the host reads the tokens of this one,
            which saves time on a GPU; see `start_next_baseline_pass`.

    Attributes:
        num_waiting: The number of requests that wait for a slot. The engine updates it before each round.
        started_pass: A pass that started early, with the requests that occupied the slots at that time.
    """

    def __init__(
        self,
        model: EncoderDecoder,
        drafter: BatchDrafter,
        cache: DecoderCache,
        slots: list[Request | None],
        widths: PassWidths = UNPADDED,
        overlap_baseline_passes: bool = False,
    ) -> None:
        self.model = model
        self.drafter = drafter
        self.slots = slots
        self.widths = widths
        self.overlap_baseline_passes = overlap_baseline_passes
        self.num_waiting = 0
        self.use_cache(cache)

    def use_cache(self, cache: DecoderCache) -> None:
        """Use this cache from now on. A batch without requests may switch to a different cache."""
        self.cache = cache
        self.started_pass: tuple[list[Request | None], Verified] | None = None
        self.drafter.use_cache(cache)  # a draft head reads the target's hidden states and cross-attention there

    @property
    def requests(self) -> list[Request]:
        return [request for request in self.slots if request is not None]

    @property
    def has_retry(self) -> bool:
        """Whether the next round repeats the pass of a row whose logits were not finite; see `retry_or_fail`."""
        return any(request.needs_retry for request in self.requests)


def speculate(batch: Batch, on_phase_end: Callable[[], None] | None = None) -> dict[Request, Round]:
    """Run one round for all requests (Leviathan et al. 2023, algorithm 1). The engine frees finished requests' slots.

    on_phase_end: called after drafting and after verification, to time both. The engine passes this function if a
        request's options include `timed`.
    """
    requests, slots = batch.requests, len(batch.slots)
    max_lengths, kinds = choose_draft_lengths(batch)
    draft = batch.drafter.propose(max_lengths, slots) if max_lengths else Draft.empty(slots)  # (B, K)
    if on_phase_end is not None:
        mx.eval(draft.tokens)  # a second host sync, without which drafting could not be timed
        on_phase_end()

    verified = pop_started_pass(batch, draft) if batch.started_pass else None  # see the end of this file
    if verified is None:
        logits = batch.model.decode(target_inputs(batch, draft), batch.cache)  # (B, L, V)
        verified = verify(batch, draft, logits)  # a list, because rows may have different acceptance rules
    if not draft.num_tokens and on_phase_end is None and may_start_next_pass(batch):
        start_next_baseline_pass(batch, draft, verified)
    mx.eval(verified, draft.tokens)  # the host sync: the code above is lazy, the code below reads values
    if on_phase_end is not None:
        on_phase_end()

    rounds = commit(batch, draft, kinds, verified)  # a request may end here, at an end token, a stop string or a limit
    rewind(batch)  # the cache keeps every committed token but the last
    for policy, own in by_policy(requests):
        policy.observe([rounds[request] for request in own])  # a policy may learn from the number of accepted tokens
    grown = [request for request in requests if rounds[request].tokens]  # the logits of the others were not finite
    batch.drafter.observe(grown, [len(rounds[request].tokens) for request in grown])  # a head reads hidden states
    return rounds


def choose_draft_lengths(batch: Batch) -> tuple[dict[RequestView, int], dict[Request, str]]:
    """Return the maximum draft length of each request that gets a draft, and the kind of each draft.

    The last token of an output is never drafted, because the target adds one token itself.
    """
    if batch.has_retry:
        return {}, {}
    # If passes must be exact, none may be wider than the widest one timed so far. This limit is applied after `choose`,
    # because an adaptive policy needs the requests' own limits to decide whether a wider pass should be timed.
    longest_draft = batch.widths.max_positions(len(batch.slots)) - 1
    max_lengths: dict[RequestView, int] = {}  # `RequestView` is the part of a request visible to drafters
    kinds: dict[Request, str] = {}
    for policy, requests in by_policy(batch.requests):
        if not policy.wants_drafts():
            continue
        next_kinds, limits = [], []
        for request in requests:
            kind, limit = batch.drafter.kind_and_limit(request)  # a copy cannot go past the end of its source text
            next_kinds.append(kind)
            limits.append(min(request.remaining_tokens - 1, limit))
        lengths = policy.choose(next_kinds, limits)
        for request, kind, limit, length in zip(requests, next_kinds, limits, lengths, strict=True):
            if (length := min(length, limit, longest_draft)) > 0:
                max_lengths[request], kinds[request] = length, kind
            elif limit > 0:
                request.stats.declined_by_kind[kind] += 1
    return max_lengths, kinds


def by_policy(requests: Sequence[Request]) -> list[tuple[DraftLength, list[Request]]]:
    """The draft-length policies, each with the requests that share it. A policy chooses all these lengths together."""
    groups: dict[int, tuple[DraftLength, list[Request]]] = {}  # by identity: a user's policy may not be hashable
    for request in requests:
        groups.setdefault(id(request.draft_length), (request.draft_length, []))[1].append(request)
    return list(groups.values())


def target_inputs(batch: Batch, draft: Draft, last: mx.array | None = None) -> mx.array:
    """(B, L) ids: each row's last token, its draft tokens, and padding if the pass must be wider.

    last: (B, 1); by default the last committed tokens.
    """
    slots = batch.slots
    padding = batch.model.config.pad_token_id
    if last is None:
        last = mx.array([[padding if request is None else request.decoder_tokens[-1]] for request in slots], mx.uint32)
    width = batch.widths.padded_width(len(slots), 1 + draft.num_tokens)
    if width == 1:
        return last
    parts = [last, draft.tokens]
    if num_padding := width - 1 - draft.num_tokens:
        parts.append(mx.array([[padding] * num_padding] * len(slots), mx.uint32))
    return joined_columns(parts)


class Verification(NamedTuple):
    """The decision of one acceptance rule for R rows; lazy.

    `commit` reads it row by row, with numbers in place of the arrays.

    Args:
        accepted, next_token: See `AcceptanceResult`.
        largest_logits: (R, K + 1), the largest logit at each position, or NaN if any logit there is NaN. If one of them
            is not finite, the row's decision is invalid.
        total_variation: (R, K), the error of a lossy rule in deciding each draft token, accepted or replaced, and 0
            after the end of a row's draft; None for a lossless rule.
        logprobs: (R, K + 1), log-probabilities of the draft tokens and, in the last column, of the next token. If
            `accepted` is None, those of the target's token at each position. None if not requested.
        processed_logits: (R, K + 1, V) float32, the logits after penalties and constraints; None unless a request has
            an observer.
    """

    accepted: mx.array | None
    next_token: mx.array
    largest_logits: mx.array
    total_variation: mx.array | None
    logprobs: mx.array | None
    processed_logits: mx.array | None


Verified = tuple[Sequence[int], Verification]  # the slot of each row, and the decision; mx.eval skips the slots


def verify(batch: Batch, draft: Draft, logits: mx.array) -> list[Verified]:
    """Decide which draft tokens are accepted, with one computation for all rows that use the same rule. Lazy.

    logits: (B, L, V), the raw logits after each of the `target_inputs`.
    """
    if logits.shape[1] > draft.num_tokens + 1:
        logits = logits[:, : draft.num_tokens + 1]  # without padding
    requests = batch.requests
    by_rule: dict[type, list[Request]] = {}
    for request in requests:
        by_rule.setdefault(rule_class(request.options), []).append(request)
    if len(by_rule) == 1:  # all rows stay in place; a free slot is computed with the first request's options
        rows = [request or requests[0] for request in batch.slots]
        return [(range(len(rows)), verify_rows(rows, draft, logits))]
    verified: list[Verified] = []
    for rows in by_rule.values():
        slots = [request.slot for request in rows]
        verified.append((slots, verify_rows(rows, draft.select(slots), mx.take(logits, mx.array(slots), axis=0))))
    return verified


def verify_rows(rows: Sequence[Request], draft: Draft, logits: mx.array) -> Verification:
    """Apply the acceptance rule that all rows use. logits: (R, K + 1, V), raw."""
    options = [row.options for row in rows]
    result = rule_for_rows(options).decide(draft, logits, rows)  # also lazy
    logprobs = logprobs_of(draft, result, logits) if any(own.logprobs for own in options) else None
    observed = None
    if any(row.observer is not None for row in rows):
        observed = result.processed_logits
        if observed is None:  # the rule did not compute them
            tokens_before = token_history(rows, draft.tokens)  # what penalties and constraints depend on
            observed = processed_logits(logits, options, tokens_before)
        observed = observed.astype(mx.float32)
    return Verification(
        result.accepted, result.next_token, logits.max(axis=-1), result.total_variation, logprobs, observed
    )


def logprobs_of(draft: Draft, result: AcceptanceResult, logits: mx.array) -> mx.array:
    """Return `Verification.logprobs`."""
    if result.accepted is None:
        return token_logprobs(logits, result.next_token)
    next_logits = mx.take_along_axis(logits, result.accepted[:, None, None], axis=1)  # (R, 1, V)
    following = token_logprobs(next_logits, result.next_token[:, None])
    if not draft.num_tokens:
        return following
    return mx.concatenate([token_logprobs(logits[:, : draft.num_tokens], draft.tokens), following], axis=1)


def commit(batch: Batch, draft: Draft, kinds: dict[Request, str], verified: Sequence[Verified]) -> dict[Request, Round]:
    """Append to each request its accepted draft tokens and the next token. All arrays have been evaluated.

    Returns:
        What callers receive about each request: `proposed` holds the draft tokens of its row, `tokens` the committed
        tokens, and `accepted` the number of committed draft tokens.
    """
    rounds = {}
    draft_tokens = draft.to_lists()
    for slots, verification in verified:
        for slot, row in zip(slots, on_host(verification), strict=True):
            request = batch.slots[slot]
            if request is None:
                continue
            round = Round(tokens=[], proposed=draft_tokens[slot], accepted=0, kind=kinds.get(request, ""))
            rounds[request] = round
            if all(map(math.isfinite, row.largest_logits)):
                request.needs_retry = False
                commit_row(request, round, row)
            else:
                retry_or_fail(batch, request)
            round.finish_reason = request.finish_reason
    return rounds


def on_host(verification: Verification) -> Iterator[Any]:
    """The rows of an evaluated verification, with numbers and lists in place of arrays."""
    columns: list[Any] = []
    for array in verification:
        if array is None:
            columns.append(repeat(None))  # never ends, hence `strict=False`
        elif array.ndim == 3:
            columns.append(np.asarray(array))  # creating a list of V numbers is slow
        else:
            columns.append(array.tolist())
    return map(Verification._make, zip(*columns, strict=False))


def commit_row(request: Request, round: Round, row: Any) -> None:
    """Append the accepted tokens and the next one to the output, which may end before the last of them.

    row: the row's `Verification`, as `on_host` returns it.
    """
    if row.accepted is None:
        accepted = num_shared(round.proposed, row.next_token)
        logprobs = None if row.logprobs is None else row.logprobs[: accepted + 1]
        row = row._replace(accepted=accepted, next_token=row.next_token[accepted], logprobs=logprobs)
    accepted = row.accepted
    tokens = request.commit([*round.proposed[:accepted], row.next_token])  # drops tokens after the end of the output
    count = len(tokens)
    round.tokens = tokens
    round.accepted = min(accepted, count)
    if row.total_variation is not None:
        round.total_variation = sum(row.total_variation[:count])
    if row.logprobs is not None and request.options.logprobs:
        round.logprobs = [*row.logprobs[:accepted], row.logprobs[-1]][:count]
    if row.processed_logits is not None and request.observer is not None:
        request.observer.committed(row.processed_logits[:count], tokens)


def retry_or_fail(batch: Batch, request: Request) -> None:
    """Handle logits that are not finite: the row commits nothing, and the next round repeats its pass.

    Only this request loses a round, and only this request fails if its logits are still not finite. However, the next
    round drafts for no row of the batch, because a draft for any row widens the pass, and this row's padding could also
    overflow. A pass that started before the retry was known is not reused.

    The row's stale cache positions (rejected tokens, padding) are zeroed. A mask sets their attention weights to 0, but
    0 * inf is NaN, so a rejected token that overflowed could otherwise change later tokens. A draft model's cache needs
    no repair, because its logits do not change the output.
    """
    kept = len(request.decoder_tokens) - 1
    if request.needs_retry:
        request.fail()
        kept = 0  # passes also compute free slots, so NaN would remain there for the slot's next request
    else:
        request.needs_retry = True
    batch.cache.zero_after(request.slot, kept)


def rewind(batch: Batch, ahead: int = 0) -> None:
    """Keep every committed token but the last in the cache. No data is moved: the next pass overwrites the rest.

    ahead: the number of additional tokens to keep after them.
    """
    slots = batch.slots
    batch.cache.trim_to([0 if request is None else len(request.decoder_tokens) - 1 + ahead for request in slots])


# The next pass of a baseline needs only the next tokens, which are on the device. A GPU can therefore start that pass
# before the host reads the tokens, as in mlx-lm, and compute while the host commits them and builds the next graph
# (docs/decisions/host-time.md). If the next round needs a different pass, the result is dropped. The dropped pass has
# written only to cache positions after the committed tokens, and the pass that replaces it overwrites them.


def start_next_baseline_pass(batch: Batch, draft: Draft, verified: Sequence[Verified]) -> None:
    """Start this round's pass and the next one. draft: must be empty."""
    mx.async_eval(verified)  # type: ignore[no-untyped-call]
    ((_, verification),) = verified  # a single rule, because all requests are greedy
    rewind(batch, ahead=1)  # keep the token that this round's pass reads, and drop any padding
    logits = batch.model.decode(target_inputs(batch, draft, verification.next_token), batch.cache)
    (next_verified,) = verify(batch, draft, logits)  # before this round's tokens are committed; see below
    mx.async_eval(next_verified)  # type: ignore[no-untyped-call]
    batch.started_pass = [*batch.slots], next_verified


def may_start_next_pass(batch: Batch) -> bool:
    """Whether the next pass needs only the next tokens: decoding is greedy, without drafts and constraints."""
    if not batch.overlap_baseline_passes or batch.num_waiting:  # a request that gets a slot needs a different pass
        return False
    requests = batch.requests
    options = [request.options for request in requests]
    next_tokens = mx.zeros((len(requests), 1))  # placeholders; nothing below may depend on their values
    return (
        not batch.cache.recorded_layers  # no draft head, which would read the hidden states of this round's pass
        and not batch.has_retry
        and any(request.remaining_tokens > 1 for request in requests)
        and all(request.draft_length.never_drafts for request in requests)
        and all(own.is_greedy for own in options)
        # `verify` treats the next pass as if it followed the committed tokens, one position too early. Therefore, the
        # logits' processing must not depend on the position or on the preceding tokens, in this pass or in the next.
        and leaves_logits_unchanged(options, token_history(requests, next_tokens), num_positions=2)
    )


def pop_started_pass(batch: Batch, draft: Draft) -> list[Verified] | None:
    """Remove the pass that the last round started from the batch. Return its result if this round needs that pass."""
    assert batch.started_pass is not None
    requests_then, verified = batch.started_pass
    batch.started_pass = None
    if draft.num_tokens or batch.has_retry or len(batch.slots) != len(requests_then):  # the engine changed the slots
        return None
    for request, request_then in zip(batch.slots, requests_then, strict=True):
        if request is not None and request is not request_then:
            return None  # the slot now holds a different request
    batch.cache.advance(1)  # keep the token that the pass read, which `rewind` removed from the cache
    return [verified]
