"""Whisper: audio frames as the source of a request, and its checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import pytest

from speculative_decoding.errors import CheckpointError, InputError
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.source import AudioFrames, Source
from speculative_decoding.models.whisper import Whisper, WhisperConfig
from speculative_decoding.sampling import GenerationOptions
from speculative_decoding.session import Session
from tests.support.tiny import (
    WHISPER,
    OneLanguage,
    audio_frames,
    noisy_copy,
    tiny_model,
    tiny_whisper,
)

MODEL = tiny_whisper()
DRAFT = noisy_copy(MODEL)


class Words(OneLanguage):
    def encode(self, text: str, language: str | None = None) -> list[int]:
        return [ord(each) % 40 for each in text]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(f" {token}" for token in tokens if token < 40)


def test_shorter_windows_read_the_first_positions() -> None:
    """In a batch, padding frames of zeros and a mask do not change the positions before them."""
    short = audio_frames(1, 12).frames
    padded = mx.pad(short, [(0, 36), (0, 0)])[None]
    expected = MODEL.encode(short[None])
    assert expected.shape == (1, 12, 16)
    found = MODEL.encode(padded, mx.arange(30)[None] < 12)[:, :12]
    assert mx.allclose(found, expected, atol=1e-5)
    assert not mx.allclose(MODEL.encode(padded)[:, :12], expected, atol=1e-2)


def session(model: EncoderDecoder, draft: EncoderDecoder | None = None) -> Session:
    return Session(model, Words(), draft, GenerationOptions(num_draft_tokens=4, max_tokens=20))  # type: ignore[arg-type]


def test_a_window_is_encoded_once() -> None:
    """Language detection, fallback temperatures and a second engine decode the same encoder output."""

    class Counting(Whisper):
        encoded = 0

        def encode_window(self, frames: mx.array) -> mx.array:
            self.encoded += 1
            return super().encode_window(frames)

    model, draft = Counting(MODEL.config), Counting(DRAFT.config)  # type: ignore[arg-type]
    model.update(MODEL.parameters())
    draft.update(DRAFT.parameters())
    source = audio_frames()
    first = model.encode_rows([source, source])
    assert first[0] is first[1]
    for temperature in (0.0, 0.4):
        assert session(model, draft).generate(source, temperature=temperature).stats.prompt_tokens == 30
    assert (model.encoded, draft.encoded) == (1, 1)


REFUSED = [
    (MODEL, "hello", "prompt: this model transcribes speech"),
    (tiny_model(), audio_frames(), "audio: this model reads text"),
    (MODEL, audio_frames(0, 31), r"audio: unsupported shape of audio frames \(got \(62, 6\)"),
    (MODEL, audio_frames(0, 10, 7), r"at most 60 frames with 6 mel bands"),
    (MODEL, AudioFrames(mx.zeros((0, 6))), "audio: unsupported shape of audio frames"),
    (MODEL, AudioFrames(mx.zeros((3, 6))), "audio: unsupported shape of audio frames"),
]


@pytest.mark.parametrize(("model", "prompt", "message"), REFUSED, ids=lambda value: str(value)[:20])
def test_a_source_of_the_other_kind_or_shape_is_refused(model: EncoderDecoder, prompt: Source, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        session(model).generate(prompt)
    assert "\n" not in str(error.value)


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(CheckpointError, match="config.json: 'activation_function' must be one of relu, gelu.*'tanh'"):
        WhisperConfig.from_dict(WHISPER | {"activation_function": "tanh"})
