"""Writes outputs with a text model whose vocabulary differs from the target's; see `drafters.writing`.

The target's source text is encoded with the draft model's tokenizer. The text that the draft model writes is encoded
again with the target's tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from ..draft_length.base import DraftLength, FixedLength
from ..drafters.base import MODEL, RequestView
from ..drafters.draft_text import DraftText, TextFollower
from ..errors import InputError, note
from ..loading.language_map import language_tags, matching_language, tag_language
from ..loading.pair import DraftPrompt
from ..loading.task_prefixes import only_languages
from ..loading.tokenizer import REPLACEMENT, Tokenizer
from ..models.base import EncoderDecoder
from ..models.source import Source
from ..sampling import GenerationOptions
from .prompt import (
    DecoderPrompt,
    build_decoder_prompt,
    encode_output,
    first_token,
    language_token,
    output_ids,
    prompt_text,
    require_characters,
    without_prefix,
)
from .request import Request

MAX_WORD = 24  # maximum characters in an incomplete word; longer "words" must be in a script without spaces
HELD_BACK = 8  # characters held back in such a script
REHEARSED = 128  # number of tokens that calibration times


class DraftEngine(Protocol):
    """The methods of `Engine` that are needed to write a draft model's outputs."""

    def submit(
        self,
        prompt: str | Source,
        options: GenerationOptions,
        draft_length: DraftLength,
        start: DecoderPrompt | None = None,
    ) -> Request: ...

    def step(self) -> object: ...

    def cancel(self, request: Request) -> None: ...


class TextModel(NamedTuple):
    """A model that reads and writes text."""

    model: EncoderDecoder
    tokenizer: Tokenizer


class PromptReader:
    """Converts the target's prompts to prompts for the draft model.

    Args:
        target: The target.
        draft: The draft model.
        prompt: What the draft model reads in place of the target's prompt.
        prompt_prefixes: See `Session`.
    """

    def __init__(
        self, target: TextModel, draft: TextModel, prompt: DraftPrompt, prompt_prefixes: Sequence[str] = ()
    ) -> None:
        self._target = target
        self._draft = draft
        self._prompt = prompt
        self._prompt_prefixes = prompt_prefixes

    @property
    def _tags(self) -> Mapping[str, str]:
        """The draft model's tags for output languages, such as <2de>."""
        return language_tags(self._draft.tokenizer.vocabulary)

    @property
    def _fixed(self) -> tuple[str, str] | tuple[None, None]:
        """The only languages between which the target translates, if they are known."""
        return only_languages(self._target.model.task_prefixes)

    def check(self, options: GenerationOptions) -> None:
        """Raise `InputError` if the draft model needs a language that cannot be derived for these options."""
        own, tokenizer = self._prompt, self._draft.tokenizer
        require_characters(own.prefix or "", "draft_prefix")
        for name in ("src_lang", "tgt_lang"):
            if (language := getattr(own, name)) is not None:
                if tokenizer.languages:
                    language_token(tokenizer, f"draft_{name}", language)
                elif name == "src_lang" or matching_language(language, self._tags) is None:
                    raise InputError(
                        f"{language} has no effect: the draft model has no such language",
                        f"draft_{name}",
                        "leave it out",
                    )
        target = self._target.tokenizer
        if options.tgt_lang is not None or not (target.languages or language_tags(target.vocabulary)):
            self.languages(options, None)  # requests cannot name another language, or do not have to

    def languages(self, options: GenerationOptions, tag: str | None) -> tuple[str | None, str | None]:
        """Return the draft model's languages (source, target). Raises `InputError` if one is missing or unknown.

        tag: The output language that the target's prompt names.
        """
        codes = self._draft.tokenizer.languages
        if not codes:
            return None, None
        known = self._target.tokenizer.languages or self._target.model.task_prefixes
        first, second = self._fixed
        source = self._prompt.src_lang or self._matching("src_lang", (options.src_lang or first) if known else None)
        target = self._prompt.tgt_lang or self._matching("tgt_lang", (options.tgt_lang or second) if known else tag)
        if target is None:
            try:
                first_token(self._draft.model, self._draft.tokenizer, None)
            except InputError as error:
                way_out = f"choose one of the draft model's {len(codes)} languages: {', '.join(sorted(codes))}"
                raise InputError(error.problem, "draft_tgt_lang", way_out) from error
        return source, target

    def _matching(self, name: str, language: str | None) -> str | None:
        if language is None:
            return None
        codes = self._draft.tokenizer.languages
        if (found := matching_language(language, codes)) is None:
            raise InputError(
                f"the draft model has no language {language}",
                f"draft_{name}",
                f"choose another draft model, or one of its {len(codes)} languages: {', '.join(sorted(codes))}",
            )
        return found

    def read(self, request: RequestView) -> tuple[str, str | None, str | None]:
        """Return a prompt for the draft model, and its languages (source, target). Raises `InputError`."""
        tokenizer, own = self._target.tokenizer, self._prompt
        pieces = tokenizer.vocabulary.pieces
        ids = request.source_tokens
        text = prompt_text(request, tokenizer)
        if own.prefix is not None:
            text = without_prefix(text, self._prompt_prefixes)
        tags = (pieces.get(token, "") for token in ids[:4])
        tag = next((piece.lstrip("▁") for piece in tags if tag_language(piece) is not None), None)
        language = None if tag is None else tag_language(tag)
        text = text.lstrip() if tag is None else text.lstrip().removeprefix(tag).lstrip()
        source, target = self.languages(request.options, language)
        if own.prefix is not None:
            return own.prefix + text, source, target
        spoken = own.tgt_lang or request.options.tgt_lang or language or self._fixed[1]
        if target is None and spoken is not None and (code := matching_language(spoken, self._tags)) is not None:
            return f"{self._tags[code]} {text}", source, target
        return text, source, target


