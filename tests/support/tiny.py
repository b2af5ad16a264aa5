"""Tiny random models, and drafters with known behavior."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map, tree_map_with_path

from speculative_decoding import sampling
from speculative_decoding.decoding.request import Request
from speculative_decoding.decoding.results import Round
from speculative_decoding.decoding.round import Batch, speculate
from speculative_decoding.decoding.text_streamer import TextStreamer
from speculative_decoding.draft_length import DraftLength, FixedLength
from speculative_decoding.draft_length.passes import UNPADDED, PassWidths, RoundCosts
from speculative_decoding.drafters import (
    AutoDrafter,
    BatchDrafter,
    BatchHeadDrafter,
    BatchModelDrafter,
    Draft,
    Drafter,
    DraftModel,
    NgramDrafter,
    NoDrafter,
    SeparateDrafters,
    TextStore,
    choose_drafter,
)
from speculative_decoding.drafters.base import TEXT, RequestView
from speculative_decoding.drafters.draft_model import DraftVocabulary
from speculative_decoding.drafters.draft_text import DraftText
from speculative_decoding.drafters.writing import BatchWritingDrafter
from speculative_decoding.loading.tokenizer import Vocabulary
from speculative_decoding.models import build
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.draft_head import DraftHead, default_layers
from speculative_decoding.models.source import AudioFrames, Source
from speculative_decoding.sampling import Constraints, GenerationOptions
from tests.support.writing import ScriptedWriter

VOCAB = 24
EOS = 1
NO_CONSTRAINTS = Constraints()
CONFIG: dict[str, Any] = {
    "model_type": "t5",
    "vocab_size": VOCAB,
    "d_model": 16,
    "d_kv": 4,
    "d_ff": 32,
    "num_layers": 1,
    "num_heads": 2,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "tie_word_embeddings": False,
    "eos_token_id": EOS,
}
WHISPER: dict[str, Any] = {
    "model_type": "whisper",
    "vocab_size": 81,  # 40 pieces of text, 10 special tokens (en, de), 31 timestamps
    "num_mel_bins": 6,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_source_positions": 30,
    "max_target_positions": 70,
    "pad_token_id": 40,
    "eos_token_id": 40,
    "decoder_start_token_id": 41,
    "tie_word_embeddings": True,
}
EXACT = PassWidths(lambda rows: RoundCosts({2: 1.0, 4: 1.0, 8: 1.0}), exact=True)  # bit-identical passes
SOURCES = [[5, 9, 3, 7, 1], [2, 2, 8, 1], [11, 4, 19, 6, 13, 8, 1], [3, 1], [17, 21, 9, 9, 14, 5, 1]]


def tiny_model(seed: int = 5, scale: float = 0.35, position_scale: float = 4.0, **changes: Any) -> EncoderDecoder:
    """Make a model with random weights. Strong position biases keep outputs from repeating one token."""
    model = build(CONFIG | changes)
    keys = iter(mx.random.split(mx.random.key(seed), 200))

    def fill(path: str, parameter: mx.array) -> mx.array:
        noise = mx.random.normal(parameter.shape, key=next(keys))
        if parameter.ndim == 1:
            return 0.2 * noise + ("bias" not in path)
        return noise * (position_scale if "position_biases" in path else scale)

    model.update(tree_map_with_path(fill, model.parameters()))
    mx.eval(model.parameters())
    return model


def tiny_whisper(**changes: Any) -> EncoderDecoder:
    """Make a Whisper with random weights. Strong positions keep outputs from repeating one token."""
    model = tiny_model(**WHISPER | changes)
    for stack in (model.encoder, model.decoder):
        stack.positions.weight = 3 * stack.positions.weight
    return model


def audio_frames(seed: int = 0, positions: int = 30, bands: int = 6) -> AudioFrames:
    """Make random frames for this number of encoder positions."""
    return AudioFrames(mx.random.normal((2 * positions, bands), key=mx.random.key(seed)))


def source_for(model: EncoderDecoder) -> Source:
    """Return token ids, or audio frames for a speech model."""
    return [5, 9, 3, 1] if model.audio is None else audio_frames(bands=model.audio.num_mel_bins)


def noisy_copy(model: EncoderDecoder, noise: float = 0.05, seed: int = 9) -> EncoderDecoder:
    """Make a draft model that often agrees with the model."""
    copy = tiny_model_like(model)
    keys = iter(mx.random.split(mx.random.key(seed), 200))
    copy.update(
        tree_map(lambda p: p + noise * mx.random.normal(p.shape, key=next(keys)) * (p.ndim > 1), model.parameters())
    )
    mx.eval(copy.parameters())
    return copy


def tiny_model_like(model: EncoderDecoder) -> EncoderDecoder:
    return type(model)(model.config)


class NoText(TextStreamer):
    """Ends an output at given tokens, without a tokenizer."""

    def __init__(self, is_end: Callable[[int], bool]) -> None:
        self._is_end = is_end
        self.has_ended = False

    def add(self, token: int) -> str:
        self.has_ended = self._is_end(token)
        return ""

    def finish(self) -> str:
        return ""


def run(
    model: EncoderDecoder,
    source: Source,
    drafter: Drafter | BatchDrafter | None = None,
    *,
    ends: Callable[[int], bool] | None = None,
    length: DraftLength | None = None,
    constraints: Constraints = NO_CONSTRAINTS,
    **options: Any,
) -> list[Round]:
    """Decode one request without a tokenizer. The defaults are 4 draft tokens and at most 30 tokens."""
    chosen = GenerationOptions(**{"num_draft_tokens": 4, "max_tokens": 30} | options)
    one = drafter or NoDrafter()
    batch_drafter = one if isinstance(one, BatchDrafter) else SeparateDrafters(lambda: one, model.config.vocab_size)
    length = length or FixedLength(int(chosen.num_draft_tokens))
    start = [model.config.decoder_start_token_id]
    is_end = ends or model.config.eos_token_ids.__contains__
    request = Request(chosen, source, start, constraints=constraints, draft_length=length, streamer=NoText(is_end))
    cache = model.make_cache(model.encode_rows([source])[0])
    batch = Batch(model, batch_drafter, cache, [request], EXACT if chosen.strict else UNPADDED)
    batch_drafter.begin(request)
    rounds = []
    while request.finish_reason is None:
        rounds.append(speculate(batch)[request])
    batch_drafter.end(request)
    return rounds


def tokens_of(rounds: Sequence[Round]) -> list[int]:
    return [token for event in rounds for token in event.tokens]


class Scripted(Drafter):
    """Proposes choose(position, right token) for each position of the baseline output."""

    def __init__(self, baseline: Sequence[int], choose: Callable[[int, int], int], most: int = 99) -> None:
        self.baseline, self.choose, self.most = baseline, choose, most

    def begin(self, input_tokens: Sequence[int]) -> None:
        pass

    def propose(self, tokens: Sequence[int], num_draft_tokens: int) -> Draft:
        start = len(tokens) - 1
        count = min(num_draft_tokens, self.most)
        right = [self.baseline[i] if i < len(self.baseline) else EOS for i in range(start, start + count)]
        return Draft(
            mx.array([[self.choose(start + i, token) for i, token in enumerate(right)]], mx.uint32).reshape(1, -1)
        )


def taught(store: TextStore, baseline: Sequence[int]) -> TextStore:
    """Teach the store the baseline output, and a text that never occurs."""
    store.learn([CONFIG.get("decoder_start_token_id", 0), *baseline])
    store.learn([token for token in baseline for _ in range(2)])
    return store


class GivesTexts(AutoDrafter):
    """Follows texts that it makes from the baseline output of each request.

    Args:
        texts_of: Returns the ids of the texts for a baseline output.
        model: Drafts elsewhere. With None, all drafts come from the texts.
    """

    def __init__(
        self,
        vocab_size: int,
        baseline: Sequence[int],
        texts_of: Callable[[Sequence[int]], Sequence[Sequence[int]]],
        model: BatchDrafter | None = None,
    ) -> None:
        copies = NgramDrafter(search_input=False, search_output=False, min_chance=0.0)
        super().__init__(copies, model, vocab_size, 0.0)
        self.baseline_of: Callable[[RequestView], Sequence[int]] = lambda request: baseline
        self._texts_of = texts_of

    def begin(self, request: RequestView, encoder_output: mx.array | None = None) -> None:
        texts = self._texts_of(self.baseline_of(request))
        request.draft_texts = [DraftText(ids, {}, TEXT) for ids in texts]
        super().begin(request, encoder_output)


def revised(baseline: Sequence[int]) -> list[int]:
    """Replace, drop and insert tokens of an output, and end it early."""
    text = []
    for i, token in enumerate(baseline):
        if i % 9 != 6:
            text.append((token + 3) % VOCAB if i % 5 == 2 else token)
        if i % 7 == 4:
            text += [EOS, token][i % 2 :]
    return text


def model_drafter(target: EncoderDecoder, draft: EncoderDecoder | DraftModel) -> BatchModelDrafter:
    return BatchModelDrafter(draft if isinstance(draft, DraftModel) else DraftModel(draft), target.config.vocab_size)


def tiny_head(target: EncoderDecoder, frequent: Sequence[int] = (), seed: int = 3) -> DraftHead:
    """Make an untrained head, whose drafts are sometimes accepted."""
    head = DraftHead.for_target(target, default_layers(target.config.decoder_layers), seed)
    return head.with_frequent(frequent)


def head_drafter(target: EncoderDecoder, frequent: Sequence[int] = ()) -> BatchHeadDrafter:
    return BatchHeadDrafter(tiny_head(target, frequent), target)


def named_drafter(
    name: str, target: EncoderDecoder, draft: EncoderDecoder, baseline: Sequence[int]
) -> Drafter | BatchDrafter:
    """Make a drafter as a session does for the option `drafter`."""
    return choose_drafter(GenerationOptions(drafter=name), target, partial(model_drafter, target, draft))


# Every drafter by name, made from (target, draft model, baseline output); tests/integration/test_generate.py runs all.
# First the values of the option `drafter`; some are replaced below by a drafter that drafts more often.
DRAFTERS: dict[str, Callable[[EncoderDecoder, EncoderDecoder, Sequence[int]], Drafter | BatchDrafter]] = {
    **{name: partial(named_drafter, name) for name in sampling.DRAFTERS},
    "target itself": lambda target, draft, baseline: model_drafter(target, target),
    "model, trimmed vocabulary": lambda target, draft, baseline: model_drafter(
        target, DraftModel(draft, DraftVocabulary((EOS, *range(2, VOCAB, 2))))
    ),
    "head": lambda target, draft, baseline: head_drafter(target),
    "head, trimmed vocabulary": lambda target, draft, baseline: head_drafter(target, (EOS, *range(2, VOCAB, 2))),
    "n-grams": lambda target, draft, baseline: NgramDrafter(),
    "n-grams of a session": lambda target, draft, baseline: NgramDrafter(
        store=taught(TextStore(), baseline), min_chance=0.0
    ),
    "auto": lambda target, draft, baseline: AutoDrafter(
        NgramDrafter(min_chance=0.0), model_drafter(target, draft), target.config.vocab_size
    ),
    "text": lambda target, draft, baseline: GivesTexts(
        target.config.vocab_size, baseline, lambda output: [revised(output)]
    ),
    "text of the output": lambda target, draft, baseline: GivesTexts(
        target.config.vocab_size, baseline, lambda output: [output]
    ),
    "auto with texts": lambda target, draft, baseline: GivesTexts(
        target.config.vocab_size,
        baseline,
        lambda output: [[], output[::-1], revised(output), [VOCAB + 7, *output]],
        model_drafter(target, draft),
    ),
    "texts of another model": lambda target, draft, baseline: BatchWritingDrafter(
        ScriptedWriter(lambda _: [(token + 1) % VOCAB if i % 5 == 3 else token for i, token in enumerate(baseline)])
    ),
    "always right": lambda target, draft, baseline: Scripted(baseline, lambda i, token: token),
    "always wrong": lambda target, draft, baseline: Scripted(baseline, lambda i, token: (token + 1) % VOCAB),
    "every third wrong": lambda target, draft, baseline: Scripted(
        baseline, lambda i, token: (token + 1) % VOCAB if i % 3 == 2 else token
    ),
    "end inside": lambda target, draft, baseline: Scripted(baseline, lambda i, token: EOS if i % 4 == 3 else token),
    "stops after two": lambda target, draft, baseline: Scripted(baseline, lambda i, token: token, most=2),
}
# One drafter for each way to make a draft, for properties that do not depend on which tokens a drafter proposes.
KINDS = ("none", "model", "head", "auto", "text", "every third wrong")


TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "added_tokens": [],
    "model": {"type": "WordLevel", "vocab": {"<unk>": 0, "</s>": 1, "a": 2}, "unk_token": "<unk>"},
}


def save_hugging_face(model: EncoderDecoder, folder: Path, config: Mapping[str, Any]) -> Path:
    """Write the model as a Hugging Face folder, under Hugging Face's tensor names."""
    folder.mkdir(parents=True)
    tensors = {}
    for path, names in model.parameter_sources(model.config, set()).items():
        value = dict(tree_flatten(model.parameters()))[path]
        for name, share in zip(names, mx.split(value, len(names)), strict=True):
            tensors[name] = mx.contiguous(share)
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)
    (folder / "config.json").write_text(json.dumps(dict(config)))
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    return folder


