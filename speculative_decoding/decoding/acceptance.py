"""Which drafted tokens are kept, and what follows them.

A rule is two vectors and holds no random number: for t = 0..K, `stop[t]` is the probability that exactly t drafted
tokens are accepted, and the next token is drawn from max(weights[t] * p_t - q_t, 0), normalised (q_K is 0). One
function throws the dice for all rules, so every rule can be proved by enumerating a small vocabulary.

In formulas p is the target's distribution and q the draft's. Shapes: B rows, K drafted tokens, V ids.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import mlx.core as mx

from ..drafters.base import Draft, Row, draft_probs, history_of
from ..sampling import GenerationOptions, History, Use, logprobs, perturbed_logprobs, scores
from ..sampling.random import categorical, random_keys, uniform

TINY = 1e-30


class Verdict(NamedTuple):
    """Lazy. `accepted` (B,): how many drafted tokens are kept; `next_token` (B,): what follows them.

    total_variation (B, K): for each drafted token, between the law it was decided by and the target's, given what
        stands before it; None where the rule is lossless.
    """

    accepted: mx.array
    next_token: mx.array
    total_variation: mx.array | None = None


class AcceptanceRule(ABC):
    """Decides by distributions; `verdict` throws the dice."""

    @abstractmethod
    def __call__(self, draft: Draft, target_probs: mx.array) -> tuple[mx.array, mx.array]:
        """target_probs (B, K + 1, V) -> stop (B, K + 1), weights (B, K + 1)."""

    def total_variation(self, draft: Draft, target_probs: mx.array) -> mx.array | None:
        """What `Verdict` says of it. Nothing, unless a rule says otherwise."""
        return None

    def verdict(self, draft: Draft, logits: mx.array, rows: Sequence[Row]) -> Verdict:
        """logits (B, K + 1, V), raw, behind each row's committed tokens and its draft."""
        options = [row.options for row in rows]
        probs = mx.exp(logprobs(logits, options, history_of(rows, draft.tokens)))
        stop, weights = self(draft, probs)
        starts = [(row.options.seed, len(row.tokens)) for row in rows]
        accept_keys, next_keys = (random_keys([(*start, use) for start in starts]) for use in (Use.ACCEPT, Use.NEXT))
        dice = throw_dice(draft, probs, stop, weights, accept_keys, next_keys)
        return Verdict(*dice, self.total_variation(draft, probs))


@dataclass(frozen=True)
class Rejection(AcceptanceRule):
    """Leviathan et al. 2023, algorithm 1: keep x while u <= p(x)/q(x) + delta; delta 0 is exact, 1 keeps all."""

    delta: float | mx.array = 0.0  # or (B, 1): of each row

    def __call__(self, draft: Draft, target_probs: mx.array) -> tuple[mx.array, mx.array]:
        p, q = drafted_probs(draft, target_probs)
        accept = mx.minimum(p / mx.maximum(q, TINY) + self.delta, 1.0)
        stop = stop_from(accept, draft)
        return stop, mx.ones_like(stop)

    def total_variation(self, draft: Draft, target_probs: mx.array) -> mx.array | None:
        """With the residual, x really drawn from q: how much more is accepted than the exact rule accepts."""
        if (isinstance(self.delta, float) and self.delta == 0) or draft.num_tokens == 0:
            return None
        p, q = target_probs[:, : draft.num_tokens], draft_probs(draft, target_probs.shape[-1])
        delta = self.delta[..., None] if isinstance(self.delta, mx.array) else self.delta
        return within((mx.minimum(q, p + delta * q) - mx.minimum(p, q)).sum(axis=-1), draft)


