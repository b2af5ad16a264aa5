"""Where two outputs of a prompt differ, and how close the target was to choosing the other token there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from ..loading.tokenizer import Tokenizer
from ..models.base import EncoderDecoder
from ..sampling import GenerationOptions, History
from .acceptance import Greedy, rule_for
from .prompt import build_decoder_prompt, encode_prompt


@dataclass(frozen=True)
class Divergence:
    """The first position at which two outputs differ, and how much the target preferred the regular one's token: in
    the logits, or whatever else decides. A gap of about 0 is a near-tie that another order of additions may flip.
    """

    position: int
    regular: int | None
    speculative: int | None
    logit_gap: float | None = None

    def text(self, tokenizer: Tokenizer) -> str:
        def name(token: int | None) -> str:
            return "the end" if token is None else f"{token} {tokenizer.vocabulary.pieces.get(token)!r}"

        gap = "" if self.logit_gap is None else f"; logit gap {self.logit_gap:.4g}"
        return (
            f"first divergence at token {self.position}: {name(self.regular)} without the draft, "
            f"{name(self.speculative)} with it{gap}"
        )


def first_divergence(
    model: EncoderDecoder,
    tokenizer: Tokenizer,
    prompt: str,
    regular: Sequence[int],
    speculative: Sequence[int],
    options: GenerationOptions,
) -> Divergence | None:
    """Compare two outputs of a prompt; None if they are identical. options: of both, and comparable."""
    if list(regular) == list(speculative):
        return None
    shortest = min(len(regular), len(speculative))
    position = next((i for i in range(shortest) if regular[i] != speculative[i]), shortest)
    if position == shortest:
        return Divergence(position, *(ids[position] if len(ids) > position else None for ids in (regular, speculative)))
    rule = rule_for([options])
    assert isinstance(rule, Greedy)
    source = encode_prompt(model, tokenizer, prompt, allow_long=True, language=options.src_lang)
    cache = model.make_cache(model.encode(mx.array([source])))
    beginning = build_decoder_prompt(model, tokenizer, options)
    tokens = [*beginning.tokens, *regular[:position]]
    logits = model.decode(mx.array([tokens]), cache)[:, -1:]
    history = History([tokens], constraints=[beginning.constraints])
    scores = rule.scores(logits, [beginning.options], history)[0, 0].astype(mx.float32)
    ours, theirs = regular[position], speculative[position]
    return Divergence(position, ours, theirs, float(scores[ours] - scores[theirs]))
