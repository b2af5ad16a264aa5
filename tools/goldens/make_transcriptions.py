"""Write transcriptions.json.gz: the results of openai-whisper's `transcribe` for scripted outputs and word times.

Requires openai-whisper 20250625: `python tools/goldens/make_transcriptions.py [CASES [FILE]]`
"""

import gzip
import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import whisper  # noqa: F401
from whisper.decoding import DecodingResult
from whisper.timing import WordTiming
from whisper.tokenizer import Tokenizer
from whisper.utils import compression_ratio

GOLDENS = Path(__file__).resolve().parents[2] / "tests" / "parity" / "goldens"
CASES = 150

END, START, PREVIOUS, ZERO = 100, 101, 105, 110
PUNCTUATION = [".", ",", ' "', "(", "?", "。", " -", "!", " ¿", "'"]
PIECES = [*(f" w{i}" for i in range(60)), *"abcdefghijklmnopqrst", *PUNCTUATION, *[" "] * 10]
CONTENT = [40, 700, 2999, 3000, 3001, 5200, 9100, 14000]

transcribe = sys.modules["whisper.transcribe"]
timing = sys.modules["whisper.timing"]


class Pieces(Tokenizer):
    """A tokenizer with a vocabulary of 100 pieces."""

    def __init__(self) -> None:
        self.language, self.task = "en", "transcribe"

    eot, sot, sot_prev, timestamp_begin = END, START, PREVIOUS, ZERO  # type: ignore[assignment]
    no_timestamps = ZERO - 1

    def encode(self, text: str, **_: Any) -> list[int]:
        return [PIECES.index(" " + word) for word in text.split()]

    def decode(self, token_ids: Any, **_: Any) -> str:
        return "".join(PIECES[token] for token in map(int, token_ids) if token < END)

    def decode_with_timestamps(self, token_ids: Any, **_: Any) -> str:
        return "".join(PIECES[token] if token < END else "<|endoftext|>" for token in map(int, token_ids))


def random_output(rng: random.Random) -> list[int]:
    """Return random segments between timestamps, most of which conform to the timestamp rules."""
    tokens: list[int] = []
    if rng.random() < 0.03:
        return tokens
    at = rng.choice([0, 0, 0, rng.randrange(50), rng.randrange(1400)])
    vocabulary = rng.sample(range(END), rng.choice([1, 3, 20, 80]))
    for _ in range(rng.choice([0, 1, 1, 1, 2, 2, 3, 5])):
        tokens += [ZERO + at, *rng.choices(vocabulary, k=rng.choice([0, 1, 2, 5, 9]))]
        at = min(1500, at + rng.choice([0, 1, 30, 120, 400]))
        tokens.append(ZERO + at)
        at = min(1500, at + rng.choice([0, 0, 0, 5, 150]))
    ending = rng.random()
    if ending < 0.25:
        tokens += [ZERO + at, *rng.choices(vocabulary, k=3)]
    elif ending < 0.35:
        tokens += rng.choices(vocabulary, k=4)
    elif ending < 0.6:
        tokens.append(ZERO + at)
    return tokens


def random_options(rng: random.Random) -> dict[str, Any]:
    options: dict[str, Any] = {"word_timestamps": rng.random() < 0.6}
    if options["word_timestamps"] and rng.random() < 0.6:
        options["hallucination_silence_threshold"] = rng.choice([0.1, 0.5, 2.0])
    for name, values in {
        "condition_on_previous_text": [False],
        "initial_prompt": ["w1 w2 w3", " ".join(f"w{i % 60}" for i in range(240))],
        "temperature": [0.0, [0.0, 0.4], [0.2, 0.7]],
        "compression_ratio_threshold": [None, 1.2],
        "logprob_threshold": [None, -0.5],
        "no_speech_threshold": [None, 0.3],
    }.items():
        if rng.random() < 0.3:
            options[name] = rng.choice(values)
    if "initial_prompt" in options:
        options["carry_initial_prompt"] = rng.random() < 0.5
    return options


def random_clips(rng: random.Random, num_frames: int) -> str:
    points = sorted(rng.sample(range(num_frames), min(rng.choice([1, 2, 3]), num_frames)))
    return ",".join(str(point / 100) for point in points)


