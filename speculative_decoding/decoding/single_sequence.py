"""Speculative decoding of one sequence with a draft model, on one screen (Leviathan et al. 2023, algorithm 1).

The package does not use this file. It is the method without batches, text and adaptive lengths, and tests compare its
tokens with the engine's. Start here, then read `round.py` and `acceptance.py`.
"""

from __future__ import annotations

import mlx.core as mx

from ..models.audio import Source
from ..models.base import EncoderDecoder
from ..sampling import Use
from ..sampling.options import MAX_DRAFT_TOKENS
from ..sampling.random import categorical, random_keys, split, uniform


def speculative_decode(
    target: EncoderDecoder,
    draft: EncoderDecoder,
    source: Source,
    *,
    num_draft_tokens: int = 5,
    max_tokens: int = 100,
    temperature: float = 0.0,
    seed: int = 0,
) -> list[int]:
    """Generate tokens with the target's distribution; `draft` has the same vocabulary. Returns the generated tokens."""
    target_cache = target.make_cache(target.encode_rows([source])[0])
    draft_cache = draft.make_cache(draft.encode_rows([source])[0])
    tokens = [target.config.decoder_start_token_id]

    while len(tokens) <= max_tokens and tokens[-1] not in target.config.eos_token_ids:
        # Draft: K tokens x_1..x_K, each sampled from the draft's distribution q.
        count = min(num_draft_tokens, max_tokens - len(tokens))
        # The engine always makes this number of keys, for any K; the same keys give the same tokens.
        draft_keys = split(random_keys([(seed, len(tokens), Use.DRAFT)]), MAX_DRAFT_TOKENS)
        drafted: list[int] = []
        q: list[mx.array] = []
        for i in range(count):
            unread = [*tokens, *drafted][draft_cache.offset :]
            logits = draft.decode(mx.array([unread]), draft_cache)[0, -1]  # (V,)
            q.append(distribution(logits, temperature))
            drafted.append(sample(q[i], draft_keys[:, i]))

        # Verify: one pass of the target over the last token and the draft gives p for K + 1 positions.
        logits = target.decode(mx.array([[tokens[-1], *drafted]]), target_cache)[0]  # (K + 1, V)
        p = distribution(logits, temperature)

        # Accept x_1..x_t with probability prod min(1, p(x_i) / q(x_i)): one random number u serves all positions,
        # because u >= 1 - product has exactly this probability.
        u = float(uniform(random_keys([(seed, len(tokens), Use.ACCEPT)])))
        accepted = 0
        passes = 1.0
        for i, token in enumerate(drafted):
            passes *= min(1.0, float(p[i, token] / q[i][token]))
            if u < 1 - passes:
                break
            accepted += 1

        # Next token: from the residual max(p - q, 0) after a rejected token, else from p.
        following = p[accepted]
        if accepted < count:
            residual = mx.maximum(following - q[accepted], 0)
            following = residual if float(residual.sum()) > 0 else following
        next_token = sample(following, random_keys([(seed, len(tokens), Use.NEXT)]))

        # Commit, and rewind both caches to every committed token but the last. `trim_to` never moves forward: after a
        # fully accepted draft the draft cache still lacks x_K, which `unread` supplies in the next round.
        for token in [*drafted[:accepted], next_token]:
            tokens.append(token)
            if token in target.config.eos_token_ids:
                break
        target_cache.trim_to(len(tokens) - 1)
        draft_cache.trim_to(len(tokens) - 1)
    return tokens[1:]


def distribution(logits: mx.array, temperature: float) -> mx.array:
    """(..., V) logits -> probabilities. At temperature 0 the arg-max has probability 1, which makes the rule greedy."""
    if temperature == 0:
        best = mx.argmax(logits, axis=-1, keepdims=True)
        return (mx.arange(logits.shape[-1]) == best).astype(mx.float32)
    return mx.softmax(logits.astype(mx.float32) / temperature, axis=-1)


def sample(probs: mx.array, key: mx.array) -> int:
    """(V,), not necessarily normalized, and a key (1, 2) -> a token."""
    return int(categorical(mx.log(probs)[None], key)[0])
