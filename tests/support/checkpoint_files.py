"""Writes valid and invalid checkpoints byte by byte: torch's pickles and both containers, without torch, and GGUF."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAGIC = 0x1950A86A20F9469CFC6C
VERSION = 1001
SYSTEM = {"protocol_version": VERSION, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}


@dataclass(frozen=True)
class Named:
    """A global, given by name."""

    module: str
    name: str


@dataclass(frozen=True)
class Opcodes:
    """Raw opcodes for a pickle."""

    raw: bytes


class Ordered(dict[Any, Any]):
    """An OrderedDict with the `_metadata` attribute that state_dict() sets."""

    metadata: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class View:
    """A tensor in torch's format. Offset and strides count elements."""

    key: str
    storage_type: str
    numel: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    is_parameter: bool = False


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of an array in C order, in elements."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


@dataclass
class TorchPickler:
    """Emits the same opcodes as torch.save, in the same order and with the same memo."""

    legacy: bool = False
    out: bytearray = field(default_factory=bytearray)
    memo: dict[object, int] = field(default_factory=dict)
    count: int = 0

    def put(self, key: object = None) -> None:
        self.out += b"q" + bytes([self.count]) if self.count < 256 else b"r" + struct.pack("<I", self.count)
        if key is not None:
            self.memo[key] = self.count
        self.count += 1

    def get(self, key: object) -> bool:
        if (index := self.memo.get(key)) is None:
            return False
        self.out += b"h" + bytes([index]) if index < 256 else b"j" + struct.pack("<I", index)
        return True

    def save(self, value: Any) -> None:
        match value:
            case Opcodes(raw):
                self.out += raw
            case None:
                self.out += b"N"
            case bool():
                self.out += b"\x88" if value else b"\x89"
            case int():
                self.save_int(value)
            case str():
                self.save_str(value)
            case Named(module, name):
                if not self.get(value):
                    self.out += f"c{module}\n{name}\n".encode()
                    self.put(value)
            case tuple():
                self.save_tuple(value)
            case list():
                self.out += b"]"
                self.put()
                self.save_all(value, b"a", b"e")
            case Ordered():
                self.call(Named("collections", "OrderedDict"), ())
                self.save_all(value.items(), b"s", b"u")
                if value.metadata is not None:
                    self.save({"_metadata": value.metadata})
                    self.out += b"b"
            case dict():
                self.out += b"}"
                self.put()
                self.save_all(value.items(), b"s", b"u")
            case View():
                self.save_view(value)

    def save_int(self, value: int) -> None:
        if 0 <= value < 1 << 16:
            self.out += b"K" + bytes([value]) if value < 256 else b"M" + struct.pack("<H", value)
        elif -1 << 31 <= value < 1 << 31:
            self.out += b"J" + struct.pack("<i", value)
        else:
            size = value.bit_length() // 8 + 1
            self.out += b"\x8a" + bytes([size]) + value.to_bytes(size, "little", signed=True)

    def save_str(self, value: str, key: object = None) -> None:
        if not self.get(key or value):
            self.out += b"X" + struct.pack("<I", len(value.encode())) + value.encode()
            self.put(key or value)

    def save_tuple(self, items: tuple[Any, ...]) -> None:
        self.out += b"(" if len(items) > 3 else b""
        for item in items:
            self.save(item)
        self.out += b"t" if len(items) > 3 else (b")", b"\x85", b"\x86", b"\x87")[len(items)]
        if items:
            self.put()

    def save_all(self, items: Iterable[Any], one: bytes, many: bytes) -> None:
        items = list(items)
        for start in range(0, len(items), 1000):
            batch = items[start : start + 1000]
            self.out += b"(" if len(batch) > 1 else b""
            for item in batch:
                for part in item if one == b"s" else (item,):
                    self.save(part)
            self.out += many if len(batch) > 1 else one

    def call(self, function: Named, arguments: tuple[Any, ...]) -> None:
        self.save(function)
        self.save(arguments)
        self.out += b"R"
        self.put()

    def save_view(self, view: View) -> None:
        if view.is_parameter:
            self.save(Named("torch._utils", "_rebuild_parameter"))
        self.save(Named("torch._utils", "_rebuild_tensor_v2"))
        self.out += b"(("
        self.save_str("storage")
        self.save(Named("torch", view.storage_type))
        # The legacy format makes a new key string for each tensor, which the memo therefore never contains
        self.save_str(view.key, ("key", self.count if self.legacy else view.key))
        self.save_str("cpu")
        self.save(view.numel)
        self.out += b"Nt" if self.legacy else b"t"
        self.put()
        self.out += b"Q"
        for part in (view.offset, view.shape, view.strides, False):
            self.save(part)
        self.call(Named("collections", "OrderedDict"), ())
        self.out += b"t"
        self.put()
        self.out += b"R"
        self.put()
        if view.is_parameter:
            self.save(True)
            self.call(Named("collections", "OrderedDict"), ())
            self.out += b"\x87"
            self.put()
            self.out += b"R"
            self.put()


