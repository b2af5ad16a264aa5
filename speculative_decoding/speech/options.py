"""The options of a transcription: names, types, defaults and help. Names and defaults are openai-whisper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any

from ..errors import InputError, Message
from ..sampling.options import documented, validate_fields
from ..sampling.values import (
    BASIC,
    PYTHON_ONLY,
    Bool,
    Flag,
    Int,
    ListOf,
    Number,
    OptionSpec,
    OrNone,
    Text,
    Union,
    specs_of,
)
from .voice import VoiceOptions, require_package

TASKS = ("transcribe", "translate")
TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


@documented
@dataclass(frozen=True, kw_only=True)
class TranscriptionOptions:
    """How to transcribe a recording. Raises `InputError` naming the option for a value that is not accepted."""

    task: Annotated[
        str,
        Text(TASKS),
        "transcribe the speech, or translate it to English; the model's files may state another default",
        BASIC,
    ] = "transcribe"
    language: Annotated[
        str | None,
        OrNone(Text()),
        "language of the speech, such as en or English; none: detect it in the first 30 seconds (default: the model's "
        "language if its files state one, else none)",
        BASIC,
        Flag("source-language"),
    ] = None
    word_timestamps: Annotated[bool, Bool(), "return the time of each word", BASIC] = False
    without_timestamps: Annotated[bool, Bool(), "write no timestamps; a segment is a window of 30 seconds"] = False
    initial_prompt: Annotated[
        str | None, OrNone(Text(may_be_empty=True)), "text before the first window, such as names with their spelling"
    ] = None
    carry_initial_prompt: Annotated[bool, Bool(), Message("put {initial_prompt} before every window")] = False
    condition_on_previous_text: Annotated[bool, Bool(), "put the text so far before each window"] = True
    temperature: Annotated[
        float | Sequence[float],
        Union((Number(1e-10, 1e10, or_zero=True), ListOf(Number(1e-10, 1e10, or_zero=True)))),
        Message(
            "sampling temperatures that are tried in turn, until a window passes {compression_ratio_threshold} "
            "and {logprob_threshold}"
        ),
    ] = TEMPERATURES
    compression_ratio_threshold: Annotated[
        float | None,
        OrNone(Number(0)),
        "try the next temperature if zlib compresses the text of a window by more than X",
    ] = 2.4
    logprob_threshold: Annotated[
        float | None, OrNone(Number(-1e10)), "try the next temperature if the mean log-probability is below X"
    ] = -1.0
    no_speech_threshold: Annotated[
        float | None,
        OrNone(Number(0, 1)),
        Message(
            "skip a window without speech with more than this probability, unless its text passes {logprob_threshold}"
        ),
    ] = 0.6
    hallucination_silence_threshold: Annotated[
        float | None,
        OrNone(Number(0)),
        Message(
            "skip silence longer than X seconds around text that was probably not spoken (requires {word_timestamps})"
        ),
    ] = None
    clip_timestamps: Annotated[
        str | Sequence[float],
        Union((Text(may_be_empty=True), ListOf(Number(0)))),
        "transcribe only START,END,START,END,... in seconds; the last end may be missing",
    ] = "0"
    audio_track: Annotated[
        int | None,
        OrNone(Int(1)),
        "transcribe audio track N of a file, counted from 1 (default: FFmpeg's choice, the track with the most "
        "channels, unless one is marked as the default)",
    ] = None
    vad: Annotated[bool, Bool(), "remove noise, hum, silence and other sound without speech before transcribing"] = (
        False
    )
    vad_threshold: Annotated[
        float | None,
        OrNone(Number(0.01, 1)),
        "speech begins where its probability, found for each 32 ms, is at least X (default: 0.5)",
    ] = None
    vad_neg_threshold: Annotated[
        float | None,
        OrNone(Number(0, 1)),
        Message("speech ends where its probability falls below X (default: {vad_threshold} - 0.15)"),
    ] = None
    vad_min_speech_duration_ms: Annotated[
        int | None, OrNone(Int(0, 60_000)), "leave out speech that is not longer than N milliseconds (default: 250)"
    ] = None
    vad_min_silence_duration_ms: Annotated[
        int | None, OrNone(Int(0, 60_000)), "end speech only at a silence of N milliseconds (default: 2000)"
    ] = None
    vad_speech_pad_ms: Annotated[
        int | None, OrNone(Int(0, 60_000)), "keep N milliseconds before and after speech (default: 400)"
    ] = None
    prepend_punctuations: Annotated[
        str, Text(may_be_empty=True), "punctuation that belongs to the next word", PYTHON_ONLY
    ] = "\"'“¿([{-"
    append_punctuations: Annotated[
        str, Text(may_be_empty=True), "punctuation that belongs to the word before it", PYTHON_ONLY
    ] = "\"'.。,，!！?？:：”)]}、"  # noqa: RUF001
    sample_len: Annotated[
        int | None,
        OrNone(Int(1)),
        "maximum number of tokens of a window (default: 224)",
        Flag("max-tokens", short="-m"),
    ] = None

    def __post_init__(self) -> None:
        validate_fields(self)
        if not self.temperatures:
            raise InputError("is empty", "temperature", "give a number, or several in increasing order")
        if self.hallucination_silence_threshold is not None and not self.word_timestamps:
            raise InputError(
                Message("has no effect without {word_timestamps}"), "hallucination_silence_threshold", "turn them on"
            )
        self.clips(0)
        self._check_voice()

    def _check_voice(self) -> None:
        if self.voice is None:
            if own := self._voice_values:
                raise InputError(Message("has no effect without {vad}"), f"vad_{next(iter(own))}", "turn it on")
            return
        require_package()
        if self.clip_timestamps != "0":
            raise InputError(Message("cannot be combined with {vad}"), "clip_timestamps", "leave one of them out")
        if self.voice.silent_below > self.voice.threshold:
            raise InputError(
                Message("must be at most {value}, which is {vad_threshold}", value=f"{self.voice.threshold:g}"),
                "vad_neg_threshold",
            )

    @property
    def voice(self) -> VoiceOptions | None:
        """What counts as speech; None if voice detection is off."""
        return VoiceOptions(**self._voice_values) if self.vad else None

    @property
    def _voice_values(self) -> dict[str, Any]:
        values = {each.name: getattr(self, f"vad_{each.name}") for each in fields(VoiceOptions)}
        return {name: value for name, value in values.items() if value is not None}

    def output_language(self, language: str) -> str:
        """Return the language of the transcript. language: the language of the speech."""
        return "en" if self.task == "translate" else language

    @property
    def temperatures(self) -> Sequence[float]:
        return [self.temperature] if isinstance(self.temperature, float) else self.temperature

    def clips(self, num_frames: int) -> list[tuple[int, int]]:
        """Return the start and end of each clip in frames, for a recording of `num_frames` frames."""
        seconds = self.clip_timestamps
        if isinstance(seconds, str):
            try:
                seconds = ListOf(Number(0)).accept([float(each) for each in seconds.split(",") if seconds])
            except ValueError:
                raise InputError(
                    f"must be numbers with commas, not {self.clip_timestamps!r}", "clip_timestamps"
                ) from None
        points = [min(round(each * 100), num_frames) for each in seconds] or [0]
        if len(points) % 2:
            points.append(num_frames)
        return list(zip(points[::2], points[1::2], strict=True))


def transcription_specs() -> Mapping[str, OptionSpec]:
    """Return the options, keyed by name, in the order of the fields."""
    return specs_of(TranscriptionOptions)
