"""CTranslate2 folders: files equal those that CTranslate2 writes, and outputs equal those that it decodes from them.

tools/goldens/make_ctranslate2_goldens.py records both. It also checks that outputs depend on each attribute.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from safetensors.numpy import load_file

from speculative_decoding import CheckpointError, Session, batch_generate, checkpoints, generate, load, models
from speculative_decoding.checkpoints.ctranslate2_vocabulary import read_vocabulary
from speculative_decoding.loading.conversion import convert
from speculative_decoding.loading.draft_head import write_draft_head
from speculative_decoding.loading.load import Storage, build_model, checked_generation_config, read_folder
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.source import AudioFrames
from tests.parity.test_scoring import Numbers, text_of
from tests.support.ctranslate2_files import (
    Value,
    model_bytes,
    quantized,
    random_array,
    stored,
    variables_of,
    write_folder,
)
from tests.support.device import within
from tests.support.families import save_family
from tests.support.paths import GOLDENS
from tests.support.tiny import noisy_copy, tiny_head

CASES: Mapping[str, Any] = {
    case["name"]: case for case in json.loads(gzip.decompress((GOLDENS / "ctranslate2/cases.json.gz").read_bytes()))
}
TEXTS = [name for name, case in CASES.items() if case["spec"] == "TransformerSpec"]
SPEECH = [name for name in CASES if name not in TEXTS]
FAMILIES = [name for name, case in CASES.items() if case["family"] == name]  # converted in float32
ERROR = 2e-4  # of log-probabilities in float32


@cache
def variables(name: str) -> Mapping[str, Value]:
    case = CASES[name]
    tensors = {} if case["family"] is None else load_file(GOLDENS / case["family"] / "model.safetensors")
    return quantized(variables_of(case, tensors), case["quantization"])


def write(name: str, folder: Path, changes: Mapping[str, Value | None] | None = None, **fields: Any) -> Path:
    """Write the folder of a case.

    Args:
        changes: Other values of variables. None removes one.
        fields: Other fields of config.json, or arguments of `model_bytes`.
    """
    case = CASES[name]
    values = {key: value for key, value in (variables(name) | dict(changes or {})).items() if value is not None}
    form = {key: fields.pop(key, case[key]) for key in ("spec", "revision", "aliases", "version")}
    config = case["config"] | fields
    return write_folder(
        folder, model_bytes(variables=values, **form), config or None, case["tokens"], case["vocabulary"]
    )


def opened(folder: Path, storage: Storage | None = None) -> EncoderDecoder:
    raw, checkpoint = read_folder(folder)
    model, raw, checkpoint = build_model(raw, checkpoint, storage or Storage("float32"))
    model.load_checkpoint(checkpoint)
    model.generation_config = checked_generation_config(folder, raw, model)
    return model


def without_end(model: EncoderDecoder, tokens: list[int]) -> list[int]:
    return [token for token in tokens if token not in model.config.eos_token_ids]


def log_probs_of(model: EncoderDecoder, source: list[int], output: list[int]) -> np.ndarray[Any, Any]:
    """Return the log-probability of each token and of the end, among the tokens that outputs may contain."""
    tokens = [model.config.decoder_start_token_id, *output]
    cache = model.make_cache(model.encode_rows([source])[0])
    logits = np.array(model.decode(mx.array([tokens], mx.uint32), cache)[0]).astype(np.float64)
    logits[:, [token for token, *_ in model.generation_config.bad_words_ids]] = -np.inf
    logits -= logits.max(axis=-1, keepdims=True)
    ids = [*output, model.config.eos_token_ids[0]]
    return logits[np.arange(len(ids)), ids] - np.log(np.exp(logits).sum(axis=-1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", CASES)
def test_written_files_equal_those_of_ctranslate2(name: str, tmp_path: Path) -> None:
    """The writer of the tests is correct, so that the other tests read files as CTranslate2 writes them."""
    folder = write(name, tmp_path)
    assert hashlib.sha256((folder / "model.bin").read_bytes()).hexdigest() == CASES[name]["sha256"]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", TEXTS)
def test_outputs_and_their_scores_equal_those_of_ctranslate2(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = opened(write(name, tmp_path))
    prefix = text_of(case["prefix"])
    end = [model.config.eos_token_ids[0]] if checkpoints.read_config(tmp_path)["add_source_eos"] else []
    for source, expected, log_probs in zip(case["sources"], case["outputs"], case["log_probs"], strict=True):
        source = source + end
        prompt = text_of(source)
        assert np.abs(log_probs_of(model, source, expected) - log_probs).max() < within(ERROR)
        options: dict[str, Any] = {"max_tokens": max(1, 16 - len(case["prefix"])), "drafter": "none"}
        result = generate(model, Numbers(), prompt, decoder_prefix=prefix, **options)
        assert without_end(model, result.tokens) == expected[len(case["prefix"]) :]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", SPEECH)
def test_transcripts_equal_those_of_ctranslate2(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = opened(write(name, tmp_path))
    assert model.audio is not None
    bins, length = model.audio.num_mel_bins, model.audio.window_frames
    prefix = text_of([case["tokens"].index("<|notimestamps|>")])
    for index, expected in enumerate(case["outputs"]):
        frames = AudioFrames(mx.array(random_array(index, "frames", (length, bins))))
        result = generate(model, Numbers(), frames, decoder_prefix=prefix, max_tokens=16, drafter="none")
        assert without_end(model, result.tokens) == expected
