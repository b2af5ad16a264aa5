"""Synthesizes speech for training and testing draft heads of speech models, with reverberation, noise and gain.

The tool needs software that this package does not depend on: scipy, hibari-tts (which includes one voice), piper-tts
with a folder of voices, and the programs espeak-ng and flite. It writes 16 kHz WAV files, and manifest.jsonl with one
recording per line:

    {"audio": "000000.wav", "language": "en", "segments": [{"start": 0.4, "end": 3.16, "text": "..."}]}

The recordings depend only on the texts, the options and --seed. If a run is killed, the next run continues where it
stopped.

    python tools/make_speech.py speech/train --text sentences.txt --count 2000 --seconds 5 12
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import wave
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

RATE = 16000
ESPEAK_ACCENTS = ("en-us", "en-gb", "en-gb-scotland", "en-gb-x-rp", "en-us-nyc", "en-029", "en-gb-x-gbclan")
ESPEAK_VARIANTS = (
    *("m1", "m2", "m3", "m4", "m6", "m7", "m8", "f1", "f2", "f4", "Alex", "Alicia", "Andrea", "Andy", "Annie", "Denis"),
    *("Diogo", "Gene", "Gene2", "Henrique", "Hugo", "Marco", "Mario", "Michael", "Mr", "adam", "antonio", "aunty"),
    *("belinda", "benjamin", "boris", "caleb", "david", "ed", "edward", "edward2", "grandma", "grandpa", "gustave"),
    *("iven", "iven2", "iven3", "jacky", "john", "klatt", "klatt2", "klatt3", "lee", "linda", "marcelo", "max"),
    *("michel", "miguel", "mike", "norbert", "pablo", "paul", "pedro", "quincy", "rob", "robert", "sandro", "shelby"),
    *("steph", "steph2", "steph3", "travis", "victor", "zac"),
)
FLITE_VOICES = ("awb", "kal16", "rms", "slt")

Audio = NDArray[np.floating[Any]]
Voice = Callable[[str, float], tuple[Audio, int]]  # text, speed -> samples, sample rate


@cache
def hibari_model() -> Any:
    from hibari import Hibari

    return Hibari()


@cache
def piper_model(path: Path) -> Any:
    from piper import PiperVoice

    return PiperVoice.load(path)


def hibari(text: str, speed: float) -> tuple[Audio, int]:
    return hibari_model()(text, speed=speed, seed=0), hibari_model().sample_rate


def piper(path: Path) -> Voice:
    """Return a Piper voice. path: its .onnx file, whose .onnx.json must be in the same folder."""
    from piper import SynthesisConfig

    def speak(text: str, speed: float) -> tuple[Audio, int]:
        chunks = [*piper_model(path).synthesize(text, SynthesisConfig(length_scale=1 / speed))]
        return np.concatenate([chunk.audio_float_array for chunk in chunks]), chunks[0].sample_rate

    return speak


def espeak(name: str) -> Voice:
    """Return an espeak-ng voice. name: a language, optionally followed by a plus sign and a variant."""

    def speak(text: str, speed: float) -> tuple[Audio, int]:
        command = ["espeak-ng", "-v", name, "-s", str(round(165 * speed)), "--stdin", "--stdout"]
        output = subprocess.run(command, input=text.encode(), capture_output=True, check=True).stdout
        return read_wav(output)

    return speak


def flite(name: str) -> Voice:
    """Return a flite voice."""

    def speak(text: str, speed: float) -> tuple[Audio, int]:
        stretch = f"duration_stretch={1 / speed:.3f}"
        command = ["flite", "-voice", name, "--setf", stretch, "-t", text, "-o", "/dev/stdout"]
        return read_wav(subprocess.run(command, capture_output=True, check=True).stdout)

    return speak


def read_wav(content: bytes) -> tuple[Audio, int]:
    """Read 16-bit samples. The length in the header is ignored; it may be wrong because the program wrote to a pipe."""
    with wave.open(io.BytesIO(content)) as file:
        rate = file.getframerate()
    return np.frombuffer(content[44 : 44 + (len(content) - 44) // 2 * 2], "<i2").astype(np.float32) / 32768, rate


@dataclass(frozen=True)
class Recording:
    """Parameters of one recording.

    Args:
        sentences: The texts, in order.
        voice: Synthesizes the texts.
        speed: Speaking rate.
        pitch: A factor for all frequencies.
        seed: The random seed for pauses and acoustics.
    """

    sentences: Sequence[str]
    voice: Voice
    speed: float
    pitch: float
    seed: int

    def make(self, longest: float) -> tuple[Audio, list[dict[str, Any]]]:
        """Return the samples, and each sentence's times and text. longest: in seconds; later sentences are left out."""
        rng = np.random.default_rng(self.seed)
        parts = [np.zeros(round(RATE * rng.choice([0.0, rng.uniform(0, 0.8)])), np.float32)]
        segments: list[dict[str, Any]] = []
        length = len(parts[0])
        for sentence in self.sentences:
            samples, rate = self.voice(sentence, self.speed / self.pitch)
            speech = trimmed(resampled(samples, rate * self.pitch))
            if length + len(speech) > longest * RATE and segments:
                break
            segments.append({"start": length / RATE, "end": (length + len(speech)) / RATE, "text": sentence})
            pause = np.zeros(round(RATE * rng.exponential(0.3)), np.float32)
            parts += [speech, pause]
            length += len(speech) + len(pause)
        return in_a_room(np.concatenate(parts), rng), segments


