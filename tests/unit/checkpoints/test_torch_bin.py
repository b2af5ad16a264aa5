"""The torch reader: both formats equal torch's arrays, damaged files raise `CheckpointError`, nothing is executed."""

from __future__ import annotations

import resource
import sys
import time
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from speculative_decoding.checkpoints.torch_bin import MAX_BYTES, read_torch
from speculative_decoding.errors import CheckpointError
from tests.support.checkpoint_files import (
    STORAGES,
    SYSTEM,
    TORCH_FORMATS,
    VERSION,
    VIEWS,
    Entry,
    View,
    container,
    pickle,
    raw_storages,
    state_dict,
    torch_bytes,
    torch_entries,
    torch_file,
    write_sparse_legacy,
    written,
    zip_bytes,
)


def expected(name: str) -> np.ndarray:
    """Return the view as numpy sees it, with the same strides over a copy of the storage."""
    seen = VIEWS[name]
    numbers = STORAGES[VIEWS[name].key]
    strides = tuple(stride * numbers.itemsize for stride in seen.strides)
    array = np.lib.stride_tricks.as_strided(numbers[seen.offset :], seen.shape, strides)
    return array.astype({"double": np.float32, "bool": np.bool_}.get(name, array.dtype))


def bits(array: mx.array) -> np.ndarray:
    return np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@pytest.mark.parametrize(("form", "name"), [*(("zip", name) for name in VIEWS), ("legacy", "corner")])
def test_all_dtypes_and_views_are_read(tmp_path: Path, form: str, name: str) -> None:
    checkpoint = read_torch(written(tmp_path / "model.bin", form))
    array = checkpoint[name]
    info = checkpoint.info(name)
    assert np.array_equal(bits(array), expected(name))
    assert array.shape == info.shape and array.size * info.dtype.size == info.nbytes
    assert array.dtype == (mx.float32 if info.dtype == mx.float64 else info.dtype)
    assert list(checkpoint) == list(VIEWS) and len(checkpoint) == len(VIEWS)


@pytest.mark.parametrize("nest", ["state_dict", "model"])
def test_a_state_dict_is_found_in_a_training_checkpoint(tmp_path: Path, nest: str) -> None:
    optimizer = {"state": {0: {"step": 3, "moment": VIEWS["half"]}}, "param_groups": [{"lr": 1, "betas": (1, 2)}]}
    path = written(tmp_path / "model.bin", "zip", {nest: state_dict(), "optimizer": optimizer, "epoch": 4})
    assert list(read_torch(path)) == list(VIEWS)


@pytest.mark.parametrize(
    "value",
    [
        [VIEWS["half"]],
        {"half": VIEWS["half"], "epoch": 3},
        {"model": {"half": VIEWS["half"]}, "state_dict": {}},
        {1: VIEWS["half"]},
    ],
)
def test_values_other_than_a_state_dict_are_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"model\.bin.*state dict"):
        read_torch(written(tmp_path / "model.bin", "zip", value))


def strided(shape: Any, strides: Any, offset: Any = 0, numel: Any = 24) -> View:
    return View("0", "FloatStorage", numel, shape, strides, offset)


@pytest.mark.parametrize(
    "bad",
    {
        "reaches past the end": strided((4, 6), (6, 1), 1),
        "offset past the end": strided((0,), (1,), 25),
        "offset below zero": strided((4,), (1,), -1),
        "size below zero": strided((-4,), (1,)),
        "stride below zero": strided((4,), (-1,), 23),
        "size overflows": strided((1 << 62,), (1,)),
        "stride overflows": strided((2,), (1 << 62,)),
        "expanded": strided((1 << 30,), (0,)),
        "overlapping rows": strided((4, 6), (3, 1)),
        "fewer strides": strided((4, 6), (1,)),
        "sizes are no integers": strided((True, 6), (6, 1)),
        "many dimensions": strided((1,) * 99, (1,) * 99),
        "storage of another size": strided((4,), (1,), numel=25),
        "storage of a huge size": strided((4,), (1,), numel=1 << 70),
        "storage below zero": strided((0,), (1,), numel=-1),
        "another type of storage": View("0", "HalfStorage", 24, (4,), (1,)),
        "missing storage": View("../0", "FloatStorage", 24, (4,), (1,)),
    }.items(),
    ids=lambda item: item[0],
)
def test_tensors_outside_their_storage_are_refused(tmp_path: Path, bad: tuple[str, View]) -> None:
    with pytest.raises(CheckpointError, match=r"model\.bin"):
        read_torch(written(tmp_path / "model.bin", "zip", state_dict(bad=bad[1])))


