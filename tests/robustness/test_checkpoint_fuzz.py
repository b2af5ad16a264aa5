"""Damaged and malicious checkpoints raise `CheckpointError` within bounded time and memory, and execute nothing."""

from __future__ import annotations

import copyreg
import json
import math
import pickle as python_pickle
import struct
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speculative_decoding.checkpoints.npz import read_npz
from speculative_decoding.checkpoints.safetensors import read_safetensors
from speculative_decoding.checkpoints.torch_bin import read_torch
from speculative_decoding.errors import CheckpointError
from tests.support.checkpoint_files import (
    STORAGES,
    TORCH_FORMATS,
    Entry,
    Named,
    Opcodes,
    container,
    pickle,
    state_dict,
    written,
    zip_bytes,
)
from tools.fuzz_files import FORMATS, failure, fuzz_in_subprocess, write_damaged

TOKENIZERS, FOLDERS = ("tokenizer", "spiece"), ("config", "head")
FILES = tuple(name for name in FORMATS if name not in (*TOKENIZERS, *FOLDERS))


@pytest.mark.parametrize(("names", "count"), [((*FILES, *TOKENIZERS), 300), (FOLDERS, 50)])
@pytest.mark.slow
def test_damaged_files_are_read_or_refused(names: tuple[str, ...], count: int) -> None:
    """Each process tests several formats, because most of its time are imports."""
    lines, good = fuzz_in_subprocess(*names, count=count, seed=1)
    assert good and lines.count(" files, seed 1: ") == len(names), lines


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "config"])
def test_damage_is_reproducible_and_varied(name: str, tmp_path: Path) -> None:
    def damaged(index: int, run: int) -> list[bytes]:
        path = tmp_path / f"{index}.{run}"
        write_damaged(name, 0, index, path)
        return [each.read_bytes() for each in sorted(path.iterdir())] if path.is_dir() else [path.read_bytes()]

    files = [tuple(damaged(index, 0)) for index in range(50)]
    assert files == [tuple(damaged(index, 1)) for index in range(50)]
    assert len(set(files)) > 40


@pytest.mark.parametrize("fault", [KeyError("planted"), MemoryError("planted"), RecursionError("planted")])
def test_fuzzing_detects_other_errors(fault: Exception) -> None:
    def act() -> None:
        raise fault

    assert "planted" in (failure(act) or "")


def test_fuzzing_detects_slow_readers_and_accepts_checkpoint_errors() -> None:
    def refuse() -> None:
        raise CheckpointError("damaged")

    assert "TooSlow" in (failure(lambda: time.sleep(9), seconds=0.01) or "")
    assert failure(refuse) is None


@pytest.mark.parametrize("shape", [(0, 1 << 31), (0, 1 << 40), (1,) * 17, (1,) * 65])
def test_impossible_shapes_are_refused_on_opening(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """The file sizes match these shapes, so the packages accept the headers, but no array can have such a shape."""
    nbytes = 4 * math.prod(shape)
    header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, nbytes]}}).encode()
    (path := tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(nbytes))
    with pytest.raises(CheckpointError, match="shape"):
        read_safetensors(path)
    np.lib.format.write_array_header_1_0(out := BytesIO(), {"descr": "<f4", "fortran_order": False, "shape": shape})
    (path := tmp_path / "a.npz").write_bytes(zip_bytes([Entry("a.npy", out.getvalue() + bytes(nbytes))]))
    with pytest.raises(CheckpointError, match="supported"):
        read_npz(path)


def text(value: str) -> bytes:
    """Return the opcode that pushes a string."""
    return b"X" + struct.pack("<I", len(value)) + value.encode()


class EvalOnUnpickling:
    """An object that Python pickles as a call of eval."""

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, ("__import__('os').system('touch canary')",)


TOUCH = text("touch canary")
PAYLOADS = {
    "REDUCE os": b"cos\nsystem\n" + TOUCH + b"\x85R",
    "REDUCE posix": b"cposix\nsystem\n" + TOUCH + b"\x85R",
    "REDUCE eval": b"cbuiltins\neval\n" + text("__import__('os').system('touch canary')") + b"\x85R",
    "REDUCE eval, Python 2": b"c__builtin__\neval\n" + text("__import__('os').system('touch canary')") + b"\x85R",
    "__reduce__": python_pickle.dumps(EvalOnUnpickling(), protocol=2)[2:-1],
    "INST": b"(" + TOUCH + b"ios\nsystem\n",
    "OBJ": b"(cos\nsystem\n" + TOUCH + b"o",
    "NEWOBJ": b"cbuiltins\ntuple\ncbuiltins\nmap\ncos\nsystem\n]" + TOUCH + b"a\x86\x81\x85\x81",
    "STACK_GLOBAL": text("os") + text("system") + b"\x93" + TOUCH + b"\x85R",
    "EXT1": b"\x82\xf0" + TOUCH + b"\x85R",
    "EXT2": b"\x83\xf0\x00" + TOUCH + b"\x85R",
    "EXT4": b"\x84\xf0\x00\x00\x00" + TOUCH + b"\x85R",
}
CASES = [(form, place) for form in TORCH_FORMATS for place in ("value", "whole")] + [
    ("legacy", "magic"),
    ("legacy", "keys"),
]


def with_payload(form: str, place: str, payload: bytes) -> bytes:
    """Return a checkpoint with the payload inside, instead of, before or after the state dict."""
    saved = pickle(Opcodes(payload))
    if place == "value":
        return container(form, pickle(state_dict(bad=Opcodes(payload)), form == "legacy"))
    if place == "whole":
        return container(form, saved)
    whole = container("legacy", pickle(state_dict(), True))
    keys = pickle(sorted(STORAGES))
    return saved + whole if place == "magic" else whole.replace(keys, saved)


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize(("form", "place"), CASES)
def test_payloads_are_refused_without_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, place: str, payload: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.bin"
    path.write_bytes(with_payload(form, place, PAYLOADS[payload]))
    with pytest.raises(CheckpointError, match=r"model\.bin"):
        dict(read_torch(path))
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize(("form", "place"), CASES)
def test_torch_would_run_the_payloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, place: str, payload: str
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (path := tmp_path / "model.bin").write_bytes(with_payload(form, place, PAYLOADS[payload]))
    copyreg.add_extension("posix", "system", 0xF0)  # for the EXT opcodes
    try:
        torch.load(path, weights_only=False)
    except Exception:
        pass  # torch fails after running the payload
    finally:
        copyreg.remove_extension("posix", "system", 0xF0)
    assert (tmp_path / "canary").exists()


@pytest.mark.parametrize("name", ["_rebuild_tensor_v2.__globals__", "_rebuild_tensor", "_rebuild_parameter_with_state"])
def test_names_similar_to_allowed_globals_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match="not allowed"):
        read_torch(written(tmp_path / "model.bin", "zip", {"bad": Named("torch._utils", name)}))
