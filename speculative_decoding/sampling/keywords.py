"""Options as keyword arguments, for type checkers and editors. The core never imports this module at run time.

Tests check that the names and types agree with the dataclasses that declare the options.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict


class SpeechKeywords(TypedDict, total=False):
    """The fields of `GenerationOptions` that are also transcription options, marked `FOR_SPEECH`."""

    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float | None
    no_repeat_ngram_size: int | None
    seed: int
    num_beams: int
    drafter: str | Any | None
    draft_text: str | Sequence[str]
    num_draft_tokens: int | str | Any
    acceptance: str | None
    delta: float
    max_ngram_size: int
    strict: bool | None
    timed: bool


class OptionKeywords(SpeechKeywords, total=False):
    """All fields of `GenerationOptions`, for `**options: Unpack[OptionKeywords]` (PEP 692)."""

    temperature: float
    min_tokens: int | None
    max_tokens: int
    src_lang: str | None
    tgt_lang: str | None
    stop: Sequence[str]
    eos_token_ids: Sequence[int]
    decoder_prefix: str | Sequence[int]
    length_penalty: float | None
    early_stopping: bool | str | None
    num_return_sequences: int
    allow_long_prompt: bool
    logprobs: bool
