"""Decides which draft tokens are accepted, and which token follows them.

A rule computes two vectors, without random numbers. For t = 0..K, `stop[t]` is the probability that exactly t draft
tokens are accepted, and the next token is drawn from max(weights[t] * p_t - q_t, 0), normalized (q_K is 0).
`sample_acceptance` draws from them for all rules, so every rule can be verified by enumerating a small vocabulary.

In formulas, p is the target's distribution and q is the draft's. Shapes: B rows, K draft tokens, V ids.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import mlx.core as mx

from ..drafters.base import Draft, RequestView, draft_probs, token_history
from ..sampling import GenerationOptions, History, Purpose, logprobs, perturbed_logprobs, processed_logits
from ..sampling.random import categorical, random_keys, uniform

TINY = 1e-30


class AcceptanceResult(NamedTuple):
    """The decision of a rule; lazy.

    Args:
        accepted: (B,), the number of accepted draft tokens; None if the host accepts them for as long as they equal
            `next_token`, which costs no operation of the device.
        next_token: (B,), the token that follows them; if `accepted` is None: (B, K + 1), the target's token at each
            position.
        total_variation: (B, K), for each draft token the total variation distance between the target's distribution and
            the one that the rule applied in its place, given the tokens before it; None for a lossless rule.
        processed_logits: (B, K + 1, V), the logits after penalties and constraints; None if the rule did not compute
            them.
    """

    accepted: mx.array | None
    next_token: mx.array
    total_variation: mx.array | None = None
    processed_logits: mx.array | None = None


class AcceptanceRule(ABC):
    """Computes `stop` and `weights` from the distributions; `decide` samples from them.

    One object decides for all rows that use its class. A parameter such as `delta` may differ from row to row.
    """

    @abstractmethod
    def __call__(self, draft: Draft, target_probs: mx.array) -> tuple[mx.array, mx.array]:
        """target_probs (B, K + 1, V) -> stop (B, K + 1), weights (B, K + 1)."""

    def total_variation(self, draft: Draft, target_probs: mx.array) -> mx.array | None:
        """(B, K), see `AcceptanceResult`; None unless the rule is lossy."""
        return None

    def decide(self, draft: Draft, logits: mx.array, requests: Sequence[RequestView]) -> AcceptanceResult:
        """Decide from the raw logits (B, K + 1, V) after each row's committed tokens and after each draft token."""
        options = [request.options for request in requests]
        probs = mx.exp(logprobs(logits, options, token_history(requests, draft.tokens)))
        starts = [(request.options.seed, len(request.decoder_tokens)) for request in requests]
        next_keys = random_keys([(*start, Purpose.NEXT) for start in starts])
        if not draft.num_tokens:
            return AcceptanceResult(mx.zeros(len(starts), mx.int32), categorical(mx.log(probs[:, 0]), next_keys))
        stop, weights = self(draft, probs)
        accept_keys = random_keys([(*start, Purpose.ACCEPT) for start in starts])
        accepted, next_token = sample_acceptance(draft, probs, stop, weights, accept_keys, next_keys)
        return AcceptanceResult(accepted, next_token, self.total_variation(draft, probs))


@dataclass(frozen=True)
class Rejection(AcceptanceRule):
    """Leviathan et al. 2023, algorithm 1: accept x with probability min(1, p(x) / q(x) + delta).

    With delta 0, the rule is exact; with delta 1, it accepts everything.
    """

    delta: float | mx.array = 0.0  # or (B, 1), with a value for each row

    def __call__(self, draft: Draft, target_probs: mx.array) -> tuple[mx.array, mx.array]:
        p, q = drafted_probs(draft, target_probs)
        accept = mx.minimum(p / mx.maximum(q, TINY) + self.delta, 1.0)
        stop = stop_from(accept, draft)
        return stop, mx.ones_like(stop)

    def total_variation(self, draft: Draft, target_probs: mx.array) -> mx.array | None:
        """The increase in the probability of acceptance over the exact rule, for x sampled from q."""
        if (isinstance(self.delta, float) and self.delta == 0) or draft.num_tokens == 0:
            return None
        p = target_probs[:, : draft.num_tokens]
        q = draft_probs(draft, target_probs.shape[-1])
        delta = self.delta[..., None] if isinstance(self.delta, mx.array) else self.delta
        return within((mx.minimum(q, p + delta * q) - mx.minimum(p, q)).sum(axis=-1), draft)


