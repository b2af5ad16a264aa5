"""Properties of all checkpoints: a slice is a part of the tensor, and equality is that of the bits."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import save_file

from speculative_decoding import checkpoints
from speculative_decoding.checkpoints import Checkpoint
from speculative_decoding.checkpoints.base import CheckpointView
from speculative_decoding.checkpoints.lora import MergedCheckpoint, Source
from speculative_decoding.checkpoints.npz import write_npz
from speculative_decoding.errors import CheckpointError
from tests.support.checkpoint_files import torch_file

A = np.random.default_rng(0).standard_normal((4, 6, 2)).astype(np.float32)
ARRAYS = {"a": A, "same": A.copy(), "last differs": A.copy(), "flat": A.ravel(), "prefix": A[:2].copy()}
ARRAYS["last differs"][-1, -1, -1] += 1
NAMES = [*ARRAYS]
INDEX = "model.safetensors.index.json"


def npz(folder: Path) -> Checkpoint:
    write_npz(folder / "weights.npz", ((name, mx.array(array)) for name, array in ARRAYS.items()))
    return checkpoints.read(folder)


def torch(form: str) -> Callable[[Path], Checkpoint]:
    def write(folder: Path) -> Checkpoint:
        (folder / "pytorch_model.bin").write_bytes(torch_file(form, ARRAYS))
        return checkpoints.read(folder)

    return write


def safetensors(folder: Path) -> Checkpoint:
    save_file(ARRAYS, folder / "model.safetensors")
    return checkpoints.read(folder)


def indexed(folder: Path) -> Checkpoint:
    """Write "a" and "flat" to one file, the others to another."""
    parts = {"1.safetensors": ("a", "flat"), "2.safetensors": ("same", "last differs", "prefix")}
    for file, names in parts.items():
        save_file({name: ARRAYS[name] for name in names}, folder / file)
    write_index(folder, {name: file for file, names in parts.items() for name in names})
    return checkpoints.read(folder)


def write_index(folder: Path, weight_map: object) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def merged(folder: Path) -> Checkpoint:
    base = npz(folder)
    return MergedCheckpoint(base, base, {name: Source(name) for name in base})


CHECKPOINTS: Mapping[str, Callable[[Path], Checkpoint]] = {
    "npz": npz,
    "zip": torch("zip"),
    "legacy": torch("legacy"),
    "safetensors": safetensors,
    "index": indexed,
    "view": lambda folder: CheckpointView(npz(folder)),
    "cast": lambda folder: CheckpointView(npz(folder), dtype=mx.float32),
    "merged": merged,
}


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_a_slice_is_a_part_of_the_tensor(kind: str, tmp_path: Path) -> None:
    checkpoint = CHECKPOINTS[kind](tmp_path)
    assert set(checkpoint) == set(ARRAYS)
    for name, array in ARRAYS.items():
        for axis, size in enumerate(array.shape):
            for start, stop in ((0, size), (0, size // 2), (size // 2, size), (size - 1, size)):
                part = checkpoint.read_slice(name, axis, start, stop)
                assert np.array_equal(np.array(part), np.take(array, range(start, stop), axis))


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_tensors_are_the_same_if_their_shapes_and_numbers_are(kind: str, tmp_path: Path) -> None:
    checkpoint = CHECKPOINTS[kind](tmp_path)
    for first, second in ((first, second) for first in NAMES for second in NAMES):
        assert checkpoint.is_same(first, second) == np.array_equal(ARRAYS[first], ARRAYS[second]), (first, second)


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        (None, "not an index of weight files"),
        (["a"], "not an index of weight files"),
        ({"a": "3.safetensors"}, "weight file '3.safetensors' is missing"),
        ({"b": "1.safetensors"}, "1.safetensors: tensor 'b' is missing, but model.safetensors.index.json lists it"),
        ({"a": "2.safetensors"}, "2.safetensors: tensor 'a' is missing"),
    ],
)
def test_an_index_that_does_not_fit_its_files_is_refused(weight_map: object, message: str, tmp_path: Path) -> None:
    indexed(tmp_path)
    write_index(tmp_path, weight_map)
    with pytest.raises(CheckpointError, match=message):
        checkpoints.read(tmp_path)


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"dtype": "F8_E4M3", "shape": [8]}, "unsupported dtype F8_E4M3"),
        ({"dtype": "F32", "shape": [3]}, "not a readable safetensors file"),
    ],
)
def test_unsupported_safetensors_are_refused(entry: dict[str, Any], problem: str, tmp_path: Path) -> None:
    header = json.dumps({"a": {"data_offsets": [0, 8]} | entry}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(CheckpointError, match=problem):
        checkpoints.read(tmp_path)


def test_an_index_leads_only_to_files_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    indexed(tmp_path / "model")
    save_file({"a": A[:1]}, tmp_path / "1.safetensors")
    write_index(tmp_path / "model", {"a": "../1.safetensors"})
    assert checkpoints.read(tmp_path / "model").info("a").shape == A.shape
