"""What optional subpackages need of a `Session`, which imports them and which they therefore cannot import."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, Unpack

from ..draft_length.planner import PassPlanner
from ..engine import Engine
from ..loading.tokenizer import Tokenizer
from ..models.base import EncoderDecoder
from ..models.draft_head import DraftHead
from ..sampling import GenerationOptions
from ..sampling.keywords import OptionKeywords
from .prompts import PromptScheduler


class SessionLike(Protocol):
    """The part of a `Session` from which transcriptions and documents are decoded; see there."""

    model: EncoderDecoder
    tokenizer: Tokenizer
    draft_model: EncoderDecoder | DraftHead | None
    options: GenerationOptions
    slots: int
    planner: PassPlanner

    def options_with(self, overrides: Mapping[str, Any]) -> GenerationOptions: ...

    def engine(self, options: GenerationOptions, slots: int) -> Engine: ...

    def prompt_scheduler(
        self, slots: int | None = None, max_memory_gb: float | None = None, **options: Unpack[OptionKeywords]
    ) -> PromptScheduler: ...