@dataclass(frozen=True)
class Block(AcceptanceRule):
    """Sun et al. 2025 (2403.10444), algorithm 2: the draft is judged as a whole; never accepts fewer on average.

    With P_i = min(1, P_{i-1} p_i(x_i)/q_i(x_i)), P_0 = 1, and S_i = sum_x max(P_i p_{i+1}(x) - q_{i+1}(x), 0), prefix i
    passes its own throw with chance h_i = S_i / (S_i + 1 - P_i), the whole draft with P_K; the longest that passes
    is kept.
    """

    def __call__(self, draft: Draft, target_probs: mx.array) -> tuple[mx.array, mx.array]:
        rows, count = draft.tokens.shape
        lengths = mx.full((rows,), count) if draft.length_array is None else draft.length_array
        p, q = drafted_probs(draft, target_probs)
        running = [mx.ones((rows,))]
        for i in range(count):
            running.append(mx.minimum(running[-1] * p[:, i] / mx.maximum(q[:, i], TINY), 1.0))
        weights = mx.stack(running, axis=1)  # P, (B, K + 1)
        before, following = weights[:, :-1], target_probs[:, :count]
        if draft.probs is None:  # S over a point mass: all of P p but what falls on the drafted token
            left = before * (1 - p)
        else:
            left = mx.maximum(before[..., None] * following - draft.probs, 0.0).sum(axis=-1)
        total = left + (1 - before)
        passes = mx.concatenate([mx.where(total > 0, left / mx.maximum(total, TINY), 1.0), weights[:, -1:]], axis=1)
        at = mx.arange(count + 1)[None]
        ends = lengths[:, None]
        passes = mx.where(at < ends, passes, mx.where(at == ends, weights, 0.0))
        passes = mx.where(at == 0, 1.0, passes)  # nothing kept always passes
        none_longer = mx.cumprod((1 - passes)[:, ::-1], axis=1)[:, ::-1]
        none_longer = mx.concatenate([none_longer[:, 1:], mx.ones((rows, 1))], axis=1)
        return passes * none_longer, weights


@dataclass(frozen=True)
class Greedy(AcceptanceRule):
    """Temperature 0: keep x while p(x) >= (1 - delta) * max p (the lenience of Leviathan et al., appendix A.5).

    No chance is involved. delta 0 keeps only the arg-max, so the output is that of greedy decoding.
    """

    delta: float | mx.array = 0.0  # or (B, 1): of each row

    def __call__(self, draft: Draft, target_probs: mx.array) -> tuple[mx.array, mx.array]:
        """target_probs is the real distribution, at temperature 1; the next token is its arg-max."""
        p, _ = drafted_probs(draft, target_probs)
        best = target_probs[:, : draft.num_tokens].max(axis=-1)
        stop = stop_from((p >= (1 - self.delta) * best).astype(mx.float32), draft)
        return stop, mx.ones_like(stop)

    def scores(self, logits: mx.array, options: Sequence[GenerationOptions], history: History) -> mx.array:
        """(B, L, V) whose arg-max is what the target writes."""
        return scores(logits, options, history)

    def verdict(self, draft: Draft, logits: mx.array, rows: Sequence[Row]) -> Verdict:
        """The same decision without a softmax over the vocabulary: arg-max, and p / max p = exp(logit - max logit).

        The total variation is 1 for a token that is kept without being the arg-max, else 0: two certainties that differ
        are 1 apart.
        """
        values = self.scores(logits, [row.options for row in rows], history_of(rows, draft.tokens))
        best = mx.argmax(values, axis=-1)
        if not draft.num_tokens:
            return Verdict(*longest_prefix(draft, best, best))
        right = draft.tokens == best[:, : draft.num_tokens]
        if isinstance(self.delta, float) and self.delta == 0:
            return Verdict(*longest_prefix(draft, right, best))
        drafted = values[:, : draft.num_tokens].astype(mx.float32)
        chosen = mx.take_along_axis(drafted, draft.tokens[..., None], axis=-1)[..., 0]
        keep = (mx.exp(chosen - drafted.max(axis=-1)) >= 1 - self.delta) & (right | (mx.array(self.delta) > 0))
        variation = within((keep & ~right).astype(mx.float32), draft)
        return Verdict(*longest_prefix(draft, keep, best), variation)


