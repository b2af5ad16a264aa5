"""The table of published pairs in docs/models.md: a tiny random pair of each row loads, and its draft changes no token.

A case has the row's family, vocabularies, mel bins and relation of layer counts in miniature. Neither the published
weights nor the published tokenizers are read.
"""

from __future__ import annotations

import json
import random
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from speculative_decoding import Session, load
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.shared_encoder import ENCODER_OUTPUT, shared_part
from tests.support.families import CODES, save_family
from tests.support.paths import ROOT
from tests.support.speech import noise
from tests.support.subpackages import needs_subpackage
from tests.support.tiny import WHISPER, save_hugging_face, save_whisper, tiny_model, tiny_whisper

HEADING = "## Pairs of published models"
COPIES = "--drafter ngram"
PROMPTS = ["w3 w5 w7 w11", "w2 w40 w9 w9 w1 w17 w23 w9 w9 w1"]
GREEDY: dict[str, Any] = {"temperature": 0, "no_speech_threshold": None, "sample_len": 16}


@dataclass(frozen=True)
class Model:
    """A published model in miniature.

    tokens: The size of the published vocabulary, or 0 if the table does not state it.
    layers: The numbers of layers of the tiny encoder and decoder.
    bins: The number of mel bins, or 0 for text.
    width: The tiny model's `d_model`.
    is_distilled: Whether the model is a draft model that copies the target's encoder and some of its decoder.
    """

    family: str
    tokens: int
    layers: tuple[int, int]
    bins: int = 0
    width: int = 16
    is_distilled: bool = False


def whisper(tokens: int, layers: tuple[int, int], width: int = 16, *, distilled: bool = False) -> Model:
    return Model("whisper", tokens, layers, 80 if tokens == 51865 else 128, width, distilled)


LARGE, LARGE_V3 = whisper(51865, (3, 4)), whisper(51866, (3, 4))  # published: 32 and 32 layers
RETOKENIZED = whisper(0, (3, 4))
TURBO = whisper(51866, (3, 2))  # 32 and 4
TWO_LAYERS, TWO_LAYERS_V3 = (whisper(tokens, (3, 1), distilled=True) for tokens in (51865, 51866))  # 32 and 2
SMALL = whisper(51865, (2, 2), 8)  # 12 and 12, or 4 and 4
T5_XXL, T5_SMALL = Model("t5-v1_1", 32128, (3, 3)), Model("t5-v1_1", 32128, (1, 1))  # 24 and 24; 8 and 8

CASES: dict[tuple[str, ...], tuple[Model, Model | None]] = {
    ("openai/whisper-large-v3", "distil-whisper/distil-large-v3"): (LARGE_V3, TWO_LAYERS_V3),
    ("openai/whisper-large-v3", "openai/whisper-large-v3-turbo"): (LARGE_V3, TURBO),
    ("openai/whisper-large-v3", "kotoba-tech/kotoba-whisper-v2.0"): (LARGE_V3, TWO_LAYERS_V3),
    ("openai/whisper-large-v3", "bofenghuang/whisper-large-v3-distil-fr-v0.2"): (LARGE_V3, TWO_LAYERS_V3),
    ("openai/whisper-large-v3", "openai/whisper-small", "openai/whisper-tiny"): (LARGE_V3, SMALL),
    ("primeline/whisper-large-v3-german", "primeline/distil-whisper-large-v3-german"): (
        LARGE_V3,
        whisper(51866, (3, 1)),
    ),
    ("ivrit-ai/whisper-large-v3", "ivrit-ai/whisper-large-v3-turbo"): (LARGE_V3, TURBO),
    ("nyrahealth/CrisperWhisper", "openai/whisper-large-v3-turbo"): (RETOKENIZED, TURBO),
    ("NbAiLab/nb-whisper-large", "NbAiLab/nb-whisper-small", "NbAiLab/nb-whisper-tiny"): (LARGE_V3, SMALL),
    ("openai/whisper-large-v2", "distil-whisper/distil-large-v2"): (LARGE, TWO_LAYERS),
    ("openai/whisper-large-v2", "openai/whisper-tiny"): (LARGE, SMALL),
    ("vinai/PhoWhisper-large", "vinai/PhoWhisper-small", "vinai/PhoWhisper-base", "vinai/PhoWhisper-tiny"): (
        LARGE,
        SMALL,
    ),
    ("MediaTek-Research/Breeze-ASR-25", "openai/whisper-small", "openai/whisper-tiny"): (LARGE, SMALL),
    ("facebook/nllb-200-3.3B", "facebook/nllb-200-distilled-600M"): (
        Model("m2m_100", 256206, (4, 4)),
        Model("m2m_100", 256206, (2, 2)),
    ),
    ("google/madlad400-10b-mt", "google/madlad400-3b-mt"): (
        Model("madlad", 256000, (2, 2)),
        Model("madlad", 256000, (2, 2), width=8),
    ),
    ("google/t5-v1_1-xxl", "google/t5-v1_1-small"): (T5_XXL, T5_SMALL),
    ("google/flan-t5-xxl", "google/flan-t5-small"): (T5_XXL, T5_SMALL),
    ("facebook/bart-large-cnn", "sshleifer/distilbart-cnn-12-6"): (
        Model("bart", 0, (2, 4)),
        Model("bart", 0, (2, 2), is_distilled=True),
    ),
    ("sagawa/ReactionT5v2-retrosynthesis-USPTO_50k", COPIES): (Model("t5-v1_1", 0, (2, 2)), None),
}


