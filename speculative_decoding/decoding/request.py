"""A prompt and its options -> what rounds need, checked before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import NamedTuple

from ..draft_length.base import DraftLength
from ..errors import InputError
from ..loading.tokenizer import Tokenizer
from ..models.base import EncoderDecoder
from ..sampling import Constraints, GenerationOptions
from ..sampling.options import short_repr
from .batch import DecodedRow
from .beam import BeamSearch
from .ending import Ending
from .memory import require_encodable

TOKEN_CHARACTERS = 64  # text has a token for each so many characters at least


def prepare(
    model: EncoderDecoder, tokenizer: Tokenizer, prompt: str, options: GenerationOptions, length: DraftLength
) -> tuple[DecodedRow, Ending]:
    """The row, without a slot yet, and what its tokens are shown to, which gives their text.

    Raises `InputError` that names the option.
    """
    beginning = begin(model, tokenizer, options)
    (_, *given), ends = beginning.tokens, beginning.eos_token_ids
    ending = Ending(tokenizer, ends, options.stop, given)
    source = encode_prompt(model, tokenizer, prompt, options.allow_long_prompt, options.src_lang)
    row = DecodedRow(
        beginning.options, source, beginning.tokens, constraints=beginning.constraints, length=length, ends=ending
    )
    if options.num_beams > 1:
        row.search = beam_search(beginning)
    return row, ending


class Beginning(NamedTuple):
    """What an output begins with, and what holds for it. options: with the model's values where nobody chose one.
    tokens: the start token and the prefix.
    """

    options: GenerationOptions
    tokens: list[int]
    eos_token_ids: set[int]
    constraints: Constraints


def begin(model: EncoderDecoder, tokenizer: Tokenizer, options: GenerationOptions) -> Beginning:
    """Raises `InputError` that names the option."""
    check_token_ids(options.eos_token_ids, model.config.vocab_size)
    first = first_token(model, tokenizer, options.tgt_lang)
    given = output_ids(model, tokenizer, options.decoder_prefix, "decoder_prefix")
    if given and first not in (None, given[0]):
        given = [first, *given]
    require_positions(model, "max_tokens", options.max_tokens, len(given))
    tokens, ends = [model.config.decoder_start_token_id, *given], {*model.config.eos_token_ids, *options.eos_token_ids}
    settled = model.generation_config.with_defaults(options, len(tokens))
    constraints = model.generation_config.constraints(settled, sorted(ends), len(tokens), None if given else first)
    return Beginning(settled, tokens, ends, constraints)


def beam_search(beginning: Beginning) -> BeamSearch:
    options = beginning.options
    assert options.length_penalty is not None and options.early_stopping is not None  # settled
    return BeamSearch(
        options.num_beams,
        options.length_penalty,
        options.early_stopping,
        options.max_tokens,
        beginning.eos_token_ids,
        beginning.tokens,
    )


def first_token(model: EncoderDecoder, tokenizer: Tokenizer, tgt_lang: str | None) -> int | None:
    """What an output must begin with: the token of its language, or whatever the model's file says."""
    config, languages = model.config, tokenizer.languages
    if tgt_lang is not None:
        chosen = language_token(tokenizer, "tgt_lang", tgt_lang)
        check_token_ids([chosen], config.vocab_size, f"the token of tgt_lang {tgt_lang}")
        return chosen
    first = model.generation_config.forced_bos_token_id
    if languages and first is None and config.decoder_start_token_id not in languages.values():
        known = ", ".join(sorted(languages))
        raise InputError(f"tgt_lang must be given, for this model writes {len(languages)} languages: {known}")
    return first


def language_token(tokenizer: Tokenizer, name: str, language: str) -> int:
    """name: of the option. Raises `InputError` with the languages that there are."""
    languages = tokenizer.languages
    if language in languages:
        return languages[language]
    if not languages:
        raise InputError(f"{name} {short_repr(language)} has no effect: this model has no languages; leave it out")
    nearest = get_close_matches(language.lower(), [each.lower() for each in languages], 3, 0.5)
    meant = " or ".join(each for each in languages if each.lower() in nearest)
    raise InputError(
        f"{name} {short_repr(language)} is none of this model's {len(languages)} languages; "
        + (f"did you mean {meant}? " if meant else "")
        + f"There are {', '.join(sorted(languages))}"
    )


def encode_prompt(
    model: EncoderDecoder,
    tokenizer: Tokenizer,
    prompt: str,
    allow_long: bool = False,
    language: str | None = None,
) -> list[int]:
    """Text -> the ids that the encoder reads. language: of the text, by default as the tokenizer was saved. Raises
    `InputError` for an empty or too long prompt, and for a language that the model does not have.
    """
    if language is not None:
        language_token(tokenizer, "src_lang", language)
    if not isinstance(prompt, str):
        raise InputError(f"prompt must be text, not {short_repr(prompt)}")
    if not prompt.strip():
        raise InputError("prompt is empty; give it some text")
    limit, why = model.config.max_source_tokens, "was trained on"
    if allow_long or model.most_positions is not None:
        limit, why = model.most_positions, "has positions for"
    # before it is tokenised, which takes minutes and gigabytes for what is much too long
    if limit is not None and (length := len(prompt) - prompt.count(" ")) > limit * TOKEN_CHARACTERS:
        raise too_long(f"{length} characters", why, limit)
    require_encodable(model, len(prompt) // TOKEN_CHARACTERS)
    source = tokenizer.encode(prompt, language)
    check_token_ids(source, model.config.vocab_size, "tokens of the prompt")
    if model.image_token in source:
        raise InputError(
            f"prompt has a place for an image (token {model.image_token}); only text is read, leave it out"
        )
    if limit is not None and len(source) > limit:
        raise too_long(f"{len(source)} tokens", why, limit)
    require_encodable(model, len(source))
    return source


def too_long(size: str, why: str, limit: int) -> InputError:
    way_out = "shorten or split it" + (", or allow long prompts" if why == "was trained on" else "")
    return InputError(f"prompt has {size}, but the model {why} at most {limit} tokens; {way_out}")


def require_positions(model: EncoderDecoder, name: str, tokens: int, given: int = 0) -> None:
    """Raise `InputError` for an output that would go beyond the model's positions. given: tokens of a prefix."""
    if model.most_positions is not None and given + tokens > model.most_positions:
        behind = f" behind a prefix of {given} tokens" if given else ""
        raise InputError(
            f"{name}: the model has positions for outputs of at most {model.most_positions} tokens, "
            f"not for {tokens}{behind}; choose fewer"
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
    return ids if ids and ids[-1] in config.eos_token_ids else [*ids, *config.eos_token_ids[:1]]


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
