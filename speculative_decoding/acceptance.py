"""Which drafted tokens are kept, and what follows them.

A rule is two vectors and holds no random number: for t = 0..K, `stop[t]` is the probability that exactly t drafted
tokens are accepted, and the next token is drawn from max(weights[t] * p_t - q_t, 0), normalised (q_K is 0). One
function throws the dice for all rules, so every rule can be proved by enumerating a small vocabulary.

In formulas p is the target's distribution and q the draft's. Shapes: B rows, K drafted tokens, V ids.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import mlx.core as mx

from .drafters.base import Draft, token_ids
from .errors import InputError
from .sampling import SamplingParams, Use, key

TINY = 1e-30


@dataclass(frozen=True)
class Verdict:
    """Lazy. `accepted` (B,): how many drafted tokens are kept; `next_token` (B,): what follows them."""

    accepted: mx.array
    next_token: mx.array

    def tokens(self, draft: Draft) -> tuple[list[int], int]:
        """The row's new tokens and how many of them were drafted. This is the round's only wait for the device."""
        packed = mx.concatenate([self.accepted[:, None], self.next_token[:, None], draft.tokens], axis=1)
        mx.eval(packed, draft.tokens)
        accepted, next_token, *drafted = token_ids(packed)
        return [*drafted[:accepted], next_token], accepted


class AcceptanceRule(ABC):
    """Decides by distributions; `verdict` throws the dice."""

    lossless: bool

    @abstractmethod
    def __call__(self, draft: Draft, target_probs: mx.array) -> tuple[mx.array, mx.array]:
        """target_probs (B, K + 1, V) -> stop (B, K + 1), weights (B, K + 1)."""

    def verdict(self, draft: Draft, logits: mx.array, sampling: SamplingParams, position: int) -> Verdict:
        """logits (B, K + 1, V), raw; `position` is where the draft starts in the output."""
        probs = sampling.probs(logits)
        stop, weights = self(draft, probs)
        return throw_dice(
            draft,
            probs,
            stop,
            weights,
            accept_key=key(sampling.seed, position, Use.ACCEPT),
            next_key=key(sampling.seed, position, Use.NEXT),
        )


@dataclass(frozen=True)
class Rejection(AcceptanceRule):
    """Leviathan et al. 2023, algorithm 1: keep x while u <= p(x)/q(x) + delta; delta 0 is exact, 1 keeps all."""

    delta: float = 0.0

    def __post_init__(self) -> None:
        check_delta(self.delta)

    @property
    def lossless(self) -> bool:  # type: ignore[override]
        return self.delta == 0

    def __call__(self, draft: Draft, target_probs: mx.array) -> tuple[mx.array, mx.array]:
        p, q = drafted_probs(draft, target_probs)
        accept = mx.minimum(p / mx.maximum(q, TINY) + self.delta, 1.0)
        stop = stop_from(accept, draft.lengths)
        return stop, mx.ones_like(stop)


@dataclass(frozen=True)
class Greedy(AcceptanceRule):
    """Temperature 0: keep x while p(x) >= (1 - delta) * max p (the lenience of Leviathan et al., appendix A.5).

    No chance is involved. delta 0 keeps only the arg-max, so the output is that of greedy decoding.
    """

    delta: float = 0.0

    def __post_init__(self) -> None:
        check_delta(self.delta)

    @property
    def lossless(self) -> bool:  # type: ignore[override]
        return self.delta == 0

    def __call__(self, draft: Draft, target_probs: mx.array) -> tuple[mx.array, mx.array]:
        """target_probs is the real distribution, at temperature 1; the next token is its arg-max."""
        p, _ = drafted_probs(draft, target_probs)
        best = target_probs[:, : draft.num_tokens].max(axis=-1)
        stop = stop_from((p >= (1 - self.delta) * best).astype(mx.float32), draft.lengths)
        return stop, mx.ones_like(stop)

    def verdict(self, draft: Draft, logits: mx.array, sampling: SamplingParams, position: int) -> Verdict:
        """The same decision without a softmax over the vocabulary: arg-max, and p / max p = exp(logit - max logit)."""
        best = mx.argmax(logits, axis=-1)
        drafted = draft.tokens[..., None]
        if self.delta == 0:
            keep = draft.tokens == best[:, : draft.num_tokens]
        else:
            scores = logits[:, : draft.num_tokens].astype(mx.float32)
            ratio = mx.exp(mx.take_along_axis(scores, drafted, axis=-1)[..., 0] - scores.max(axis=-1))
            keep = ratio >= 1 - self.delta
        keep = within(keep.astype(mx.int32), draft.lengths)
        accepted = mx.cumprod(keep, axis=1).sum(axis=1)
        next_token = mx.take_along_axis(best, accepted[:, None], axis=1)[:, 0]
        return Verdict(accepted, next_token)


def choose_rule(sampling: SamplingParams, delta: float) -> AcceptanceRule:
    return Greedy(delta) if sampling.is_greedy else Rejection(delta)


def check_delta(delta: float) -> None:
    if not 0 <= delta <= 1:
        raise InputError(f"delta must be between 0 (exact) and 1 (accept everything), not {delta}")


def drafted_probs(draft: Draft, target_probs: mx.array) -> tuple[mx.array, mx.array]:
    """p(x) and q(x) of the drafted tokens, both (B, K)."""
    index = draft.tokens[..., None]
    p = mx.take_along_axis(target_probs[:, : draft.num_tokens], index, axis=-1)[..., 0]
    q = mx.ones_like(p) if draft.probs is None else mx.take_along_axis(draft.probs, index, axis=-1)[..., 0]
    return p, q


def within(values: mx.array, lengths: mx.array | None) -> mx.array:
    """(B, K) with 0 behind each row's length."""
    if lengths is None:
        return values
    return values * (mx.arange(values.shape[1])[None] < lengths[:, None]).astype(values.dtype)


def stop_from(accept: mx.array, lengths: mx.array | None) -> mx.array:
    """Independent acceptance probabilities (B, K) -> P(exactly t accepted), (B, K + 1)."""
    accept = within(accept, lengths)
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
    ends = draft.num_tokens if draft.lengths is None else draft.lengths
    q = mx.where((accepted == ends)[:, None], 0.0, q)
    left = mx.maximum(mx.take_along_axis(weights, accepted[:, None], axis=1) * p - q, 0.0)
    return mx.where(left.sum(axis=-1, keepdims=True) > 0, left, p)


def throw_dice(
    draft: Draft, target_probs: mx.array, stop: mx.array, weights: mx.array, *, accept_key: mx.array, next_key: mx.array
) -> Verdict:
    """The one place where chance decides: how many are accepted, and which token follows."""
    u = mx.random.uniform(shape=(stop.shape[0], 1), key=accept_key)
    accepted = (u >= mx.cumsum(stop, axis=1)[:, :-1]).sum(axis=1)
    if draft.lengths is not None:  # the sum may stay below 1 by rounding
        accepted = mx.minimum(accepted, draft.lengths.astype(accepted.dtype))
    left = residual(draft, target_probs, weights, accepted)
    return Verdict(accepted, mx.random.categorical(mx.log(left), key=next_key))
