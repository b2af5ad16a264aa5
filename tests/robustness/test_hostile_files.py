"""Hostile files are refused within 0.1 s of processor time and 50 MB of memory, measured in a fresh process.

They announce sizes that they do not have, or nest values so deeply, or share them so often, that traversing, comparing,
hashing, printing or freeing them would take exponential time or overflow the stack.
"""

from __future__ import annotations

import json
import os
import pickletools
import resource
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from speculative_decoding import checkpoints
from speculative_decoding.checkpoints.json_text import parse_json_object
from speculative_decoding.errors import InputError
from speculative_decoding.loading import manifest
from speculative_decoding.loading.adapter import Adapter
from speculative_decoding.loading.tokenizer import load_tokenizer
from tests.support.checkpoint_files import (
    MAGIC,
    STORAGES,
    SYSTEM,
    VERSION,
    Entry,
    Opcodes,
    container,
    pickle,
    state_dict,
    zip_bytes,
)
from tests.support.ctranslate2_cases import CASES, variables
from tests.support.ctranslate2_files import model_bytes
from tests.support.paths import ROOT
from tests.support.tiny import TOKENIZER

SECONDS, SECONDS_FOR_MANY_OPCODES = 0.1, 1.0
BYTES = 50 << 20
HUGE = (1 << 28) + 255  # its first byte is 255, for sizes of one byte
DEPTH = 200_000
LONG = 1 << 20

TEN_BYTES = "a pickle of ten bytes"
ANNOUNCED = {each.name: each.code.encode("latin-1") + struct.pack("<Q", HUGE) + b"\n" for each in pickletools.opcodes}
FLAT = b")q\x00"
TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n"


def text(value: str) -> bytes:
    """Return the opcode that pushes a string."""
    return b"X" + struct.pack("<I", len(value)) + value.encode()


STORAGE = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + b"K\x18"
NESTED = {
    "a deep tuple": b")" + b"\x85" * DEPTH,
    "tuples that double": FLAT + b"h\x00h\x00\x86q\x00" * 60,
    "tuples that double by DUP": b")" + b"2\x86" * 60,
    "wide tuples that double": FLAT + b"(h\x00h\x00h\x00h\x00tq\x00" * 60,
    "lists that double": b"]q\x00" + b"](h\x00h\x00eq\x00" * 60,
    "dicts that double": b"}q\x00" + b"}(K\x00h\x00K\x01h\x00uq\x00" * 60,
    "a list in itself": b"]q\x00h\x00a",
    "a dict in itself": b"}q\x00K\x00h\x00s",
    "a tuple in itself": b"]q\x00(h\x00h\x00h\x00h\x00tq\x01a",
    "a frozen set": b"(" + FLAT + b"\x91",
}
PLACES: dict[str, Callable[[bytes], bytes]] = {
    "value": lambda nested: nested,
    "key": lambda nested: b"}" + nested + b"Ns",
    "key of many": lambda nested: b"}(" + nested + b"NK\x00Nu",
    "argument": lambda nested: b"ccollections\nOrderedDict\n" + nested + b"\x85R",
    "arguments": lambda nested: b"ccollections\nOrderedDict\n" + nested + b"R",
    "function": lambda nested: nested + b")R",
    "persistent id": lambda nested: nested + b"Q",
    "part of a persistent id": lambda nested: STORAGE + nested + b"tQ",
    "key of a storage": lambda nested: STORAGE.replace(text("0"), nested) + b"tQ",
    "storage": lambda nested: TENSOR + b"(" + nested + b"K\x00))\x89}tR",
    "shape": lambda nested: TENSOR + b"(" + STORAGE + b"tQK\x00" + nested + b")\x89}tR",
    "strides": lambda nested: TENSOR + b"(" + STORAGE + b"tQK\x00)" + nested + b"\x89}tR",
    "hooks": lambda nested: TENSOR + b"(" + STORAGE + b"tQK\x00))\x89" + nested + b"tR",
    "state": lambda nested: b"}" + nested + b"b",
    "metadata": lambda nested: b"}q\x09}" + text("_metadata") + nested + b"sb" + text("bad") + b"Ns",
}  # fmt: skip
MANY_ZEROS = b"(" + b"K\x00" * 80_000
MANY_OPCODES = {
    "a long shape, used often": MANY_ZEROS + b"tq\x01" + TENSOR + b"q\x02" + b"h\x02(NK\x00h\x01h\x01\x89}tR" * 20_000,
    "a long persistent id, used often": STORAGE[:-2] + MANY_ZEROS[1:] + b"tq\x01" + b"h\x01Q" * 50_000,
    "large metadata, used often": b"}(" + b"".join(b"M%bN" % struct.pack("<H", i) for i in range(40_000))
    + b"uq\x01" + b"}h\x01b" * 40_000,
    "a long tuple in long tuples": MANY_ZEROS + b"tq\x01(" + b"h\x01" * 80_000 + b"tq\x02h\x01h\x02\x86",
    "deep lists": b"]" * 100_000 + b"a" * 99_999,
    "deep dicts": b"}K\x00" * 80_000 + b"N" + b"s" * 80_000,
    "many opcodes": b"N" * LONG,
}  # fmt: skip
OPCODES = {
    "deep marks": b"(" * DEPTH,
    "a huge string": b"X\xff\xff\xff\xff" + b"a" * LONG,
    "a string with a wide character": b"X\x04\x00\xc0\x00" + b"a" * (12 << 20) + "\U0001f389".encode(),
    "an endless name": b"c" + b"a" * LONG,
    "an integer of 255 bytes": b"\x8a\xff" + b"\xff" * 255,
    "a long integer": b"\x8b" + struct.pack("<i", LONG) + b"\x7f" * LONG,
    "a long decimal": b"L" + b"9" * LONG + b"L\n",
    "integer keys that collide": b"}(" + b"".join(b"\x8a\x08%bN" % struct.pack("<q", i << 40) for i in range(9)) + b"u",
    "a view of a storage": STORAGE + b"(" + text("1") + b"K\x00K\x02ttQ",
}  # fmt: skip


