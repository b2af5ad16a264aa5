"""A target with its tokenizer, perhaps a draft, and what lives across requests: the way in from Python."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .draft_length import DraftLength
from .drafters import Drafter, DraftModel, NgramDrafter, choose_drafter
from .errors import InputError
from .generate import GenerationResponse, GenerationResult, generate, stream_generate
from .load import SELF_DRAFT, SELF_DRAFT_BITS, load_model
from .models.base import EncoderDecoder
from .request import choose_length
from .tokenizer import Tokenizer


@dataclass
class Session:
    """What `load` returns. `model, tokenizer = load(...)` works too.

    drafter, ngram, num_draft: as `stream_generate` takes them, for every request; by default a draft model proposes,
        or without one nothing does. An n-gram store and a length that adapts learn from request to request.
    """

    model: EncoderDecoder
    tokenizer: Tokenizer
    draft_model: EncoderDecoder | DraftModel | None = None
    drafter: str | Drafter | None = None
    ngram: NgramDrafter | None = None
    num_draft: int | str | DraftLength = 5
    length: DraftLength = field(init=False, repr=False)

    def __post_init__(self) -> None:
        choose_drafter(self.drafter, self.model, self.draft_model, self.ngram)  # raises where they do not fit
        self.length = choose_length(self.num_draft, self.model, self.draft_model)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.model, self.tokenizer))

    def stream(self, prompt: str, **options: Any) -> Iterator[GenerationResponse]:
        """`stream_generate` with this session's models; takes its other options."""
        return stream_generate(self.model, self.tokenizer, prompt, **self._with(options))

    def generate(self, prompt: str, **options: Any) -> GenerationResult:
        """`generate` with this session's models; takes its other options."""
        return generate(self.model, self.tokenizer, prompt, **self._with(options))

    def _with(self, options: dict[str, Any]) -> dict[str, Any]:
        ours = {"draft_model": self.draft_model, "drafter": self.drafter, "ngram": self.ngram, "num_draft": self.length}
        return ours | options


def load(
    path_or_name: str | os.PathLike[str],
    *,
    draft: str | os.PathLike[str] | None = None,
    drafter: str | Drafter | None = None,
    num_draft: int | str | DraftLength = 5,
    dtype: str | None = None,
    quantize: int | None = None,
    group_size: int = 64,
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

    Raises `InputError` or `CheckpointError` in one line that names the folder, file or tensor.
    """
    model, tokenizer = load_model(path_or_name, dtype=dtype, quantize=quantize, group_size=group_size)
    draft_model = None
    if draft == SELF_DRAFT:
        if quantize is not None:
            raise InputError(
                f"draft {SELF_DRAFT!r} needs a target that is not quantised; leave out quantize={quantize}"
            )
        draft_model, _ = load_model(path_or_name, dtype=dtype, quantize=SELF_DRAFT_BITS, group_size=group_size)
    elif draft is not None:
        draft_model, _ = load_model(draft, dtype=dtype)
    return Session(model, tokenizer, draft_model, drafter, num_draft=num_draft)