@dataclass(frozen=True)
class Block(AcceptanceRule):
    """Sun et al. 2025 (2403.10444), algorithm 2: verify the draft as a block.

    On average, it never accepts fewer tokens than `Rejection` with delta 0.

    With P_i = min(1, P_{i-1} p_i(x_i)/q_i(x_i)), P_0 = 1, and S_i = sum_x max(P_i p_{i+1}(x) - q_{i+1}(x), 0), the
    prefix of length i passes with probability h_i = S_i / (S_i + 1 - P_i). The whole draft passes with probability P_K.
    The longest prefix that passes is accepted.
    """

    def __call__(self, draft: Draft, target_probs: mx.array) -> tuple[mx.array, mx.array]:
        rows, count = draft.tokens.shape
        lengths = mx.full((rows,), count) if draft.length_array is None else draft.length_array
        p, q = drafted_probs(draft, target_probs)
        running = [mx.ones((rows,))]
        for i in range(count):
            running.append(mx.minimum(running[-1] * p[:, i] / mx.maximum(q[:, i], TINY), 1.0))
        weights = mx.stack(running, axis=1)  # P, (B, K + 1)

        before = weights[:, :-1]
        following = target_probs[:, :count]
        if draft.probs is None:  # q is a point mass, so S sums P p over all tokens but the draft token
            left = before * (1 - p)
        else:
            left = mx.maximum(before[..., None] * following - draft.probs, 0.0).sum(axis=-1)
        total = left + (1 - before)
        passes = mx.concatenate([mx.where(total > 0, left / mx.maximum(total, TINY), 1.0), weights[:, -1:]], axis=1)

        at = mx.arange(count + 1)[None]
        ends = lengths[:, None]
        passes = mx.where(at < ends, passes, mx.where(at == ends, weights, 0.0))
        passes = mx.where(at == 0, 1.0, passes)  # the empty prefix always passes
        none_longer = mx.cumprod(1 - passes, axis=1, reverse=True, inclusive=False)
        return passes * none_longer, weights


@dataclass(frozen=True)
class Greedy(AcceptanceRule):
    """Temperature 0: accept x if p(x) >= (1 - delta) * max p (the lenience of Leviathan et al., appendix A.5).

    The rule is deterministic. With delta 0, it accepts only the arg-max, so the output is that of greedy decoding.
    """

    delta: float | mx.array = 0.0  # or (B, 1), with a value for each row

    def __call__(self, draft: Draft, target_probs: mx.array) -> tuple[mx.array, mx.array]:
        """target_probs: probabilities at temperature 1, whose arg-max is the next token."""
        p, _ = drafted_probs(draft, target_probs)
        best = target_probs[:, : draft.num_tokens].max(axis=-1)
        stop = stop_from((p >= (1 - self.delta) * best).astype(mx.float32), draft)
        return stop, mx.ones_like(stop)

    def argmax_values(self, logits: mx.array, options: Sequence[GenerationOptions], history: History) -> mx.array:
        """(B, L, V) raw logits -> (B, L, V) values whose arg-max is the target's token. Here: the processed logits."""
        return processed_logits(logits, options, history)

    def decide(self, draft: Draft, logits: mx.array, requests: Sequence[RequestView]) -> AcceptanceResult:
        """Make the same decision as `__call__` without a softmax over V, because p / max p = exp(logit - max logit).

        The total variation is 1 for an accepted token that is not the arg-max, else 0.
        """
        options = [request.options for request in requests]
        values = self.argmax_values(logits, options, token_history(requests, draft.tokens))
        best = mx.argmax(values, axis=-1)
        if not draft.num_tokens or (isinstance(self.delta, float) and self.delta == 0):
            return AcceptanceResult(None, best, processed_logits=values)
        is_best = draft.tokens == best[:, : draft.num_tokens]
        drafted = values[:, : draft.num_tokens].astype(mx.float32)
        chosen = mx.take_along_axis(drafted, draft.tokens[..., None], axis=-1)[..., 0]
        keep = (mx.exp(chosen - drafted.max(axis=-1)) >= 1 - self.delta) & (is_best | (mx.array(self.delta) > 0))
        variation = within((keep & ~is_best).astype(mx.float32), draft)
        return AcceptanceResult(*longest_prefix(draft, keep, best), variation, values)


class Coupled(Greedy):
    """Daliri et al. 2024 (2408.07978): the token at a position is the arg-max of log p + noise.

    The noise depends only on (seed, position). The draft uses the same noise, so it often chooses the same token, but
    the output does not depend on the draft. Given the noise, this is greedy decoding of perturbed log-probabilities.
    """

    def __call__(self, draft: Draft, target_probs: mx.array) -> tuple[mx.array, mx.array]:
        """target_probs: one-hot, given the noise. Draft tokens have probability 1."""
        p, _ = drafted_probs(draft, target_probs)
        stop = stop_from(p, draft)
        return stop, mx.ones_like(stop)

    def argmax_values(self, logits: mx.array, options: Sequence[GenerationOptions], history: History) -> mx.array:
        """(B, L, V) raw logits -> (B, L, V) perturbed log-probabilities."""
        return perturbed_logprobs(logits, options, history)

    def decide(self, draft: Draft, logits: mx.array, requests: Sequence[RequestView]) -> AcceptanceResult:
        return super().decide(draft, logits, requests)._replace(processed_logits=None)  # the values contain noise


