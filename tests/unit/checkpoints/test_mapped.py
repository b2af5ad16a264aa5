"""Mapped files: equal tensors are found by their bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from speculative_decoding import checkpoints
from speculative_decoding.checkpoints.mapped import CHUNK_BYTES
from tests.support.checkpoint_files import Ordered, View, pickle, torch_bytes


def test_tensors_of_a_file_are_compared_up_to_the_last_of_several_chunks(tmp_path: Path) -> None:
    table = np.zeros(CHUNK_BYTES + 3, np.uint8)
    other = table.copy()
    other[-1] = 1
    save_file({"a": table, "b": table, "c": other, "d": table[:-1].copy()}, tmp_path / "model.safetensors")
    checkpoint = checkpoints.read(tmp_path)
    assert [checkpoint.is_same("a", name) for name in "bcd"] == [True, False, False]


def test_views_of_one_storage_and_of_equal_storages_are_the_same(tmp_path: Path) -> None:
    """PyTorch files hold tied tensors as views of one storage."""
    views = {name: View(key, "FloatStorage", 12, (3, 4), (4, 1)) for name, key in (("a", "0"), ("b", "0"), ("c", "1"))}
    storages = {key: (12, np.arange(12, dtype=np.float32).tobytes()) for key in ("0", "1")}
    (tmp_path / "pytorch_model.bin").write_bytes(torch_bytes("zip", pickle(Ordered(views)), storages))
    checkpoint = checkpoints.read(tmp_path)
    assert checkpoint.is_same("a", "b") and checkpoint.is_same("a", "c")
