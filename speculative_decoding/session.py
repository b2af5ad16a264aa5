"""The Python API: `load` returns a `Session`, which decodes prompts with a target and an optional draft."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

import mlx.core as mx

from .decoding.prompt import draft_text_of, is_token_list
from .decoding.request import Request
from .decoding.results import GenerationResponse, GenerationResult, Round
from .draft_length.base import DraftLength
from .draft_length.planner import PassPlanner
from .drafters import (
    BatchDrafter,
    NgramDrafter,
    check_drafter,
    checked_draft,
    choose_drafter,
    model_drafter,
    with_default_drafter,
)
from .drafters.base import makes_drafters
from .engine import DEFAULT_SLOTS, Engine, Event, responses, result_of
from .errors import InputError, Message, note
from .loading.load import ModelHandle
from .loading.pair import DraftPrompt, ModelPair, open_pair, require_draft, token_difference
from .loading.tokenizer import Tokenizer
from .models.base import EncoderDecoder
from .models.draft_head import DraftHead
from .models.memory_budget import slots_within
from .models.source import AudioFrames, Source
from .models.threads import turn, use_mlx
from .sampling import GenerationOptions
from .sampling.options import option_specs, short_repr, shows_options, validate
from .sampling.values import Int, Number
from .subpackages import lazy_module, require_subpackage

if TYPE_CHECKING:
    from .documents import api as documents
    from .drafters.draft_model import DraftVocabulary
    from .drafters.draft_text import DraftText
    from .drafters.writing import DraftWriter
    from .memory import TranslationMemory
    from .rows.prompts import PromptScheduler
    from .rows.scheduling import BatchResult
    from .sampling.keywords import OptionKeywords
    from .scoring import Score
    from .speech import api as speech
else:
    documents, speech = lazy_module("documents.api", "text"), lazy_module("speech.api", "audio")

Prompt = str | Source  # a string or its source tokens, or audio frames for a speech model

MAX_WRITTEN = sys.maxsize  # not limited; a draft model writes one output for each row of the target
KEPT_DRAFT_TEXTS = 64  # prepared draft texts that a session keeps for later requests
REQUIRED = ("model", "tokenizer", "options")
ARGUMENTS: Mapping[str, tuple[Any, str]] = {  # of a session: the required type or attribute, and what to pass
    "model": (EncoderDecoder, "a model, as load gives"),
    "tokenizer": ("encode", "a tokenizer, as load gives"),
    "draft_model": (EncoderDecoder | DraftHead, "a model, as load gives"),
    "options": (GenerationOptions, "GenerationOptions(...)"),
    "ngram": (NgramDrafter, "an NgramDrafter"),
    "draft_vocabulary": ("most_frequent", "a DraftVocabulary"),
    "memory": ("similar", "a TranslationMemory"),
    "draft_tokenizer": ("encode", "a tokenizer, as load gives"),
}


def load(
    path_or_name: str | os.PathLike[str],
    *,
    draft: str | os.PathLike[str] | None = None,
    drafter: str | Any | None = None,
    num_draft_tokens: int | str | DraftLength = "auto",
    dtype: str | None = None,
    quantize: int | None = None,
    group_size: int | None = None,
    gguf_file: str | os.PathLike[str] | None = None,
    adapter: str | os.PathLike[str] | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    store: str | os.PathLike[str] | None = None,
    draft_vocabulary: DraftVocabulary | None = None,
    memory: str | os.PathLike[str] | TranslationMemory | None = None,
    draft_prefix: str | None = None,
    draft_src_lang: str | None = None,
    draft_tgt_lang: str | None = None,
) -> Session:
    """Load a target and an optional draft, from converted folders or from unconverted Hugging Face folders.

    Args:
        path_or_name: A folder, the name of a folder in models/, or the name of a model on the Hub, which is downloaded
            if needed.
        draft: The draft model or draft head; or "self-4bit" or "self-8bit", a copy of the target's decoder in 4 or 8
            bits, for model families without a smaller model. A draft model may have any vocabulary: if it differs from
            the target's, the text that the draft model writes is the draft.
        drafter: The drafter for all requests; see `GenerationOptions`.
        num_draft_tokens: The number of draft tokens for all requests; see `GenerationOptions`.
        dtype: The type to compute in: float32, bfloat16 or float16. Default: on a GPU, the stored type, but float16
            instead of bfloat16 on M1 and M2; on a CPU, float32, because MLX has no fast 16-bit matmul there.
        quantize: The number of bits, 4 or 8, for the layers that `convert.py --quantize` quantizes.
        group_size: The number of columns per group of quantized weights (default: 64).
        gguf_file: A GGUF file with the target's weights: a path, or the name of a file in the folder. The tokenizer
            comes from the folder. Without a config.json, the metadata of the GGUF file is used.
        adapter: A LoRA adapter for the target, saved by PEFT: a folder, or a name on the Hub. The adapter is merged
            into the weights, and its tokenizer is used if it has one.
        tokenizer: A folder, or the name of a model on the Hub, whose tokenizer replaces the target's own.
        store: A file with texts to copy drafts from; it need not exist yet. `session.ngram.store`, a `TextStore`, adds
            the text of each request, and its method `save` writes the file.
        draft_vocabulary: The tokens that the draft may propose; None means all.
        memory: A translation memory, or its file, provided that the file can be read without naming languages (see
            `TranslationMemory.open`). The targets of similar sources become drafts.
        draft_prefix: Text to put before each prompt for a draft model with a different vocabulary, in place of a prefix
            in `session.prompt_prefixes`.
        draft_src_lang: The prompt's language, as named by such a draft model's tokenizer (default: the target's).
        draft_tgt_lang: The output's language, as named by that tokenizer (default: the target's).

    Raises:
        InputError: An argument cannot be used.
        CheckpointError: A file is damaged or unsupported.
    """
    use_mlx()
    options = GenerationOptions(drafter=drafter, num_draft_tokens=num_draft_tokens)
    pair = open_pair(
        path_or_name,
        draft,
        dtype=dtype,
        quantize=quantize,
        group_size=group_size,
        gguf_file=gguf_file,
        adapter=adapter,
        tokenizer=tokenizer,
    )
    check_drafter(options.drafter, pair.draft)
    return load_session(
        pair,
        options,
        store=store,
        draft_vocabulary=draft_vocabulary,
        memory=open_memory(memory, pair) if isinstance(memory, str | os.PathLike) else memory,
        draft_prompt=DraftPrompt(draft_prefix, draft_src_lang, draft_tgt_lang),
    )


def open_memory(path: str | os.PathLike[str], pair: ModelPair, **languages: str | None) -> TranslationMemory:
    """Read a translation memory for a target, without any weights. Raises `InputError`.

    languages: see `open`. The default is the only languages between which the target translates, if they are known.
    """
    require_subpackage("memory", "memory")
    require_text(pair.target.model)
    from .loading.task_prefixes import only_languages
    from .memory import TranslationMemory

    own = dict(zip(("src_lang", "tgt_lang"), only_languages(pair.target.model.task_prefixes), strict=True))
    return TranslationMemory.open(path, **own | {name: value for name, value in languages.items() if value})


def require_text(model: EncoderDecoder) -> None:
    """Raise `InputError` for a translation memory if the model does not read text."""
    if model.audio is not None:
        raise InputError("holds texts, but this model reads speech", "memory", "leave it out")


def load_session(
    pair: ModelPair,
    options: GenerationOptions,
    *,
    store: str | os.PathLike[str] | None = None,
    draft_vocabulary: DraftVocabulary | None = None,
    memory: TranslationMemory | None = None,
    draft_prompt: DraftPrompt | None = None,
    given: Collection[str] = (),
) -> Session:
    """Read the weights of opened models: the second half of `load`, after the checks that do not require weights.

    Args:
        pair: The opened models, as returned by `open_pair`.
        options: Defaults for all requests.
        store: A file with texts to copy drafts from; it need not exist yet.
        draft_vocabulary: The tokens that the draft may propose; None means all.
        memory: A translation memory, whose targets become drafts.
        draft_prompt: The prompt for a draft model with a different vocabulary (default: the target's prompt).
        given: The options that the user chose. They replace unsupported fields of generation_config.json.
    """
    target, draft = pair.target, pair.draft
    if draft_prompt is not None:
        draft_prompt.require_effect(drafts_text=pair.drafts_text, is_speech=target.model.audio is not None)
    draft_tokenizer = None
    if pair.drafts_text:
        require_all_tokens(draft_vocabulary)
        assert isinstance(draft, ModelHandle)
        draft_tokenizer = draft.tokenizer
        if target.model.audio is None:
            from .decoding.draft_writer import PromptReader, TextModel

            read, drafting = (TextModel(each.model, each.tokenizer) for each in (target, draft))
            PromptReader(read, drafting, draft_prompt or DraftPrompt()).check(options)
    ngram = None
    if store is not None:
        from .drafters.text_store import TextStore

        size, vocabulary = options.max_ngram_size, target.tokenizer.vocabulary
        texts = TextStore.open(Path(store), vocabulary.fingerprint, size)
        ngram = NgramDrafter(pieces=vocabulary.pieces, store=texts, max_ngram_size=size)
    pair.load_weights(given)
    return Session(
        target.model,
        target.tokenizer,
        None if draft is None else draft.model,
        options,
        ngram,
        draft_vocabulary=draft_vocabulary,
        memory=memory,
        draft_tokenizer=draft_tokenizer,
        draft_prompt=draft_prompt,
    )


def require_all_tokens(draft_vocabulary: DraftVocabulary | None) -> None:
    """Raise `InputError` for a draft vocabulary, because the draft model's vocabulary is not that of the target."""
    if draft_vocabulary is not None:
        raise InputError("has no effect with a draft model of another vocabulary", "draft_vocabulary", "leave it out")


@dataclass(repr=False)
class Session:
    """A target with its tokenizer and an optional draft, as returned by `load`.

    From request to request, a session learns which drafts are worth their cost.

    Args:
        model: The target.
        tokenizer: The target's tokenizer.
        draft_model: A draft model, or a draft head of the target.
        options: Defaults for all requests.
        ngram: The n-gram drafter, which drafts copies of earlier text (default: a new one).
        slots: How many prompts of a batch are decoded together.
        draft_vocabulary: The tokens that the draft may propose; None means all.
        memory: A translation memory. The targets of its most similar sources become drafts.
        prompt_prefixes: Texts with which prompts may begin, such as "translate English to German: ", in addition to the
            prefixes in the target's config.json. Sources in the memory do not contain these prefixes, and the prefix of
            `draft_prompt` replaces them.
        draft_tokenizer: The draft model's tokenizer, which is required if its vocabulary differs from the target's.
        draft_prompt: The prompt for such a draft model (default: the target's prompt).

    Attributes:
        drafts_text: Whether the draft model has a different vocabulary, so that the text of its output becomes the
            draft.
    """

    model: EncoderDecoder
    tokenizer: Tokenizer
    draft_model: EncoderDecoder | DraftHead | None = None
    options: GenerationOptions = field(default_factory=GenerationOptions)
    ngram: NgramDrafter | None = None
    slots: int = DEFAULT_SLOTS
    draft_vocabulary: DraftVocabulary | None = None
    memory: TranslationMemory | None = None
    prompt_prefixes: Sequence[str] = ()
    draft_tokenizer: Tokenizer | None = None
    draft_prompt: DraftPrompt | None = None

    transcribe = speech.transcribe
    transcribe_stream = speech.transcribe_stream
    transcribe_batch = speech.transcribe_batch
    transcribe_chunks = speech.transcribe_chunks
    transcribe_live = speech.transcribe_live
    document = documents.document
    document_parts = documents.document_parts

    @turn()
    def __post_init__(self) -> None:
        self._ngrams: dict[int, NgramDrafter] = {}  # by max_ngram_size
        # Several requests may contain the same text, such as a whole document. Their texts never displace the session's
        # own.
        encode = partial(draft_text_of, self.model, self.tokenizer)
        self._encode_own, self._encode_given = (lru_cache(KEPT_DRAFT_TEXTS)(encode) for _ in range(2))
        for name, (required, expected) in ARGUMENTS.items():
            value = getattr(self, name)
            is_right = hasattr(value, required) if isinstance(required, str) else isinstance(value, required)
            if not is_right and (value is not None or name in REQUIRED):
                raise InputError(f"must be {expected}, not {short_repr(value)}", name)
        if self.memory is not None:
            require_text(self.model)
        check_drafter(self.options.drafter, self.draft_model)
        draft, tokenizer = self.draft_model, self.draft_tokenizer
        self.drafts_text = False
        if isinstance(draft, EncoderDecoder):
            require_draft(self.model, draft)
            self.drafts_text = tokenizer is not None and token_difference(self.model, draft) is not None
        if self.draft_prompt is not None:
            self.draft_prompt.require_effect(drafts_text=self.drafts_text, is_speech=self.model.audio is not None)
        use = "text" if self.drafts_text else ""
        make_timed_drafter: Callable[[], BatchDrafter] | None = None
        self._make_model_drafter: Callable[[], BatchDrafter] | None = None
        if self.drafts_text:
            require_all_tokens(self.draft_vocabulary)
            assert isinstance(draft, EncoderDecoder) and tokenizer is not None
            make_timed_drafter = partial(timed_drafter, self.model, self.tokenizer, draft, tokenizer)
        elif draft is not None:
            checked = checked_draft(draft, self.model, self.draft_vocabulary)
            if isinstance(checked, DraftHead):
                self.draft_model = checked
            else:
                use = checked.shares
            make_timed_drafter = self._make_model_drafter = partial(model_drafter, checked, self.model)
        elif self.draft_vocabulary is not None:
            raise InputError("has no effect without a draft model", "draft_vocabulary", "leave it out")
        self.planner = PassPlanner(self.model, draft, make_timed_drafter, use=use)

    @property
    def _prefixes(self) -> Sequence[str]:
        """The texts with which prompts may begin, according to the user and the model's files."""
        return *self.prompt_prefixes, *self.model.task_prefixes.values()

    def _writing_drafter(self) -> BatchDrafter:
        """Return a drafter for a draft model with a different vocabulary."""
        from .drafters.writing import BatchWritingDrafter

        draft, tokenizer = self.draft_model, self.draft_tokenizer
        assert isinstance(draft, EncoderDecoder) and tokenizer is not None
        prompt = self.draft_prompt, self._prefixes
        writer = draft_writer(self.model, self.tokenizer, draft, tokenizer, *prompt)
        return BatchWritingDrafter(writer)

    def __repr__(self) -> str:
        specs = option_specs()
        values = vars(self.options)
        changed = [f"{name!r}: {short_repr(values[name])}" for name in values if values[name] != specs[name].default]
        options = f"{{{', '.join(changed)}}}"
        draft = "no draft model" if self.draft_model is None else f"draft {type(self.draft_model).__name__}"
        return f"<Session: target {type(self.model).__name__}, {draft}, options {options}, {self.slots} slots>"

    def __iter__(self) -> Iterator[Any]:
        """Support `model, tokenizer = load(...)` for a session without a draft."""
        if self.draft_model is not None:
            raise InputError(
                "a session with a draft cannot be unpacked to a model and a tokenizer, which would drop the draft; "
                "write session = load(...) and use session.generate(...)"
            )
        return iter((self.model, self.tokenizer))

    @shows_options
    def stream(
        self,
        prompt: Prompt,
        *,
        on_round: Callable[[Round], None] | None = None,
        **options: Unpack[OptionKeywords],
    ) -> Iterator[GenerationResponse]:
        """Yield a response for each token as soon as it is accepted. Beam search yields all responses at the end.

        Arguments are checked by this call, before the first response is requested. Iteration may be stopped at any
        time.

        Args:
            prompt: A string or its source tokens, or audio frames for a speech model.
            on_round: Called with each `Round`, before its responses.
            options: See `GenerationOptions`.

        Raises:
            InputError: The prompt or an option cannot be used.
        """
        events = self.rounds(prompt, on_round=on_round, **options)
        return (response for event in events for response in responses(event))

    @shows_options
    def rounds(
        self,
        prompt: Prompt,
        *,
        on_round: Callable[[Round], None] | None = None,
        **options: Unpack[OptionKeywords],
    ) -> Iterator[Event]:
        """Like `stream`, but yield all tokens of a round in one event."""
        requests, events = self._submit(prompt, options, on_round)
        if (count := requests[0].options.num_return_sequences) > 1:
            raise InputError(f"{count} outputs cannot be streamed", "num_return_sequences", "use generate or batch")
        return events

    @overload
    def generate(  # type: ignore[overload-overlap]  # a string is not used as a sequence of strings
        self,
        prompt: Prompt,
        *,
        on_round: Callable[[Round], None] | None = None,
        **options: Unpack[OptionKeywords],
    ) -> GenerationResult: ...

    @overload
    def generate(
        self, prompt: Sequence[str | AudioFrames], **options: Unpack[OptionKeywords]
    ) -> list[GenerationResult]: ...

    @shows_options
    def generate(
        self,
        prompt: Prompt | Sequence[str | AudioFrames],
        *,
        on_round: Callable[[Round], None] | None = None,
        **options: Unpack[OptionKeywords],
    ) -> GenerationResult | list[GenerationResult]:
        """Decode a prompt, or several prompts together.

        Args:
            prompt: A string, its source tokens or audio frames; or a list of strings, for which a list of results is
                returned.
            on_round: Called with each `Round`. Only for a single prompt.
            options: See `GenerationOptions`.

        Raises:
            InputError: A prompt or an option cannot be used.
        """
        if isinstance(prompt, str | AudioFrames) or is_token_list(prompt):
            requests, events = self._submit(prompt, options, on_round)  # type: ignore[arg-type]
            for _ in events:
                pass
            return result_of(requests)
        if on_round is not None:
            raise InputError("has no effect with several prompts", "on_round", "leave it out")
        results = []
        for each in self.batch(prompt, **options):  # type: ignore[arg-type]
            if each.result is None:
                raise InputError(f"prompt {each.index}: {each.error}")
            results.append(each.result)
        return results

    @shows_options
    def batch(
        self,
        prompts: Iterable[str | AudioFrames | Mapping[str, Any]],
        *,
        slots: int | None = None,
        max_memory_gb: float | None = None,
        **options: Unpack[OptionKeywords],
    ) -> Iterator[BatchResult[GenerationResult]]:
        """Yield the results of many prompts, in the order of the prompts.

        Each result equals the result of `generate` for the same prompt. With acceptance "rejection" or "block", this
        applies only to the distributions from which the results are sampled.

        Args:
            prompts: Strings, or mappings with "prompt" and options for that prompt. Some prompts are read ahead of the
                results. For a blank prompt, the output is blank.
            slots: How many prompts are decoded together (default: the session's `slots`).
            max_memory_gb: The maximum memory for caches and weights; fewer slots are used if they would need more.
            options: See `GenerationOptions`.

        Raises:
            InputError: An argument cannot be used. If a prompt cannot be decoded, its result contains an `error`
                instead.
        """
        from .rows.scheduling import in_order

        results = self.batch_as_completed(prompts, slots=slots, max_memory_gb=max_memory_gb, **options)
        return in_order(results, attrgetter("index"))

    @shows_options
    def batch_as_completed(
        self,
        prompts: Iterable[str | AudioFrames | Mapping[str, Any]],
        *,
        slots: int | None = None,
        max_memory_gb: float | None = None,
        **options: Unpack[OptionKeywords],
    ) -> Iterator[BatchResult[GenerationResult]]:
        """Like `batch`, but yield each result as soon as it is complete; its `index` identifies the prompt.

        The number of prompts that are read ahead is at most a few times `slots`.
        """
        from .rows.scheduling import drive, finished

        if isinstance(prompts, str | bytes | Mapping) or not isinstance(prompts, Iterable):
            raise InputError(f"must be a list of texts, not {short_repr(prompts)}", "prompts")
        return finished(drive(self.prompt_scheduler(slots, max_memory_gb, **options), enumerate(prompts)))

    @shows_options
    def prompt_scheduler(
        self, slots: int | None = None, max_memory_gb: float | None = None, **options: Unpack[OptionKeywords]
    ) -> PromptScheduler:
        """Return a scheduler for a batch; see `drive` and `batch`."""
        from .rows.prompts import PromptScheduler

        slots = validate("slots", Int(1), self.slots if slots is None else slots)
        chosen = self.options_with(options)
        if chosen.drafter is not None and not has_drafter_per_row(chosen):
            raise InputError(
                f"must be a name, a class or a function for several prompts, not {chosen.drafter!r}",
                "drafter",
                "give the class of the drafter, so that each row gets its own",
            )
        if max_memory_gb is not None:
            limit = validate("max_memory_gb", Number(0, exclusive=True), max_memory_gb)
            slots = slots_within(limit, slots, self.model, self.draft_model, chosen.max_tokens, chosen.num_beams)
        self._drafter(chosen)  # raises if the drafter cannot be used

        def options_of(own: Mapping[str, Any]) -> GenerationOptions:
            row = chosen.override_for_row(own)
            warn_without_effect(row, own)
            return row

        return PromptScheduler(
            options_of,
            new_engine=partial(self.engine, chosen, slots),
            draft_length=partial(self.planner.draft_length, slots=slots),
            reads_text=self.model.audio is None,
        )

    def score(self, source: str, target: str | Sequence[int], *, allow_long_prompt: bool = False) -> Score:
        """Call `scoring.score` with this session's target and languages."""
        from .scoring import score

        return score(
            self.model,
            self.tokenizer,
            source,
            target,
            allow_long_prompt=allow_long_prompt,
            src_lang=self.options.src_lang,
            tgt_lang=self.options.tgt_lang,
        )

    def encode(self, text: str, *, allow_long_prompt: bool = False) -> mx.array:
        """Call `scoring.encode` with this session's target and languages."""
        from .scoring import encode

        return encode(
            self.model,
            self.tokenizer,
            text,
            allow_long_prompt=allow_long_prompt,
            src_lang=self.options.src_lang,
            tgt_lang=self.options.tgt_lang,
        )

    @turn()
    def calibrate(self, slots: int = 1, *, again: bool = False) -> None:
        """Measure the device completely for up to `slots` rows. Without this call, each run measures only a little.

        Args:
            again: Discard earlier measurements, including those of other processes.
        """
        self.planner.calibrate(self.options_with({}), slots, again=again)

    def _submit(
        self, prompt: Prompt, overrides: Mapping[str, Any], on_round: Callable[[Round], None] | None
    ) -> tuple[list[Request], Iterator[Event]]:
        """Queue one request per sample of the prompt. Returns the requests and an iterator that decodes them."""
        if on_round is not None and not callable(on_round):
            raise InputError(f"must be a function of a Round, not {short_repr(on_round)}", "on_round")
        options = self.options_with(overrides)
        slots = min(self.slots, options.num_samples) if has_drafter_per_row(options) else 1
        engine = self.engine(options, slots)
        requests = engine.submit_samples(prompt, options, self.planner.draft_length(options, slots))
        return requests, rounds_of(engine, requests, on_round)

    def options_with(self, overrides: Mapping[str, Any]) -> GenerationOptions:
        """Return the options of a request, and warn about options without effect.

        Raises:
            InputError: An option does not exist, or does not accept its value.
        """
        chosen = self.options.override(overrides)
        options = with_default_drafter(chosen, self.draft_model)
        warn_without_effect(options, (name for name in overrides if name != "drafter" or chosen.drafter is not None))
        return options

    @turn()
    def engine(self, options: GenerationOptions, slots: int) -> Engine:
        """Return an engine with its own drafter, for `options` and for rows of a batch that override some of them."""
        find_drafts = None
        if self.memory is not None:
            from .memory.drafts import MemoryDrafts

            find_drafts = MemoryDrafts(self.memory, self.model, self.tokenizer, self._prefixes)
        return Engine(
            self.model,
            self.tokenizer,
            self._drafter(options),
            slots=slots,
            widths=self.planner.widths(options, slots),
            num_beams=options.num_beams,
            encode_draft=self._encode_draft,
            find_drafts=find_drafts,
        )

    def _encode_draft(self, text: str, first: int | None) -> DraftText:
        return (self._encode_own if text in self.options.draft_text else self._encode_given)(text, first)

    @turn()
    def _drafter(self, options: GenerationOptions) -> BatchDrafter:
        ngram = self.ngram
        if options.follows_texts:
            size = options.max_ngram_size
            if ngram is None:
                ngram = self._ngrams.get(size) or NgramDrafter(pieces=self.model.pieces, max_ngram_size=size)
                self._ngrams[size] = ngram
            elif size != self.options.max_ngram_size:
                raise InputError(Message("has no effect with an {ngram}"), "max_ngram_size", "leave one of them out")
        make = self._writing_drafter if self.drafts_text else self._make_model_drafter
        return choose_drafter(options, self.model, make, ngram)


def draft_writer(
    model: EncoderDecoder,
    tokenizer: Tokenizer,
    draft: EncoderDecoder,
    draft_tokenizer: Tokenizer,
    prompt: DraftPrompt | None = None,
    prompt_prefixes: Sequence[str] = (),
) -> DraftWriter:
    """Return a writer with its own engine, for a draft model with a different vocabulary."""
    from .decoding.draft_writer import PromptReader, TextModel, TextWriter
    from .drafters.none import NoDrafter

    engine = Engine(draft, draft_tokenizer, NoDrafter(), slots=MAX_WRITTEN)
    if model.audio is not None:
        require_subpackage("speech", "audio")
        from .speech import api

        return api.draft_writer(model, tokenizer, draft, draft_tokenizer, engine)
    target, drafting = TextModel(model, tokenizer), TextModel(draft, draft_tokenizer)
    return TextWriter(
        target, drafting, PromptReader(target, drafting, prompt or DraftPrompt(), prompt_prefixes), engine
    )


def timed_drafter(
    model: EncoderDecoder, tokenizer: Tokenizer, draft: EncoderDecoder, draft_tokenizer: Tokenizer
) -> BatchDrafter:
    """Return a drafter for calibration to time in place of `Session._writing_drafter`."""
    from .drafters.writing import TimedWriting

    return TimedWriting(draft_writer(model, tokenizer, draft, draft_tokenizer))


def has_drafter_per_row(options: GenerationOptions) -> bool:
    """Whether each row of a batch gets its own drafter. A drafter object has state for only one request."""
    return isinstance(options.drafter, str) or makes_drafters(options.drafter)


def rounds_of(engine: Engine, requests: Sequence[Request], on_round: Callable[[Round], None] | None) -> Iterator[Event]:
    while not all(request.finish_reason for request in requests):
        for event in engine.step():
            if on_round is not None:
                on_round(event.round)
            yield event
    for request in requests:
        if request.error:
            raise InputError(request.error)


def warn_without_effect(options: GenerationOptions, names: Iterable[str]) -> None:
    try:
        options.require_effect(names)
    except InputError as error:
        note(str(error))
