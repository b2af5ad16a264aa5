"""Reader for GGUF files of T5 models, in llama.cpp's tensor names. Quantised types come out as float32.

The `gguf` package has the names, the sizes and the dequantising. The header is read here, every count and length
bounded by the file: the package's own reader ends in untyped errors on damaged files, and takes forty times as long
over a vocabulary of 32,000.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ..errors import CheckpointError
from .base import MAX_DIMENSION, Checkpoint, TensorInfo
from .files import ByteRange, MappedFile

CHUNK_ELEMENTS = 1 << 20  # dequantised at a time
DEFAULT_ALIGNMENT = 32
MAX_FIELDS = 10_000
MAX_TENSORS = 20_000
MAX_NAME_BYTES = 256
MAX_ALIGNMENT = 1 << 16
MAX_KEPT_BYTES = 256  # longer strings (vocabularies, templates) are stepped over
MAX_ARRAY_STRINGS = 1_000_000

SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9

# Of these the `gguf` package knows how to make float32; other kinds of numbers have not been met in a T5.
KINDS = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
KEPT = {"F16": mx.float16, "BF16": mx.bfloat16}  # all others are read as float32


class GgmlType(NamedTuple):
    """`block` elements take `nbytes` bytes."""

    kind: Any  # the package's
    block: int
    nbytes: int

    @property
    def dtype(self) -> mx.Dtype:
        return KEPT.get(self.kind.name, mx.float32)


@cache
def types() -> Mapping[int, GgmlType]:
    """By their numbers in a file."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    kinds = (GGMLQuantizationType[name] for name in KINDS)
    return {kind.value: GgmlType(kind, *GGML_QUANT_SIZES[kind]) for kind in kinds}


@dataclass(frozen=True)
class GgufTensor:
    type: GgmlType
    info: TensorInfo  # its shape as in Hugging Face: the reverse of the file's order
    extent: ByteRange


@dataclass(frozen=True)
class Header:
    file: MappedFile
    metadata: Mapping[str, Any]  # scalars and short strings only
    tensors: Mapping[str, GgufTensor]  # by llama.cpp's names

    @property
    def is_gated(self) -> bool:
        return "enc.blk.0.ffn_gate.weight" in self.tensors


class Cursor:
    """A place in the file that never leaves it."""

    def __init__(self, file: MappedFile) -> None:
        self.data = file.data
        self.position = 0
        self.strings_left = MAX_ARRAY_STRINGS
        self._file = file

    def error(self, problem: str) -> CheckpointError:
        return self._file.error(f"not a readable GGUF file, {problem} (before byte {self.position})")

    def skip(self, size: int) -> int:
        """Step over `size` bytes; returns where they start."""
        if size > len(self.data) - self.position:
            raise self.error("it is cut short")
        self.position += size
        return self.position - size

    def scalar(self, pattern: str) -> Any:
        return struct.unpack_from(pattern, self.data, self.skip(struct.calcsize(pattern)))[0]

    def count(self, limit: int, what: str) -> int:
        if (value := self.scalar("<Q")) > limit:
            raise self.error(f"{value} {what}")
        return int(value)

    def name(self) -> str:
        size = self.count(MAX_NAME_BYTES, "bytes in a name")
        start = self.skip(size)
        return self.data[start : start + size].decode("utf-8", "replace")

    def value(self) -> Any:
        """A metadata value; None for an array or a long string, which are only stepped over."""
        kind = self.scalar("<I")
        if kind in SCALARS:
            return self.scalar(SCALARS[kind])
        if kind == STRING:
            size = self.scalar("<Q")
            start = self.skip(size)
            return self.data[start : start + size].decode("utf-8", "replace") if size <= MAX_KEPT_BYTES else None
        element = self.scalar("<I") if kind == ARRAY else kind
        if element in SCALARS:
            self.skip(self.scalar("<Q") * struct.calcsize(SCALARS[element]))
        elif element == STRING:
            count = self.count(self.strings_left, "strings in an array")
            self.strings_left -= count
            for _ in range(count):
                self.skip(self.scalar("<Q"))
        else:
            raise self.error(f"a value of type {element}")
        return None


