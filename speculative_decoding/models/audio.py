"""The source of a speech model, audio frames, and the token ids with which its decoder writes speech."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..errors import InputError


@dataclass(frozen=True, eq=False)
class AudioFrames:
    """Log-mel frames of a window of audio, the source of a speech model. Two frames become one encoder position.

    The encoder output is computed once for each model and kept as long as this object, so several requests may decode
    the same window. Make a new object after changing the weights of an encoder.

    frames: (T, mel bins), T even.
    others: The same window with other numbers of mel bins, for a draft model that reads these.
    """

    frames: mx.array
    others: Sequence[mx.array] = ()
    _encoder_outputs: dict[int, tuple[nn.Module, mx.array]] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        """Return the number of encoder positions, as a list of token ids does."""
        return self.frames.shape[0] // 2

    def of(self, num_mel_bins: int) -> mx.array:
        """The frames with this number of mel bins."""
        for frames in (self.frames, *self.others):
            if frames.shape[1] == num_mel_bins:
                return frames
        raise InputError(
            f"has no frames with {num_mel_bins} mel bins, which the draft model reads", "audio", "add them"
        )

    def encoder_output(self, model: nn.Module, num_mel_bins: int, encode: Callable[[mx.array], mx.array]) -> mx.array:
        """Return the output of `encode` for the frames, computed in the first call for this model."""
        if id(model) not in self._encoder_outputs:
            self._encoder_outputs[id(model)] = model, encode(self.of(num_mel_bins))
        return self._encoder_outputs[id(model)][1]


class NoiseFrames(AudioFrames):
    """A window of noise with every number of mel bins, to measure models and to warm them up."""

    def of(self, num_mel_bins: int) -> mx.array:
        return mx.random.normal((len(self.frames), num_mel_bins), key=mx.random.key(0))


Source = Sequence[int] | AudioFrames  # of a request: token ids, or audio frames for a speech model


def token_ids(source: Source) -> Sequence[int]:
    """Return the ids of a source; none for audio."""
    return [] if isinstance(source, AudioFrames) else source


@dataclass(frozen=True, kw_only=True)
class AudioConfig:
    """Sizes of a speech model's source, the token ids with which it writes speech, and its defaults.

    window_frames: The longest source, in frames of 10 ms.
    previous: Precedes the text before the window.
    timestamp_begin: The token of 0.00 s; the timestamp of position i is `timestamp_begin` + i.
    languages: Language code -> token. Empty for English-only models.
    alignment_heads: (layer, head) of the cross-attention heads that follow the speech.
    alignment_note: Why they are not those of generation_config.json, or "".
    max_initial_timestamp_index: The largest first timestamp, in encoder positions.
    unused: Ids after the timestamps that are no tokens; they pad the vocabulary.
    suppressed, begin_suppressed: Tokens that never occur, or not at the start; None means those of openai-whisper.
    language, task: The model's defaults, or None.
    """

    num_mel_bins: int
    window_frames: int
    start: int
    end: int
    translate: int
    transcribe: int
    previous: int
    no_speech: int
    no_timestamps: int
    timestamp_begin: int
    is_multilingual: bool
    alignment_heads: Sequence[tuple[int, int]]
    alignment_note: str = ""
    languages: Mapping[str, int] = field(default_factory=dict)
    max_initial_timestamp_index: int = 50
    unused: Sequence[int] = ()
    suppressed: Sequence[int] | None = None
    begin_suppressed: Sequence[int] | None = None
    language: str | None = None
    task: str | None = None

    @property
    def timestamp_end(self) -> int:
        """The first id after the timestamps. Tokens that were added to the vocabulary may follow."""
        return self.timestamp_begin + self.window_frames // 2 + 1

    def is_timestamp(self, token: int) -> bool:
        return self.timestamp_begin <= token < self.timestamp_end

    def is_text(self, token: int) -> bool:
        """Return whether a token is text: one before the special tokens, or an added one after the timestamps."""
        return token < self.end or token >= self.timestamp_end

    @property
    def defaults(self) -> dict[str, Any]:
        """The options of a transcription that the model determines unless they are given."""
        return {name: value for name in ("language", "task") if (value := getattr(self, name)) is not None}

    def start_tokens(self, language: str, task: str = "transcribe") -> list[int]:
        """Return the ids that start every output: startoftranscript, and for multilingual models language and task."""
        if not self.is_multilingual:
            return [self.start]
        return [self.start, self.languages[language], self.translate if task == "translate" else self.transcribe]
