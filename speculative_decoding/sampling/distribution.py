"""From logits to the distribution that is to be preserved. Pure functions on float32; no dice here but their keys.

The steps, their order and their treatment of ties are those of Hugging Face's logits processors
(transformers 4 and 5, `_get_logits_processor`): repetition penalty, temperature, top-k, top-p, min-p.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

import mlx.core as mx

from ..errors import InputError

MAX_SEED = 2**32 - 1


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is chosen.

    temperature: 0 takes the most likely token; above 0 samples from softmax(logits / temperature).
    top_k: only the k most likely tokens; 0 is off.
    top_p: only the smallest set of most likely tokens whose probability reaches top_p; 1 is off.
    min_p: only tokens at least min_p times as likely as the most likely one; 0 is off.
    repetition_penalty: divides the positive and multiplies the negative logits of every token that the decoder has
        read, its start token included; 1 is off. It is the only one that also acts at temperature 0.
    seed: 0 to 2^32 - 1; the same seed, prompt and settings give the same text.

    Raises `InputError` that names the field.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        require(math.isfinite(self.temperature) and self.temperature >= 0, "temperature", self, "must be 0 or positive")
        require(is_whole(self.top_k) and self.top_k >= 0, "top_k", self, "must be a whole number >= 0 (0 is off)")
        require(0 < self.top_p <= 1, "top_p", self, "must be above 0 and at most 1 (1 is off)")
        require(0 <= self.min_p <= 1, "min_p", self, "must be between 0 (off) and 1")
        require(
            math.isfinite(self.repetition_penalty) and self.repetition_penalty > 0,
            "repetition_penalty",
            self,
            "must be a positive number (1 is off)",
        )
        require(is_whole(self.seed) and 0 <= self.seed <= MAX_SEED, "seed", self, f"must be between 0 and {MAX_SEED}")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def needs_history(self) -> bool:
        """Whether the distribution depends on which tokens were written, beyond what the model makes of them."""
        return self.repetition_penalty != 1

    def scores(self, logits: mx.array, preceding: mx.array | None) -> mx.array:
        """(B, L, V) raw logits -> (B, L, V) with the repetition penalty: all that counts at temperature 0.

        preceding: (B, N) the ids that stand before the *last* of the L positions; the one before it sees one id
            less, and so on. Lazy, so that drafted tokens may be among them. Not looked at unless `needs_history`.
        """
        if not self.needs_history:
            return logits
        assert preceding is not None
        return penalise_repetition(logits.astype(mx.float32), preceding, self.repetition_penalty)

    def logprobs(self, logits: mx.array, preceding: mx.array | None) -> mx.array:
        """The same shapes -> float32 log-probabilities of the distribution that is sampled from."""
        if self.is_greedy:
            raise ValueError("at temperature 0 there is nothing to sample from")
        x = self.scores(logits, preceding).astype(mx.float32) / self.temperature
        if self.top_k:
            x = keep_top_k(x, self.top_k)
        if self.top_p < 1:
            x = keep_top_p(x, self.top_p)
        if self.min_p > 0:
            x = keep_min_p(x, self.min_p)
        return x - mx.logsumexp(x, axis=-1, keepdims=True)

    def probs(self, logits: mx.array, preceding: mx.array | None) -> mx.array:
        return mx.exp(self.logprobs(logits, preceding))

    def perturbed(self, logits: mx.array, preceding: mx.array | None, position: int) -> mx.array:
        """(1, L, V) log-probabilities plus Gumbel noise: the arg-max is a sample (Daliri et al., 2408.07978).

        The noise depends on the seed and a token's position alone, so everyone who asks for a position, draft or
        target, is thrown the same dice. `position` is that of the first of the L tokens.
        """
        logprobs = self.logprobs(logits, preceding)
        _, length, vocab_size = logprobs.shape
        keys = [key(self.seed, position + i, Use.COUPLED) for i in range(length)]
        return logprobs + mx.stack([mx.random.gumbel((vocab_size,), key=each) for each in keys])[None]


def token_logprobs(logits: mx.array, tokens: mx.array) -> mx.array:
    """(..., V) raw logits, (...) ids -> (...) float32: the ids' log-probabilities under the model, at temperature 1 and
    before any of the steps above.
    """
    logits = logits.astype(mx.float32)
    chosen = mx.take_along_axis(logits, tokens[..., None], axis=-1)[..., 0]
    return chosen - mx.logsumexp(logits, axis=-1)


def require(condition: bool, name: str, params: SamplingParams, message: str) -> None:
    if not condition:
        raise InputError(f"{name} {message}, not {getattr(params, name)}")


def is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def penalise_repetition(logits: mx.array, preceding: mx.array, penalty: float) -> mx.array:
    """(B, L, V), (B, N): see `SamplingParams.scores` for which ids each position sees."""
    rows, length, vocab_size = logits.shape
    count = preceding.shape[1]
    at = mx.arange(count)[None]
    first_seen = mx.full((rows, vocab_size), count).at[mx.arange(rows)[:, None], preceding].minimum(at)
    visible = count - length + 1 + mx.arange(length)  # how many ids each position sees
    seen = first_seen[:, None] < visible[None, :, None]
    return mx.where(seen, mx.where(logits < 0, logits * penalty, logits / penalty), logits)


def keep_top_k(logits: mx.array, k: int) -> mx.array:
    """(..., V): -inf below the k-th largest; tokens that tie with it all stay."""
    smallest = mx.topk(logits, min(k, logits.shape[-1]), axis=-1).min(axis=-1, keepdims=True)
    return mx.where(logits < smallest, -mx.inf, logits)


def keep_top_p(logits: mx.array, p: float) -> mx.array:
    """(..., V): -inf for the least likely tokens that together have a probability of at most 1 - p; one always stays.

    Among tokens that tie at the edge the highest ids stay, as with a stable sort, but only values are sorted here.
    """
    ascending = mx.sort(logits, axis=-1)
    dropped = mx.cumsum(mx.softmax(ascending, axis=-1), axis=-1) <= 1 - p
    dropped = dropped & (mx.arange(logits.shape[-1]) < logits.shape[-1] - 1)
    kept = mx.where(dropped, mx.inf, ascending)
    edge = kept.min(axis=-1, keepdims=True)
    tied = logits == edge
    room = (kept == edge).sum(axis=-1, keepdims=True)
    stays = tied & (mx.cumsum(tied.astype(mx.int32), axis=-1, reverse=True) <= room)
    return mx.where((logits > edge) | stays, logits, -mx.inf)


def keep_min_p(logits: mx.array, min_p: float) -> mx.array:
    """(..., V): -inf where the probability is below min_p times the largest."""
    probs = mx.softmax(logits, axis=-1)
    return mx.where(probs < min_p * probs.max(axis=-1, keepdims=True), -mx.inf, logits)


class Use(IntEnum):
    """What a random number is for; each use has its own stream."""

    DRAFT = 0
    ACCEPT = 1
    NEXT = 2
    COUPLED = 3


def key(seed: int, position: int, use: Use) -> mx.array:
    """A random key that depends on nothing but the request's seed, where in its output we are, and the use.

    Rounds start at different positions, so no two rounds of a request share a key, and a request does not
    depend on what ran before it or beside it.
    """
    return mx.array([seed, position * len(Use) + use], mx.uint32)
