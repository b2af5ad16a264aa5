"""A target with its tokenizer, perhaps a draft, and what lives across requests: the way in from Python."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, overload

import mlx.core as mx

from .decoding.request import Request
from .decoding.results import BatchResult, GenerationResponse, GenerationResult
from .decoding.stats import Round
from .draft_length.base import DraftLength
from .draft_length.exactness import Price
from .draft_length.planner import PassPlanner
from .drafters import (
    BatchDrafter,
    DraftModel,
    NgramDrafter,
    choose_drafter,
    default_drafter,
    model_drafter,
    new_ngram,
)
from .engine import Engine, Event, responses, result_of
from .errors import InputError
from .loading.pair import open_pair, require_same_tokens
from .loading.tokenizer import Tokenizer
from .models.base import EncoderDecoder
from .models.draft_head import DraftHead
from .models.memory_budget import slots_within
from .models.shared_encoder import shares_encoder
from .sampling import GenerationOptions
from .sampling.keywords import takes_keywords_of
from .sampling.options import accepts_aliases, default, short_repr, validate
from .sampling.values import Int, Number
from .scoring import Score, encode, score


@dataclass(frozen=True, kw_only=True)
class StreamKeywords(GenerationOptions):
    """on_round: is called with every `Round`, before its tokens are given out."""

    on_round: Callable[[Round], None] | None = None


@dataclass(frozen=True, kw_only=True)
class BatchKeywords(GenerationOptions):
    """slots: how many prompts are decoded together; None: as the session says. max_memory_gb: take fewer slots where
    their caches would not fit beside the weights.
    """

    slots: int | None = None
    max_memory_gb: float | None = None


KINDS: dict[str, tuple[Any, str]] = {
    "model": (EncoderDecoder, "a model, as load gives"),
    "draft_model": (EncoderDecoder | DraftModel | DraftHead | None, "a model, as load gives"),
    "options": (GenerationOptions, "GenerationOptions(...)"),
    "ngram": (NgramDrafter | None, "an NgramDrafter"),
}


@dataclass(repr=False)
class Session:
    """What `load` returns. `model, tokenizer = load(...)` works too.

    options: for every request, unless a call gives others. ngram: what drafts of copied text look up. slots: how many
        prompts are decoded together where there are several.
    What copies have been worth, and a length that adapts, are learned from request to request.
    """

    model: EncoderDecoder
    tokenizer: Tokenizer
    draft_model: EncoderDecoder | DraftModel | DraftHead | None = None
    options: GenerationOptions = field(default_factory=GenerationOptions)
    ngram: NgramDrafter | None = None
    slots: int = 8

    def __post_init__(self) -> None:
        self._ngrams: dict[int, NgramDrafter] = {}  # by max_ngram_size
        for name, (kind, wanted) in KINDS.items():
            if not isinstance(value := getattr(self, name), kind):
                raise InputError(f"{name} must be {wanted}, not {short_repr(value)}")
        if not hasattr(self.tokenizer, "encode"):
            raise InputError(f"tokenizer must be a tokenizer, as load gives, not {short_repr(self.tokenizer)}")
        if isinstance(self._draft, DraftModel):
            require_same_tokens(self.model, self._draft.model)
        make_drafter = None
        if self._draft is not None:
            make_drafter = partial(model_drafter, self._draft, self.model, self._shares_encoder)
        self.planner = PassPlanner(self.model, self._draft_network, make_drafter, shares_encoder=self._shares_encoder)
        self._drafter(self.options_with({}))  # raises where models and options do not fit

    def __repr__(self) -> str:
        given = {name: value for name, value in vars(self.options).items() if value != default(name)}
        draft = "no draft model" if self._draft is None else f"draft {type(self._draft_network).__name__}"
        return f"<Session: target {type(self.model).__name__}, {draft}, options {given}, {self.slots} slots>"

    def __iter__(self) -> Iterator[Any]:
        return iter((self.model, self.tokenizer))

    @takes_keywords_of(StreamKeywords)
    def stream(self, prompt: str, given: Mapping[str, Any]) -> Iterator[GenerationResponse]:
        """Yield a response for each token as soon as it is accepted; with beams, all when the best one is known.

        Arguments are checked here and now, before the first response is asked for. Raises `InputError` that names the
        option. Leaving the stream early leaves no trace in the next. The keywords: see `GenerationOptions`.
        """
        return (response for event in self.rounds(prompt, **given) for response in responses(event))

    @takes_keywords_of(StreamKeywords)
    def rounds(self, prompt: str, given: Mapping[str, Any]) -> Iterator[Event]:
        """`stream`, but all that came of a round at once."""
        requests, events = self._submit(prompt, given)
        if (count := requests[0].options.num_return_sequences) > 1:
            raise InputError(f"num_return_sequences {count}: a stream is of one output; use generate or batch")
        return events

    @overload
    @takes_keywords_of(StreamKeywords)
    def generate(  # type: ignore[overload-overlap]  # a text is never meant as a sequence of texts
        self, prompt: str, given: Mapping[str, Any]
    ) -> GenerationResult: ...

    @overload
    @takes_keywords_of(StreamKeywords)
    def generate(self, prompt: Sequence[str], given: Mapping[str, Any]) -> list[GenerationResult]: ...

    @takes_keywords_of(StreamKeywords)
    def generate(
        self, prompt: str | Sequence[str], given: Mapping[str, Any]
    ) -> GenerationResult | list[GenerationResult]:
        """All of `stream` at once, and of `num_return_sequences` outputs. Several prompts are decoded together and give
        a list.

        Raises `InputError`; with several prompts it says which.
        """
        if isinstance(prompt, str):
            requests, events = self._submit(prompt, given)
            for _ in events:
                pass
            return result_of(requests)
        results: dict[int, GenerationResult] = {}
        for each in self.batch(prompt, **given):
            if each.result is None:
                raise InputError(f"prompt {each.index}: {each.error}")
            results[each.index] = each.result
        return [results[index] for index in range(len(results))]

    @takes_keywords_of(BatchKeywords)
    def batch(self, prompts: Iterable[str | Mapping[str, Any]], given: Mapping[str, Any]) -> Iterator[BatchResult]:
        """Yield the results as prompts finish. Each is what `generate` gives for that prompt alone: the same tokens at
        temperature 0 and with acceptance "coupled"; else the same law, and with drafts that do not learn from row to
        row (a model's, of fixed lengths) the same sample.

        prompts: each a text, or a mapping with "prompt" and options of its own, as far as rows may differ in them. Read
            only a few times `slots` ahead.

        Raises `InputError` for the keywords; a prompt that cannot be decoded gets an error of its own.
        """
        given = dict(given)
        slots, max_memory_gb = given.pop("slots", None), given.pop("max_memory_gb", None)
        slots = validate("slots", Int(1), self.slots if slots is None else slots)
        if isinstance(prompts, str | bytes | Mapping) or not isinstance(prompts, Iterable):
            raise InputError(f"prompts must be a list of texts, not {short_repr(prompts)}")
        options = self.options_with(given)
        if options.drafter is not None and not isinstance(options.drafter, str):
            raise InputError(
                f"drafter must be given by name for several prompts, not {options.drafter!r}: each row needs its own"
            )
        if max_memory_gb is not None:
            most = validate("max_memory_gb", Number(0, exclusive=True), max_memory_gb)
            slots = slots_within(most, slots, self.model, self._draft_network, options.max_tokens, options.num_beams)
        return self._batch(prompts, options, self.engine(options, slots), slots)

    def score(self, source: str, target: str | Sequence[int], *, allow_long_prompt: bool = False) -> Score:
        """`score` with this session's target and languages."""
        ours = {"src_lang": self.options.src_lang, "tgt_lang": self.options.tgt_lang}
        return score(self.model, self.tokenizer, source, target, allow_long_prompt=allow_long_prompt, **ours)

    def encode(self, text: str, *, allow_long_prompt: bool = False) -> mx.array:
        """`encode` with this session's target and language."""
        language = self.options.src_lang
        return encode(self.model, self.tokenizer, text, allow_long_prompt=allow_long_prompt, src_lang=language)

    def options_with(self, given: Mapping[str, Any]) -> GenerationOptions:
        """This session's options with those of a call. Raises `InputError` for what does not fit."""
        options = self.options.override(given)
        if options.drafter is None:
            given = {name: value for name, value in given.items() if name != "drafter"}
            options = options.with_values(drafter=default_drafter(self._draft, options.num_beams))
        options.require_effect(given)
        return options

    def engine(self, options: GenerationOptions, slots: int) -> Engine:
        """One with a drafter of its own, for requests that differ from `options` as rows may."""
        widths = self.planner.widths(options, slots)
        mx.reset_peak_memory()
        own = self.model, self.tokenizer, self._drafter(options)
        return Engine(*own, slots=slots, widths=widths, num_beams=options.num_beams)

    def price(self, options: GenerationOptions, slots: int = 1) -> Price:
        """The share of the speed that exact passes cost with these options, as measured."""
        return self.planner.price(options, slots)

    def calibrate(self, slots: int = 1, *, again: bool = False) -> None:
        """Measure the device now for up to `slots` rows, instead of during the first request.

        Args:
            again: discard earlier measurements, including those of other processes.
        """
        self.planner.calibrate(self.options_with({}), slots, again=again)

    @cached_property
    def _draft(self) -> DraftModel | DraftHead | None:
        given = self.draft_model
        return DraftModel(given) if isinstance(given, EncoderDecoder) else given

    @property
    def _draft_network(self) -> EncoderDecoder | DraftHead | None:
        return self._draft.model if isinstance(self._draft, DraftModel) else self._draft

    def _drafter(self, options: GenerationOptions) -> BatchDrafter:
        ngram, ours = self.ngram, self.options
        if options.drafter in ("ngram", "auto"):
            size = options.max_ngram_size
            if ngram is None:
                ngram = self._ngrams[size] = self._ngrams.get(size) or new_ngram(self.model, size)
            elif size != ours.max_ngram_size:
                raise InputError("max_ngram_size has no effect with an ngram; leave one of them out")
        return choose_drafter(options, self.model, self._draft, ngram, shares_encoder=self._shares_encoder)

    @cached_property
    def _shares_encoder(self) -> bool:
        """Compared once per session: walking over all weights takes longer than the host's part of a round."""
        return isinstance(self._draft, DraftModel) and shares_encoder(self.model, self._draft.model)

    def _submit(self, prompt: str, given: Mapping[str, Any]) -> tuple[list[Request], Iterator[Event]]:
        """A request, or one for each sample, and what decodes them."""
        own = dict(given)
        on_round = own.pop("on_round", None)
        if on_round is not None and not callable(on_round):
            raise InputError(f"on_round must be a function of a Round, not {short_repr(on_round)}")
        options = self.options_with(own)
        slots = min(self.slots, options.num_samples) if isinstance(options.drafter, str) else 1
        engine = self.engine(options, slots)
        requests = engine.submit_samples(prompt, options, self.planner.draft_length(options, slots))
        return requests, rounds_of(engine, requests, on_round)

    def _batch(
        self, prompts: Iterable[str | Mapping[str, Any]], options: GenerationOptions, engine: Engine, slots: int
    ) -> Iterator[BatchResult]:
        waiting, asked = enumerate(prompts), dict[Request, tuple[int, list[Request]]]()
        is_more = True
        while True:
            while is_more and engine.wants_more:
                index, prompt = next(waiting, (-1, ""))
                if is_more := index >= 0:
                    try:
                        requests = self._submit_row(engine, prompt, options, slots)
                        asked |= {each: (index, requests) for each in requests}
                    except InputError as error:
                        yield BatchResult(index, None, str(error))
            if engine.is_idle:
                return
            for event in engine.step():
                if event.request.finish_reason:
                    index, requests = asked.pop(event.request)
                    if all(each.finish_reason for each in requests):
                        wrong = next((each.error for each in requests if each.error), None)
                        yield BatchResult(index, None if wrong else result_of(requests), wrong)

    def _submit_row(
        self, engine: Engine, prompt: str | Mapping[str, Any], options: GenerationOptions, slots: int
    ) -> list[Request]:
        own = dict(prompt) if isinstance(prompt, Mapping) else {"prompt": prompt}
        text = own.pop("prompt", "")
        row = options.override_for_row(own)
        row.require_effect(own)
        return engine.submit_samples(text, row, self.planner.draft_length(row, slots))


def rounds_of(engine: Engine, requests: Sequence[Request], on_round: Callable[[Round], None] | None) -> Iterator[Event]:
    while not all(request.finish_reason for request in requests):
        for event in engine.step():
            if on_round is not None:
                on_round(event.round)
            yield event
    for request in requests:
        if request.error:
            raise InputError(request.error)


@accepts_aliases
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
) -> Session:
    """Load a target, and perhaps a draft: converted folders, or Hugging Face ones as they are.

    path_or_name: a folder, the name of one under models/, or a model on the Hub, which is downloaded if need be.
    draft: the draft model or draft head, likewise; or "self-8bit", the target itself with its matrices in 8 bits,
        where a family has nothing smaller.
    drafter, num_draft_tokens: for every request, see `GenerationOptions`.
    dtype: float32, bfloat16 or float16 to compute in; by default as stored on a GPU, and float32 on a CPU, for which
        MLX has no fast 16-bit matrix product.
    quantize: 4 or 8 bits for the target, in groups of `group_size` columns (64), for the layers that `convert.py
        --quantize` takes.
    gguf_file: take the target's weights from this GGUF file, a path or a name within the folder, whatever else is
        there; the tokenizer is the folder's. Without a config.json the file's own metadata serve.

    Raises `InputError` or `CheckpointError` in one line that names the folder, file or tensor.
    """
    options = GenerationOptions(drafter=drafter, num_draft_tokens=num_draft_tokens)
    pair = open_pair(path_or_name, draft, dtype=dtype, quantize=quantize, group_size=group_size, gguf_file=gguf_file)
    session = Session(
        pair.target.model, pair.target.tokenizer, None if pair.draft is None else pair.draft.model, options
    )
    pair.load_weights()
    return session