def pickle(value: Any, legacy: bool = False) -> bytes:
    pickler = TorchPickler(legacy)
    pickler.save(value)
    return b"\x80\x02" + bytes(pickler.out) + b"."


def legacy_bytes(saved: bytes, storages: Mapping[str, tuple[int, bytes]]) -> bytes:
    """Return a legacy file. Storages are given by key as (number of elements, raw bytes)."""
    keys = sorted(storages)
    head = pickle(MAGIC) + pickle(VERSION) + pickle(SYSTEM) + saved + pickle(keys)
    return head + b"".join(struct.pack("<q", storages[key][0]) + storages[key][1] for key in keys)


@dataclass(frozen=True)
class Entry:
    """A file in a zip. Fields that are not None replace the correct values."""

    name: str
    data: bytes
    crc: int | None = None
    nbytes: int | None = None
    local_name: str | None = None
    header: int | None = None
    method: int = 0
    flags: int = 0


def zip_bytes(entries: Sequence[Entry]) -> bytes:
    """Return an uncompressed zip in torch's layout: data aligned to 64 bytes, zip64 records at the end."""
    out = bytearray()
    directory = bytearray()
    for entry in entries:
        name = entry.name.encode()
        local_name = (entry.local_name or entry.name).encode()
        crc = zlib.crc32(entry.data) if entry.crc is None else entry.crc
        nbytes = len(entry.data) if entry.nbytes is None else entry.nbytes
        header = len(out) if entry.header is None else entry.header
        padding = -(len(out) + 34 + len(local_name)) % 64
        fields = struct.pack("<HHHHLLL", entry.flags, entry.method, 0, 0, crc, nbytes, nbytes)
        out += b"PK\3\4\0\0" + fields + struct.pack("<HH", len(local_name), 4 + padding) + local_name
        out += b"FB" + struct.pack("<H", padding) + b"Z" * padding + entry.data
        directory += b"PK\1\2\0\0\0\0" + fields + struct.pack("<HHHHHLL", len(name), 0, 0, 0, 0, 0, header) + name
    start = len(out)
    size = len(directory)
    count = len(entries)
    end64 = b"PK\6\6" + struct.pack("<QHHLLQQQQ", 44, 798, 45, 0, 0, count, count, size, start)
    locator = b"PK\6\7" + struct.pack("<LQL", 0, start + size, 1)
    end = b"PK\5\6" + struct.pack("<HHHHLLH", 0, 0, count, count, size, start, 0)
    return bytes(out + directory) + end64 + locator + end


def torch_entries(saved: bytes, storages: Mapping[str, tuple[int, bytes]], root: str = "archive") -> list[Entry]:
    return [
        Entry(f"{root}/data.pkl", saved),
        Entry(f"{root}/byteorder", b"little"),
        *(Entry(f"{root}/data/{key}", raw) for key, (_, raw) in storages.items()),
        Entry(f"{root}/version", b"3\n"),
    ]


def torch_bytes(form: str, saved: bytes, storages: Mapping[str, tuple[int, bytes]]) -> bytes:
    return legacy_bytes(saved, storages) if form == "legacy" else zip_bytes(torch_entries(saved, storages))


def torch_file(form: str, arrays: Mapping[str, NDArray[np.float32]]) -> bytes:
    """Return a state dict of float32 arrays, each with its own storage."""
    value = Ordered()
    storages = dict[str, tuple[int, bytes]]()
    for index, (name, array) in enumerate(arrays.items()):
        value[name] = View(str(index), "FloatStorage", array.size, array.shape, contiguous(array.shape))
        storages[str(index)] = (array.size, array.tobytes())
    return torch_bytes(form, pickle(value, form == "legacy"), storages)