@pytest.mark.parametrize("form", TORCH_FORMATS)
def test_truncated_files_are_refused(tmp_path: Path, form: str) -> None:
    path = written(tmp_path / "model.bin", form)
    whole = path.read_bytes()
    for size in [*range(0, len(whole), 61), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=r"model\.bin"):
            read_torch(path)


def test_flipped_bits_are_detected_by_the_crc(tmp_path: Path) -> None:
    path = written(tmp_path / "model.bin", "zip")
    whole, nbytes = path.read_bytes(), STORAGES["0"].nbytes
    start = whole.find(STORAGES["0"].tobytes())
    for position in (start, start + nbytes // 2, start + nbytes - 1):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        checkpoint = read_torch(path)
        for name in [name for name, seen in VIEWS.items() if seen.key == "0"]:
            with pytest.raises(CheckpointError, match="CRC"):
                checkpoint[name]


def damaged(**changes: Any) -> Callable[[list[Entry]], list[Entry]]:
    """Change some fields of the zip entry of storage 0."""
    return lambda entries: [replace(e, **changes) if e.name.endswith("data/0") else e for e in entries]


ZIP_TRICKS: dict[str, Callable[[list[Entry]], list[Entry]]] = {
    "duplicate name": lambda entries: [*entries, entries[2]],
    "second data.pkl": lambda entries: [*entries, replace(entries[0], name="other/data.pkl")],
    "storage missing": lambda entries: [e for e in entries if not e.name.endswith("data/0")],
    "big-endian": lambda entries: [replace(e, data=b"big") if e.name.endswith("byteorder") else e for e in entries],
    "path traversal": lambda entries: [*entries, Entry("archive/../../evil", b"x")],
    "backslashes": lambda entries: [*entries, Entry("archive\\evil", b"x")],
    "zero byte in a name": lambda entries: [*entries, Entry("archive/data/0\0", b"x")],
    "wrong CRC of the pickle": lambda entries: [replace(entries[0], crc=1), *entries[1:]],
    "compressed": damaged(method=8),
    "encrypted": damaged(flags=1),
    "shorter than its storage": damaged(nbytes=4),
    "zip64 size without its field": damaged(nbytes=0xFFFFFFFF),
    "another local name": damaged(local_name="archive/data/9"),
    "overlaps another": damaged(header=0),
    "header in the directory": damaged(header=0x7FFFFFFF),
}


@pytest.mark.parametrize("trick", ZIP_TRICKS)
def test_malicious_zip_files_are_refused(tmp_path: Path, trick: str) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(zip_bytes(ZIP_TRICKS[trick](torch_entries(pickle(state_dict()), raw_storages()))))
    with pytest.raises(CheckpointError, match=r"model\.bin"):
        dict(read_torch(path))


KEYS = pickle(sorted(STORAGES))


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (pickle(VERSION), pickle(1002), "not a little-endian torch file"),
        (pickle(SYSTEM), pickle({"little_endian": False}), "not a little-endian torch file"),
        (pickle(SYSTEM), pickle(1), "not a little-endian torch file"),
        (KEYS, pickle({}), "no list of storages after the state dict"),
        (KEYS, pickle([0]), "a storage is listed twice or not used"),
        (KEYS, pickle(["x"]), "a storage is listed twice or not used"),
        (KEYS, pickle(["6"]), "extra bytes at the end|is damaged or truncated"),
    ],
    ids=range(7),
)
def test_damaged_legacy_files_are_refused_with_the_problem(
    old: bytes, new: bytes, problem: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "model.bin", "legacy")
    path.write_bytes(path.read_bytes().replace(old, new))
    with pytest.raises(CheckpointError, match=rf"model\.bin: .*{problem}"):
        read_torch(path)


def test_a_legacy_file_ends_after_its_storages_and_lists_each_once(tmp_path: Path) -> None:
    storages = {"0": (2, bytes(8))}
    value = {"a": View("0", "FloatStorage", 2, (2,), (1,))}
    whole = torch_bytes("legacy", pickle(value, legacy=True), storages)
    (path := tmp_path / "model.bin").write_bytes(whole + b"x")
    with pytest.raises(CheckpointError, match="1 extra bytes at the end"):
        read_torch(path)
    path.write_bytes(whole.replace(pickle(["0"]), pickle(["0", "0"])) + whole[-16:])
    with pytest.raises(CheckpointError, match="a storage is listed twice"):
        read_torch(path)


