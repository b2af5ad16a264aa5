"""Reader for GGUF files of T5 models with llama.cpp's tensor names. Quantized tensors are converted to float32.

The `gguf` package supplies tensor names, block sizes and dequantization. This module parses the header itself and
limits every count and length. The package's reader raises arbitrary exceptions on damaged files. With a vocabulary of
32,000 tokens, it is forty times slower than this module.
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

from .base import MAX_DIMENSION, Checkpoint, TensorInfo
from .cursor import Cursor
from .mapped import MappedFile

CHUNK_ELEMENTS = 1 << 20  # elements to dequantize at a time

SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING = 8
ARRAY = 9

# Types that the `gguf` package can dequantize. No known T5 model uses other types.
TYPE_NAMES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")


class GgmlType(NamedTuple):
    """A GGML data type: `block_size` elements take up `block_bytes` bytes."""

    quantization: Any  # gguf.GGMLQuantizationType
    block_size: int
    block_bytes: int

    @property
    def name(self) -> str:
        return str(self.quantization.name)

    @property
    def dtype(self) -> mx.Dtype:
        return {"F16": mx.float16, "BF16": mx.bfloat16}.get(self.name, mx.float32)


@cache
def ggml_types() -> Mapping[int, GgmlType]:
    """Return the supported types, keyed by their number in GGUF files."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    quantizations = [GGMLQuantizationType[name] for name in TYPE_NAMES]
    return {each.value: GgmlType(each, *GGML_QUANT_SIZES[each]) for each in quantizations}


@dataclass(frozen=True)
class GgufTensor:
    type: GgmlType
    info: TensorInfo  # its dimensions are in Hugging Face's order; GGUF files store them in reverse
    location: range  # the positions of its bytes in the file


@dataclass(frozen=True)
class GgufHeader:
    file: MappedFile
    metadata: Mapping[str, Any]  # scalars and short strings; None for other values
    tensors: Mapping[str, GgufTensor]  # keyed by llama.cpp's tensor name

    @property
    def is_gated(self) -> bool:
        return "enc.blk.0.ffn_gate.weight" in self.tensors


class GgufCursor(Cursor):
    """Reads the header of a GGUF file."""

    def __init__(self, file: MappedFile) -> None:
        super().__init__(file, "GGUF")
        self.strings_left = 1_000_000  # total over all arrays in the file

    def count(self, limit: int, what: str) -> int:
        value = int(self.scalar("<Q"))
        if value > limit:
            raise self.error(f"{value} {what} (at most {limit})")
        return value

    def name(self) -> str:
        return self.text(self.count(256, "bytes in a name"))

    def value(self) -> Any:
        """Read a metadata value. Arrays and long strings are skipped and become None."""
        value_type = self.scalar("<I")
        if value_type in SCALARS:
            return self.scalar(SCALARS[value_type])
        if value_type == STRING:
            if (size := self.scalar("<Q")) <= 256:
                return self.text(size)
            self.skip(size)  # long strings, such as chat templates, are not needed
            return None
        element_type = self.scalar("<I") if value_type == ARRAY else value_type
        if element_type in SCALARS:
            self.skip(self.scalar("<Q") * struct.calcsize(SCALARS[element_type]))
        elif element_type == STRING:
            count = self.count(self.strings_left, "strings in an array")
            self.strings_left -= count
            for _ in range(count):
                self.skip(self.scalar("<Q"))
        else:
            raise self.error(f"unknown value type {element_type}")
        return None


