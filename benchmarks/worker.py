"""Runs a peer that decodes token ids or transcribes recordings, with one JSON object per line.

peers.py runs this file with the peers' interpreter, to keep their libraries and threads out of our process. It
therefore imports nothing from this package. It loads the peer named in the first line, then answers requests until its
input ends:

    {"peer": "ct2", "target": FOLDER, "draft": FOLDER or null, "scratch": FOLDER, "mode": {"threads": 2, ...},
     "ends": whether the end-of-sequence token ends an output}
        -> {"versions": {...}}
    {"sources": [[ids], ...], "max_tokens": N, "slots": 1, "beams": 1}
        -> {"tokens": [[ids], ...], "seconds": [s, ...]}

    {"peer": "openai-whisper", "target": FOLDER, "mode": {"threads": 2}}
        -> {"versions": {...}}
    {"files": [16 kHz WAV, ...]}
        -> {"texts": [...], "seconds": s, "encoder": seconds of encoder passes}

Errors are {"error": "one line"}. Decoding is greedy, in float32, and times include encoder and decoder. Sources are
sorted by length to reduce padding, and decoded in batches of `slots`; a batch's time is divided equally among its
sources. Recordings contain English speech and are transcribed one after another, without temperature fallback.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.pop(0)  # remove this folder, because its files would shadow other modules


class HuggingFace:
    """transformers' `generate`, with an assistant model if there is a draft.

    A mode sets `threads` and, for a constant draft length instead of the default schedule, `num_assistant_tokens`.
    """

    def __init__(self, job: dict[str, Any]) -> None:
        import torch
        import transformers

        transformers.logging.set_verbosity(40)  # errors
        self.torch = torch
        self.transformers = transformers
        self.versions = {"transformers": transformers.__version__, "torch": torch.__version__}
        torch.set_num_threads(job["mode"]["threads"])
        load: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained
        self.model = load(job["target"]).eval()
        self.options: dict[str, Any] = {"do_sample": False}
        settings = self.model.generation_config
        self.ends = settings.eos_token_id if isinstance(settings.eos_token_id, list) else [settings.eos_token_id]
        if job["draft"] is not None:
            assistant = self.options["assistant_model"] = load(job["draft"]).eval()
            if (constant := job["mode"].get("num_assistant_tokens")) is not None:
                fixed = {"num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.0}
                assistant.generation_config.update(
                    num_assistant_tokens=constant, **fixed
                )  # a confidence threshold would end drafts early

    def decode(self, sources: list[list[int]], max_tokens: int, beams: int) -> tuple[list[list[int]], float]:
        width = max(map(len, sources))
        pad = self.model.config.pad_token_id
        ids = self.torch.tensor([source + [pad] * (width - len(source)) for source in sources])
        mask = self.torch.tensor([[1] * len(source) + [0] * (width - len(source)) for source in sources])
        caches = self.transformers.DynamicCache(), self.transformers.DynamicCache()
        # Since 4.57, `generate` creates a cache with as many layers as the encoder has; the decoder may have more or
        # fewer.
        options = {"past_key_values": self.transformers.EncoderDecoderCache(*caches), **self.options}
        started = time.perf_counter()
        with self.torch.inference_mode():
            out = self.model.generate(ids, attention_mask=mask, max_new_tokens=max_tokens, num_beams=beams, **options)
        rows = [row[1:] for row in out.tolist()]  # without the start token
        seconds = time.perf_counter() - started
        return [until_end(row, self.ends) for row in rows], seconds


class CTranslate2:
    """CTranslate2 with one worker. A mode sets `threads` and `compute_type`."""

    def __init__(self, job: dict[str, Any]) -> None:
        import ctranslate2

        self.versions = {"ctranslate2": ctranslate2.__version__}
        folder = os.path.join(job["scratch"], "ctranslate2")
        if not os.path.isdir(folder):
            ctranslate2.converters.TransformersConverter(job["target"]).convert(folder)
        options = {"compute_type": job["mode"]["compute_type"], "intra_threads": job["mode"]["threads"]}
        self.translator: Any = ctranslate2.Translator(folder, device="cpu", inter_threads=1, **options)
        self.options = {"max_input_length": 0, "return_end_token": True}  # 0: unlimited sources
        self.ends = job["ends"]

    def decode(self, sources: list[list[int]], max_tokens: int, beams: int) -> tuple[list[list[int]], float]:
        words = [[f"t{i}" for i in source] for source in sources]
        started = time.perf_counter()
        lengths = {"max_decoding_length": max_tokens, "min_decoding_length": 0 if self.ends else max_tokens}
        results = self.translator.translate_batch(words, beam_size=beams, **lengths, **self.options)
        found = [[int(word[1:]) for word in result.hypotheses[0]] for result in results]
        return found, time.perf_counter() - started


def until_end(tokens: list[int], ends: list[int]) -> list[int]:
    """Remove the padding after the first end token."""
    return next((tokens[: i + 1] for i, token in enumerate(tokens) if token in ends), tokens)


def decode_all(peer: Any, sources: list[list[int]], max_tokens: int, slots: int, beams: int) -> dict[str, Any]:
    order = sorted(range(len(sources)), key=lambda i: len(sources[i])) if slots > 1 else list(range(len(sources)))
    tokens: list[list[int]] = [[] for _ in sources]
    seconds = [0.0] * len(sources)
    for begin in range(0, len(order), slots):
        group = order[begin : begin + slots]
        rows, taken = peer.decode([sources[i] for i in group], max_tokens, beams)
        for i, row in zip(group, rows, strict=True):
            tokens[i] = row
            seconds[i] = taken / len(group)
    return {"tokens": tokens, "seconds": seconds}


class Timed:
    """A wrapper for a function that adds up the time spent in its calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.seconds = 0.0

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        started = time.perf_counter()
        result = self.function(*arguments, **options)
        self.seconds += time.perf_counter() - started
        return result