class Script:
    """Takes the place of the model. Returns random outputs and word times, and records them."""

    dims = type("Dims", (), {"n_mels": 1, "n_audio_ctx": 1500, "n_text_ctx": 448})()
    device = torch.device("cpu")
    is_multilingual = True
    num_languages = 99

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.attempts: list[dict[str, Any]] = []
        self.alignments: list[dict[str, Any]] = []

    def decode(self, mel: torch.Tensor, options: Any) -> DecodingResult:
        rng = self.rng
        frames = mel[0].tolist()
        tokens = random_output(rng)
        text = Pieces().decode(tokens).strip()
        result = DecodingResult(
            audio_features=mel,
            language="en",
            tokens=tokens,
            text=text,
            avg_logprob=rng.choice([-0.2, -0.6, -1.0, -1.4]),
            no_speech_prob=rng.choice([0.05, 0.2, 0.6, 0.8]),
            temperature=options.temperature,
            compression_ratio=compression_ratio(text),
        )
        self.attempts.append(
            {
                "seek": int(frames[0]) - 1,
                "size": sum(value > 0 for value in frames),
                "previous": options.prompt[-223:],
                "temperature": options.temperature,
                "tokens": tokens,
                "avg_logprob": result.avg_logprob,
                "no_speech_prob": result.no_speech_prob,
            }
        )
        return result

    def align(self, model: Any, tokenizer: Pieces, tokens: list[int], mel: Any, size: int) -> list[WordTiming]:
        rng = self.rng
        if not tokens:
            return []
        words, own = tokenizer.split_to_word_tokens([*tokens, END])
        times = np.sort(np.array([rng.randrange(size // 2 + 1) for _ in words])) / 50
        if rng.random() < 0.5:
            times = np.minimum(np.cumsum([rng.choice([0.0, 0.02, 0.3, 0.5, 2.5]) for _ in words]), size / 100)
        likely = [rng.choice([0.05, 0.5, 0.9]) for _ in words]
        values = zip(words, own, times, times[1:], likely, strict=False)
        found = [WordTiming(word, ids, start, end, p) for word, ids, start, end, p in values]
        self.alignments.append({"tokens": tokens, "times": times.tolist(), "probabilities": likely})
        return found


def case(seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    num_frames = rng.choice(CONTENT)
    options = random_options(rng)
    if rng.random() < 0.2:
        options["clip_timestamps"] = random_clips(rng, num_frames)
    script = Script(rng)
    mel = torch.zeros(1, num_frames + 3000)
    mel[0, :num_frames] = torch.arange(1, num_frames + 1)
    transcribe.log_mel_spectrogram = lambda *_, **__: mel
    transcribe.get_tokenizer = lambda *_, **__: Pieces()
    own = options | (
        {"temperature": tuple(options["temperature"])} if isinstance(options.get("temperature"), list) else {}
    )
    timing.find_alignment, original = script.align, timing.find_alignment
    result = transcribe.transcribe(script, "audio", language="en", fp16=False, **own)
    timing.find_alignment = original
    return {
        "num_frames": num_frames,
        "options": options,
        "attempts": script.attempts,
        "alignments": script.alignments,
        "result": result,
    }


class Attention(torch.nn.Module):
    """Takes the place of a layer's cross-attention, and returns the given scores."""

    def __init__(self, scores: torch.Tensor) -> None:
        super().__init__()
        self.scores = scores

    def forward(self) -> tuple[None, torch.Tensor]:
        return None, self.scores


class Aligned(torch.nn.Module):
    """Takes the place of a model with two layers of two heads each."""

    dims = type("Dims", (), {"n_text_layer": 2})()
    device = torch.device("cpu")

    def __init__(self, scores: torch.Tensor, logits: torch.Tensor) -> None:
        super().__init__()
        blocks = [torch.nn.ModuleDict({"cross_attn": Attention(own[None])}) for own in scores]
        self.decoder = torch.nn.ModuleDict({"blocks": torch.nn.ModuleList(blocks)})
        self.logits = logits
        self.alignment_heads = torch.tensor([[False, True], [True, True]]).to_sparse()

    def forward(self, *_: Any) -> torch.Tensor:
        for block in self.decoder["blocks"]:
            block["cross_attn"]()
        return self.logits[None]


def alignment(seed: int) -> dict[str, Any]:
    """Return word times for random attention that moves forward with the tokens."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, END, rng.integers(1, 12)).tolist()
    positions = int(rng.integers(2, 60))
    length = len(tokens) + 5  # 3 start tokens, notimestamps, the tokens, the end token
    center = np.linspace(0, positions, length)[:, None] - np.arange(positions)
    scores = np.round(3 * rng.normal(size=(2, 2, length, positions)) - 0.02 * center**2, 2)
    logits = torch.tensor(rng.normal(size=(length, END + 5)), dtype=torch.float32)
    tokenizer = Pieces()
    tokenizer.sot_sequence = (START, START + 1, START + 3)
    model = Aligned(torch.tensor(scores, dtype=torch.float32), logits)
    found = timing.find_alignment(model, tokenizer, tokens, torch.zeros(1, 1), 2 * positions)
    probabilities = logits[3:, :END].softmax(dim=-1)[np.arange(len(tokens)), tokens]
    return {
        "tokens": tokens,
        "scores": scores[[0, 1, 1], [1, 0, 1]].tolist(),
        "first": 3,
        "probabilities": probabilities.tolist(),
        "words": [[each.word, each.tokens, each.start, each.end, float(each.probability)] for each in found],
    }


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else CASES
    path = Path(sys.argv[2]) if len(sys.argv) > 2 else GOLDENS / "transcriptions.json.gz"
    found: dict[str, Any] = {"pieces": PIECES, "end": END, "start": START, "previous": PREVIOUS, "zero": ZERO}
    found["alignments"] = [alignment(seed) for seed in range(count // 4)]
    content = json.dumps(found | {"cases": [case(seed) for seed in range(count)]}, default=float)
    path.write_bytes(gzip.compress(content.encode(), mtime=0))
