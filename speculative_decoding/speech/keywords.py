"""Transcription options and decoding options as keyword arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from ..errors import UnknownOption
from ..models.whisper_tokens import AudioConfig
from ..sampling.keywords import SpeechKeywords
from ..sampling.options import FOR_SPEECH, option_specs, shows_options, suggested_option
from .options import TranscriptionOptions, transcription_specs

# The fields of `GenerationOptions` that can be set for a transcription, which determines all others itself
DECODING = {name: spec for name, spec in option_specs().items() if FOR_SPEECH in spec.marks}

Function = TypeVar("Function", bound=Callable[..., Any])


def shows_transcription_options(function: Function) -> Function:
    """`shows_options` for functions that transcribe. The type is kept, so that mypy resolves it in `Session`."""
    shows_options(function, {**transcription_specs(), **DECODING})
    return function


class TranscriptionKeywords(SpeechKeywords, total=False):
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
    audio_track: int | None
    vad: bool
    vad_threshold: float | None
    vad_neg_threshold: float | None
    vad_min_speech_duration_ms: int | None
    vad_min_silence_duration_ms: int | None
    vad_speech_pad_ms: int | None
    prepend_punctuations: str
    append_punctuations: str
    sample_len: int | None


def split_options(
    options: Mapping[str, Any], audio: AudioConfig | None = None
) -> tuple[TranscriptionOptions, dict[str, Any]]:
    """Split options into transcription options and decoding options.

    audio: A model's audio config, whose defaults apply to options that are not given.

    Raises:
        InputError: An option does not exist, or does not accept its value.
    """
    own, decoding = split_names(options)
    return TranscriptionOptions(**(own if audio is None else audio.defaults | own)), decoding


def split_names(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Like `split_options`, but return two mappings with unchecked values. Raises `InputError` for an unknown name."""
    own: dict[str, Any] = {}
    decoding: dict[str, Any] = {}
    for name, value in options.items():
        if name in transcription_specs():
            own[name] = value
        elif name in DECODING:
            decoding[name] = value
        else:
            way_out = suggested_option(name, [*transcription_specs(), *DECODING])
            raise UnknownOption("transcriptions have no such option", name, way_out)
    return own, decoding
