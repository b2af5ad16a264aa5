"""Checks a prompt and its options, and creates a request from them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ..draft_length.base import DraftLength
from ..drafters.base import TEXT, Followable, RequestView
from ..errors import InputError, Message, note, similar_names
from ..loading.tokenizer import Tokenizer
from ..models.base import EncoderDecoder
from ..models.memory_budget import require_encodable
from ..models.source import AudioFrames, Source, TextTokens
from ..sampling import Constraints, GenerationOptions
from ..sampling.options import short_repr
from .request import Observer, Request
from .text_streamer import Replace, TextStreamer

if TYPE_CHECKING:
    from ..drafters.draft_text import DraftText

EncodeDraft = Callable[[str, int | None], "DraftText"]  # a text, and the output's required first token or None

TASK = re.compile(r"[^\W\d_][\w -]{0,60}: ")  # any task before a prompt, such as "stsb sentence1: "
TOKEN_CHARACTERS = 64  # the average number of characters per token of a prompt is lower than this


def make_request(
    model: EncoderDecoder,
    tokenizer: Tokenizer,
    prompt: str | Source,
    options: GenerationOptions,
    draft_length: DraftLength,
    start: DecoderPrompt | None = None,
    encode_draft: EncodeDraft | None = None,
) -> Request:
    """Return a request that has no slot yet. Raises an `InputError` that names the option.

    Args:
        start: How the output begins and ends, and the options of the request; None derives them from `options`.
        encode_draft: Returns the `DraftText` for a string (default: `draft_text_of`).
    """
    if start is None:
        start = build_decoder_prompt(model, tokenizer, options)
        if options.draft_text:
            encode = encode_draft or partial(draft_text_of, model, tokenizer)
            start = start._replace(
                draft_texts=[encode(text, start.first) for text in dict.fromkeys(options.draft_text)]
            )
    if isinstance(prompt, AudioFrames):
        require_audio(model, prompt)
        source: Source = prompt
    else:
        source = encode_prompt(model, tokenizer, prompt, options.allow_long_prompt, options.src_lang, options.tgt_lang)
    return Request(
        start.options,
        source,
        [*start.tokens],
        constraints=start.constraints,
        draft_texts=start.draft_texts,
        draft_length=draft_length,
        streamer=TextStreamer(
            tokenizer,
            start.eos_token_ids,
            start.options.stop,
            prefix=start.tokens[1:],
            replace=unknown_replacement(model, tokenizer, source, start.tokens) if model.replaces_unknowns else None,
        ),
        observer=start.observer,
        search=start.search,
    )


def unknown_replacement(
    model: EncoderDecoder, tokenizer: Tokenizer, source: Source, prefix: Sequence[int]
) -> Replace | None:
    """Return what replaces unknown tokens of an output. A source of ids without their text has no pieces."""
    from .unknowns import UnknownReplacement

    return UnknownReplacement(model, tokenizer, source, prefix) if isinstance(source, TextTokens) else None


class DecoderPrompt(NamedTuple):
    """How an output begins and ends.

    Args:
        options: The options, with the model's defaults filled in.
        tokens: The start token and a forced prefix.
        eos_token_ids: The end tokens of the model and those in the options.
        constraints: Constraints on the tokens that follow.
        observer: See `Request`.
        search: See `Request`.
        first: The required first token after the start token; None if there is none, or if there is a forced prefix.
        draft_texts: Texts that the output may resemble, from which tokens can be drafted.
    """

    options: GenerationOptions
    tokens: list[int]
    eos_token_ids: set[int]
    constraints: Constraints
    observer: Observer | None = None
    search: Any = None
    first: int | None = None
    draft_texts: Sequence[Followable] = ()


def draft_text_of(
    model: EncoderDecoder,
    tokenizer: Tokenizer,
    text: str,
    first: int | None = None,
    kind: str = TEXT,
    group: str = "",
) -> DraftText:
    """Encode a text that an output may resemble. Raises `InputError`.

    Args:
        first: The output's required first token, or None.
        kind, group: See `DraftText`.
    """
    from ..drafters.draft_text import DraftText

    ids = encode_output(model, tokenizer, text, "draft_text") if text else []
    if first is not None and ids[:1] != [first]:  # BART's tokenizer adds the required first token itself
        ids = [first, *ids]
    return DraftText(ids, model.pieces or {}, kind, group)


def build_decoder_prompt(model: EncoderDecoder, tokenizer: Tokenizer, options: GenerationOptions) -> DecoderPrompt:
    """Return the start, end tokens and constraints of an output. Raises an `InputError` that names the option."""
    config = model.config
    defaults = model.generation_config
    check_token_ids(options.eos_token_ids, config.vocab_size)
    first = first_token(model, tokenizer, options.tgt_lang)
    prefix = output_ids(model, tokenizer, options.decoder_prefix, "decoder_prefix") if options.decoder_prefix else []
    if prefix and first not in (None, prefix[0]):
        prefix = [first, *prefix]
    require_positions(model, "max_tokens", options.max_tokens, len(prefix))

    tokens = [config.decoder_start_token_id, *prefix]
    eos_token_ids = {*config.eos_token_ids, *options.eos_token_ids}
    options = defaults.with_defaults(options, len(tokens))
    first = None if prefix else first
    constraints = defaults.constraints(options, sorted(eos_token_ids), len(tokens), first)
    return DecoderPrompt(options, tokens, eos_token_ids, constraints, first=first)


def first_token(model: EncoderDecoder, tokenizer: Tokenizer, tgt_lang: str | None) -> int | None:
    """The required first token of an output: its language token, or the model's forced_bos_token_id."""
    config = model.config
    languages = tokenizer.languages
    if tgt_lang is not None and not has_language_prefixes(model, tokenizer):
        chosen = language_token(tokenizer, "tgt_lang", tgt_lang)
        check_token_ids([chosen], config.vocab_size, "tgt_lang", f"the token of {tgt_lang} ")
        return chosen
    first = model.generation_config.forced_bos_token_id
    if languages and first is None and config.decoder_start_token_id not in languages.values():
        known = ", ".join(sorted(languages))
        raise InputError(
            "is missing", "tgt_lang", f"choose one of the {len(languages)} languages of this model: {known}"
        )
    return first


