"""Our own `.npz` files, and zip files that are refused."""

from __future__ import annotations

import math
from io import BytesIO
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from speculative_decoding.checkpoints.npz import DTYPES, read_npz, write_npz
from speculative_decoding.errors import CheckpointError
from tests.support.checkpoint_files import Entry, zip_bytes


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES.values() if dtype != mx.float64], ids=str)
def test_arrays_are_read_as_they_were_written(dtype: mx.Dtype, tmp_path: Path) -> None:
    shapes = ((), (0, 3), (5,), (2, 3, 4))
    arrays = {str(shape): mx.arange(math.prod(shape)).reshape(shape).astype(dtype) for shape in shapes}
    arrays["transposed"] = arrays["(2, 3, 4)"].T
    write_npz(tmp_path / "a.npz", arrays.items())
    checkpoint, by_mlx = read_npz(tmp_path / "a.npz"), mx.load(str(tmp_path / "a.npz"))
    assert list(checkpoint) == list(arrays)
    for name, expected in arrays.items():
        for found in (checkpoint[name], by_mlx[name]):
            assert found.dtype == expected.dtype and found.shape == expected.shape and mx.array_equal(found, expected)


def npy(array: np.ndarray, version: tuple[int, int] = (1, 0)) -> bytes:
    np.lib.format.write_array(out := BytesIO(), array, version=version)
    return out.getvalue()


ONES = npy(np.ones(3, np.float32))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (zip_bytes([Entry("a.npy", ONES), Entry("a", ONES)]), "array 'a' appears twice"),
        (zip_bytes([Entry("a.npy", npy(np.ones(3, np.int32)))]), "holds '<i4' of shape"),
        (zip_bytes([Entry("a.npy", npy(np.asfortranarray(np.ones((3, 2), np.float32))))]), "which is not supported"),
        (zip_bytes([Entry("a.npy", npy(np.ones(3, np.float32), (2, 0)))]), "not an .npy file of version 1.0"),
        (zip_bytes([Entry("a.npy", ONES + b"x")]), "has 141 bytes, expected 140"),
        (zip_bytes([Entry("a.npy", b"x")]), "is damaged"),
        (zip_bytes([Entry("a.npy", ONES)])[:-2] + b"\1\0x", "zip files with a comment are not supported"),
        (zip_bytes([Entry("a.npy", ONES, nbytes=200)]), "the last zip entry overlaps the directory"),
        (b"PK", "the zip directory is damaged or truncated"),
        (b"", "not a readable .npz file"),
    ],
    ids=range(10),
)
def test_other_files_are_refused_with_the_problem(content: bytes, problem: str, tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"a\.npz: .*{problem}"):
        read_npz(tmp_path / "a.npz")
