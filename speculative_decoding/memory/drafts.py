"""Finds drafts for requests in a translation memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from ..decoding.prompt import TOKEN_CHARACTERS, draft_text_of, first_token, prompt_text, without_prefix
from ..decoding.request import Request
from ..drafters.base import MEMORY
from ..drafters.draft_text import DraftText
from ..errors import InputError
from ..loading.tokenizer import Tokenizer
from ..models.base import EncoderDecoder
from .translation_memory import TranslationMemory


@dataclass(frozen=True)
class MemoryDrafts:
    """Finds drafts for a request: the targets of those sources in a memory that are most similar to its prompt.

    prefixes: Strings with which prompts may begin, but which the memory's sources do not contain.
    """

    memory: TranslationMemory
    model: EncoderDecoder
    tokenizer: Tokenizer
    prefixes: Sequence[str]

    def __call__(self, request: Request) -> list[DraftText]:
        options = request.options
        if not self.memory.is_for(options.src_lang, options.tgt_lang):
            return []
        prompt = without_prefix(prompt_text(request, self.tokenizer), self.prefixes)
        first = first_token(self.model, self.tokenizer, options.tgt_lang) if request.prefix_length == 1 else None
        found = []
        for similarity, target in self.memory.similar(prompt):
            with suppress(InputError):  # raised if the model lacks some of the tokenizer's ids
                beginning = target[: options.max_tokens * TOKEN_CHARACTERS]
                group = f"{similarity:.1f}"
                found.append(draft_text_of(self.model, self.tokenizer, beginning, first, MEMORY, group))
        return found