def read_header(path: Path) -> Header:
    """Everything before the data, of a T5. Every tensor is checked to lie inside the file, apart from the others."""
    file = MappedFile(path, "GGUF")
    cursor = Cursor(file)
    magic, version = cursor.scalar("<4s"), cursor.scalar("<I")
    if magic != b"GGUF" or version not in (2, 3):
        raise cursor.error(f"it starts with {magic!r}, version {version}; little-endian versions 2 and 3 are known")
    num_tensors = cursor.count(MAX_TENSORS, "tensors")
    num_fields = cursor.count(MAX_FIELDS, "metadata fields")
    metadata: dict[str, Any] = {}
    for _ in range(num_fields):
        if (key := cursor.name()) in metadata:
            raise cursor.error(f"field {key!r} appears twice")
        metadata[key] = cursor.value()
    if (architecture := metadata.get("general.architecture")) != "t5":
        raise file.error(f"a model of architecture {architecture!r}; only 't5' can be read")
    if metadata.get("split.count", 1) != 1:
        raise file.error("one part of a split model; join the parts with llama-gguf-split --merge")
    infos: dict[str, tuple[GgmlType, TensorInfo, int]] = {}
    for _ in range(num_tensors):
        if (name := cursor.name()) in infos:
            raise cursor.error(f"tensor {name!r} appears twice")
        infos[name] = tensor_info(cursor, name)

    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise cursor.error(f"alignment {alignment!r}")
    data_start = -(-cursor.position // alignment) * alignment
    tensors, stop = {}, data_start
    for name, (kind, info, offset) in sorted(infos.items(), key=lambda item: item[1][2]):
        extent = ByteRange(data_start + offset, math.prod(info.shape) // kind.block * kind.nbytes)
        if offset % alignment or extent.start < stop or extent.stop > len(cursor.data):
            raise cursor.error(f"tensor {name!r} overlaps another, is not aligned, or reaches past the end")
        tensors[name], stop = GgufTensor(kind, info, extent), extent.stop
    return Header(file, metadata, {name: tensors[name] for name in infos})


def tensor_info(cursor: Cursor, name: str) -> tuple[GgmlType, TensorInfo, int]:
    """Type, shape and offset within the data."""
    if (dimensions := cursor.scalar("<I")) not in (1, 2, 3, 4):
        raise cursor.error(f"tensor {name!r} has {dimensions} dimensions")
    shape = tuple(cursor.count(MAX_DIMENSION, f"as a size of tensor {name!r}") for _ in range(dimensions))[::-1]
    kind, offset = cursor.scalar("<I"), cursor.scalar("<Q")
    if (known := types().get(kind)) is None:
        raise cursor.error(f"tensor {name!r} has type {kind}; known are {', '.join(KINDS)}")
    if 0 in shape or shape[-1] % known.block:
        raise cursor.error(f"tensor {name!r} of type {known.kind.name} has shape {shape}")
    return known, TensorInfo(shape, known.dtype), offset


CONFIG_SIZES = {
    "d_model": "embedding_length",
    "d_kv": "attention.key_length",
    "d_ff": "feed_forward_length",
    "num_layers": "block_count",
    "num_heads": "attention.head_count",
    "relative_attention_num_buckets": "attention.relative_buckets_count",
}
BLOCK = re.compile(r"(enc|dec)\.blk\.(\d{1,4})\.(\w+)", re.ASCII)
OURS = re.compile(r"shared|lm_head|(encoder|decoder)\.(final_layer_norm|block\.0\..*)")


@cache
def names_of_one_block(gated: bool) -> Mapping[str, str]:
    """llama.cpp's names of T5's tensors -> Hugging Face's, as the package has them."""
    from gguf import MODEL_ARCH, get_tensor_name_map

    other = (".wi",) if gated else (".wi_0", ".wi_1")
    names = get_tensor_name_map(MODEL_ARCH.T5, 1).mapping
    return {theirs: ours for ours, (_, theirs) in names.items() if OURS.fullmatch(ours) and not ours.endswith(other)}


def hugging_face_name(name: str, gated: bool) -> str | None:
    """llama.cpp's name of a T5 tensor -> Hugging Face's; None if it is neither."""
    stem, index = name.removesuffix(".weight"), 0
    if match := BLOCK.fullmatch(stem):
        index, stem = int(match[2]), f"{match[1]}.blk.0.{match[3]}"
    ours = names_of_one_block(gated).get(stem) if name.endswith(".weight") else None
    return None if ours is None else ours.replace(".block.0.", f".block.{index}.") + ".weight"


class GgufCheckpoint(Checkpoint):
    """F32, F16 and BF16 tensors in their own type; quantised ones as float32, `TensorInfo` included."""

    def __init__(self, header: Header) -> None:
        self._file = header.file
        self._tensors: dict[str, GgufTensor] = {}
        for name, tensor in header.tensors.items():
            known = hugging_face_name(name, header.is_gated)
            if known is None or known in self._tensors:
                raise self._file.error(f"tensor {name!r} is not one of T5's, or appears twice")
            self._tensors[known] = tensor
        super().__init__(self._file.path, {name: tensor.info for name, tensor in self._tensors.items()})

    def __getitem__(self, name: str) -> mx.array:
        tensor = self._tensors[name]
        if tensor.type.block == 1:
            return self._file.array(tensor.info, tensor.extent)
        raw = np.frombuffer(self._file.data, np.uint8, tensor.extent.nbytes, tensor.extent.start)
        array = mx.array(dequantised(raw, tensor))
        self._file.release(tensor.extent)
        return array


def dequantised(raw: NDArray[np.uint8], tensor: GgufTensor) -> NDArray[np.float32]:
    """Some rows at a time: dequantising needs several times the memory of what it gives."""
    from gguf.quants import dequantize

    columns = tensor.info.shape[-1]
    rows = raw.reshape(-1, columns // tensor.type.block * tensor.type.nbytes)
    out = np.empty((len(rows), columns), np.float32)
    step = max(1, CHUNK_ELEMENTS // columns)
    with np.errstate(all="ignore"):  # a scale may be infinite; the file says so
        for start in range(0, len(rows), step):
            out[start : start + step] = dequantize(rows[start : start + step], tensor.type.kind)
    return out.reshape(tensor.info.shape)


def read_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file of a T5 model. Raises `CheckpointError` if it is damaged or another model's."""
    return GgufCheckpoint(read_header(path))


def gguf_config(path: Path) -> dict[str, Any]:
    """config.json's fields, as Hugging Face names them, from the metadata and from which tensors there are.

    llama.cpp keeps neither the activation nor the largest distance; it computes with gated GELU or ReLU, and 128.
    """
    header = read_header(path)
    metadata = header.metadata
    pad = metadata.get("tokenizer.ggml.padding_token_id", 0)
    config = {field: metadata.get(f"t5.{key}") for field, key in CONFIG_SIZES.items()}
    config["num_decoder_layers"] = metadata.get("t5.decoder_block_count", config["num_layers"])
    ids = {
        "pad_token_id": pad,
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id", 1),
        "decoder_start_token_id": metadata.get("t5.decoder_start_token_id", pad),
    }
    for field, value in (config | ids).items():
        if type(value) is not int or value < (field in config):
            raise header.file.error(f"no {field} in the metadata, or an impossible one ({value!r})")
    epsilon = metadata.get("t5.attention.layer_norm_rms_epsilon")
    if type(epsilon) is not float or not 0 < epsilon < 1 or "token_embd.weight" not in header.tensors:
        raise header.file.error(f"no token embedding, or an impossible layer_norm_epsilon ({epsilon!r})")
    return {
        "model_type": "umt5" if "enc.blk.1.attn_rel_b.weight" in header.tensors else "t5",
        "vocab_size": header.tensors["token_embd.weight"].info.shape[0],
        **config,
        "relative_attention_max_distance": 128,
        "layer_norm_epsilon": float(str(np.float32(epsilon))),  # 1e-06, not what float32 made of it
        "feed_forward_proj": "gated-gelu" if header.is_gated else "relu",
        "tie_word_embeddings": "output.weight" not in header.tensors,
        **ids,
    }
