"""A peer behind a pipe: token ids in, token ids and seconds out, one JSON object a line.

Run by path in the peers' own Python, so that neither their libraries nor their threads touch ours. It imports nothing
of this package. It converts and loads what the first line names, then answers requests until its input ends:

    {"peer": "ct2", "target": FOLDER, "draft": FOLDER or null, "scratch": FOLDER}
        -> {"versions": {...}}
    {"mode": {...}, "sources": [[ids], ...], "max_tokens": N, "ends": true, "slots": 1}
        -> {"tokens": [[ids], ...], "seconds": [s, ...]}

`ends` false: the end-of-sequence token does not end an output. Anything that goes wrong is {"error": "one line"}.
Times are wall-clock, of encoder and decoder together, temperature 0. With several slots so many sources are decoded
together, sorted by length so that little is padded, and each gets its share of a batch's time.
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
    """transformers' `generate`, with an assistant model if there is a draft. Modes: threads, and for the assistant
    num_assistant_tokens (a constant; without it the schedule is transformers' default).
    """

    def __init__(self, target: str, draft: str | None, scratch: str) -> None:
        import torch
        import transformers

        silence: Any = transformers.logging.set_verbosity_error
        silence()
        self.torch = torch
        self.versions = {"transformers": transformers.__version__, "torch": torch.__version__}
        load: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained
        self.model = load(target).eval()
        self.assistant: Any = None if draft is None else load(draft).eval()
        self.default: dict[str, Any] = {}
        if self.assistant is not None:
            self.default = self.assistant.generation_config.to_dict()
        self.end = self.model.generation_config.eos_token_id

    def use(self, mode: dict[str, Any], ends: bool) -> None:
        self.torch.set_num_threads(mode["threads"])
        self.model.generation_config.eos_token_id = self.end if ends else None
        if self.assistant is None:
            return
        settings = self.assistant.generation_config
        settings.eos_token_id = self.end if ends else None
        for name in ("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold"):
            setattr(settings, name, self.default.get(name))
        if (constant := mode.get("num_assistant_tokens")) is not None:
            settings.num_assistant_tokens = constant
            settings.num_assistant_tokens_schedule = "constant"
            settings.assistant_confidence_threshold = 0.0  # above it, drafting stops early

    def decode(self, sources: list[list[int]], max_tokens: int, ends: bool) -> tuple[list[list[int]], float]:
        width, pad = max(map(len, sources)), self.model.config.pad_token_id
        ids = self.torch.tensor([source + [pad] * (width - len(source)) for source in sources])
        mask = self.torch.tensor([[1] * len(source) + [0] * (width - len(source)) for source in sources])
        options = {} if self.assistant is None else {"assistant_model": self.assistant}
        started = time.perf_counter()
        with self.torch.inference_mode():
            out = self.model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=max_tokens,
                do_sample=False,
                num_beams=1,
                **options,
            )
        rows = [row[1:] for row in out.tolist()]  # behind the start token
        seconds = time.perf_counter() - started
        last = self.end if isinstance(self.end, list) else [self.end]
        return [until_end(row, last) if ends else row for row in rows], seconds


class CTranslate2:
    """Modes: threads (of one request; there is one worker), compute_type. One mode for the life of the process, so that
    the threads of one mode never stand beside those of another.
    """

    def __init__(self, target: str, draft: str | None, scratch: str) -> None:
        import ctranslate2

        self.versions = {"ctranslate2": ctranslate2.__version__}
        self.library = ctranslate2
        self.folder = os.path.join(scratch, "ctranslate2")
        if not os.path.isdir(self.folder):
            self.convert(target)
        self.translator: Any = None
        self.loaded: dict[str, Any] = {}

    def convert(self, target: str) -> None:
        import ctranslate2
        import transformers

        class Converter(ctranslate2.converters.TransformersConverter):
            def load_model(self, model_class: Any, name: str, **options: Any) -> Any:
                if int(transformers.__version__.split(".")[0]) < 5:  # where the option has its older name
                    options["torch_dtype"] = options.pop("dtype", None)
                return super().load_model(model_class, name, **options)

        Converter(target).convert(self.folder)

    def use(self, mode: dict[str, Any], ends: bool) -> None:
        if mode == self.loaded:
            return
        if self.loaded:
            raise ValueError("CTranslate2 takes one mode per process")
        self.translator = self.library.Translator(
            self.folder,
            device="cpu",
            compute_type=mode["compute_type"],
            inter_threads=1,
            intra_threads=mode["threads"],
        )
        self.loaded = mode

    def decode(self, sources: list[list[int]], max_tokens: int, ends: bool) -> tuple[list[list[int]], float]:
        words = [[f"t{i}" for i in source] for source in sources]
        started = time.perf_counter()
        results = self.translator.translate_batch(
            words,
            beam_size=1,
            max_input_length=0,  # no limit
            max_decoding_length=max_tokens,
            min_decoding_length=0 if ends else max_tokens,
            return_end_token=True,
        )
        found = [result.hypotheses[0] for result in results]
        return [[int(word[1:]) for word in words] for words in found], time.perf_counter() - started


def until_end(tokens: list[int], ends: list[int]) -> list[int]:
    """Without what pads a row that ended before others."""
    return next((tokens[: i + 1] for i, token in enumerate(tokens) if token in ends), tokens)


def decode_all(peer: Any, request: dict[str, Any]) -> dict[str, Any]:
    sources, slots = request["sources"], request["slots"]
    order = sorted(range(len(sources)), key=lambda i: len(sources[i])) if slots > 1 else list(range(len(sources)))
    tokens: list[list[int]] = [[] for _ in sources]
    seconds = [0.0] * len(sources)
    for begin in range(0, len(order), slots):
        group = order[begin : begin + slots]
        rows, taken = peer.decode([sources[i] for i in group], request["max_tokens"], request["ends"])
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
                peer = PEERS[request["peer"]](request["target"], request["draft"], request["scratch"])
                answer = {"versions": peer.versions}
            else:
                peer.use(request["mode"], request["ends"])
                answer = decode_all(peer, request)
        except Exception as error:
            answer = {"error": " ".join(f"{type(error).__name__}: {error}".split())}
        replies.write(json.dumps(answer) + "\n")
        replies.flush()


if __name__ == "__main__":
    private = os.fdopen(os.dup(1), "w")  # libraries that print must not break the protocol
    os.dup2(2, 1)
    serve(sys.stdin, private)