def resampled(samples: Audio, rate: float) -> Audio:
    from fractions import Fraction

    from scipy.signal import resample_poly

    ratio = Fraction(RATE / rate).limit_denominator(200)
    return resample_poly(samples, ratio.numerator, ratio.denominator).astype(np.float32)


def trimmed(samples: Audio) -> Audio:
    """Remove silence at both ends, and scale the samples to a peak of 0.5."""
    loud = np.flatnonzero(np.abs(samples) > 0.02 * np.abs(samples).max())
    return 0.5 * samples[loud[0] : loud[-1] + 1] / np.abs(samples).max()


def in_a_room(samples: Audio, rng: np.random.Generator) -> Audio:
    """Filter half of the recordings; add reverberation to a third, noise to two thirds, and a gain to all."""
    from scipy.signal import fftconvolve

    if rng.random() < 1 / 3:
        seconds = rng.uniform(0.1, 0.5)
        times = np.arange(round(seconds * RATE)) / RATE
        echo = rng.standard_normal(len(times)) * np.exp(-6.9 * times / seconds)
        echo *= rng.uniform(0.1, 0.5) / np.linalg.norm(echo)
        echo[0] = 1.0
        samples = fftconvolve(samples, echo)[: len(samples)].astype(np.float32)
    if rng.random() < 2 / 3:
        spectrum = np.fft.rfft(rng.standard_normal(len(samples)))
        spectrum /= np.maximum(1, np.arange(len(spectrum))) ** rng.uniform(0, 0.7)  # from white toward pink
        noise = np.fft.irfft(spectrum, len(samples))
        decibels = rng.uniform(12, 45)
        samples = samples + noise * 10 ** (-decibels / 20) * samples.std() / max(noise.std(), 1e-9)
    if rng.random() < 1 / 2:
        samples = filtered(samples, rng)
    return np.clip(samples * rng.uniform(0.15, 1.6), -1, 1).astype(np.float32)


def filtered(samples: Audio, rng: np.random.Generator) -> Audio:
    """Apply the frequency response of a random microphone, or (in a fifth of the calls) of a telephone."""
    spectrum = np.fft.rfft(samples)
    frequencies = np.linspace(0, RATE / 2, len(spectrum))
    decibels = np.interp(frequencies, [0, 100, 250, 500, 1000, 2000, 3500, 5500, 8000], rng.normal(0, 4, 9))
    if rng.random() < 1 / 5:
        low, high = rng.uniform(150, 350), rng.uniform(3000, 4000)
        decibels -= 60 * np.maximum(0, np.log2(low / np.maximum(frequencies, 1)))
        decibels -= 60 * np.maximum(0, np.log2(np.maximum(frequencies, 1) / high))
    loudness = np.abs(samples).max()
    samples = np.fft.irfft(spectrum * 10 ** (np.maximum(decibels, -80) / 20), len(samples))
    return (samples * loudness / max(np.abs(samples).max(), 1e-9)).astype(np.float32)


def recordings(texts: Sequence[str], voices: Mapping[str, float], count: int, seed: int) -> Iterator[Recording]:
    """Yield `count` recordings of the texts in random order. voices: the share of recordings for each voice's name."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(texts))
    names = [*voices]
    shares = np.array([*voices.values()]) / sum(voices.values())
    position = 0
    for index in range(count):
        sentences = [texts[order[(position + i) % len(order)]] for i in range(14)]
        position += 1 + index % 5
        name = str(rng.choice(names, p=shares))
        voice: Voice
        if name == "espeak":
            name = f"{rng.choice(ESPEAK_ACCENTS)}+{rng.choice(ESPEAK_VARIANTS)}"
        if name == "flite":
            voice = flite(str(rng.choice(FLITE_VOICES)))
        elif name == "hibari":
            voice = hibari
        elif name.endswith(".onnx"):
            voice = piper(Path(name))
        else:
            voice = espeak(name)
        yield Recording(
            sentences, voice, rng.uniform(0.9, 1.5), rng.choice([1.0, rng.uniform(0.78, 1.25)]), seed + index
        )


def write_wav(path: Path, samples: Audio) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(np.round(samples * 32767).astype("<i2").tobytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--text", nargs="+", type=Path, required=True, help="files with one sentence per line")
    parser.add_argument("--voice", nargs="+", default=["hibari=1"], metavar="NAME=SHARE")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seconds", nargs=2, type=float, default=[5, 12], help="range of lengths")
    parser.add_argument("--language", default="en")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()

    texts = [line for path in chosen.text for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    voices = {name: float(share) for name, share in (each.rsplit("=", 1) for each in chosen.voice)}
    chosen.folder.mkdir(parents=True, exist_ok=True)
    manifest = chosen.folder / "manifest.jsonl"
    done = len(manifest.read_text(encoding="utf-8").splitlines()) if manifest.exists() else 0
    lengths = np.random.default_rng(chosen.seed).uniform(chosen.seconds[0], chosen.seconds[1], chosen.count)
    with manifest.open("a", encoding="utf-8") as file:
        for index, recording in enumerate(recordings(texts, voices, chosen.count, chosen.seed)):
            if index < done:
                continue
            samples, segments = recording.make(lengths[index])
            name = f"{index:06}.wav"
            write_wav(chosen.folder / name, samples)
            line = {"audio": name, "language": chosen.language, "segments": segments}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
