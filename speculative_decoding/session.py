"""A target with its tokenizer, perhaps a draft, and what lives across requests: the way in from Python."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, overload

import mlx.core as mx

from .batch import BatchResult, batch_generate
from .decoding.request import choose_length
from .decoding.scoring import Score, encode, score
from .draft_length.schedules import DraftLength
from .drafters import Drafter, DraftModel, NgramDrafter, choose_drafter
from .errors import InputError
from .generate import GenerationResponse, GenerationResult, generate, stream_generate
from .loading.load import SELF_DRAFT, SELF_DRAFT_BITS, load_model
from .loading.tokenizer import Tokenizer
from .models.base import EncoderDecoder


@dataclass
class Session:
    """What `load` returns. `model, tokenizer = load(...)` works too.

    drafter, ngram, num_draft: as `stream_generate` takes them, for every request; by default a draft model proposes,
        or without one nothing does. An n-gram store and a length that adapts learn from request to request.
    slots: how many rows are decoded together when there are several prompts.
    """

    model: EncoderDecoder
    tokenizer: Tokenizer
    draft_model: EncoderDecoder | DraftModel | None = None
    drafter: str | Drafter | None = None
    ngram: NgramDrafter | None = None
    num_draft: int | str | DraftLength = 5
    slots: int = 8

    def __post_init__(self) -> None:
        choose_drafter(self.drafter, self.model, self.draft_model, self.ngram)  # raises where they do not fit
        if self.num_draft != "auto":  # that measures, which waits until it is needed
            choose_length(self.num_draft, self.model)

    @cached_property
    def length(self) -> DraftLength:
        """Of drafts for a single row."""
        return choose_length(self.num_draft, self.model, self.draft_model)

    @cached_property
    def batch_length(self) -> DraftLength:
        """Of drafts for `slots` rows at a time, where everything costs something else."""
        return choose_length(self.num_draft, self.model, self.draft_model, self.slots)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.model, self.tokenizer))

    def stream(self, prompt: str, **options: Any) -> Iterator[GenerationResponse]:
        """`stream_generate` with this session's models; takes its other options."""
        return stream_generate(self.model, self.tokenizer, prompt, **self._with(options))

    @overload
    def generate(self, prompt: str, **options: Any) -> GenerationResult: ...

    @overload
    def generate(self, prompt: Sequence[str], **options: Any) -> list[GenerationResult]: ...

    def generate(self, prompt: str | Sequence[str], **options: Any) -> GenerationResult | list[GenerationResult]:
        """`generate` with this session's models; takes its other options. Several prompts are decoded together.

        Raises `InputError`; with several prompts it says which.
        """
        if isinstance(prompt, str):
            return generate(self.model, self.tokenizer, prompt, **self._with(options))
        results: dict[int, GenerationResult] = {}
        for each in self.batch(prompt, **options):
            if each.result is None:
                raise InputError(f"prompt {each.index}: {each.error}")
            results[each.index] = each.result
        return [results[index] for index in range(len(results))]

    def batch(self, prompts: Iterable[str | Mapping[str, Any]], **options: Any) -> Iterator[BatchResult]:
        """`batch_generate` with this session's models and slots; takes its other options."""
        ours = self._with({"slots": self.slots, "num_draft": self.batch_length} | options)
        return batch_generate(self.model, self.tokenizer, prompts, **ours)

    def score(self, source: str, target: str | Sequence[int], **options: Any) -> Score:
        """`score` with this session's target; takes its other options."""
        return score(self.model, self.tokenizer, source, target, **options)

    def encode(self, text: str, **options: Any) -> mx.array:
        """`encode` with this session's target; takes its other options."""
        return encode(self.model, self.tokenizer, text, **options)

    def _with(self, options: dict[str, Any]) -> dict[str, Any]:
        ours = {"draft_model": self.draft_model, "drafter": self.drafter, "ngram": self.ngram}
        return ours | (options if "num_draft" in options else {**options, "num_draft": self.length})


def load(
    path_or_name: str | os.PathLike[str],
    *,
    draft: str | os.PathLike[str] | None = None,
    drafter: str | Drafter | None = None,
    num_draft: int | str | DraftLength = 5,
    dtype: str | None = None,
    quantize: int | None = None,
    group_size: int = 64,
    gguf_file: str | os.PathLike[str] | None = None,
) -> Session:
    """Load a target, and perhaps a draft: converted folders, or Hugging Face ones as they are.

    path_or_name: a folder, the name of one under models/, or a model on the Hub, which is downloaded if need be.
    draft: the draft model, likewise; or "self-8bit", the target itself with its matrices in 8 bits, where a family has
        nothing smaller.
    drafter, num_draft: see `Session`.
    dtype: float32, bfloat16 or float16 to compute in; by default as stored on a GPU, and float32 on a CPU, for which
        MLX has no fast 16-bit matrix product.
    quantize: 4 or 8 bits for the target, in groups of `group_size` columns, for the layers that `convert.py
        --quantize` takes.
    gguf_file: take the target's weights from this GGUF file, a path or a name within the folder, whatever else is
        there; the tokenizer is the folder's. Without a config.json the file's own metadata serve.

    Raises `InputError` or `CheckpointError` in one line that names the folder, file or tensor.
    """
    load_target = partial(load_model, path_or_name, dtype=dtype, group_size=group_size, gguf_file=gguf_file)
    model, tokenizer = load_target(quantize=quantize)
    draft_model = None
    if draft == SELF_DRAFT:
        if quantize is not None:
            raise InputError(
                f"draft {SELF_DRAFT!r} needs a target that is not quantised; leave out quantize={quantize}"
            )
        draft_model, _ = load_target(quantize=SELF_DRAFT_BITS)
    elif draft is not None:
        draft_model, _ = load_model(draft, dtype=dtype)
    return Session(model, tokenizer, draft_model, drafter, num_draft=num_draft)
