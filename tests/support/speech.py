"""A tiny random Whisper with two languages, its tokenizer, and WAV files."""

from __future__ import annotations

import io
import wave
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from speculative_decoding.loading.tokenizer import Vocabulary
from speculative_decoding.models.base import EncoderDecoder
from tests.support.tiny import tiny_whisper

SPECIAL = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>"]
END, START, ENGLISH, TRANSCRIBE, PREVIOUS, NO_SPEECH, ZERO = 40, 41, 42, 45, 47, 48, 50


class Letters:
    """Writes a letter for most ids; 37 is a space."""

    languages: dict[str, int] = {}  # noqa: RUF012
    vocabulary = Vocabulary({piece: END + i for i, piece in enumerate(SPECIAL)})

    def encode(self, text: str, language: str | None = None) -> list[int]:
        raise NotImplementedError

    def encode_output(self, text: str) -> list[int]:
        ids = [
            [37] if each == " " else [ord(each) - 97] if each.isalpha() and each.isascii() else [39, 38]
            for each in text
        ]
        return [START, *(token for own in ids for token in own), END]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join("abcdefghijklmnopqrstuvwxyz0123456789.  -"[token] for token in tokens if token < END)


def speech_model(seed: int = 5) -> EncoderDecoder:
    model = tiny_whisper(seed=seed)
    assert model.audio is not None
    model.audio = replace(model.audio, is_multilingual=True, languages={"en": ENGLISH, "de": ENGLISH + 1})
    return model


def noise(seed: int, seconds: float) -> NDArray[np.float32]:
    """Return 16-bit samples at 16 kHz."""
    samples = np.random.default_rng(seed).normal(scale=0.1, size=int(seconds * 16000))
    return (np.round(samples * 32768) / 32768).astype(np.float32)


def wav(samples: NDArray[np.float32]) -> bytes:
    """Return the content of a file."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(16000)
        writer.writeframes((samples * 32768).astype("<i2").tobytes())
    return file.getvalue()
