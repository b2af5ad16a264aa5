"""Write log_mel.npz, log-mel frames of data/jfk.wav, and transcript_formats.json, transcripts as files.

Requires openai-whisper 20250625: `python tools/goldens/make_speech_goldens.py`
"""

import io
import json
import random
import wave
from pathlib import Path
from typing import Any

import numpy as np
import whisper
from whisper.utils import get_writer

ROOT = Path(__file__).resolve().parents[2]
GOLDENS = ROOT / "tests" / "parity" / "goldens"
FRAMES = [*range(4), *range(53, 1090, 53), *range(1090, 1108), 4099]  # the recording has 1,100 frames
TEXTS = [" Hello, world.", " a --> b", "", " ", "\u4f60\u597d\u3002", " [x]\ty", " -", " caf\u00e9", " " + "long" * 90]


def write_log_mel() -> None:
    with wave.open(str(ROOT / "data" / "jfk.wav")) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768
    mels = {f"mel_{bands}": whisper.log_mel_spectrogram(samples, bands, padding=480000) for bands in (80, 128)}
    frames = {name: mel.numpy().T[FRAMES] for name, mel in mels.items()}
    np.savez_compressed(GOLDENS / "log_mel.npz", frames=FRAMES, **frames)


def random_segments(rng: random.Random, with_words: bool) -> list[dict[str, Any]]:
    segments = []
    time = rng.choice([0.0, 3598.7, 360000.0])
    for _ in range(8):
        start = time = time + rng.choice([0, 0.02, 1.2345, 59.9996])
        words = []
        for text in rng.choices(TEXTS, k=rng.choice([1, 2, 5])):
            end = time + rng.choice([0, 0.5, 1.9])
            words.append({"word": text, "start": time, "end": end, "probability": 0.5})
            time = end
        is_empty = rng.random() < 0.2
        content = "" if is_empty else "".join(word["word"] for word in words)
        segment = {"start": start, "end": time, "text": content}
        segments.append(segment | {"words": [] if is_empty else words} if with_words else segment)
    return segments


def write_formats() -> None:
    rng = random.Random(0)
    cases = []
    for number in range(10):
        segments = random_segments(rng, with_words=number % 2 == 1)
        expected = {}
        for name in ("txt", "srt", "vtt"):
            file = io.StringIO()
            get_writer(name, "").write_result({"segments": segments}, file=file)
            expected[name] = file.getvalue()
        cases.append({"segments": segments, **expected})
    (GOLDENS / "transcript_formats.json").write_text(json.dumps(cases, indent=0) + "\n")


if __name__ == "__main__":
    write_log_mel()
    write_formats()
