"""Transcribes with openai-whisper or faster-whisper for speech.py, which runs this file with their interpreter.

It imports nothing from this package. It reads {"peer": NAME, "model": FOLDER, "threads": N} in the first line, then
{"files": [16 kHz WAV, ...]} in each line. The answer has the seconds of encoder passes, all seconds, and the texts.
Both decode greedily without fallback, one file after the other, in float32.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

OPTIONS: dict[str, Any] = {"language": "en", "temperature": 0.0, "beam_size": None}


class Timed:
    """A function that adds up the time of its calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.seconds = 0.0

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        started = time.perf_counter()
        result = self.function(*arguments, **options)
        self.seconds += time.perf_counter() - started
        return result


class OpenAIWhisper:
    """openai-whisper. model: a Hugging Face folder."""

    def __init__(self, model: str, threads: int) -> None:
        sys.path.append(str(Path(__file__).parents[1] / "tools"))
        import torch
        import whisper
        from compare_openai_whisper import openai_model, samples_of

        torch.set_num_threads(threads)
        self.read = samples_of
        self.whisper = whisper
        self.model = openai_model(Path(model))
        self.encoder = Timed(self.model.encoder.forward)
        self.model.encoder.forward = self.encoder

    def transcribe(self, path: str) -> str:
        return str(self.whisper.transcribe(self.model, self.read(path), fp16=False, **OPTIONS)["text"])


class FasterWhisper:
    """faster-whisper. model: a folder of CTranslate2's converter, with tokenizer.json and preprocessor_config.json."""

    def __init__(self, model: str, threads: int) -> None:
        from faster_whisper import WhisperModel

        self.model = WhisperModel(model, device="cpu", compute_type="float32", cpu_threads=threads)
        self.encoder = Timed(self.model.encode)
        self.model.encode = self.encoder

    def transcribe(self, path: str) -> str:
        segments, _ = self.model.transcribe(path, **(OPTIONS | {"beam_size": 1}))
        return "".join(segment.text for segment in segments)


PEERS: dict[str, Any] = {"openai-whisper": OpenAIWhisper, "faster-whisper": FasterWhisper}


def main() -> None:
    replies = os.fdopen(os.dup(1), "w")  # libraries may print to stdout, which would break the protocol
    os.dup2(2, 1)
    job = json.loads(sys.stdin.readline())
    peer = PEERS[job["peer"]](job["model"], job["threads"])
    for line in sys.stdin:
        peer.encoder.seconds = 0.0
        started = time.perf_counter()
        texts = [peer.transcribe(path) for path in json.loads(line)["files"]]
        seconds = time.perf_counter() - started
        print(
            json.dumps({"encoder": peer.encoder.seconds, "seconds": seconds, "texts": texts}), file=replies, flush=True
        )


if __name__ == "__main__":
    sys.path.pop(0)  # remove this folder, whose files must not shadow other modules
    main()
