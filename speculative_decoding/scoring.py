"""Scores given outputs and returns encoder outputs, without drafts or sampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from .decoding.prompt import check_token_ids, encode_output, encode_prompt, first_token, require_positions
from .decoding.request import not_finite
from .errors import InputError
from .loading.tokenizer import Tokenizer
from .models.backend import computing
from .models.base import EncoderDecoder
from .models.threads import turn
from .sampling import token_logprobs
from .sampling.options import validate
from .sampling.values import Int, ListOf


@dataclass(frozen=True)
class Score:
    """The log-probability of an output, log P(tokens | source), in natural logarithms.

    Args:
        logprob: The sum of `logprobs`.
        tokens: The ids of the output.
        logprobs: The log-probability of each token.
    """

    logprob: float
    tokens: list[int]
    logprobs: list[float]


@turn()
@computing()
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
    """Compute the log-probability of an output in one pass, at temperature 1.

    Args:
        model: The model.
        tokenizer: The model's tokenizer.
        source: The prompt.
        target: The output. If it is text, the end token and a required first token, such as a language token, are
            added. Ids are used unchanged.
        allow_long_prompt: See `GenerationOptions`.
        src_lang: See `GenerationOptions`.
        tgt_lang: See `GenerationOptions`.

    Raises:
        InputError: The source is empty or too long, or the model does not support one of the ids or languages.
    """
    ids = encode_prompt(model, tokenizer, source, allow_long_prompt, src_lang, tgt_lang)
    first = first_token(model, tokenizer, tgt_lang)
    given = encode_output(model, tokenizer, target, "target") if isinstance(target, str) else target
    tokens = list(validate("target", ListOf(Int(0)), given))
    if isinstance(target, str) and first is not None and tokens[:1] != [first]:
        tokens = [first, *tokens]
    if not tokens:
        raise InputError("is empty", "target", "give it some text or ids")
    check_token_ids(tokens, model.config.vocab_size, "target")
    require_positions(model, "target", len(tokens))
    read = mx.array([[model.config.decoder_start_token_id, *tokens[:-1]]])
    logits = model.logits(model.teacher_forced(read, model.encode(mx.array([ids]))))  # (1, N, V)
    logprobs = [float(each) for each in token_logprobs(logits[0], mx.array(tokens)).tolist()]  # type: ignore[union-attr,arg-type]
    if undefined := [number for number, each in enumerate(logprobs, 1) if math.isnan(each)]:
        raise InputError(not_finite(undefined[0]))
    return Score(sum(logprobs), tokens, logprobs)


@turn()
@computing()
def encode(
    model: EncoderDecoder,
    tokenizer: Tokenizer,
    text: str,
    *,
    allow_long_prompt: bool = False,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
) -> mx.array:
    """Text -> the encoder output, (1, S, d_model). The last position is that of the end-of-sequence token.

    Raises `InputError` if the text is empty or too long.
    """
    return model.encode(mx.array([encode_prompt(model, tokenizer, text, allow_long_prompt, src_lang, tgt_lang)]))