class TextWriter:
    """Writes outputs with a text model, for `BatchWritingDrafter`.

    Args:
        target: The target.
        draft: The draft model, with its own tokenizer.
        reader: Converts the target's prompts to prompts for the draft model.
        engine: An engine for the draft model that is used by nothing else.
    """

    def __init__(self, target: TextModel, draft: TextModel, reader: PromptReader, engine: DraftEngine) -> None:
        self.target = target
        self.engine = engine
        self._draft = draft
        self._reader = reader

    def start(self, request: RequestView) -> WrittenText | None:
        try:
            before = self.target.tokenizer.decode(request.decoder_tokens[1:]).rstrip(REPLACEMENT)
            prompt, source, target = self._reader.read(request)
            options = self._options(before, request.options.max_tokens, source, target)
            draft = self.engine.submit(prompt, options, FixedLength(0))
        except InputError as error:
            note(error.at("no draft for this prompt").problem)
            return None
        return WrittenText(self, draft, request, before)

    def _options(self, before: str, max_tokens: int, source: str | None, target: str | None) -> GenerationOptions:
        """The options for continuing the text `before`. max_tokens: the limit for the target's output."""
        model, tokenizer = self._draft
        prefix = output_ids(model, tokenizer, before, "draft_model")
        most = 4 * max_tokens + 64  # another tokenizer may split words into more tokens
        if model.max_positions is not None:
            most = min(most, model.max_positions - len(prefix) - 1)
            if most < 1:
                raise InputError(f"draft model: has positions for at most {model.max_positions} output tokens")
        return GenerationOptions(
            drafter="none",
            max_tokens=most,
            src_lang=source,
            tgt_lang=target,
            decoder_prefix=prefix,
            allow_long_prompt=True,  # a poor draft changes only the speed
        )

    def step(self) -> None:
        self.engine.step()

    def rehearse(self, slot: int) -> WrittenText:
        model, tokenizer = self._draft
        size = model.config.vocab_size
        source = [token for i in range(24 + 11 * (slot % 5)) if (token := (7 * i + slot) % size) != model.image_token]
        length = max(1, min(REHEARSED, (model.max_positions or REHEARSED + 2) - 2))
        options = GenerationOptions(
            drafter="none",
            max_tokens=length,
            tgt_lang=next(iter(tokenizer.languages), None),
            allow_long_prompt=True,
        )
        start = build_decoder_prompt(model, tokenizer, options)._replace(eos_token_ids=set())
        return WrittenText(
            self, self.engine.submit(source[: model.max_positions], options, FixedLength(0), start), None, ""
        )


class WrittenRequest:
    """A draft model's output, decoded by an engine: the part of `Written` shared by text and speech."""

    def __init__(self, engine: DraftEngine, draft: Request) -> None:
        self._engine = engine
        self._draft = draft

    @property
    def num_tokens(self) -> int:
        return len(self._draft.tokens)

    @property
    def is_complete(self) -> bool:
        return self._draft.finish_reason is not None

    def cancel(self) -> None:
        self._engine.cancel(self._draft)


class WrittenText(WrittenRequest):
    """The draft model's output for a request to the target. Its text includes that of all committed tokens.

    Args:
        writer: The writer that started this output.
        draft: The draft model's request.
        request: The target's request; None while calibration times the writer.
        before: The text of the tokens that had been committed when this output was started.
    """

    num_skipped = 0

    def __init__(self, writer: TextWriter, draft: Request, request: RequestView | None, before: str) -> None:
        super().__init__(writer.engine, draft)
        self._target = writer.target
        self._before = before
        self._language = None if request is None else request.options.tgt_lang
        self._text = DraftText([], writer.target.tokenizer.vocabulary.pieces, MODEL)

    @property
    def size(self) -> int:
        return len(self._text.ids)

    def follow(self, prefix: Iterable[int] = ()) -> TextFollower:
        return self._text.follow(prefix)

    def update(self) -> None:
        self._text.update(self._target_ids())

    def _target_ids(self) -> list[int]:
        model, tokenizer = self._target
        is_finished = self._draft.finish_reason == "stop"
        text = self._before + self._draft.text
        try:
            ids = encode_output(model, tokenizer, text if is_finished else settled(text), "draft_model")
        except InputError:  # the target's tokenizer cannot encode all of it
            return []
        ids = ids if is_finished else ids[:-1]
        first = first_token(model, tokenizer, self._language)
        return ids if first is None or ids[:1] == [first] else [first, *ids]


def settled(text: str) -> str:
    """Return the text without its last word, which may be incomplete."""
    end = max(text.rfind(" "), text.rfind("\n"))
    return text[: max(end, 0)] if len(text) - end <= MAX_WORD else text[:-HELD_BACK]
