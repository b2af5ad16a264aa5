"""Speculative decoding of one sequence with a draft model, on one screen (Leviathan et al. 2023, algorithm 1).

The package does not use this file. It shows the method without batches, text or adaptive draft lengths, and with the
default acceptance rule only. Tests compare its tokens with the engine's. Start here, then read `round.py` and
`acceptance.py`.
"""

from __future__ import annotations

import mlx.core as mx

from ..models.base import EncoderDecoder
from ..models.source import Source
from ..sampling import Purpose
from ..sampling.random import gumbel, random_keys


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
    """Generate and return the target's tokens. `draft` must have the same vocabulary.

    source: the ids that the encoder reads, or a window of audio.
    """
    target_cache = target.make_cache(target.encode_rows([source])[0])
    draft_cache = draft.make_cache(draft.encode_rows([source])[0])
    tokens = [target.config.decoder_start_token_id]

    while len(tokens) <= max_tokens and tokens[-1] not in target.config.eos_token_ids:
        # Draft: K tokens, each chosen by the draft model.
        drafted: list[int] = []
        for _ in range(min(num_draft_tokens, max_tokens - len(tokens))):
            so_far = [*tokens, *drafted]
            (num_cached,) = draft_cache.offsets  # the number of tokens in each row; there is only one row here
            logits = draft.decode(mx.array([so_far[num_cached:]]), draft_cache)[0, -1]  # (V,)
            drafted.append(choose(logits, len(so_far), temperature, seed))

        # Verify: one pass over the last token and the draft yields the target's choice at K + 1 positions.
        logits = target.decode(mx.array([[tokens[-1], *drafted]]), target_cache)[0]  # (K + 1, V)
        chosen = [choose(each, len(tokens) + i, temperature, seed) for i, each in enumerate(logits)]

        # Accept the draft tokens before the first one that the target would not have chosen. The target's own token
        # follows them.
        accepted = 0
        while accepted < len(drafted) and drafted[accepted] == chosen[accepted]:
            accepted += 1

        # Commit, and rewind both caches to every committed token but the last. `trim_to` never moves forward: after a
        # fully accepted draft, the draft cache still lacks the last draft token, which the next round passes to the
        # draft model.
        for token in chosen[: accepted + 1]:
            tokens.append(token)
            if token in target.config.eos_token_ids:
                break
        target_cache.trim_to(len(tokens) - 1)
        draft_cache.trim_to(len(tokens) - 1)
    return tokens[1:]


def choose(logits: mx.array, position: int, temperature: float, seed: int) -> int:
    """(V,) logits -> the most likely token at temperature 0, else a sample.

    The arg-max of log-probabilities plus Gumbel noise is a sample. Logits yield the same arg-max, because they differ
    from log-probabilities only by a constant. The noise depends only on the seed and the position, so the target
    chooses the same token with any draft (Daliri et al. 2024). The same noise is added for the draft model, so both
    models often choose the same token.
    """
    if temperature == 0:
        return int(mx.argmax(logits))
    logits = logits.astype(mx.float32) / temperature
    noise = gumbel(random_keys([(seed, position, Purpose.COUPLED)]), logits.size)[0]
    return int(mx.argmax(logits - logits.max() + noise))
