"""Adapters against the weights that PEFT merges them into, for every tensor that a model reads."""

from __future__ import annotations

import json
import shutil
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from speculative_decoding import models
from speculative_decoding.checkpoints import Checkpoint
from speculative_decoding.loading.adapter import Adapter
from speculative_decoding.loading.load import read_folder
from speculative_decoding.models.base import checked_sources
from tests.support.device import within
from tests.support.paths import GOLDENS

ADAPTERS = GOLDENS / "adapters"
CASES = sorted(path.parent.name for path in ADAPTERS.glob("*/merged.npz"))
# How peft's merged model calls the embedding, the embedding of sources and the head
TABLES = {
    "embedding.weight": ("decoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"),
    "source_embedding.weight": ("encoder.embed_tokens.weight", "model.encoder.embed_tokens.weight"),
    "head.weight": ("lm_head.weight", "proj_out.weight", "lm_head.out_proj.weight"),
}


TIED = ("tied-embedding", "each-embedding", "convolution", "gemma")  # updates of a tensor with several uses


def merge(case: str) -> tuple[Any, Checkpoint]:
    base = json.loads((ADAPTERS / case / "adapter_config.json").read_text())["base_model_name_or_path"]
    adapter = Adapter.open(ADAPTERS / case)
    context: Any = nullcontext()
    if case in TIED:
        context = pytest.warns(UserWarning, match="shares its tensor with other modules of the base")
    with context, warnings.catch_warnings():
        if case not in TIED:
            warnings.simplefilter("error")
        return adapter.merge(*read_folder(ADAPTERS / base))


def errors(case: str, checkpoint: Checkpoint, raw: Any) -> dict[str, float]:
    """The largest difference of each parameter from PEFT's, by its path. Tied tables are compared for each use."""
    merged = np.load(ADAPTERS / case / "merged.npz")
    model = models.build(raw, checkpoint)
    sources = checked_sources(model, checkpoint)
    uses = {path: [(name, name) for name in names] for path, names in sources.items()}
    for path, theirs in TABLES.items():
        if stored := [name for name in theirs if name in merged]:
            uses[path] = [(sources.get(path, sources["embedding.weight"])[0], stored[0])]
    return {
        path: max(float(np.abs(np.array(checkpoint[ours]) - merged[name]).max()) for ours, name in names)
        for path, names in uses.items()
        if all(name in merged for _, name in names)
    }


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("case", CASES)
def test_merged_weights_are_those_of_peft(case: str) -> None:
    raw, checkpoint = merge(case)
    found = errors(case, checkpoint, raw)
    assert len(found) > 20 and max(found.values()) < within(1e-5), max(found, key=lambda path: found[path])


def test_a_shared_tensor_is_read_once_for_all_its_uses() -> None:
    """An update of one of several tied modules changes all of them, as PEFT's merge does; there is still one table."""
    for case in ("tied-embedding", "each-embedding", "tokens", "resized"):
        raw, checkpoint = merge(case)
        model = models.build(raw, checkpoint)
        assert "head" not in model and "source_embedding" not in model


def test_a_resized_vocabulary_is_that_of_the_adapter() -> None:
    """The bias of added tokens is zero, as transformers makes it."""
    for case in ("resized", "resized-saved"):
        raw, checkpoint = merge(case)
        assert raw["vocab_size"] == 14
        assert models.build(raw, checkpoint).config.vocab_size == 14
        bias = np.array(checkpoint["final_logits_bias"])[0]
        assert bias.shape == (14,) and bias[:11].all() and not bias[11:].any()


@pytest.mark.parametrize("case", ["resized", "new-tables"])
def test_a_base_without_name_prefix_takes_the_same_adapter(case: str, tmp_path: Path) -> None:
    """Such as facebook/bart-base."""
    shutil.copy(ADAPTERS / "bases" / "bart" / "config.json", tmp_path)
    tensors = load_file(ADAPTERS / "bases" / "bart" / "model.safetensors")
    bare = {name.removeprefix("model."): each for name, each in tensors.items()}
    assert bare.keys() != tensors.keys()
    save_file(bare, tmp_path / "model.safetensors")
    raw, checkpoint = Adapter.open(ADAPTERS / case).merge(*read_folder(tmp_path))
    expected_raw, expected = merge(case)
    assert raw == expected_raw and len(checkpoint) == len(expected)
    for name in expected:
        assert mx.array_equal(checkpoint[name.removeprefix("model.")], expected[name]).item(), name