def rule_class(options: GenerationOptions) -> type[AcceptanceRule]:
    """The acceptance rule of a request: `Greedy` at temperature 0, otherwise the rule named in its options."""
    return Greedy if options.is_greedy else RULES[options.rule]


def rule_for_rows(options: Sequence[GenerationOptions]) -> AcceptanceRule:
    """Build one rule for rows with the same `rule_class`. Each row keeps its own delta."""
    rule = rule_class(options[0])
    deltas = [own.delta for own in options]
    if rule not in (Greedy, Rejection):
        return rule()
    return rule(mx.array(deltas)[:, None] if any(deltas) else 0.0)


def drafted_probs(draft: Draft, target_probs: mx.array) -> tuple[mx.array, mx.array]:
    """p(x) and q(x) of the draft tokens, both (B, K)."""
    index = draft.tokens[..., None]
    p = mx.take_along_axis(target_probs[:, : draft.num_tokens], index, axis=-1)[..., 0]
    q = mx.ones_like(p) if draft.probs is None else mx.take_along_axis(draft.probs, index, axis=-1)[..., 0]
    return p, q


def longest_prefix(draft: Draft, keep: mx.array, best: mx.array) -> tuple[mx.array, mx.array]:
    """Accept the draft tokens before the first False in `keep` (B, K). The next token is `best` (B, K + 1) there."""
    accepted = mx.cumprod(within(keep.astype(mx.int32), draft), axis=1).sum(axis=1)
    return accepted, mx.take_along_axis(best, accepted[:, None], axis=1)[:, 0]


def within(values: mx.array, draft: Draft) -> mx.array:
    """Return the values (B, K), with 0 after the end of each row's draft."""
    if draft.length_array is None:
        return values
    return values * (mx.arange(values.shape[1])[None] < draft.length_array[:, None]).astype(values.dtype)


def stop_from(accept: mx.array, draft: Draft) -> mx.array:
    """Independent acceptance probabilities (B, K) -> P(exactly t accepted), (B, K + 1)."""
    accept = within(accept, draft)
    ones = mx.ones((accept.shape[0], 1))
    reached = mx.concatenate([ones, mx.cumprod(accept, axis=1)], axis=1)
    return reached * (1 - mx.concatenate([accept, 0 * ones], axis=1))


def residual(draft: Draft, target_probs: mx.array, weights: mx.array, accepted: mx.array) -> mx.array:
    """(B, V), not normalized: the distribution of the token after `accepted` draft tokens.

    After the end of a row's draft, there is no q, so p itself is used. p is also used if the residual rounds to zero,
    because p and q are almost equal.
    """
    at = accepted[:, None, None]
    p = mx.take_along_axis(target_probs, at, axis=1)[:, 0]
    if draft.num_tokens == 0:
        return p
    inside = mx.minimum(at, draft.num_tokens - 1)
    if draft.probs is None:
        token = mx.take_along_axis(draft.tokens, inside[..., 0], axis=1)
        q = (mx.arange(p.shape[-1])[None] == token).astype(p.dtype)
    else:
        q = mx.take_along_axis(draft.probs, inside, axis=1)[:, 0]
    ends = draft.num_tokens if draft.length_array is None else draft.length_array
    q = mx.where((accepted == ends)[:, None], 0.0, q)
    left = mx.maximum(mx.take_along_axis(weights, accepted[:, None], axis=1) * p - q, 0.0)
    return mx.where(left.sum(axis=-1, keepdims=True) > 0, left, p)


def sample_acceptance(
    draft: Draft, target_probs: mx.array, stop: mx.array, weights: mx.array, accept_keys: mx.array, next_keys: mx.array
) -> tuple[mx.array, mx.array]:
    """Sample the number of accepted tokens, (B,), and the next token, (B,). No other step is random. keys: (B, 2)."""
    u = uniform(accept_keys)[:, None]
    accepted = (u >= mx.cumsum(stop, axis=1)[:, :-1]).sum(axis=1)
    if draft.length_array is not None:  # rounding may keep the sum below 1
        accepted = mx.minimum(accepted, draft.length_array.astype(accepted.dtype))
    left = residual(draft, target_probs, weights, accepted)
    return accepted, categorical(mx.log(left), next_keys)


RULES: dict[str, type[AcceptanceRule]] = {"rejection": Rejection, "block": Block, "coupled": Coupled}