def write_sparse_legacy(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Write a sparse legacy file of float32 zeros, which takes little disk space. Return its size in bytes."""
    value = Ordered()
    sizes = dict[str, int]()
    for index, (name, shape) in enumerate(shapes.items()):
        sizes[key := f"{index:05}"] = math.prod(shape)
        value[name] = View(key, "FloatStorage", sizes[key], shape, contiguous(shape))
    head = legacy_bytes(pickle(value, legacy=True), dict.fromkeys(sizes, (0, b"")))
    with path.open("wb") as file:
        file.write(head[: -8 * len(sizes)])
        for numel in sizes.values():
            file.write(struct.pack("<q", numel))
            file.seek(4 * numel, 1)
        file.truncate()
        return file.tell()


# An example with all dtypes and kinds of views
TORCH_FORMATS = ("zip", "legacy")
NUMBERS = np.arange(24, dtype=np.float32) - 7.5
STORAGES = {  # key -> stored numbers; bfloat16 is the upper half of float32
    "0": NUMBERS,
    "1": NUMBERS.astype(np.float16),
    "2": (NUMBERS.view(np.uint32) >> 16).astype(np.uint16),
    "3": NUMBERS.astype(np.float64) / 3,
    "4": np.array([-(1 << 40), 3], np.int64),
    "5": np.array([1, 0, 1], np.uint8),
    "6": NUMBERS[:0],
}
TYPES = dict(zip(STORAGES, ("Float", "Half", "BFloat16", "Double", "Long", "Bool", "Float"), strict=True))


def example_view(
    key: str, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0, parameter: bool = False
) -> View:
    return View(key, f"{TYPES[key]}Storage", len(STORAGES[key]), shape, strides, offset, parameter)


VIEWS = {
    "matrix": example_view("0", (4, 6), (6, 1)),
    "tied": example_view("0", (4, 6), (6, 1)),
    "transposed": example_view("0", (6, 4), (1, 6)),
    "corner": example_view("0", (2, 3), (6, 1), 9),
    "every_other": example_view("0", (1, 12), (77, 2), 1),
    "scalar": example_view("0", (), (), 23),
    "half": example_view("1", (3, 8), (8, 1), parameter=True),
    "brain": example_view("2", (8, 3), (1, 8)),
    "double": example_view("3", (24,), (1,)),
    "long": example_view("4", (2,), (1,)),
    "bool": example_view("5", (3,), (1,)),
    "empty": example_view("6", (0, 3), (3, 1)),
}


def raw_storages() -> dict[str, tuple[int, bytes]]:
    return {key: (len(numbers), numbers.tobytes()) for key, numbers in STORAGES.items()}


def state_dict(**changes: Any) -> Ordered:
    value = Ordered(VIEWS | changes)
    value.metadata = Ordered({"": {"version": 1}})
    return value


def container(form: str, saved: bytes) -> bytes:
    """Return a file with a pickle and the example's storages."""
    return torch_bytes(form, saved, raw_storages())


def written(path: Path, form: str, value: Any = None) -> Path:
    """Write the example, or another value with its storages."""
    path.write_bytes(container(form, pickle(state_dict() if value is None else value, form == "legacy")))
    return path


@dataclass(frozen=True)
class GgufArray:
    """A tensor in a GGUF file: the number of its type, its shape in Hugging Face's order, its bytes."""

    kind: int
    shape: tuple[int, ...]
    raw: bytes


GGUF_SCALARS = {"u32": (4, "I"), "i32": (5, "i"), "f32": (6, "f"), "bool": (7, "?"), "u64": (10, "Q")}


def gguf_value(kind: str, value: Any) -> bytes:
    if kind == "str":
        return struct.pack("<IQ", 8, len(value.encode())) + str(value).encode()
    if kind == "strs":
        items = b"".join(struct.pack("<Q", len(item.encode())) + item.encode() for item in value)
        return struct.pack("<IIQ", 9, 8, len(value)) + items
    if kind == "f32s":
        return struct.pack("<IIQ", 9, 6, len(value)) + struct.pack(f"<{len(value)}f", *value)
    number, pattern = GGUF_SCALARS[kind]
    return struct.pack(f"<I{pattern}", number, value)


def gguf_bytes(
    metadata: Mapping[str, tuple[str, Any]], tensors: Mapping[str, GgufArray], alignment: int = 32, version: int = 3
) -> bytes:
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, (kind, value) in metadata.items():
        out += struct.pack("<Q", len(key.encode())) + key.encode() + gguf_value(kind, value)
    data = b""
    for name, tensor in tensors.items():
        out += struct.pack("<Q", len(name.encode())) + name.encode() + struct.pack("<I", len(tensor.shape))
        out += struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape)) + struct.pack(
            "<IQ", tensor.kind, len(data)
        )
        data += tensor.raw + b"\0" * (-len(tensor.raw) % alignment)
    return out + b"\0" * (-len(out) % alignment) + data


