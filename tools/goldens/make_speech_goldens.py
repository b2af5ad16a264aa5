"""Write log_mel.npz, log-mel frames of data/jfk.wav.

Requires openai-whisper 20250625: `python tools/goldens/make_speech_goldens.py`
"""

import wave
from pathlib import Path

import numpy as np
import whisper

ROOT = Path(__file__).resolve().parents[2]
GOLDENS = ROOT / "tests" / "parity" / "goldens"
FRAMES = [*range(4), *range(53, 1090, 53), *range(1090, 1108), 4099]  # the recording has 1,100 frames


def write_log_mel() -> None:
    with wave.open(str(ROOT / "data" / "jfk.wav")) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768
    mels = {f"mel_{bands}": whisper.log_mel_spectrogram(samples, bands, padding=480000) for bands in (80, 128)}
    frames = {name: mel.numpy().T[FRAMES] for name, mel in mels.items()}
    np.savez_compressed(GOLDENS / "log_mel.npz", frames=FRAMES, **frames)


if __name__ == "__main__":
    write_log_mel()
