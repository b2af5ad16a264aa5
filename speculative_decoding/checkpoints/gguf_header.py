"""The header of a GGUF file: metadata, and where each tensor lies. Knows no models, and reads no tensor.

Every count and length is bounded by the file: the `gguf` package's own reader trusts them, and takes seconds over a
large vocabulary.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..errors import CheckpointError
from .mapped import map_file

DEFAULT_ALIGNMENT = 32
MAX_FIELDS = 10_000
MAX_TENSORS = 20_000
MAX_NAME_BYTES = 256
MAX_ALIGNMENT = 1 << 16
MAX_KEPT_BYTES = 256  # longer strings (vocabularies, templates) are stepped over
MAX_ARRAY_STRINGS = 1_000_000
MAX_DIMENSION = (1 << 31) - 1  # MLX counts in int32

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
