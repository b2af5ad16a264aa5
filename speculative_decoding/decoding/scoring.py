"""What a model makes of given text: its encoder states, and how likely an output is. No drafts, no sampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from ..errors import InputError
from ..loading.tokenizer import Tokenizer
from ..models.base import EncoderDecoder
from ..sampling import token_logprobs
from ..sampling.options import validate
from ..sampling.values import Int, ListOf
from .prompt import check_token_ids, encode_output, encode_prompt, first_token, require_positions
from .request import not_finite


@dataclass(frozen=True)
class Score:
    """logprob: log P(tokens | source), the sum of `logprobs`, one for each of `tokens`. Natural logarithms."""

    logprob: float
    tokens: list[int]
    logprobs: list[float]


def score(
    model: EncoderDecoder,
    tokenizer: Tokenizer,
    source: str,
    target: str | Sequence[int],
    *,
    allow_long_prompt: bool = False,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
) -> Score:
    """How likely the model is to write `target` for `source`, at temperature 1, in one pass.

    target: a text, then the end of sequence counts as its last token, and as its first what every output begins with,
        such as the token of its language; or ids, which are taken as they are.
    src_lang, tgt_lang: as in `GenerationOptions`.

    Raises `InputError` for an empty or too long source, and for ids or languages that the model does not have.
    """
    ids = encode_prompt(model, tokenizer, source, allow_long_prompt, src_lang)
    first = first_token(model, tokenizer, tgt_lang)
    given = encode_output(model, tokenizer, target, "target") if isinstance(target, str) else target
    tokens = list(validate("target", ListOf(Int(0)), given))
    if isinstance(target, str) and first is not None and tokens[:1] != [first]:
        tokens = [first, *tokens]
    if not tokens:
        raise InputError("target must have a token at least; give it some text or ids")
    check_token_ids(tokens, model.config.vocab_size, "target")
    require_positions(model, "target", len(tokens))
    read = mx.array([[model.config.decoder_start_token_id, *tokens[:-1]]])
    logits = model.logits(model.teacher_forced(read, model.encode(mx.array([ids]))))  # (1, N, V)
    logprobs = [float(each) for each in token_logprobs(logits[0], mx.array(tokens)).tolist()]  # type: ignore[union-attr,arg-type]
    if undefined := [number for number, each in enumerate(logprobs, 1) if math.isnan(each)]:
        raise InputError(not_finite(undefined[0]))
    return Score(sum(logprobs), tokens, logprobs)


def encode(
    model: EncoderDecoder,
    tokenizer: Tokenizer,
    text: str,
    *,
    allow_long_prompt: bool = False,
    src_lang: str | None = None,
) -> mx.array:
    """Text -> the encoder's last states, (1, S, d_model), one for each token; the last is that of the end of sequence.

    Raises `InputError` for an empty or too long text.
    """
    return model.encode(mx.array([encode_prompt(model, tokenizer, text, allow_long_prompt, src_lang)]))
