"""The source of a speech model, log-mel frames, and the token ids with which its decoder writes speech."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..errors import CheckpointError, InputError
from ..sampling.values import Bool, Int, ListOf
from .config import require

MULTILINGUAL_SIZE = 51865  # ids; OpenAI's English-only vocabularies have one fewer


@dataclass(frozen=True, eq=False)
class AudioFrames:
    """Log-mel frames of a window of audio, the source of a speech model. Two frames become one encoder position.

    The encoder output is computed once for each model and kept as long as this object, so several requests may decode
    the same window. Make a new object after changing the weights of an encoder.

    frames: (T, mel bands), T even.
    """

    frames: mx.array
    _encoder_outputs: dict[int, tuple[nn.Module, mx.array]] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        """Return the number of encoder positions, as a list of token ids does."""
        return self.frames.shape[0] // 2

    def encoder_output(self, model: nn.Module, encode: Callable[[mx.array], mx.array]) -> mx.array:
        """Return the output of `encode` for the frames, computed in the first call for this model."""
        if id(model) not in self._encoder_outputs:
            self._encoder_outputs[id(model)] = model, encode(self.frames)
        return self._encoder_outputs[id(model)][1]


Source = Sequence[int] | AudioFrames  # of a request: token ids, or audio frames for a speech model


def token_ids(source: Source) -> Sequence[int]:
    """Return the ids of a source; none for audio."""
    return [] if isinstance(source, AudioFrames) else source


@dataclass(frozen=True, kw_only=True)
class AudioConfig:
    """Sizes of a speech model's source, and the token ids with which it writes speech.

    Whisper's vocabularies end with the same tokens in the same order, so sizes determine the ids: startoftranscript,
    languages, translate, transcribe, startoflm, startofprev, nospeech, notimestamps, timestamps.

    window_frames: The longest source, in frames of 10 ms.
    previous: Precedes the text before the window.
    timestamp_begin: The token of 0.00 s; the timestamp of position i is `timestamp_begin` + i.
    languages: Language code -> token. Empty for English-only models.
    alignment_heads: (layer, head) of the cross-attention heads that follow the speech.
    max_initial_timestamp_index: The largest first timestamp, in encoder positions.
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
    languages: Mapping[str, int] = field(default_factory=dict)
    max_initial_timestamp_index: int = 50

    @classmethod
    def by_layout(cls, vocab_size: int, window_positions: int, **known: Any) -> AudioConfig:
        """Return the config of a vocabulary that ends with one timestamp for each encoder position and one more."""
        first = vocab_size - window_positions - 1
        return cls(
            timestamp_begin=first,
            no_timestamps=first - 1,
            no_speech=first - 2,
            previous=first - 3,
            transcribe=first - 5,
            translate=first - 6,
            is_multilingual=vocab_size >= MULTILINGUAL_SIZE,
            window_frames=2 * window_positions,
            **known,
        )

    def start_tokens(self, language: str, task: str = "transcribe") -> list[int]:
        """Return the ids that start every output: startoftranscript, and for multilingual models language and task."""
        if not self.is_multilingual:
            return [self.start]
        return [self.start, self.languages[language], self.translate if task == "translate" else self.transcribe]

    def resolved(
        self, pieces: Mapping[int, str], generation_config: Mapping[str, Any], decoder: tuple[int, int], file: str
    ) -> AudioConfig:
        """Return the config with the languages of a tokenizer and the fields of generation_config.json.

        Args:
            pieces: The tokenizer's piece for each id.
            generation_config: The parsed file.
            decoder: The number of decoder layers, and of heads in each.
            file: The name of that file.

        Raises:
            InputError: The tokenizer belongs to another vocabulary.
            CheckpointError: A field is invalid.
        """
        expected = {
            self.start: ("<|startoftranscript|>",),
            self.transcribe: ("<|transcribe|>",),
            self.no_speech: ("<|nospeech|>", "<|nocaptions|>"),
            self.no_timestamps: ("<|notimestamps|>",),
        }
        for token, names in expected.items():
            if pieces.get(token) not in names:
                raise InputError(
                    f"tokenizer: token {token} does not fit the model (got {pieces.get(token)!r}, expected "
                    f"{names[0]!r}); use the tokenizer of a Whisper model with the same vocabulary"
                )
        found = {name: value for name, value in generation_config.items() if value is not None}
        is_multilingual = require("is_multilingual", Bool(), found.get("is_multilingual", self.is_multilingual), file)
        largest = require(
            "max_initial_timestamp_index",
            Int(0, 1 << 16),
            found.get("max_initial_timestamp_index", self.max_initial_timestamp_index),
            file,
        )
        codes = {match[1]: token for token in range(self.start + 1, self.translate)
                 if (match := re.fullmatch(r"<\|([a-z]{2,4})\|>", pieces.get(token, "")))}  # fmt: skip
        return replace(
            self,
            is_multilingual=is_multilingual,
            languages=codes if is_multilingual else {},
            max_initial_timestamp_index=largest,
            alignment_heads=alignment_heads(found.get("alignment_heads"), *decoder, file) or self.alignment_heads,
        )


def upper_half(layers: int, heads: int) -> list[tuple[int, int]]:
    """Return all heads of the upper half of the layers, which OpenAI uses for models without known heads."""
    return [(layer, head) for layer in range(layers // 2, layers) for head in range(heads)]


def alignment_heads(raw: Any, layers: int, heads: int, file: str) -> list[tuple[int, int]]:
    """Parse the alignment heads of generation_config.json. Raises `CheckpointError` for unknown heads."""
    if raw is None:
        return []
    pairs = require("alignment_heads", ListOf(ListOf(Int(0))), raw, file)
    for pair in pairs:
        if len(pair) != 2 or pair[0] >= layers or pair[1] >= heads:
            raise CheckpointError(
                f"{file}: 'alignment_heads' must be pairs of a layer below {layers} and a head below {heads}, "
                f"not {list(pair)}"
            )
    return [(layer, head) for layer, head in pairs]
