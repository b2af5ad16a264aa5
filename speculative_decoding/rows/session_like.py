"""The part of `Session` that optional subpackages use. They cannot import `Session`, because it imports them."""

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
    """The members of `Session` that are used to decode transcriptions and documents; see `Session`."""

    model: EncoderDecoder
    tokenizer: Tokenizer
    draft_model: EncoderDecoder | DraftHead | None
    options: GenerationOptions
    slots: int
    memory: Any  # a TranslationMemory, or None
    planner: PassPlanner

    def options_with(self, overrides: Mapping[str, Any]) -> GenerationOptions: ...

    def engine(self, options: GenerationOptions, slots: int) -> Engine: ...

    def prompt_scheduler(
        self, slots: int | None = None, max_memory_gb: float | None = None, **options: Unpack[OptionKeywords]
    ) -> PromptScheduler: ...