def read_header(path: Path) -> GgufHeader:
    """Parse the header of a T5 model, and check that all tensors lie inside the file without overlapping."""
    file = MappedFile(path, "GGUF")
    cursor = GgufCursor(file)
    magic = cursor.scalar("<4s")
    version = cursor.scalar("<I")
    if magic != b"GGUF" or version not in (2, 3):
        raise cursor.error(
            f"it starts with {magic!r}, version {version} (expected b'GGUF', little-endian version 2 or 3)"
        )
    num_tensors = cursor.count(20_000, "tensors")
    num_fields = cursor.count(10_000, "metadata fields")

    metadata: dict[str, Any] = {}
    for _ in range(num_fields):
        key = cursor.name()
        if key in metadata:
            raise cursor.error(f"field {key!r} appears twice")
        metadata[key] = cursor.value()
    architecture = metadata.get("general.architecture")
    if architecture != "t5":
        raise file.error(f"unsupported architecture {architecture!r} (expected 't5')")
    if metadata.get("split.count", 1) != 1:
        raise file.error("one part of a split model; join the parts with llama-gguf-split --merge")

    types: dict[str, GgmlType] = {}
    infos: dict[str, TensorInfo] = {}
    offsets: dict[str, int] = {}
    for _ in range(num_tensors):
        name = cursor.name()
        if name in infos:
            raise cursor.error(f"tensor {name!r} appears twice")
        types[name], infos[name], offsets[name] = read_tensor_info(cursor, name)

    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 1 <= alignment <= 65536 or alignment & (alignment - 1):
        raise cursor.error(f"alignment {alignment!r} is not a power of two up to 65536")
    data_start = -(-cursor.position // alignment) * alignment
    stop = data_start
    locations: dict[str, range] = {}
    for name in sorted(infos, key=offsets.__getitem__):
        nbytes = math.prod(infos[name].shape) // types[name].block_size * types[name].block_bytes
        start = data_start + offsets[name]
        location = range(start, start + nbytes)
        if offsets[name] % alignment or location.start < stop or location.stop > len(cursor.data):
            raise cursor.error(f"tensor {name!r} overlaps another, is not aligned, or reaches past the end")
        locations[name] = location
        stop = location.stop
    tensors = {name: GgufTensor(types[name], infos[name], locations[name]) for name in infos}
    return GgufHeader(file, metadata, tensors)


def read_tensor_info(cursor: GgufCursor, name: str) -> tuple[GgmlType, TensorInfo, int]:
    """Read a tensor's type, shape, and offset within the data section."""
    dimensions = cursor.scalar("<I")
    if dimensions not in (1, 2, 3, 4):
        raise cursor.error(f"tensor {name!r} has {dimensions} dimensions (expected 1 to 4)")
    shape = tuple(cursor.count(MAX_DIMENSION, f"as a size of tensor {name!r}") for _ in range(dimensions))[::-1]
    type_number = cursor.scalar("<I")
    offset = cursor.scalar("<Q")
    ggml_type = ggml_types().get(type_number)
    if ggml_type is None:
        raise cursor.error(f"tensor {name!r} has unsupported type {type_number} (expected {', '.join(TYPE_NAMES)})")
    if 0 in shape or shape[-1] % ggml_type.block_size:
        raise cursor.error(f"tensor {name!r} of type {ggml_type.name} has shape {shape}")
    return ggml_type, TensorInfo(shape, ggml_type.dtype), offset


@cache
def hugging_face_names(is_gated: bool) -> Mapping[str, str]:
    """Map llama.cpp's tensor names to Hugging Face's for a T5 with one block, using the `gguf` package's table."""
    from gguf import MODEL_ARCH, get_tensor_name_map

    t5_tensor = re.compile(r"shared|lm_head|(encoder|decoder)\.(final_layer_norm|block\.0\..*)")
    absent = (".wi",) if is_gated else (".wi_0", ".wi_1")  # llama.cpp uses the same name for .wi and .wi_1
    table = get_tensor_name_map(MODEL_ARCH.T5, 1).mapping
    return {
        llama_cpp: name
        for name, (_, llama_cpp) in table.items()
        if t5_tensor.fullmatch(name) and not name.endswith(absent)
    }


def hugging_face_name(llama_cpp_name: str, is_gated: bool) -> str | None:
    """Translate llama.cpp's name for a T5 tensor to Hugging Face's. Returns None for other names."""
    if not llama_cpp_name.endswith(".weight"):
        return None
    stem = llama_cpp_name.removesuffix(".weight")
    block = 0
    if match := re.fullmatch(r"(enc|dec)\.blk\.(\d{1,4})\.(\w+)", stem, re.ASCII):
        block = int(match[2])
        stem = f"{match[1]}.blk.0.{match[3]}"
    name = hugging_face_names(is_gated).get(stem)
    return None if name is None else name.replace(".block.0.", f".block.{block}.") + ".weight"


class GgufCheckpoint(Checkpoint):
    """The tensors of a GGUF file. F32, F16 and BF16 tensors keep their dtype; quantized tensors become float32."""

    def __init__(self, header: GgufHeader) -> None:
        self._file = header.file
        self._tensors: dict[str, GgufTensor] = {}
        for name, tensor in header.tensors.items():
            translated = hugging_face_name(name, header.is_gated)
            if translated is None or translated in self._tensors:
                raise self._file.error(f"tensor {name!r} is not a T5 tensor, or appears twice")
            self._tensors[translated] = tensor
        super().__init__(self._file.path, {name: tensor.info for name, tensor in self._tensors.items()})

    def __getitem__(self, name: str) -> mx.array:
        tensor = self._tensors[name]
        if tensor.type.block_size == 1:
            return self._file.array(tensor.info, tensor.location)
        raw = np.frombuffer(self._file.data, np.uint8, len(tensor.location), tensor.location.start)
        array = mx.array(dequantize_tensor(raw, tensor))
        self._file.release(tensor.location)
        return array


def dequantize_tensor(
    raw: NDArray[np.uint8], tensor: GgufTensor, chunk_elements: int = CHUNK_ELEMENTS
) -> NDArray[np.float32]:
    """Dequantize a few rows at a time, because the `gguf` package uses several times the memory of its result."""
    from gguf.quants import dequantize

    columns = tensor.info.shape[-1]
    rows = raw.reshape(-1, columns // tensor.type.block_size * tensor.type.block_bytes)
    out = np.empty((len(rows), columns), np.float32)
    step = max(1, chunk_elements // columns)
    with np.errstate(all="ignore"):  # a file may contain infinite scales
        for start in range(0, len(rows), step):
            out[start : start + step] = dequantize(rows[start : start + step], tensor.type.quantization)
    return out.reshape(tensor.info.shape)


def read_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file of a T5 model. Raises `CheckpointError` if it is damaged or its architecture is not T5."""
    return GgufCheckpoint(read_header(path))


def gguf_config(path: Path) -> dict[str, Any]:
    """Derive the fields of config.json, under their Hugging Face names, from the metadata and the tensors.

    llama.cpp does not store the activation or the maximum relative distance. Like llama.cpp, this function
    assumes gated GELU or ReLU, and a distance of 128.
    """
    header = read_header(path)
    metadata = header.metadata
    keys = {
        "d_model": "embedding_length",
        "d_kv": "attention.key_length",
        "d_ff": "feed_forward_length",
        "num_layers": "block_count",
        "num_heads": "attention.head_count",
        "relative_attention_num_buckets": "attention.relative_buckets_count",
    }
    sizes = {field: metadata.get(f"t5.{key}") for field, key in keys.items()}
    sizes["num_decoder_layers"] = metadata.get("t5.decoder_block_count", sizes["num_layers"])
    pad = metadata.get("tokenizer.ggml.padding_token_id", 0)
    ids = {
        "pad_token_id": pad,
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id", 1),
        "decoder_start_token_id": metadata.get("t5.decoder_start_token_id", pad),
    }
    for field, value in (sizes | ids).items():
        minimum = 1 if field in sizes else 0
        if type(value) is not int or value < minimum:
            raise header.file.error(f"{field} is missing from the metadata or invalid ({value!r})")
    epsilon = metadata.get("t5.attention.layer_norm_rms_epsilon")
    if type(epsilon) is not float or not 0 < epsilon < 1:
        raise header.file.error(f"layer_norm_epsilon is missing from the metadata or invalid ({epsilon!r})")
    if "token_embd.weight" not in header.tensors:
        raise header.file.error("the token embedding is missing")
    return {
        "model_type": "umt5" if "enc.blk.1.attn_rel_b.weight" in header.tensors else "t5",
        "vocab_size": header.tensors["token_embd.weight"].info.shape[0],
        **sizes,
        "relative_attention_max_distance": 128,
        "layer_norm_epsilon": float(str(np.float32(epsilon))),  # 1e-06 rather than its float32 approximation
        "feed_forward_proj": "gated-gelu" if header.is_gated else "relu",
        "tie_word_embeddings": "output.weight" not in header.tensors,
        **ids,
    }