def table() -> dict[tuple[str, ...], str]:
    """Return the cell on the vocabulary of each row, by the names in its first two cells."""
    section = (ROOT / "docs" / "models.md").read_text("utf-8").split(f"{HEADING}\n")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    return {(*re.findall(r"`([^`]+)`", row[0]), *re.findall(r"`([^`]+)`", row[1])): row[2] for row in rows}


ROWS = table()


def numbers_of(models: Sequence[Model], name: str) -> list[int]:
    """Return the models' known values, without repetition if all are equal."""
    values = [getattr(model, name) for model in models if getattr(model, name)]
    return values[:1] if len({*values}) == 1 else values


def save(model: Model, folder: Path, seed: int, target: Path | None = None) -> Path:
    """Write a tiny random model as a Hugging Face folder, with a tokenizer that has its kind of vocabulary."""
    encoder, decoder = model.layers
    layers = {
        "encoder_layers": encoder,
        "decoder_layers": decoder,
        "num_layers": encoder,
        "num_decoder_layers": decoder,
    }
    if model.family == "whisper":
        sizes = {"vocab_size": WHISPER["vocab_size"] + (model.tokens != 51865), "num_mel_bins": model.bins}
        config = WHISPER | layers | sizes | {"d_model": model.width}
        save_whisper(tiny_whisper(seed=seed, **config), folder, config)
        if not model.tokens:
            retokenize(folder / "tokenizer.json", config["eos_token_id"])
    else:
        save_family(folder, model.family)
        config = json.loads((folder / "config.json").read_text()) | layers | {"d_model": model.width}
        made = save_hugging_face(tiny_model(seed=seed, **config), folder / "made", config)
        for name in ("config.json", "model.safetensors"):
            (made / name).replace(folder / name)
    if model.is_distilled and target is not None:
        own, theirs = (dict(mx.load(str(path / "model.safetensors"))) for path in (folder, target))
        copied = {name: theirs[name] for name, array in own.items() if theirs[name].shape == array.shape}
        mx.save_safetensors(str(folder / "model.safetensors"), own | copied)
    return folder


def retokenize(path: Path, end: int) -> None:
    """Give the words of a tokenizer other ids. The special tokens, which begin at `end`, keep theirs."""
    content = json.loads(path.read_text())
    words = [word for word, token in content["model"]["vocab"].items() if token < end]
    content["model"]["vocab"] |= {word: token for token, word in enumerate(random.Random(1).sample(words, end))}
    path.write_text(json.dumps(content))


def outputs(session: Session, family: str, **options: Any) -> tuple[list[list[int]], int]:
    """Decode greedily. Returns the tokens of all outputs or segments, and the number of draft tokens."""
    if session.model.audio is not None:
        text = session.transcribe(noise(0, 0.7), **GREEDY, **options)
        return [list(segment.tokens) for segment in text.segments], text.stats.drafted_tokens
    languages = dict(zip(("src_lang", "tgt_lang"), CODES.get(family, ("", ()))[1], strict=False))
    results = [session.generate(prompt, max_tokens=14, temperature=0, **languages, **options) for prompt in PROMPTS]
    return [result.tokens for result in results], sum(result.stats.drafted_tokens for result in results)


def case(row: tuple[str, ...]) -> Any:
    return pytest.param(row, marks=needs_subpackage("speech") if "bins" in ROWS[row] else (), id=" ".join(row))


@pytest.mark.parametrize("names", [case(row) for row in ROWS])
def test_a_tiny_pair_of_each_row_loads_and_its_draft_changes_no_token(names: tuple[str, ...], tmp_path: Path) -> None:
    assert names in CASES, "a row of docs/models.md has no case"
    target, draft = CASES[names]
    models = [target] if draft is None else [target, draft]
    relation, _, figures = ROWS[names].partition(":")
    sizes, _, bins = figures.partition(", ")
    assert [int(size) for size in re.findall(r"\d{5,}", sizes)] == numbers_of(models, "tokens")
    assert [int(count) for count in re.findall(r"\d+", bins)] == numbers_of(models, "bins")

    folder = save(target, tmp_path / "target", seed=5)
    draft_folder = None if draft is None else save(draft, tmp_path / "draft", seed=6, target=folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # notes about fields of generation_config.json
        session = load(folder, draft=draft_folder, dtype="float32")
    assert relation == ("none" if draft is None else "other" if session.drafts_text else "same")
    if draft is not None:
        assert isinstance(session.draft_model, EncoderDecoder)
        shares = shared_part(session.model, session.draft_model) == ENCODER_OUTPUT
        assert shares == draft.is_distilled

    expected, none = outputs(session, target.family, drafter="none")
    drafter = "ngram" if draft is None else "model"
    found, drafted = outputs(session, target.family, drafter=drafter, num_draft_tokens=4)
    assert any(expected) and found == expected
    assert drafted > none == 0


def test_each_case_is_a_row_of_the_table() -> None:
    assert ROWS.keys() == CASES.keys()
