"""Reader for GGUF files of T5 models, in llama.cpp's tensor names. Quantised types come out as float32.

The header is read here, every count and length bounded by the file, because the `gguf` package's own reader trusts
them (and takes seconds over a large vocabulary). The package dequantises.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ..errors import CheckpointError
from .base import Checkpoint, TensorInfo, array_from_bytes
from .mapped import Extent, map_file, release

DEFAULT_ALIGNMENT = 32
MAX_FIELDS = 10_000
MAX_TENSORS = 20_000
MAX_NAME_BYTES = 256
MAX_ALIGNMENT = 1 << 16
MAX_KEPT_BYTES = 256  # longer strings (vocabularies, templates) are stepped over
MAX_ARRAY_STRINGS = 1_000_000
MAX_DIMENSION = (1 << 31) - 1  # MLX counts in int32
CHUNK_ELEMENTS = 1 << 20

SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9


@dataclass(frozen=True)
class GgmlType:
    """`block` elements take `nbytes` bytes."""

    name: str
    block: int
    nbytes: int
    dtype: mx.Dtype = mx.float32  # what it is handed out as


TYPES: Mapping[int, GgmlType] = {
    0: GgmlType("F32", 1, 4),
    1: GgmlType("F16", 1, 2, mx.float16),
    30: GgmlType("BF16", 1, 2, mx.bfloat16),
    2: GgmlType("Q4_0", 32, 18),
    3: GgmlType("Q4_1", 32, 20),
    6: GgmlType("Q5_0", 32, 22),
    7: GgmlType("Q5_1", 32, 24),
    8: GgmlType("Q8_0", 32, 34),
    10: GgmlType("Q2_K", 256, 84),
    11: GgmlType("Q3_K", 256, 110),
    12: GgmlType("Q4_K", 256, 144),
    13: GgmlType("Q5_K", 256, 176),
    14: GgmlType("Q6_K", 256, 210),
}

NAMES = {
    "token_embd": "shared",
    "output": "lm_head",
    "enc.output_norm": "encoder.final_layer_norm",
    "dec.output_norm": "decoder.final_layer_norm",
}
SELF_ATTENTION = {
    "attn_norm": "layer.0.layer_norm",
    "attn_q": "layer.0.SelfAttention.q",
    "attn_k": "layer.0.SelfAttention.k",
    "attn_v": "layer.0.SelfAttention.v",
    "attn_o": "layer.0.SelfAttention.o",
    "attn_rel_b": "layer.0.SelfAttention.relative_attention_bias",
}
BLOCK_NAMES = {
    "enc": SELF_ATTENTION
    | {
        "ffn_norm": "layer.1.layer_norm",
        "ffn_gate": "layer.1.DenseReluDense.wi_0",
        "ffn_up": "layer.1.DenseReluDense.wi_1",
        "ffn_down": "layer.1.DenseReluDense.wo",
    },
    "dec": SELF_ATTENTION
    | {
        "cross_attn_norm": "layer.1.layer_norm",
        "cross_attn_q": "layer.1.EncDecAttention.q",
        "cross_attn_k": "layer.1.EncDecAttention.k",
        "cross_attn_v": "layer.1.EncDecAttention.v",
        "cross_attn_o": "layer.1.EncDecAttention.o",
        "cross_attn_rel_b": "layer.1.EncDecAttention.relative_attention_bias",
        "ffn_norm": "layer.2.layer_norm",
        "ffn_gate": "layer.2.DenseReluDense.wi_0",
        "ffn_up": "layer.2.DenseReluDense.wi_1",
        "ffn_down": "layer.2.DenseReluDense.wo",
    },
}
CONFIG_SIZES = {
    "d_model": "embedding_length",
    "d_kv": "attention.key_length",
    "d_ff": "feed_forward_length",
    "num_layers": "block_count",
    "num_heads": "attention.head_count",
    "relative_attention_num_buckets": "attention.relative_buckets_count",
}
BLOCK = re.compile(r"(enc|dec)\.blk\.(\d{1,4})\.(\w+)", re.ASCII)


@dataclass(frozen=True)
class GgufTensor:
    type: GgmlType
    shape: tuple[int, ...]  # as in Hugging Face: the reverse of the file's order
    start: int
    nbytes: int


@dataclass(frozen=True)
class Header:
    metadata: Mapping[str, Any]  # scalars and short strings only
    tensors: Mapping[str, GgufTensor]  # by llama.cpp's names


class Cursor:
    """A place in the file that never leaves it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.position = 0
        self.strings_left = MAX_ARRAY_STRINGS
        self.data = map_file(path, "GGUF")

    def error(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: not a readable GGUF file, {problem} (before byte {self.position})")

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
        try:
            return self.data[start : start + size].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.error("a name is not UTF-8") from error

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


def read_header(cursor: Cursor) -> Header:
    """Everything before the data. Every tensor is checked to lie inside the file, apart from the others."""
    magic, version = cursor.scalar("<4s"), cursor.scalar("<I")
    if magic != b"GGUF" or version not in (2, 3):
        raise cursor.error(f"it starts with {magic!r}, version {version}; little-endian versions 2 and 3 are known")
    num_tensors = cursor.count(MAX_TENSORS, "tensors")
    num_fields = cursor.count(MAX_FIELDS, "metadata fields")
    metadata: dict[str, Any] = {}
    for _ in range(num_fields):
        if (key := cursor.name()) in metadata:
            raise cursor.error(f"field {key!r} stands in it twice")
        metadata[key] = cursor.value()
    infos: dict[str, tuple[GgmlType, tuple[int, ...], int]] = {}
    for _ in range(num_tensors):
        if (name := cursor.name()) in infos:
            raise cursor.error(f"tensor {name!r} stands in it twice")
        infos[name] = tensor_info(cursor, name)

    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise cursor.error(f"alignment {alignment!r}")
    data_start = -(-cursor.position // alignment) * alignment
    tensors, stop = {}, data_start
    for name, (kind, shape, offset) in sorted(infos.items(), key=lambda item: item[1][2]):
        tensor = GgufTensor(kind, shape, data_start + offset, math.prod(shape) // kind.block * kind.nbytes)
        if offset % alignment or tensor.start < stop or (stop := tensor.start + tensor.nbytes) > len(cursor.data):
            raise cursor.error(f"tensor {name!r} overlaps another, is not aligned, or reaches past the end")
        tensors[name] = tensor
    return Header(metadata, {name: tensors[name] for name in infos})


def tensor_info(cursor: Cursor, name: str) -> tuple[GgmlType, tuple[int, ...], int]:
    if (dimensions := cursor.scalar("<I")) not in (1, 2, 3, 4):
        raise cursor.error(f"tensor {name!r} has {dimensions} dimensions")
    shape = tuple(cursor.count(MAX_DIMENSION, f"as a size of tensor {name!r}") for _ in range(dimensions))[::-1]
    kind, offset = cursor.scalar("<I"), cursor.scalar("<Q")
    if kind not in TYPES:
        raise cursor.error(f"tensor {name!r} has type {kind}; known are {', '.join(t.name for t in TYPES.values())}")
    if 0 in shape or shape[-1] % TYPES[kind].block:
        raise cursor.error(f"tensor {name!r} of type {TYPES[kind].name} has shape {shape}")
    return TYPES[kind], shape, offset


def t5_header(cursor: Cursor) -> Header:
    header = read_header(cursor)
    if (architecture := header.metadata.get("general.architecture")) != "t5":
        raise CheckpointError(f"{cursor.path}: a model of architecture {architecture!r}; only 't5' can be read")
    if header.metadata.get("split.count", 1) != 1:
        raise CheckpointError(f"{cursor.path}: one part of a split model; join the parts with llama-gguf-split --merge")
    return header


def is_gated(header: Header) -> bool:
    return "enc.blk.0.ffn_gate.weight" in header.tensors


def hugging_face_name(name: str, gated: bool) -> str | None:
    """llama.cpp's name of a T5 tensor -> Hugging Face's; None if it is neither."""
    stem = name.removesuffix(".weight")
    if stem == name:
        return None
    if match := BLOCK.fullmatch(stem):
        side, index, part = match.groups()
        inner = BLOCK_NAMES[side].get(part)
        if part == "ffn_up" and not gated:
            inner = BLOCK_NAMES[side]["ffn_gate"].removesuffix("_0")
        return f"{side}oder.block.{int(index)}.{inner}.weight" if inner else None
    return f"{NAMES[stem]}.weight" if stem in NAMES else None


class GgufCheckpoint(Checkpoint):
    """F32, F16 and BF16 tensors in their own type; quantised ones as float32, `TensorInfo` included."""

    def __init__(self, cursor: Cursor) -> None:
        self.path = cursor.path
        self._data = cursor.data
        header = t5_header(cursor)
        self._tensors: dict[str, GgufTensor] = {}
        for name, tensor in header.tensors.items():
            known = hugging_face_name(name, is_gated(header))
            if known is None or known in self._tensors:
                raise CheckpointError(f"{self.path}: tensor {name!r} is none of T5's, or stands in it twice")
            self._tensors[known] = tensor

    def info(self, name: str) -> TensorInfo:
        return TensorInfo(self._tensors[name].shape, self._tensors[name].type.dtype)

    def __getitem__(self, name: str) -> mx.array:
        tensor = self._tensors[name]
        raw = np.frombuffer(self._data, np.uint8, tensor.nbytes, tensor.start)
        if tensor.type.block > 1:
            array = mx.array(self._dequantised(raw, tensor))
        else:
            array = array_from_bytes(raw, self.info(name))
        release(self._data, Extent(tensor.start, tensor.nbytes))
        return array

    def _dequantised(self, raw: NDArray[np.uint8], tensor: GgufTensor) -> NDArray[np.float32]:
        """Some rows at a time: dequantising needs several times the memory of what it gives."""
        try:
            from gguf import GGMLQuantizationType
            from gguf.quants import dequantize
        except ImportError as error:
            raise CheckpointError(f"{self.path}: quantised tensors need the gguf package (pip install gguf)") from error
        kind = GGMLQuantizationType[tensor.type.name]
        columns = tensor.shape[-1]
        rows = raw.reshape(-1, columns // tensor.type.block * tensor.type.nbytes)
        out = np.empty((len(rows), columns), np.float32)
        step = max(1, CHUNK_ELEMENTS // columns)
        with np.errstate(all="ignore"):  # a scale may be infinite; the file says so
            for start in range(0, len(rows), step):
                out[start : start + step] = dequantize(rows[start : start + step], kind)
        return out.reshape(tensor.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __str__(self) -> str:
        return str(self.path)


def read_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file of a T5 model. Raises `CheckpointError` if it is damaged or another model's."""
    return GgufCheckpoint(Cursor(path))


def gguf_config(path: Path) -> dict[str, Any]:
    """config.json's fields, as Hugging Face names them, from the metadata and from which tensors there are.

    llama.cpp keeps neither the activation nor the largest distance; it computes with gated GELU or ReLU, and 128.
    """
    header = t5_header(Cursor(path))
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
            raise CheckpointError(f"{path}: no {field} in the metadata, or an impossible one ({value!r})")
    epsilon = metadata.get("t5.attention.layer_norm_rms_epsilon")
    if type(epsilon) is not float or not 0 < epsilon < 1 or "token_embd.weight" not in header.tensors:
        raise CheckpointError(f"{path}: no token embedding, or an impossible layer_norm_epsilon ({epsilon!r})")
    return {
        "model_type": "umt5" if "enc.blk.1.attn_rel_b.weight" in header.tensors else "t5",
        "vocab_size": header.tensors["token_embd.weight"].shape[0],
        **config,
        "relative_attention_max_distance": 128,
        "layer_norm_epsilon": float(str(np.float32(epsilon))),  # 1e-06, not what float32 made of it
        "feed_forward_proj": "gated-gelu" if is_gated(header) else "relu",
        "tie_word_embeddings": "output.weight" not in header.tensors,
        **ids,
    }
