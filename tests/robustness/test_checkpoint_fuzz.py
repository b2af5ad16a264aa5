"""Damaged and malicious checkpoints raise `CheckpointError` within bounded time and memory, and execute nothing."""

from __future__ import annotations

import copyreg
import json
import math
import pickle as python_pickle
import resource
import struct
import subprocess
import sys
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
    VIEWS,
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


def test_fuzzing_detects_output_of_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.CompletedProcess([], 0, stdout="tokenizer: 1 file", stderr="thread panicked")
    monkeypatch.setattr(subprocess, "run", lambda *command, **options: done)
    line, good = fuzz_in_subprocess("tokenizer", count=1)
    assert not good and "thread panicked" in line


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


LONG = 1 << 22
MANY_ZEROS = b"(" + b"K\x00" * 80_000
MALICIOUS_OPCODES = {
    "recursive list": b"]q\x00h\x00a",
    "recursive dict": b"}q\x00X\x01\x00\x00\x00ah\x00s",
    "recursive tuple": b"]q\x00(h\x00h\x00h\x00h\x00tq\x01a",
    "list of lists that doubles": b"]q\x00" + b"(h\x00h\x00h\x00h\x00tq\x00" * 30,
    "deep tuples": b")" + b"\x85" * 200_000,
    "deep marks": b"(" * 200_000,
    "long shape, used often": MANY_ZEROS + b"tq\x01" + b"ctorch._utils\n_rebuild_tensor_v2\nq\x02"
    + b"h\x02(NK\x00h\x01h\x01\x89}tR" * 20_000,
    "long persistent id, used often": b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu")
    + MANY_ZEROS[1:] + b"tq\x01" + b"h\x01Q" * 50_000,
    "large metadata, used often": b"}(" + b"".join(b"M%bN" % struct.pack("<H", i) for i in range(40_000))
    + b"uq\x01" + b"}h\x01b" * 40_000,
    "many opcodes": b"N" * LONG,
    "huge string": b"X\xff\xff\xff\xff" + b"a" * LONG,
    "huge string, cut": b"X\xff\xff\xff\x7fab",
    "huge integer": b"\x8a\xff" + b"\xff" * 255,
    "huge integer, LONG4": b"\x8b\xff\xff\xff\x7f" + b"\xff" * 99,
    "huge memo": b"Nr\xff\xff\xff\xff",
    "memo that is empty": b"hA",
    "integer keys that collide": b"}(" + b"".join(b"\x8a\x08%bN" % struct.pack("<q", i << 40) for i in range(9)) + b"u",
    "endless name": b"c" + b"a" * LONG,
    "protocol 4": b"\x80\x04N",
    "stack underflow": b"R",
    "dict of odd length": b"}(Nu",
    "not UTF-8": b"X\x01\x00\x00\x00\xff",
    "storage view": b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + b"K\x18(" + text("1")
    + b"K\x00K\x02ttQ",
    "persistent id of a module": b"X\x06\x00\x00\x00module\x85Q",
}  # fmt: skip


@pytest.mark.parametrize("name", MALICIOUS_OPCODES)
@pytest.mark.parametrize("form", TORCH_FORMATS)
def test_malicious_pickles_fail_within_bounds(tmp_path: Path, form: str, name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    path = written(tmp_path / "model.bin", form, {"bad": Opcodes(MALICIOUS_OPCODES[name]), **VIEWS})
    with pytest.raises(CheckpointError, match=r"model\.bin"):
        read_torch(path)
    assert time.process_time() - started < 2
    unit = 1 if sys.platform == "darwin" else 1024
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * unit < 256 << 20


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


def test_errors_name_the_global_and_the_opcode(tmp_path: Path) -> None:
    for payload, named in (("REDUCE posix", "posix system"), ("NEWOBJ", "builtins tuple"), ("EXT1", "EXT1")):
        with pytest.raises(CheckpointError, match=named):
            read_torch(written(tmp_path / "model.bin", "zip", Opcodes(PAYLOADS[payload])))


@pytest.mark.parametrize("name", ["_rebuild_tensor_v2.__globals__", "_rebuild_tensor", "_rebuild_parameter_with_state"])
def test_names_similar_to_allowed_globals_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match="not allowed"):
        read_torch(written(tmp_path / "model.bin", "zip", {"bad": Named("torch._utils", name)}))