@dataclass(frozen=True)
class Coupled(Greedy):
    """Daliri et al. 2024 (2408.07978): the token at a position is the arg-max of log p + noise, and the noise depends
    on (seed, position) alone. The draft uses the same noise, so it often finds the same token; which tokens come out
    does not depend on it at all. Given the noise nothing is left to chance: greedy decoding, of other scores.
    """

    def __call__(self, draft: Draft, target_probs: mx.array) -> tuple[mx.array, mx.array]:
        """target_probs: one-hot, as they are given the noise. The draft counts as certain of its tokens."""
        p, _ = drafted_probs(draft, target_probs)
        stop = stop_from(p, draft)
        return stop, mx.ones_like(stop)

    def scores(self, logits: mx.array, options: Sequence[GenerationOptions], history: History) -> mx.array:
        return perturbed_logprobs(logits, options, history)


def kind_of_rule(options: GenerationOptions) -> type[AcceptanceRule]:
    """The rule that a row is judged by. At temperature 0 all exact rules are one and the same."""
    return Greedy if options.is_greedy else RULES[options.acceptance]


def rule_for(options: Sequence[GenerationOptions]) -> AcceptanceRule:
    """One rule for rows of one kind, that may differ in delta."""
    kind, deltas = kind_of_rule(options[0]), [row.delta for row in options]
    if kind not in (Greedy, Rejection):
        return kind()
    return kind(mx.array(deltas)[:, None] if any(deltas) else 0.0)


def drafted_probs(draft: Draft, target_probs: mx.array) -> tuple[mx.array, mx.array]:
    """p(x) and q(x) of the drafted tokens, both (B, K)."""
    index = draft.tokens[..., None]
    p = mx.take_along_axis(target_probs[:, : draft.num_tokens], index, axis=-1)[..., 0]
    q = mx.ones_like(p) if draft.probs is None else mx.take_along_axis(draft.probs, index, axis=-1)[..., 0]
    return p, q


def longest_prefix(draft: Draft, keep: mx.array, best: mx.array) -> tuple[mx.array, mx.array]:
    """Keep drafted tokens up to the first with keep (B, K) false; what follows is the best (B, K + 1) there."""
    if not draft.num_tokens:
        return mx.zeros(best.shape[0], mx.int32), best[:, 0]
    accepted = mx.cumprod(within(keep.astype(mx.int32), draft), axis=1).sum(axis=1)
    return accepted, mx.take_along_axis(best, accepted[:, None], axis=1)[:, 0]


def within(values: mx.array, draft: Draft) -> mx.array:
    """(B, K) with 0 behind the length of each row's draft."""
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
    """(B, V): what the token behind `accepted` drafted ones is drawn from, not normalised.

    Where the draft ended (at its row's length, or at K) there is no q, and it is p. It is p too where rounding
    left nothing of the residual, as happens when p and q are all but equal.
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


def throw_dice(
    draft: Draft, target_probs: mx.array, stop: mx.array, weights: mx.array, accept_keys: mx.array, next_keys: mx.array
) -> tuple[mx.array, mx.array]:
    """The one place where chance decides: how many are accepted, (B,), and which token follows, (B,). keys: (B, 2)."""
    u = uniform(accept_keys)[:, None]
    accepted = (u >= mx.cumsum(stop, axis=1)[:, :-1]).sum(axis=1)
    if draft.length_array is not None:  # the sum may stay below 1 by rounding
        accepted = mx.minimum(accepted, draft.length_array.astype(accepted.dtype))
    left = residual(draft, target_probs, weights, accepted)
    return accepted, categorical(mx.log(left), next_keys)


RULES: dict[str, type[AcceptanceRule]] = {"rejection": Rejection, "block": Block, "coupled": Coupled}