def t5_arrays(seed: int = 0, tied: bool = False) -> dict[str, NDArray[np.float32]]:
    """Return a tiny gated T5 under Hugging Face's names. Its width fits the blocks of 32 elements in GGUF."""
    rng = np.random.default_rng(seed)
    width = 32
    hidden = 64
    heads = 2
    shapes: dict[str, tuple[int, ...]] = {"shared.weight": (48, width)}
    for side, attentions in (("encoder", ["SelfAttention"]), ("decoder", ["SelfAttention", "EncDecAttention"])):
        for block in range(2):
            at = f"{side}.block.{block}.layer"
            for layer, attention in enumerate(attentions):
                shapes |= {f"{at}.{layer}.{attention}.{part}.weight": (width, width) for part in "qkvo"}
                shapes[f"{at}.{layer}.layer_norm.weight"] = (width,)
            inner = f"{at}.{len(attentions)}"
            shapes |= {f"{inner}.DenseReluDense.{part}.weight": (hidden, width) for part in ("wi_0", "wi_1")}
            shapes |= {f"{inner}.DenseReluDense.wo.weight": (width, hidden), f"{inner}.layer_norm.weight": (width,)}
        shapes[f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = (8, heads)
        shapes[f"{side}.final_layer_norm.weight"] = (width,)
    if not tied:
        shapes["lm_head.weight"] = (48, width)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


GGUF_METADATA: dict[str, tuple[str, Any]] = {
    "general.architecture": ("str", "t5"),
    "general.name": ("str", "tiny"),
    "t5.context_length": ("u32", 512),
    "t5.embedding_length": ("u32", 32),
    "t5.feed_forward_length": ("u32", 64),
    "t5.block_count": ("u32", 2),
    "t5.decoder_block_count": ("u32", 2),
    "t5.attention.head_count": ("u32", 2),
    "t5.attention.key_length": ("u32", 16),
    "t5.attention.value_length": ("u32", 16),
    "t5.attention.layer_norm_epsilon": ("f32", 1e-6),
    "t5.attention.relative_buckets_count": ("u32", 8),
    "t5.attention.layer_norm_rms_epsilon": ("f32", 1e-6),
    "t5.decoder_start_token_id": ("u32", 0),
    "tokenizer.ggml.model": ("str", "t5"),
    "tokenizer.ggml.tokens": ("strs", [f"▁{index}" for index in range(48)]),
    "tokenizer.ggml.scores": ("f32s", [float(-index) for index in range(48)]),
    "tokenizer.ggml.eos_token_id": ("u32", 1),
    "tokenizer.ggml.padding_token_id": ("u32", 0),
    "tokenizer.ggml.add_bos_token": ("bool", False),
}


def gguf_file(arrays: Mapping[str, NDArray[np.float32]], kinds: Mapping[str, str] | None = None) -> bytes:
    """Return a T5 under llama.cpp's names. `kinds` gives the types of tensors that are not F32."""
    from gguf import MODEL_ARCH, GGMLQuantizationType, get_tensor_name_map
    from gguf.quants import quantize

    names = get_tensor_name_map(MODEL_ARCH.T5, 2)
    tensors = {}
    for name, array in arrays.items():
        kind = GGMLQuantizationType[(kinds or {}).get(name, "F32")]
        raw = quantize(array, kind).tobytes()
        tensors[f"{names.get_name(name.removesuffix('.weight'))}.weight"] = GgufArray(kind.value, array.shape, raw)
    return gguf_bytes(GGUF_METADATA, tensors)


def gguf_example() -> bytes:
    """Return a small file with several types."""
    kinds = {"shared.weight": "Q8_0", "encoder.block.0.layer.0.SelfAttention.q.weight": "Q4_0"}
    kinds |= {"encoder.block.0.layer.0.SelfAttention.k.weight": "BF16"}
    arrays = t5_arrays()
    return gguf_file({name: arrays[name] for name in list(arrays)[:6]}, kinds)
