"""Options of a transcription as keywords of functions: its own, and those of decoding."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypedDict, TypeVar

from ..errors import Name, UnknownOption
from ..models.audio import AudioConfig
from ..sampling import GenerationOptions
from ..sampling.keywords import keyword_parameters
from ..sampling.options import current_names, suggested_option
from .options import TranscriptionOptions, transcription_specs

P = ParamSpec("P")
R = TypeVar("R")

DECODING = (  # fields of `GenerationOptions`; a transcription determines all others
    "num_beams",
    "drafter",
    "num_draft_tokens",
    "acceptance",
    "delta",
    "max_ngram_size",
    "strict",
    "seed",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "no_repeat_ngram_size",
    "timed",
)
ALSO_CALLED = {"src_lang": "language"}
NAMES_FOR_TEXT = {"max_tokens": "sample_len", "max_new_tokens": "sample_len"}  # options of text to suggest another for


class TranscriptionKeywords(TypedDict, total=False):
    """The fields of `TranscriptionOptions` and the options in `DECODING`, for `**options: Unpack[...]` (PEP 692)."""

    task: str
    language: str | None
    word_timestamps: bool
    without_timestamps: bool
    initial_prompt: str | None
    carry_initial_prompt: bool
    condition_on_previous_text: bool
    temperature: float | Sequence[float]
    compression_ratio_threshold: float | None
    logprob_threshold: float | None
    no_speech_threshold: float | None
    hallucination_silence_threshold: float | None
    clip_timestamps: str | Sequence[float]
    prepend_punctuations: str
    append_punctuations: str
    sample_len: int | None
    src_lang: str | None
    num_beams: int
    drafter: str | Any | None
    num_draft_tokens: int | str | Any
    acceptance: str | None
    delta: float
    max_ngram_size: int
    strict: bool | None
    seed: int
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float | None
    no_repeat_ngram_size: int | None
    timed: bool


def split_options(
    options: Mapping[str, Any], audio: AudioConfig | None = None
) -> tuple[TranscriptionOptions, dict[str, Any]]:
    """The options of the transcription, and those of decoding.

    audio: of a model, whose defaults hold for options that are not given.

    Raises:
        InputError: There is no such option, or it does not accept the value.
    """
    own, decoding = split_names(options)
    return TranscriptionOptions(**(own if audio is None else audio.defaults | own)), decoding


def split_names(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same as two mappings, whose values are not checked. Raises `InputError` for an unknown name."""
    own: dict[str, Any] = {}
    decoding: dict[str, Any] = {}
    known = [*transcription_specs(), *DECODING]
    named = {ALSO_CALLED.get(name, name): value for name, value in current_names(options).items()}
    for name, value in named.items():
        if name in transcription_specs():
            own[name] = value
        elif name in DECODING:
            decoding[name] = value
        else:
            meant = NAMES_FOR_TEXT.get(name)
            way_out = ("did you mean ", Name(meant), "?") if meant else suggested_option(name, known)
            raise UnknownOption("transcriptions have no such option", name, way_out)
    return own, decoding


def shows_transcription_options(function: Callable[P, R]) -> Callable[P, R]:
    """Let `help()` list every option, with its type and default, in place of **options."""
    signature = inspect.signature(function)
    leading = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    own = keyword_parameters(TranscriptionOptions).values()
    decoding = [each for name, each in keyword_parameters(GenerationOptions).items() if name in DECODING]
    function.__signature__ = signature.replace(parameters=[*leading, *own, *decoding])  # type: ignore[attr-defined]
    return function
