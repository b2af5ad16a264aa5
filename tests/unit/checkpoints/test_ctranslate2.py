"""CTranslate2's model.bin and vocabularies. tests/parity/test_ctranslate2.py compares with CTranslate2 itself."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from speculative_decoding import CheckpointError, checkpoints
from speculative_decoding.checkpoints import ctranslate2
from speculative_decoding.checkpoints.ctranslate2 import (
    CTranslate2Checkpoint,
    Rows,
    Tensor,
    read_header,
)
from speculative_decoding.checkpoints.ctranslate2_layout import read_ctranslate2
from speculative_decoding.checkpoints.ctranslate2_vocabulary import find_vocabulary, read_vocabulary
from tests.support.ctranslate2_cases import CASES, variables, write
from tests.support.ctranslate2_files import BFLOAT16, bfloat16, model_bytes, random_array

ARRAY = random_array(1, "weight", (6, 4))


def opened(path: Path, values: dict[str, Any], parts: list[Rows], shape: tuple[int, ...], **form: Any) -> Any:
    path.write_bytes(model_bytes("TransformerSpec", 7, values, **form))
    return CTranslate2Checkpoint(read_header(path), {"t": Tensor(tuple(parts), shape)})


def test_attributes_of_all_types(tmp_path: Path) -> None:
    values = {
        "float32": np.float32(0.5), "float16": np.float16(-2.5), "bfloat16": bfloat16(np.float32(1.5)).reshape(()),
        "int8": np.int8(-3), "int16": np.int16(-300), "int32": np.int32(1 << 30), "text": "été", "flag": True,
    }  # fmt: skip
    (path := tmp_path / "model.bin").write_bytes(model_bytes("TransformerSpec", 7, values))
    assert read_header(path).attributes == values | {"bfloat16": 1.5, "flag": 1}


def test_parts_are_joined_in_order(tmp_path: Path) -> None:
    parts = [Rows("a", 4, 6), Rows(None, 0, 2), Rows("a", 0, 3)]
    found = opened(tmp_path / "model.bin", {"a": ARRAY}, parts, (7, 4))["t"]
    assert np.array_equal(np.array(found), np.concatenate([ARRAY[4:6], np.zeros((2, 4)), ARRAY[:3]]))


@pytest.mark.parametrize("dtype", ["float16", BFLOAT16])
def test_weights_in_16_bits_keep_their_bits(tmp_path: Path, dtype: str) -> None:
    bits = bfloat16(ARRAY) if dtype == BFLOAT16 else ARRAY.astype(np.float16)
    found = opened(tmp_path / "model.bin", {"a": bits}, [Rows("a", 1, 6)], (5, 4))["t"]
    assert found.dtype == (mx.bfloat16 if dtype == BFLOAT16 else mx.float16)
    assert np.array_equal(np.array(found.view(mx.uint16)), bits[1:].view(np.uint16))


def test_quantized_rows_in_chunks_equal_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = np.arange(-12, 12, dtype=np.int8).reshape(6, 4)
    scales = np.array([1, 2, 3, 4, 5, 7], np.float32)
    values = {"a": numbers, "a_scale": scales}
    found = []
    for chunk in (4, 9, 1 << 22):
        monkeypatch.setattr(ctranslate2, "CHUNK_ELEMENTS", chunk)
        found.append(np.array(opened(tmp_path / "model.bin", values, [Rows("a", 1, 6)], (5, 4))["t"]))
    assert all(np.array_equal(each, found[0]) for each in found)
    assert np.allclose(found[0], numbers[1:] / scales[1:, None], rtol=1e-6)


def test_weights_in_int16_without_a_scale_have_ctranslate2s(tmp_path: Path) -> None:
    numbers = np.arange(24, dtype=np.int16).reshape(6, 4)
    found = opened(tmp_path / "model.bin", {"a": numbers}, [Rows("a", 0, 6)], (6, 4))["t"]
    assert np.allclose(np.array(found), numbers / 1000, rtol=1e-6)


@pytest.mark.parametrize("scale", [0.0, np.nan, np.inf])
def test_strange_scales_give_no_warning(tmp_path: Path, scale: float) -> None:
    """The outputs of such a model are not finite, which decoding reports."""
    values = {"a": np.ones((6, 4), np.int8), "a_scale": np.full(6, scale, np.float32)}
    found = np.array(opened(tmp_path / "model.bin", values, [Rows("a", 0, 6)], (6, 4))["t"])
    assert np.isfinite(found).all() == (scale == np.inf)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"a": np.ones((6, 4), np.int8)}, "'a' in int8 has no fitting scales"),
        ({"a": np.ones((6, 4), np.int8), "a_scale": np.ones(5, np.float32)}, "'a' in int8 has no fitting scales"),
        ({"a": np.ones((6, 4), np.int8), "a_scale": np.ones(6, np.float16)}, "'a' in int8 has no fitting scales"),
        ({"a": np.ones((6, 4), np.int16), "a_scale": "text"}, "'a' in int16 has no fitting scales"),
        ({"a": np.ones(5000, np.int8)}, "'a' in int8 has no fitting scales"),
        ({"a": np.ones((1, 1, 1, 1, 1), np.float32)}, r"variable 'a' has 5 dimensions \(at most 4\)"),
    ],
)
def test_wrong_variables_are_named(tmp_path: Path, values: dict[str, Any], problem: str) -> None:
    (path := tmp_path / "model.bin").write_bytes(model_bytes("TransformerSpec", 7, values))
    with pytest.raises(CheckpointError, match=problem):
        read_header(path)


@pytest.mark.parametrize("nbytes", [92, 100])
def test_the_announced_size_must_be_that_of_the_shape(tmp_path: Path, nbytes: int) -> None:
    data = model_bytes("TransformerSpec", 7, {"a": ARRAY})
    size = struct.pack("<I", 96)
    assert data.count(size) == 1
    (path := tmp_path / "model.bin").write_bytes(data.replace(size, struct.pack("<I", nbytes)))
    with pytest.raises(CheckpointError, match=rf"variable 'a' of shape \(6, 4\) has {nbytes} bytes \(expected 96\)"):
        read_header(path)


def test_aliases_of_aliases_and_of_scales(tmp_path: Path) -> None:
    values = {"a": np.ones((6, 4), np.int8), "a_scale": np.ones(6, np.float32), "n": np.int8(3)}
    (path := tmp_path / "model.bin").write_bytes(
        model_bytes("TransformerSpec", 7, values, [("b", "a"), ("c", "b"), ("m", "n"), ("n", "a")])
    )
    header = read_header(path)
    for name in ("b", "c"):
        assert header.variables[name] == header.variables["a"]
        assert header.variables[f"{name}_scale"] == header.variables["a_scale"]
    assert header.attributes["m"] == 3
    path.write_bytes(model_bytes("TransformerSpec", 7, values, [("b", "missing")]))
    with pytest.raises(CheckpointError, match="'b' is an alias of 'missing', which is missing"):
        read_header(path)


def test_a_variable_of_each_name_is_unique(tmp_path: Path) -> None:
    data = model_bytes("TransformerSpec", 7, {"a": ARRAY, "b": ARRAY})
    (path := tmp_path / "model.bin").write_bytes(data.replace(b"\x02\x00b\x00", b"\x02\x00a\x00"))
    with pytest.raises(CheckpointError, match="variable 'a' appears twice"):
        read_header(path)


@pytest.mark.parametrize("name", ["pre-norm", "int8", "T5"])
def test_truncated_files_are_refused(tmp_path: Path, name: str) -> None:
    path = write(name, tmp_path) / "model.bin"
    data = path.read_bytes()
    for size in (*range(0, 200, 3), *range(200, len(data), len(data) // 50), len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(CheckpointError):
            read_ctranslate2(path)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
@pytest.mark.parametrize("name", ["model.bin", "shared_vocabulary.json", "config.json"])
def test_pipes_and_folders_in_place_of_files_are_refused(tmp_path: Path, name: str, make: Any) -> None:
    folder = write("pre-norm", tmp_path)
    (folder / name).unlink()
    make(folder / name)
    with pytest.raises(CheckpointError):
        checkpoints.read_config(folder)
        checkpoints.read(folder)


def test_a_missing_first_layer_is_reported(tmp_path: Path) -> None:
    changes = {name: None for name in variables("pre-norm") if name.startswith("decoder/layer_0/")}
    folder = write("pre-norm", tmp_path, changes)
    with pytest.raises(CheckpointError, match="'decoder/layer_0/ffn/linear_0/weight' is missing"):
        checkpoints.read(folder)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.txt", b"a\nb \r\n\nc", ["a", "b \r", "", "c", "<unk>"]),
        ("a.txt", b"a\r\n<unk>\r\n", ["a", "<unk>"]),
        ("a.txt", "a\u2028b\n\x0c\n".encode(), ["a\u2028b", "\x0c", "<unk>"]),
        ("a.json", b'["a", "\\n", "<unk>"]', ["a", "\n", "<unk>"]),
    ],
)
def test_vocabularies(tmp_path: Path, name: str, content: bytes, expected: list[str]) -> None:
    (path := tmp_path / name).write_bytes(content)
    assert read_vocabulary(path, "<unk>") == expected


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.json", b"{}"), ("a.json", b'["a", 1]'), ("a.json", b"[]"), ("a.txt", b""), ("a.txt", b"\xff"),
     ("a.txt", b"x" * 5000), ("a.json", b"[" * 100_000)],
)  # fmt: skip
def test_wrong_vocabularies_are_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (path := tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match="not a readable vocabulary"):
        read_vocabulary(path, "<unk>")


def test_the_folder_of_an_argos_package_has_its_model_inside(tmp_path: Path) -> None:
    write("pre-norm", tmp_path / "model")
    assert find_vocabulary(tmp_path) == tmp_path / "model" / "shared_vocabulary.json"
    assert checkpoints.read_config(tmp_path)["vocab_size"] == len(CASES["pre-norm"]["tokens"])
    assert "lm_head.weight" in checkpoints.read(tmp_path)


def test_metadata_of_other_programs_makes_no_package(tmp_path: Path) -> None:
    write("pre-norm", tmp_path / "model")
    expected = checkpoints.read_config(tmp_path / "model")
    (tmp_path / "metadata.json").write_text('{"name": "experiment", "type": "run"}')
    assert checkpoints.read_config(tmp_path / "model") == expected
    (tmp_path / "metadata.json").write_text('{"from_code": "en", "to_code": "de"}')
    assert checkpoints.read_config(tmp_path / "model")["replace_unknowns"]