def small_target(folder: Path) -> Path:
    """Write a target of three layers, which programs convert, train a draft for, and run."""
    changes = {"num_layers": 3, "feed_forward_proj": "gelu"}
    return save_hugging_face(tiny_model(**changes), folder / "target", CONFIG | changes)


def save_whisper(model: EncoderDecoder, folder: Path, config: Mapping[str, Any]) -> Path:
    """Write a Whisper as a Hugging Face folder, with a tokenizer that has its special tokens."""
    save_hugging_face(model, folder, config)
    (folder / "tokenizer.json").write_text(json.dumps(whisper_tokenizer(config)))
    (folder / "generation_config.json").write_text(
        json.dumps({"is_multilingual": True, "forced_decoder_ids": [[1, 42]]})
    )
    return folder


def whisper_tokenizer(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a word-level tokenizer.json with the special tokens of a Whisper."""
    end, size = config["eos_token_id"], config["vocab_size"]
    languages = size - end - config["max_source_positions"] - 9
    names = [
        "endoftext",
        "startoftranscript",
        *["en", "de", "fr", "zh"][:languages],
        "translate",
        "transcribe",
        "startoflm",
    ]
    names += ["startofprev", "nospeech", "notimestamps"]
    names += [f"{i / 50:.2f}" for i in range(size - end - len(names))]
    special = {f"<|{name}|>": end + i for i, name in enumerate(names)}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    added = [{"id": index, "content": piece, **flags} for piece, index in special.items()]
    words = {f"w{i}": i for i in range(end)} | special
    return TOKENIZER | {"added_tokens": added, "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"}}


class OneLanguage:
    """A base class of tokenizers for tests."""

    vocabulary, languages = Vocabulary({}), MappingProxyType[str, int]({})

    def encode(self, text: str, language: str | None = None) -> list[int]:
        raise NotImplementedError

    def encode_output(self, text: str) -> list[int]:
        return self.encode(text)