def has_language_prefixes(model: EncoderDecoder, tokenizer: Tokenizer) -> bool:
    """Return whether the model's languages are selected by a prefix of the prompt instead of language tokens."""
    return not tokenizer.languages and any(name.startswith("translation_") for name in model.task_prefixes)


def language_prefix(model: EncoderDecoder, tokenizer: Tokenizer, src_lang: str | None, tgt_lang: str | None) -> str:
    """Return the prefix that selects these languages in a model such as T5; "" for no languages, and for other models.

    Raises an `InputError` that names the option if the model has no prefix for these languages.
    """
    if (src_lang is None and tgt_lang is None) or not has_language_prefixes(model, tokenizer):
        return ""
    from ..loading.task_prefixes import chosen_prefix

    return chosen_prefix(model.task_prefixes, src_lang, tgt_lang)


@cache  # so that the note is printed once
def note_prefixes(prefixes: tuple[str, ...]) -> None:
    shown = ", ".join(map(repr, prefixes))
    note(
        Message(
            "the tasks of this model have prefixes ({shown}), and a prompt begins with none; "
            "put one before each prompt, for example with {prefix} or {tgt_lang}",
            shown=shown,
        )
    )


def check_languages(model: EncoderDecoder, tokenizer: Tokenizer, options: GenerationOptions, prefix: str = "") -> str:
    """Return the `language_prefix` for the options. Raises an `InputError` for languages that have no effect.

    prefix: the text that the user puts before every prompt.
    """
    if has_language_prefixes(model, tokenizer):
        own = language_prefix(model, tokenizer, options.src_lang, options.tgt_lang)
        if own and prefix not in ("", own):
            name = "src_lang" if options.tgt_lang is None else "tgt_lang"
            raise InputError(
                Message("has no effect with {prefix} {value}", value=repr(prefix)), name, "leave one of them out"
            )
        return own
    for name, language in (("src_lang", options.src_lang), ("tgt_lang", options.tgt_lang)):
        if language is not None:
            language_token(tokenizer, name, language)
    return ""


def language_token(tokenizer: Tokenizer, name: str, language: str) -> int:
    """The id of a language's token. Raises an `InputError` that names the option `name` and lists the languages."""
    languages = tokenizer.languages
    if language in languages:
        return languages[language]
    if not languages:
        from ..loading.language_map import language_tags, matching_language

        tags = language_tags(tokenizer.vocabulary) if name == "tgt_lang" else {}
        tag = tags.get(matching_language(language, tags) or "")
        way_out = f"put {tag} before the prompt" if tag else "leave it out"
        raise InputError(f"{short_repr(language)} has no effect: this model has no languages", name, way_out)
    meant = " or ".join(similar_names(language, languages, 3, 0.5, key=str.lower))
    raise InputError(
        f"{short_repr(language)} is an unknown language",
        name,
        (f"did you mean {meant}? " if meant else "")
        + f"This model has {len(languages)} languages: {', '.join(sorted(languages))}",
    )