PICKLES = (pickle(MAGIC), pickle(VERSION), pickle(SYSTEM), pickle(state_dict(), True), pickle(sorted(STORAGES)))


def in_legacy_files(hostile: bytes) -> Iterator[bytes]:
    """Yield legacy files, one of whose five pickles continues with hostile opcodes."""
    for place, whole in enumerate(PICKLES):
        yield b"".join([*PICKLES[:place], whole[:-1], hostile])


class Case(NamedTuple):
    """The files of a folder, and the function in `READERS` that reads them. A test checks all cases of a group."""

    group: str
    name: str
    reader: str
    files: Mapping[str, bytes]


def torch_files() -> Iterator[tuple[str, str, bytes]]:
    for opcode, raw in ANNOUNCED.items():
        yield TEN_BYTES, f"{opcode} in a zip", container("zip", b"\x80\x02" + raw[:8])
        for place, content in enumerate(in_legacy_files(raw)):
            yield TEN_BYTES, f"{opcode} in pickle {place} of a legacy file", content
    for group, nested in NESTED.items():
        for place, put in PLACES.items():
            yield group, f"as {place}", container("zip", pickle({"bad": Opcodes(put(nested))}))
    for group, raw in (MANY_OPCODES | OPCODES).items():
        yield group, "in a zip", container("zip", pickle({"bad": Opcodes(raw)}))


def deep(opening: str, closing: str = "", depth: int = DEPTH) -> str:
    return opening * depth + "1" + closing * depth


DEEP = {
    "deep lists": f'{{"a": {deep("[", "]")}}}',
    "deep lists, cut": deep("["),
    "deep objects": deep('{"a":', "}"),
    "lists of 40 levels": f'{{"a": {deep("[", "]", 40)}}}',
    "a long integer": f'{{"a": {"1" * 1_000_000}}}',
    "a list of lists": deep("[", "]", 20),
}


def npy(header: str, announced: int | None = None) -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) if announced is None else announced) + header.encode()


NPY = {
    "nested": "(" * 1000 + ")" * 1000,
    "a nested key": f"{{{'(' * 90}{',)' * 90}: 1}}",
    "nested lists": "[" * 1900 + "]" * 1900,
    "a nested type": f"{{'descr': {'[(' * 40}'a', '<f4'{')]' * 40}, 'fortran_order': False, 'shape': (1,)}}",
    "a huge type": "{'descr': '|V268435456', 'fortran_order': False, 'shape': (268435456,)}",
    "a huge shape": f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({'9' * 1800}, {'9' * 1800})}}",
    "a power": "{'descr': '<f4', 'fortran_order': False, 'shape': (9**9**9,)}",
    "minus signs": "-" * 3900 + "1",
}


