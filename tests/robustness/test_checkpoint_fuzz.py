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
    Entry,
    Opcodes,
    container,
    pickle,
    state_dict,
    zip_bytes,
)
from tools.fuzz_files import FORMATS, failure, fuzz_in_subprocess, write_damaged

TOKENIZERS, FOLDERS = ("tokenizer", "spiece"), ("config", "head", "vocabulary")
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

    files = [tuple(damaged(index, 0)) for index in range(20)]
    assert files == [tuple(damaged(index, 1)) for index in range(20)]
    assert len(set(files)) > 15


def test_fuzzing_detects_other_errors_and_slow_readers() -> None:
    def refuse(error: type[Exception]) -> None:
        raise error("planted")

    assert failure(lambda: refuse(CheckpointError)) is None
    assert "planted" in (failure(lambda: refuse(MemoryError)) or "")
    assert "TooSlow" in (failure(lambda: time.sleep(9), seconds=0.01) or "")


@pytest.mark.parametrize("shape", [(0, 1 << 31), (1,) * 17, (1,) * 65])
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
SYSTEM = b"cos\nsystem\n"
PAYLOADS = {
    "REDUCE": SYSTEM + TOUCH + b"\x85R",
    "__reduce__": python_pickle.dumps(EvalOnUnpickling(), protocol=2)[2:-1],
    "INST": b"(" + TOUCH + b"ios\nsystem\n",
    "OBJ": b"(" + SYSTEM + TOUCH + b"o",
    "NEWOBJ": b"cbuiltins\ntuple\ncbuiltins\nmap\n" + SYSTEM + b"]" + TOUCH + b"a\x86\x81\x85\x81",
    "STACK_GLOBAL": text("os") + text("system") + b"\x93" + TOUCH + b"\x85R",
    "EXT1": b"\x82\xf0" + TOUCH + b"\x85R",
}
CASES = [("zip", "value", name) for name in PAYLOADS]
CASES += [("zip", "whole", "REDUCE")] + [("legacy", place, "REDUCE") for place in ("value", "whole", "magic", "keys")]


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


@pytest.fixture
def hostile(form: str, place: str, payload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that touches a file named canary in the current folder when it is unpickled."""
    monkeypatch.chdir(tmp_path)
    (path := tmp_path / "model.bin").write_bytes(with_payload(form, place, PAYLOADS[payload]))
    return path


@pytest.mark.parametrize(("form", "place", "payload"), CASES)
def test_payloads_are_refused_without_running(hostile: Path) -> None:
    with pytest.raises(CheckpointError, match=r"model\.bin"):
        dict(read_torch(hostile))
    assert not Path("canary").exists()


@pytest.mark.parametrize(("form", "place", "payload"), CASES)
def test_torch_would_run_the_payloads(hostile: Path) -> None:
    torch = pytest.importorskip("torch")
    copyreg.add_extension("posix", "system", 0xF0)  # for the EXT opcode
    try:
        torch.load(hostile, weights_only=False)
    except Exception:
        pass  # torch fails after running the payload
    finally:
        copyreg.remove_extension("posix", "system", 0xF0)
    assert Path("canary").exists()
