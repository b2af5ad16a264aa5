"""A peer behind a pipe: token ids in, token ids and seconds out, one JSON object a line.

Run by path in the peers' own Python, so that neither their libraries nor their threads touch ours; imports nothing of
this package. It loads what the first line names, then answers requests until its input ends:

    {"peer": "ct2", "target": FOLDER, "draft": FOLDER or null, "scratch": FOLDER, "mode": {"threads": 2, ...},
     "ends": whether the end-of-sequence token ends an output}
        -> {"versions": {...}}
    {"sources": [[ids], ...], "max_tokens": N, "slots": 1}
        -> {"tokens": [[ids], ...], "seconds": [s, ...]}

Anything that goes wrong is {"error": "one line"}. Times are of encoder and decoder together, at temperature 0. So many
sources as there are slots are decoded together, sorted by length so that little is padded; each gets its share of time.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

if __name__ == "__main__":
    sys.path.pop(0)  # this folder: its files are no top-level modules


class HuggingFace:
    """transformers' `generate`, with an assistant model if there is a draft. mode: threads, and for the assistant
    num_assistant_tokens (a constant; without it the schedule is transformers' default).
    """

    def __init__(self, job: dict[str, Any]) -> None:
        import torch
        import transformers

        transformers.logging.set_verbosity(40)  # errors
        self.torch, self.transformers = torch, transformers
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
                assistant.generation_config.update(num_assistant_tokens=constant, **fixed)  # or drafting stops early

    def decode(self, sources: list[list[int]], max_tokens: int, beams: int) -> tuple[list[list[int]], float]:
        width, pad = max(map(len, sources)), self.model.config.pad_token_id
        ids = self.torch.tensor([source + [pad] * (width - len(source)) for source in sources])
        mask = self.torch.tensor([[1] * len(source) + [0] * (width - len(source)) for source in sources])
        caches = self.transformers.DynamicCache(), self.transformers.DynamicCache()
        # Made here: from 4.57 on, generate's own has as many layers as the encoder, whatever the decoder has.
        options = {"past_key_values": self.transformers.EncoderDecoderCache(*caches), **self.options}
        started = time.perf_counter()
        with self.torch.inference_mode():
            out = self.model.generate(ids, attention_mask=mask, max_new_tokens=max_tokens, num_beams=beams, **options)
        rows = [row[1:] for row in out.tolist()]  # behind the start token
        seconds = time.perf_counter() - started
        return [until_end(row, self.ends) for row in rows], seconds


class CTranslate2:
    """mode: threads (of one request; there is one worker), compute_type."""

    def __init__(self, job: dict[str, Any]) -> None:
        import ctranslate2

        self.versions = {"ctranslate2": ctranslate2.__version__}
        folder = os.path.join(job["scratch"], "ctranslate2")
        if not os.path.isdir(folder):
            ctranslate2.converters.TransformersConverter(job["target"]).convert(folder)
        options = {"compute_type": job["mode"]["compute_type"], "intra_threads": job["mode"]["threads"]}
        self.translator: Any = ctranslate2.Translator(folder, device="cpu", inter_threads=1, **options)
        self.options = {"max_input_length": 0, "return_end_token": True}  # no limit to sources
        self.ends = job["ends"]

    def decode(self, sources: list[list[int]], max_tokens: int, beams: int) -> tuple[list[list[int]], float]:
        words = [[f"t{i}" for i in source] for source in sources]
        started = time.perf_counter()
        lengths = {"max_decoding_length": max_tokens, "min_decoding_length": 0 if self.ends else max_tokens}
        results = self.translator.translate_batch(words, beam_size=beams, **lengths, **self.options)
        found = [[int(word[1:]) for word in result.hypotheses[0]] for result in results]
        return found, time.perf_counter() - started


def until_end(tokens: list[int], ends: list[int]) -> list[int]:
    """Without what pads a row that ended before others."""
    return next((tokens[: i + 1] for i, token in enumerate(tokens) if token in ends), tokens)


def decode_all(peer: Any, sources: list[list[int]], max_tokens: int, slots: int, beams: int) -> dict[str, Any]:
    order = sorted(range(len(sources)), key=lambda i: len(sources[i])) if slots > 1 else list(range(len(sources)))
    tokens: list[list[int]] = [[] for _ in sources]
    seconds = [0.0] * len(sources)
    for begin in range(0, len(order), slots):
        group = order[begin : begin + slots]
        rows, taken = peer.decode([sources[i] for i in group], max_tokens, beams)
        for i, row in zip(group, rows, strict=True):
            tokens[i], seconds[i] = row, taken / len(group)
    return {"tokens": tokens, "seconds": seconds}


PEERS: dict[str, Any] = {"hf": HuggingFace, "hf-assisted": HuggingFace, "ct2": CTranslate2}


def serve(requests: Any, replies: Any) -> None:
    peer: Any = None
    for line in requests:
        request = json.loads(line)
        try:
            if peer is None:
                peer = PEERS[request["peer"]](request)
                answer = {"versions": peer.versions}
            else:
                answer = decode_all(peer, **request)
        except Exception as error:
            answer = {"error": " ".join(f"{type(error).__name__}: {error}".split())}
        replies.write(json.dumps(answer) + "\n")
        replies.flush()


if __name__ == "__main__":
    private = os.fdopen(os.dup(1), "w")  # libraries that print must not break the protocol
    os.dup2(2, 1)
    serve(sys.stdin, private)