def test_a_large_pickle_in_a_zip_is_refused(tmp_path: Path) -> None:
    (path := tmp_path / "model.bin").write_bytes(container("zip", bytes(MAX_BYTES + 1)))
    with pytest.raises(CheckpointError, match=r"data\.pkl is too large"):
        read_torch(path)


@pytest.mark.parametrize("start", [b"", b"PK\3\4", b"version https://git-lfs"])
def test_other_file_formats_are_refused(tmp_path: Path, start: bytes) -> None:
    (path := tmp_path / "model.bin").write_bytes(start)
    with pytest.raises(CheckpointError, match=r"model\.bin"):
        read_torch(path)


def test_torchs_tar_format_is_named(tmp_path: Path) -> None:
    (path := tmp_path / "model.bin").write_bytes(b"storages".ljust(257, b"\0") + b"ustar".ljust(255, b"\0"))
    with pytest.raises(CheckpointError, match="tar"):
        read_torch(path)


def test_a_missing_file_raises_a_checkpoint_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"none\.bin"):
        read_torch(tmp_path / "none.bin")


@pytest.mark.parametrize("form", TORCH_FORMATS)
def test_large_models_equal_their_arrays(tmp_path: Path, form: str) -> None:
    """1,100 tensors need long memo opcodes and more than one batch of items."""
    rng = np.random.default_rng(0)
    arrays = {f"block.{i}.weight": rng.standard_normal((3, i + 1)).astype(np.float32) for i in range(1100)}
    (path := tmp_path / "model.bin").write_bytes(torch_file(form, arrays))
    checkpoint = read_torch(path)
    assert list(checkpoint) == list(arrays)
    assert all(np.array_equal(np.array(checkpoint[name]), array) for name, array in arrays.items())


def test_a_sparse_file_of_45_gigabytes_opens_within_bounds(tmp_path: Path) -> None:
    """As large as T5-11B. Only the requested tensor may be read."""
    path = tmp_path / "model.bin"
    shapes = {"norm": (1024,), **{str(number): (65536, 1024) for number in range(169)}}
    assert write_sparse_legacy(path, shapes) > 45e9
    before = peak_bytes()
    started = time.process_time()
    checkpoint = read_torch(path)
    assert {name: checkpoint.info(name).shape for name in checkpoint} == shapes
    assert time.process_time() - started < 2
    assert not checkpoint["norm"].any()
    assert peak_bytes() - before < 100 << 20


def torch_tensors(torch: Any) -> OrderedDict[str, Any]:
    """Make the example's views with torch."""
    storages = {key: torch.tensor(numbers) for key, numbers in STORAGES.items()}
    storages["2"] = storages["2"].view(torch.bfloat16)
    storages["5"] = storages["5"].bool()
    tensors = OrderedDict((name, storages[v.key].as_strided(v.shape, v.strides, v.offset)) for name, v in VIEWS.items())
    tensors["half"] = torch.nn.Parameter(tensors["half"])
    tensors._metadata = OrderedDict({"": {"version": 1}})  # type: ignore[attr-defined]
    return tensors


@pytest.mark.parametrize("form", TORCH_FORMATS)
def test_torch_reads_our_test_files_and_we_read_torchs_files(tmp_path: Path, form: str) -> None:
    torch = pytest.importorskip("torch")
    tensors = torch_tensors(torch)
    loaded = torch.load(written(tmp_path / "ours.bin", form), weights_only=True)
    assert list(loaded) == list(tensors)
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype and loaded[name].stride() == tensor.stride()
        assert torch.equal(loaded[name], tensor)
    torch.save(tensors, tmp_path / "torch.bin", _use_new_zipfile_serialization=form == "zip")
    theirs = read_torch(tmp_path / "torch.bin")
    assert list(theirs) == list(VIEWS)
    assert all(np.array_equal(bits(array), expected(name)) for name, array in theirs.items())


def test_our_test_pickle_equals_torchs(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save(torch_tensors(torch), tmp_path / "archive.pt")
    with zipfile.ZipFile(tmp_path / "archive.pt") as archive:
        assert archive.read("archive/data.pkl") == pickle(state_dict())
