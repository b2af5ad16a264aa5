"""Write speech_parts.json.gz: the parts that faster-whisper keeps for random probabilities, and the times it restores.

Requires faster-whisper 1.2.1: `python tools/goldens/make_speech_parts.py [CASES [FILE]]`
"""

import gzip
import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from faster_whisper import vad
from faster_whisper.transcribe import restore_speech_timestamps

GOLDENS = Path(__file__).resolve().parents[2] / "tests" / "parity" / "goldens"
CASES = 80
CHUNK, RATE = 512, 16_000
DURATIONS = {  # milliseconds
    "min_speech_duration_ms": [0, 0, 32, 100, 500, 3000],
    "min_silence_duration_ms": [0, 32, 100, 500, 2000, 2000],
    "speech_pad_ms": [0, 30, 100, 400, 400, 1500],
}


def random_probabilities(rng: random.Random, count: int) -> list[int]:
    """Return runs of speech, silence and intermediate probabilities, in hundredths."""
    found: list[int] = []
    while len(found) < count:
        low, high = rng.choice([(50, 100), (0, 34), (0, 34), (30, 60), (0, 100)])
        found += (rng.randint(low, high) for _ in range(rng.choice([1, 1, 2, 4, 8, 20, 70, 150])))
    return found[:count]


def random_segments(rng: random.Random, seconds: float) -> list[dict[str, Any]]:
    """Return random segments of the kept audio. Some end after it, and some have words."""
    found = []
    for _ in range(6):
        start = round(rng.uniform(0, seconds), 2)
        end = round(start + rng.uniform(0.02, 3), 2)
        times = sorted(round(rng.uniform(start, end), 2) for _ in range(rng.choice([0, 0, 0, 4, 6])))
        found.append({"start": start, "end": end, "words": [*zip(times[::2], times[1::2], strict=True)]})
    return found


def restored(segments: list[dict[str, Any]], parts: list[dict[str, int]]) -> list[dict[str, Any]]:
    given = [
        SimpleNamespace(
            start=each["start"],
            end=each["end"],
            words=[SimpleNamespace(start=start, end=end) for start, end in each["words"]],
        )
        for each in segments
    ]
    back = restore_speech_timestamps(given, parts, RATE)
    return [
        {"start": each.start, "end": each.end, "words": [(word.start, word.end) for word in each.words]}
        for each in back
    ]


def case(rng: random.Random) -> dict[str, Any]:
    num_samples = rng.choice([rng.randrange(1, 2000), rng.randrange(1, 500_000), CHUNK * rng.randrange(1, 900)])
    probabilities = random_probabilities(rng, num_samples // CHUNK + 1)
    options: dict[str, Any] = {name: rng.choice(values) for name, values in DURATIONS.items()}
    if rng.random() < 0.3:
        options |= {"threshold": 0.6, "neg_threshold": 0.2}
    vad.get_vad_model = lambda: lambda audio: np.array(probabilities) / 100
    parts = vad.get_speech_timestamps(np.zeros(num_samples, np.float32), vad.VadOptions(**options))
    found = [(part["start"], part["end"]) for part in parts]
    fields = {"num_samples": num_samples, "probabilities": probabilities, "options": options, "parts": found}
    ends = np.cumsum([end - start for start, end in found]) / RATE
    segments = random_segments(rng, float(ends[-1])) if parts else []
    for end in ends[:-1]:  # segments that start or end exactly between two parts
        segments.append({"start": float(end), "end": float(end) + 0.5, "words": []})
        segments.append({"start": float(end) / 2, "end": float(end), "words": []})
    return fields | {"segments": segments, "restored": restored(segments, parts)}


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else CASES
    file = Path(sys.argv[2]) if len(sys.argv) > 2 else GOLDENS / "speech_parts.json.gz"
    rng = random.Random(0)
    content = json.dumps([case(rng) for _ in range(count)], separators=(",", ":"))
    file.write_bytes(gzip.compress(content.encode(), mtime=0))