def safetensors(header: bytes, announced: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if announced is None else announced) + header


def gguf(num_tensors: int, num_fields: int, rest: bytes) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, num_tensors, num_fields) + rest


T5 = struct.pack("<Q20sIQ2s", 20, b"general.architecture", 8, 2, b"t5")
GGUF = {
    "tensors": gguf(HUGE, 0, b""),
    "fields": gguf(0, HUGE, b""),
    "a name": gguf(0, 1, struct.pack("<Q", HUGE)),
    "a text": gguf(0, 1, struct.pack("<Q1sIQ", 1, b"a", 8, HUGE)),
    "numbers": gguf(0, 1, struct.pack("<Q1sIIQ", 1, b"a", 9, 12, HUGE)),
    "texts": gguf(0, 1, struct.pack("<Q1sIIQ", 1, b"a", 9, 8, HUGE)),
    "a text in an array": gguf(0, 1, struct.pack("<Q1sIIQQ", 1, b"a", 9, 8, 1, HUGE)),
    "arrays in arrays": gguf(0, 1, struct.pack("<Q1sI", 1, b"a", 9) + struct.pack("<IQ", 9, 1) * 1000),
    "dimensions": gguf(1, 1, T5 + struct.pack("<Q1sI", 1, b"a", HUGE)),
    "a dimension": gguf(1, 1, T5 + struct.pack("<Q1sIQIQ", 1, b"a", 1, HUGE, 0, 0)),
}


def model_bin(variables: int, rest: bytes, spec: bytes = b"\x10\x00TransformerSpec\x00") -> bytes:
    return struct.pack("<I", 6) + spec + struct.pack("<II", 7, variables) + rest


def named_array(name: bytes, shape: tuple[int, ...], dtype: int, nbytes: int, data: bytes = b"") -> bytes:
    head = struct.pack("<H", len(name) + 1) + name + b"\0"
    return head + struct.pack(f"<B{len(shape)}IBI", len(shape), *shape, dtype, nbytes) + data


def alias(name: bytes, of: bytes) -> bytes:
    return b"".join(struct.pack("<H", len(each) + 1) + each + b"\0" for each in (name, of))