SPEECH: dict[str, Any] = {"language": "en", "temperature": 0.0}


class OpenAIWhisper:
    """openai-whisper with weights from a Hugging Face folder."""

    def __init__(self, job: dict[str, Any]) -> None:
        sys.path.append(str(Path(__file__).parents[1] / "tools"))
        import torch
        import whisper
        from compare_openai_whisper import openai_model, samples_of

        self.versions = {"openai-whisper": whisper.__version__, "torch": torch.__version__}
        torch.set_num_threads(job["mode"]["threads"])
        self.read, self.whisper, self.model = samples_of, whisper, openai_model(Path(job["target"]))
        self.encoder = self.model.encoder.forward = Timed(self.model.encoder.forward)

    def transcribe(self, path: str) -> str:
        return str(self.whisper.transcribe(self.model, self.read(path), fp16=False, beam_size=None, **SPEECH)["text"])


class FasterWhisper:
    """faster-whisper with a folder of CTranslate2's converter, plus tokenizer.json and preprocessor_config.json."""

    def __init__(self, job: dict[str, Any]) -> None:
        import faster_whisper

        self.versions = {"faster-whisper": faster_whisper.__version__}
        options = {"device": "cpu", "compute_type": "float32", "cpu_threads": job["mode"]["threads"]}
        self.model: Any = faster_whisper.WhisperModel(job["target"], **options)
        self.encoder = self.model.encode = Timed(self.model.encode)

    def transcribe(self, path: str) -> str:
        return "".join(segment.text for segment in self.model.transcribe(path, beam_size=1, **SPEECH)[0])


def transcribe_all(peer: Any, files: list[str]) -> dict[str, Any]:
    peer.encoder.seconds = 0.0
    started = time.perf_counter()
    texts = [peer.transcribe(path) for path in files]
    return {"texts": texts, "seconds": time.perf_counter() - started, "encoder": peer.encoder.seconds}


OF_SPEECH: dict[str, Any] = {"openai-whisper": OpenAIWhisper, "faster-whisper": FasterWhisper}
PEERS: dict[str, Any] = {"hf": HuggingFace, "hf-assisted": HuggingFace, "ct2": CTranslate2} | OF_SPEECH


def serve(requests: Any, replies: Any) -> None:
    peer: Any = None
    for line in requests:
        request = json.loads(line)
        try:
            if peer is None:
                peer = PEERS[request["peer"]](request)
                answer = {"versions": peer.versions}
            else:
                answer = (transcribe_all if "files" in request else decode_all)(peer, **request)
        except Exception as error:
            answer = {"error": " ".join(f"{type(error).__name__}: {error}".split())}
        replies.write(json.dumps(answer) + "\n")
        replies.flush()


if __name__ == "__main__":
    private = os.fdopen(os.dup(1), "w")  # libraries may print to stdout, which would break the protocol
    os.dup2(2, 1)
    serve(sys.stdin, private)
