"""Finds the position at which two outputs of a prompt differ, and the target's logit gap there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from ..decoding.acceptance import Greedy, rule_for
from ..decoding.prompt import make_request
from ..draft_length import FixedLength
from ..loading.tokenizer import Tokenizer
from ..models.audio import Source
from ..models.base import EncoderDecoder
from ..sampling import GenerationOptions, History


@dataclass(frozen=True)
class Divergence:
    """The first position at which two outputs differ.

    Args:
        position: The number of tokens before the divergence.
        baseline: The baseline's token; None if its output has ended.
        speculative: The token of speculative decoding; None if its output has ended.
        logit_gap: The target's score of the baseline token minus its score of the other token. A gap near 0 is a
            near-tie, which a different order of additions may flip.
    """

    position: int
    baseline: int | None
    speculative: int | None
    logit_gap: float | None = None

    def text(self, tokenizer: Tokenizer) -> str:
        def name(token: int | None) -> str:
            return "the end" if token is None else f"{token} {tokenizer.vocabulary.pieces.get(token)!r}"

        gap = "" if self.logit_gap is None else f"; logit gap {self.logit_gap:.4g}"
        return (
            f"first divergence at token {self.position}: {name(self.baseline)} without the draft, "
            f"{name(self.speculative)} with it{gap}"
        )


def first_divergence(
    model: EncoderDecoder,
    tokenizer: Tokenizer,
    prompt: str | Source,
    baseline: Sequence[int],
    speculative: Sequence[int],
    options: GenerationOptions,
) -> Divergence | None:
    """Compare two outputs of a prompt, decoded with comparable options. Returns None if they are identical."""
    if list(baseline) == list(speculative):
        return None
    shortest = min(len(baseline), len(speculative))
    position = next((i for i in range(shortest) if baseline[i] != speculative[i]), shortest)
    if position == shortest:
        ends = [tokens[position] if len(tokens) > position else None for tokens in (baseline, speculative)]
        return Divergence(position, *ends)

    rule = rule_for([options])
    assert isinstance(rule, Greedy)
    request = make_request(model, tokenizer, prompt, options.with_values(allow_long_prompt=True), FixedLength(0))
    cache = model.make_cache(model.encode_rows([request.source])[0])
    tokens = [*request.decoder_tokens, *baseline[:position]]
    logits = model.decode(mx.array([tokens]), cache)[:, -1:]  # (1, 1, V)
    history = History([tokens], constraints=[request.constraints])
    scores = rule.scores(logits, [request.options], history)[0, 0].astype(mx.float32)  # (V,)
    gap = float(scores[baseline[position]] - scores[speculative[position]])
    return Divergence(position, baseline[position], speculative[position], gap)
