"""A prompt and its options -> what rounds need, checked before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence

from ..draft_length.base import DraftLength
from ..errors import InputError
from ..loading.tokenizer import Tokenizer
from ..models.base import EncoderDecoder
from ..sampling import GenerationOptions
from ..sampling.options import short
from .batch import DecodedRow
from .ending import Ending
from .memory import require_encodable

TOKEN_CHARACTERS = 64  # text has a token for each so many characters at least


def prepare(
    model: EncoderDecoder, tokenizer: Tokenizer, prompt: str, options: GenerationOptions, length: DraftLength
) -> tuple[DecodedRow, Ending]:
    """The row, without a slot yet, and what its tokens are shown to, which gives their text.

    Raises `InputError` that names the option.
    """
    check_token_ids(options.eos_token_ids, model.config.vocab_size)
    given = output_ids(model, tokenizer, options.prefix, "prefix")
    ending = Ending(tokenizer, {*model.config.eos_token_ids, *options.eos_token_ids}, options.stop, given)
    source = encode_prompt(model, tokenizer, prompt, options.allow_long_prompt)
    tokens = [model.config.decoder_start_token_id, *given]
    return DecodedRow(options, source, tokens, length=length, ends=ending), ending


def encode_prompt(model: EncoderDecoder, tokenizer: Tokenizer, prompt: str, allow_long: bool = False) -> list[int]:
    """Text -> the ids that the encoder reads. Raises `InputError` for an empty or too long prompt."""
    if not isinstance(prompt, str):
        raise InputError(f"prompt must be text, not {short(prompt)}")
    if not prompt.strip():
        raise InputError("prompt is empty; give it some text")
    limit = None if allow_long else model.config.max_source_tokens
    # before it is tokenised, which takes minutes and gigabytes for what is much too long
    if limit is not None and (length := len(prompt) - prompt.count(" ")) > limit * TOKEN_CHARACTERS:
        raise too_long(f"{length} characters", limit)
    require_encodable(model, len(prompt) // TOKEN_CHARACTERS)
    source = tokenizer.encode(prompt)
    check_token_ids(source, model.config.vocab_size, "tokens of the prompt")
    if limit is not None and len(source) > limit:
        raise too_long(f"{len(source)} tokens", limit)
    require_encodable(model, len(source))
    return source


def too_long(size: str, limit: int) -> InputError:
    return InputError(
        f"prompt has {size}, but the model was trained on at most {limit} tokens; "
        "shorten or split it, or allow long prompts"
    )


def output_ids(model: EncoderDecoder, tokenizer: Tokenizer, text: str | Sequence[int], name: str) -> list[int]:
    """Text as the decoder would write it, without an end; ids are taken as they are. `name`: of the argument."""
    if isinstance(text, str):
        return encode_output(model, tokenizer, text, name)[:-1] if text else []
    check_token_ids(text, model.config.vocab_size, name)
    if ended := set(text) & set(model.config.eos_token_ids):
        raise InputError(f"{name} must not contain {min(ended)}, which ends an output")
    return list(text)


def encode_output(model: EncoderDecoder, tokenizer: Tokenizer, text: str, name: str) -> list[int]:
    """Text as the decoder would write it, with an end. T5Gemma's tokenizer writes the start in front, and no end."""
    config, ids = model.config, tokenizer.encode_output(text)
    check_token_ids(ids, config.vocab_size, f"tokens of {name}")
    ids = ids[1:] if ids[:1] == [config.decoder_start_token_id] else ids
    return ids if ids and ids[-1] in config.eos_token_ids else [*ids, config.eos_token_ids[0]]


def not_finite(number: int) -> str:
    """Why there is no token of this number, from 1."""
    return (
        f"the target's scores for token {number} of the output are not finite: its weights are damaged, or overflow in "
        "this dtype; convert it anew, or use float32"
    )


def check_token_ids(ids: Sequence[int], vocab_size: int, name: str = "eos_token_ids") -> None:
    """Raise `InputError` unless the model has a row for each of them.

    MLX reads whatever lies in memory where an id points to, so none may point outside of the table. It cannot: ids of
    config.json and generation_config.json are checked when they are read (`T5Config.from_dict`); all that tokenizers
    and callers give, here; what drafters look up, in `SeparateDrafters`; all others were chosen among a model's scores,
    of which there is one for each row. A draft model with fewer rows than the target is given its last one for those
    it lacks (`encode_rows`, `BatchModelDrafter`).
    """
    for token in ids:
        if not 0 <= token < vocab_size:
            raise InputError(f"{name} must be between 0 and {vocab_size - 1}, not {token}")