def require_audio(model: EncoderDecoder, source: AudioFrames) -> None:
    """Raise `InputError` unless the model accepts audio frames of this shape."""
    audio = model.audio
    if audio is None:
        raise InputError(
            "this model reads text (got audio, expected text)", "audio", "load a speech model, such as Whisper"
        )
    shape = source.frames.shape
    if len(shape) != 2 or shape[1] != audio.num_mel_bins or shape[0] % 2 or not 0 < shape[0] <= audio.window_frames:
        raise InputError(
            f"unsupported shape of audio frames (got {shape}, expected an even number of at most "
            f"{audio.window_frames} frames with {audio.num_mel_bins} mel bands)",
            "audio",
        )


def encode_prompt(
    model: EncoderDecoder,
    tokenizer: Tokenizer,
    prompt: str | Sequence[int],
    allow_long: bool = False,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
) -> TextTokens:
    """Text -> source tokens, which keep the text. Tokens are checked, unless they already have been, and returned.

    Args:
        model: The model, which determines the limits.
        tokenizer: The model's tokenizer.
        prompt: The text, or its source tokens.
        allow_long: Whether to accept more tokens than the model was trained on.
        src_lang: The language of the text (default: the tokenizer's).
        tgt_lang: The language of the output, which is used only for models with a `language_prefix`.

    Raises:
        InputError: The prompt is empty or too long, or the model does not read text or does not support the languages.
    """
    if isinstance(prompt, TextTokens) and prompt.model is model:
        return prompt
    if model.audio is not None:
        raise InputError("this model transcribes speech (got text, expected audio)", "prompt", "give it an audio file")
    has_languages = src_lang is not None or tgt_lang is not None
    prefix = language_prefix(model, tokenizer, src_lang, tgt_lang) if has_languages else ""
    if has_languages and has_language_prefixes(model, tokenizer):
        if prefix and not isinstance(prompt, str) and getattr(prompt, "text", None) is None:
            name = "src_lang" if tgt_lang is None else "tgt_lang"
            raise InputError("has no effect on a prompt of token ids", name, "give the text, or leave it out")
        src_lang = None
    elif src_lang is not None:
        language_token(tokenizer, "src_lang", src_lang)
    if not isinstance(prompt, str) and not is_token_list(prompt):
        raise InputError(f"must be text, not {short_repr(prompt)}", "prompt")
    if isinstance(prompt, str) and not prompt.strip():
        raise InputError("is empty", "prompt", "give it some text")
    if isinstance(prompt, str) and not prompt.startswith(prefix):
        if own := next(filter(prompt.startswith, model.task_prefixes.values()), None):
            raise InputError(f"the prompt begins with {own!r}, not {prefix!r}", "tgt_lang", "leave one of them out")
        prompt = prefix + prompt
    limit, why = model.max_source_tokens, "was trained on"
    if allow_long or model.max_positions is not None:
        limit, why = model.max_positions, "has positions for"
    if isinstance(prompt, str):
        # Check the characters first, because tokenizing a huge text takes minutes and gigabytes of memory.
        if limit is not None and (length := len(prompt) - prompt.count(" ")) > limit * TOKEN_CHARACTERS:
            raise too_long(f"{length} characters", why, limit)
        require_characters(prompt, "prompt")
        require_encodable(model, len(prompt) // TOKEN_CHARACTERS)
        source = TextTokens(tokenizer.encode(prompt, src_lang), prompt, model)
    else:
        source = TextTokens(prompt, getattr(prompt, "text", None), model)
    check_token_ids(source, model.config.vocab_size, "prompt", "its tokens ")
    if model.image_token in source:
        raise InputError(
            f"contains an image placeholder (token {model.image_token})", "prompt", "remove it, only text is supported"
        )
    if limit is not None and len(source) > limit:
        raise too_long(f"{len(source)} tokens", why, limit)
    require_encodable(model, len(source))
    prefixes = tuple(model.task_prefixes.values())
    if prefixes and isinstance(prompt, str) and not (TASK.match(prompt) or prompt.startswith(prefixes)):
        note_prefixes(prefixes)
    return source


def fits(model: EncoderDecoder, tokenizer: Tokenizer, prompt: str, options: GenerationOptions) -> bool:
    """Whether a prompt is short enough. Other errors are ignored."""
    try:
        encode_prompt(model, tokenizer, prompt, options.allow_long_prompt, options.src_lang, options.tgt_lang)
    except TooLong:
        return False
    except InputError:
        pass
    return True


def usual_max_tokens(source_tokens: int) -> int:
    """Return a sentence's output limit. Only loops reach it, because translations are rarely twice as long."""
    return 32 + 3 * source_tokens


def prompt_text(request: RequestView, tokenizer: Tokenizer) -> str:
    """Return the text of a request's prompt, decoded if the prompt was given as token ids."""
    text: str | None = getattr(request.source, "text", None)
    return tokenizer.decode(request.source_tokens) if text is None else text


def without_prefix(prompt: str, prefixes: Iterable[str]) -> str:
    """Remove the longest of the prefixes with which the prompt begins."""
    return prompt.removeprefix(max(filter(prompt.startswith, prefixes), key=len, default=""))


def is_token_list(prompt: object) -> bool:
    """Whether a prompt is a list of token ids."""
    return isinstance(prompt, list | tuple) and len(prompt) > 0 and all(type(each) is int for each in prompt)


class TooLong(InputError):
    """A prompt has too many tokens."""


def too_long(size: str, why: str, limit: int) -> TooLong:
    way_out = "shorten or split it" + (", or allow long prompts" if why == "was trained on" else "")
    return TooLong(f"has {size}, but the model {why} at most {limit} tokens", "prompt", way_out)


def require_positions(model: EncoderDecoder, name: str, tokens: int, prefix_length: int = 0) -> None:
    """Raise `InputError` if a prefix and an output of `tokens` tokens exceed the model's positions."""
    if model.max_positions is not None and prefix_length + tokens > model.max_positions:
        behind = f" after a prefix of {prefix_length} tokens" if prefix_length else ""
        raise InputError(
            f"the model has positions for outputs of at most {model.max_positions} tokens, not for {tokens}{behind}",
            name,
            "choose fewer",
        )


def output_ids(model: EncoderDecoder, tokenizer: Tokenizer, text: str | Sequence[int], name: str) -> list[int]:
    """Text -> the ids that the decoder would generate, without an end token; ids are returned unchanged.

    Raises an `InputError` that names the argument `name`.
    """
    if isinstance(text, str):
        return encode_output(model, tokenizer, text, name)[:-1] if text else []
    check_token_ids(text, model.config.vocab_size, name)
    if ended := set(text) & set(model.config.eos_token_ids):
        raise InputError(f"must not contain {min(ended)}, which ends an output", name)
    return list(text)


def encode_output(model: EncoderDecoder, tokenizer: Tokenizer, text: str, name: str) -> list[int]:
    """Text -> the ids that the decoder would generate, with an end token. Raises an `InputError` that names `name`."""
    config = model.config
    require_characters(text, name)
    ids = tokenizer.encode_output(text)
    check_token_ids(ids, config.vocab_size, name, "its tokens ")
    if ids[:1] == [config.decoder_start_token_id]:  # T5Gemma's tokenizer adds a start token but no end token
        ids = ids[1:]
    return ids if ids and ids[-1] in config.eos_token_ids else [*ids, *config.eos_token_ids[:1]]


def require_characters(text: str, name: str) -> None:
    """Raise an `InputError` that names `name` if a text contains a lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError("contains a lone surrogate, which is not a character", name, "remove it") from None


def check_token_ids(ids: Sequence[int], vocab_size: int, name: str = "eos_token_ids", what: str = "") -> None:
    """Raise an `InputError` naming the option `name`, or its part `what` if given, unless every id has an embedding.

    MLX does not check bounds, so an id beyond the table would read arbitrary memory. Every source of ids is checked:
    config.json and generation_config.json when they are read, ids from tokenizers and callers here, ids of
    copied text in `AutoDrafter`, and ids from custom drafters in `SeparateDrafters`. All other ids are the arg-max of a
    model's logits. Draft models with a smaller vocabulary clip larger ids to their last id (`encode_rows`,
    `BatchModelDrafter`).
    """
    for token in ids:
        if not 0 <= token < vocab_size:
            raise InputError(f"{what}must be between 0 and {vocab_size - 1}, not {token}", name)