NO_ALIASES = struct.pack("<I", 0)
SCALAR = named_array(b"a", (), 1, 1, b"\x01")
OVERFLOW = (1 << 16, 1 << 16)  # the size in bytes is 0 in 32 bits
CTRANSLATE2 = {
    "variables": model_bin(HUGE, b""),
    "variables, below the limit": model_bin(60_000, SCALAR),
    "aliases": model_bin(1, SCALAR + struct.pack("<I", HUGE)),
    "a name": model_bin(1, b"\xff\xffa"),
    "a name that is empty": model_bin(1, b"\x00\x00"),
    "a spec": model_bin(0, b"", b"\xff\xffT"),
    "dimensions": model_bin(1, b"\x02\x00a\x00\xc8" + b"\x01\x00\x00\x00" * 200),
    "a dimension": model_bin(1, named_array(b"a", ((1 << 32) - 1,), 0, 4)),
    "an overflow": model_bin(1, named_array(b"a", OVERFLOW, 1, 0) + NO_ALIASES),
    "a large overflow": model_bin(1, named_array(b"a", ((1 << 31) - 1,) * 4, 0, 4) + NO_ALIASES),
    "bytes": model_bin(1, named_array(b"a", (HUGE // 4,), 0, HUGE // 4 * 4)),
    "bytes of another size": model_bin(1, named_array(b"a", (4,), 0, 4, bytes(16)) + NO_ALIASES),
    "a dtype": model_bin(1, named_array(b"a", (4,), 200, 4, bytes(4)) + NO_ALIASES),
    "an alias of nothing": model_bin(0, struct.pack("<I", 1) + alias(b"a", b"b")),
    "aliases in a circle": model_bin(0, struct.pack("<I", 2) + alias(b"a", b"b") + alias(b"b", b"a")),
    "aliases of aliases": model_bin(
        1, SCALAR + struct.pack("<I", 2000) + b"".join(alias(b"a" * (i + 2), b"a" * (i + 1)) for i in range(2000))
    ),
    "thousands of variables": model_bin(
        5000, b"".join(named_array(b"encoder/%d" % i, (), 1, 1, b"\x01") for i in range(5000)) + NO_ALIASES
    ),
    "one variable for all layers": model_bin(
        1,
        named_array(b"a", (1, 1), 0, 4, bytes(4))
        + struct.pack("<I", 4000)
        + b"".join(
            alias(b"%s/layer_%d/self_attention/linear_0/weight" % (stack, i), b"a")
            for stack in (b"encoder", b"decoder")
            for i in range(2000)
        ),
    ),
    "weights without rows": model_bin(1, named_array(b"decoder/embeddings/weight", (0, 16), 0, 0) + NO_ALIASES),
    "a weight without scales": model_bin(1, named_array(b"a", (2, 2), 1, 4, bytes(4)) + NO_ALIASES),
}


PATTERNS = {"nested": "(" * DEPTH, "long": "a|" * LONG, "counted": "a{268435455}" * 9}


def config_files(raw: bytes) -> Iterator[tuple[str, Mapping[str, bytes]]]:
    """Yield the readers of JSON, and their files."""
    for name in ("config.json", "manifest.json", "generation_config.json"):
        yield "folder", {"config.json": b"{}", name: raw}
    yield "line", {"line": raw}
    yield "weights", {"model.safetensors.index.json": raw}
    yield "weights", {"model.safetensors": safetensors(raw)}
    yield (
        "weights",
        {"model.safetensors": safetensors(b'{"a": {"dtype": "F32", "data_offsets": [0, 0], "shape": ' + raw + b"}}")},
    )
    yield "adapter", {"adapter_config.json": raw}
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"):
        yield "tokenizer", {"tokenizer.json": b"{}", name: raw}
    yield "tokenizer", {"tokenizer.json": b'{"normalizer": ' + raw + b"}"}
    yield "tokenizer", {"tokenizer.json": b'{"model": {"vocab": ' + raw + b"}}"}


def small_files() -> Iterator[tuple[str, str, Mapping[str, bytes]]]:
    """Yield a group, a reader and the files of a folder."""
    for group, content in DEEP.items():
        for reader, files in config_files(content.encode()):
            yield f"JSON: {group}", reader, files
    for group, pattern in PATTERNS.items():
        fields = {"peft_type": "LORA", "rank_pattern": {pattern: 1}}
        yield f"pattern: {group}", "adapter", {"adapter_config.json": json.dumps(fields).encode()}
    for size in (HUGE, (1 << 63) - 1, (1 << 64) - 1):
        yield "a size in safetensors", "weights", {"model.safetensors": safetensors(b"{}", size)}
    for group, header in NPY.items():
        for size in (None, 65535):
            yield f"npy: {group}", "weights", {"weights.npz": zip_bytes([Entry("a.npy", npy(header, size))])}
    whole = zip_bytes([Entry("a.npy", npy(""))])
    for at in range(len(whole) - 4):  # every field
        yield "a size in a zip", "weights", {"weights.npz": whole[:at] + struct.pack("<L", HUGE) + whole[at + 4 :]}
    for group, raw in GGUF.items():
        yield f"GGUF: {group}", "weights", {"model.gguf": raw}
    for group, raw in CTRANSLATE2.items():
        yield f"CTranslate2: {group}", "weights", {"model.bin": raw}
    model = model_bytes("TransformerSpec", 7, variables("pre-norm"), CASES["pre-norm"]["aliases"])
    lists = (deep("[", "]").encode(), b'["' + b"x" * LONG + b'"]', b"[" + b'"",' * 9 * LONG + b'""]', b'{"a": 1}', b"")
    for raw in lists:
        yield "a vocabulary of CTranslate2", "folder", {"model.bin": model, "shared_vocabulary.json": raw}
    for raw in (b"\n" * 9 * LONG, b"\xff", b"x" * LONG):
        yield "a vocabulary of CTranslate2", "folder", {"model.bin": model, "shared_vocabulary.txt": raw}
    for name, value in (("decoder/num_heads", np.int32((1 << 31) - 1)), ("encoder/num_heads", np.int32(-1))):
        changed = model_bytes("TransformerSpec", 7, variables("pre-norm") | {name: value})
        yield "heads of CTranslate2", "weights", {"model.bin": changed}
    for kind, more in {"WordLevel": {}, "BPE": {"merges": []}}.items():
        model = {"type": kind, "vocab": {"<unk>": 0, "a": HUGE}, "unk_token": "<unk>"} | more
        yield "an id of a token", "tokenizer", {"tokenizer.json": json.dumps(TOKENIZER | {"model": model}).encode()}
    rules = struct.pack("<I", HUGE & ~1023)
    charsmap = b"\x1a" + bytes([len(rules) + 2, 0x12, len(rules)]) + rules
    for raw in (b"\x0a\x03\x0a\x01a" + charsmap, b"\x0a\xff\xff\xff\x7f\x0a"):
        yield "a size in SentencePiece", "tokenizer", {"spiece.model": raw}


def cases() -> Iterator[Case]:
    for group, name, raw in torch_files():
        yield Case(group, name, "weights", {"pytorch_model.bin": raw})
    for group, reader, files in small_files():
        yield Case(group, " ".join(files), reader, files)


def read_folder(folder: Path) -> None:
    manifest.read(folder)
    checkpoints.read_generation_config(folder, checkpoints.read_config(folder))


READERS: Mapping[str, Callable[[Path], object]] = {
    "weights": checkpoints.read,
    "adapter": Adapter.open,
    "tokenizer": load_tokenizer,
    "line": lambda folder: parse_json_object((folder / "line").read_text()),
    "folder": read_folder,
}


class Measured(NamedTuple):
    """What reading a case gave: the error, seconds of processor time, and the growth of memory if it is a new peak."""

    name: str
    error: str | None
    seconds: float
    growth: int


def peak() -> int:
    """Return the peak of this process's memory. On Linux, `ru_maxrss` includes that of the process that started it."""
    if sys.platform == "linux":
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def read(reader: str, folder: str) -> str | None:
    try:
        READERS[reader](Path(folder))
    except InputError as error:
        return str(error)
    return None


def measure() -> None:
    """Read the folders in cases.json and print the results. One of each kind is read first, to load all modules."""
    listed = json.loads(Path("cases.json").read_text())
    kinds = {file: (reader, folder) for folder, (_, _, reader, files) in enumerate(listed) for file in files}
    for reader, folder in kinds.values():
        read(reader, str(folder))
    before = last = peak()
    for folder, (group, name, reader, _) in enumerate(listed):
        started = time.process_time()
        error = read(reader, str(folder))
        seconds, reached = time.process_time() - started, peak()
        print(json.dumps([group, *Measured(name, error, seconds, reached - before if reached > last else 0)]))
        last = reached


def measured(root: Path) -> Mapping[str, list[Measured]]:
    """Write all cases, and measure them in another process, whose memory has no traces of their making."""
    listed = []
    for folder, case in enumerate(cases()):
        (root / str(folder)).mkdir()
        for name, content in case.files.items():
            (root / str(folder) / name).write_bytes(content)
        listed.append(case._replace(files={name: "" for name in case.files}))
    (root / "cases.json").write_text(json.dumps(listed))
    command = [sys.executable, "-c", f"from {__name__} import measure; measure()"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True)
    shutil.rmtree(root)
    assert done.stderr == ""  # for example, a panic or a warning of a library
    found: dict[str, list[Measured]] = {}
    for group, *values in map(json.loads, done.stdout.splitlines()):
        found.setdefault(group, []).append(Measured(*values))
    return found


GROUPS = list(dict.fromkeys([TEN_BYTES, *NESTED, *MANY_OPCODES, *OPCODES, *(group for group, *_ in small_files())]))


def test_hostile_files_are_refused_within_limits(tmp_path: Path) -> None:
    found = measured(tmp_path)
    assert found.keys() == {*GROUPS}
    for group, results in found.items():
        limit = SECONDS_FOR_MANY_OPCODES if group in MANY_OPCODES else SECONDS
        for each in results:
            assert each.error is not None and each.error.isprintable(), (group, each)
            assert each.seconds < limit and each.growth < BYTES, (group, each)
