"""Reader for CTranslate2's model.bin, versions 4 to 6: named variables. Scalars and strings are called attributes.

Follows `Model::load` in src/models/model.cc and `ModelSpec._serialize` in python/ctranslate2/specs/model_spec.py at
CTranslate2 4.8. Weights in 8 or 16 bits have scales, one per row or one for all rows, and are converted to float32. The
translation to Hugging Face's names is in `ctranslate2_layout`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from .base import MAX_DIMENSION, Checkpoint, TensorInfo
from .cursor import Cursor
from .mapped import MappedFile

VERSIONS = (4, 5, 6)
DTYPES = (mx.float32, mx.int8, mx.int16, mx.int32, mx.float16, mx.bfloat16)  # in the order of their numbers
PATTERNS = dict(zip(DTYPES, ("<f", "<b", "<h", "<i", "<e", "<H"), strict=True))  # of numbers, for `struct`
QUANTIZED = (mx.int8, mx.int16)
MAX_VARIABLES = 1 << 16
MAX_RANK = 4
MAX_STRING = 4096  # bytes in a name or a string attribute
INT16_SCALE = 1000.0  # of files that do not store the scales of int16 weights
SCALES = "_scale"  # the suffix of the variable with a weight's scales
CHUNK_ELEMENTS = 1 << 22  # elements to convert at a time


class Variable(NamedTuple):
    info: TensorInfo
    location: range  # the positions of its bytes in the file


@dataclass(frozen=True)
class Header:
    """The contents of a model.bin, without the numbers of its arrays.

    spec, revision: The layout of the variables, such as "TransformerSpec", 7.
    variables: The arrays, also under their aliases.
    attributes: The scalars and strings, also under their aliases.
    """

    file: MappedFile
    version: int
    spec: str
    revision: int
    variables: Mapping[str, Variable]
    attributes: Mapping[str, int | float | str]

    def rows(self, name: str, start: int, stop: int) -> NDArray[np.float32]:
        """Return rows of a quantized variable as a matrix in float32, as CTranslate2's `Dequantize` computes them."""
        info, location = self.variables[name]
        item = np.int8 if info.dtype == mx.int8 else np.int16
        scales = self.scales(name)[start:stop]
        width = math.prod(info.shape[1:])
        step = max(1, CHUNK_ELEMENTS // max(width, 1))
        out = np.empty((stop - start, width), np.float32)
        with np.errstate(all="ignore"):  # a file may contain scales of zero
            inverse = (np.float32(1) / scales)[:, None]
            for first in range(start, stop, step):
                last = min(first + step, stop)
                offset = location.start + first * width * info.dtype.size
                numbers = np.ndarray((last - first, width), item, self.file.data, offset)
                np.multiply(numbers, inverse[first - start : last - start], out=out[first - start : last - start])
        self.file.release(location)
        return out

    def scales(self, name: str) -> NDArray[np.float32]:
        """Return the scale of each row of a quantized variable."""
        size = self.variables[name].info.shape[0]
        if name + SCALES in self.variables:
            scales = self.variables[name + SCALES]
            return np.ndarray((size,), np.float32, self.file.data, scales.location.start)
        return np.full(size, self.attributes.get(name + SCALES, INT16_SCALE), np.float32)


class HeaderCursor(Cursor):
    """Reads the header of a model.bin."""

    def __init__(self, file: MappedFile) -> None:
        super().__init__(file, "CTranslate2")

    def string(self) -> str:
        """Read a string: its length with the zero byte at its end, and its bytes."""
        size = self.scalar("<H")
        if not 0 < size <= MAX_STRING:
            raise self.error(f"a string of {size} bytes (expected 1 to {MAX_STRING}, with a zero byte at its end)")
        return self.text(size).removesuffix("\0")

    def count(self, limit: int, what: str) -> int:
        value = int(self.scalar("<I"))
        if value > limit:
            raise self.error(f"{value} {what} (at most {limit})")
        return value

    def variable(self, name: str) -> Variable:
        rank = self.scalar("<B")
        if rank > MAX_RANK:
            raise self.error(f"variable {name!r} has {rank} dimensions (at most {MAX_RANK})")
        shape = tuple(self.count(MAX_DIMENSION, f"as a size of variable {name!r}") for _ in range(rank))
        number, nbytes = self.scalar("<B"), self.scalar("<I")
        if number >= len(DTYPES):
            raise self.error(f"variable {name!r} has the unknown dtype number {number}")
        info = TensorInfo(shape, DTYPES[number])
        if info.nbytes != nbytes:
            raise self.error(f"variable {name!r} of shape {shape} has {nbytes} bytes (expected {info.nbytes})")
        start = self.skip(nbytes)
        return Variable(info, range(start, start + nbytes))


def read_header(path: Path) -> Header:
    """Parse a model.bin. Raises `CheckpointError` if it is damaged, or of another version."""
    file = MappedFile(path, "CTranslate2")
    cursor = HeaderCursor(file)
    version = cursor.scalar("<I")
    if version not in VERSIONS:
        known = ", ".join(map(str, VERSIONS))
        raise file.error(f"unsupported version {version} (expected {known}); convert the original model again")
    spec = cursor.string()
    revision = cursor.scalar("<I")

    variables: dict[str, Variable] = {}
    attributes: dict[str, int | float | str] = {}
    for _ in range(cursor.count(MAX_VARIABLES, "variables")):
        name = cursor.string()
        if name in variables or name in attributes:
            raise cursor.error(f"variable {name!r} appears twice")
        variable = cursor.variable(name)
        value = attribute(file, variable)
        if value is None:
            variables[name] = variable
        else:
            attributes[name] = value
    for _ in range(cursor.count(MAX_VARIABLES, "aliases")):
        alias, name = cursor.string(), cursor.string()
        for suffix in ("", SCALES):  # an alias of a weight also applies to its scales
            if name + suffix in variables:
                variables.setdefault(alias + suffix, variables[name + suffix])
            elif name + suffix in attributes:
                attributes.setdefault(alias + suffix, attributes[name + suffix])
            elif not suffix:
                raise cursor.error(f"{alias!r} is an alias of {name!r}, which is missing")
    header = Header(file, version, spec, revision, variables, attributes)
    for name in variables:
        check_scales(header, name)
    return header


def attribute(file: MappedFile, variable: Variable) -> int | float | str | None:
    """Return the value of a scalar or of a string, which is stored as a vector of int8; None for other variables."""
    (shape, dtype), location = (variable.info.shape, variable.info.dtype), variable.location
    if not shape:
        (value,) = struct.unpack_from(PATTERNS[dtype], file.data, location.start)
        if dtype == mx.bfloat16:  # the upper half of a float32
            (value,) = struct.unpack("<f", struct.pack("<I", value << 16))
        return value
    if len(shape) == 1 and dtype == mx.int8 and shape[0] <= MAX_STRING:
        return file.data[location.start : location.stop].decode("utf-8", "replace")
    return None


def check_scales(header: Header, name: str) -> None:
    """Raise `CheckpointError` for a quantized variable whose scales are missing or do not fit."""
    info = header.variables[name].info
    if info.dtype not in QUANTIZED:
        return
    scales = header.variables.get(name + SCALES)
    if scales is not None:
        fits = scales.info == TensorInfo(info.shape[:1], mx.float32)
    else:
        scale = header.attributes.get(name + SCALES, INT16_SCALE if info.dtype == mx.int16 else None)
        fits = isinstance(scale, int | float)
    if len(info.shape) < 2 or not fits:
        raise header.file.error(
            f"variable {name!r} in {str(info.dtype).removeprefix('mlx.core.')} has no fitting scales"
        )


class Rows(NamedTuple):
    """Rows of a variable, or rows of zeros if `variable` is None."""

    variable: str | None
    start: int
    stop: int


class Tensor(NamedTuple):
    """A tensor of consecutive parts, which are joined along the first axis.

    shape: The shape of the joined tensor. It may have additional axes of size 1.
    """

    parts: tuple[Rows, ...]
    shape: tuple[int, ...]


class CTranslate2Checkpoint(Checkpoint):
    """Tensors that consist of rows of a model.bin's variables. Quantized variables become float32.

    Raises `CheckpointError` for parts that are not in the file, or whose sizes do not fit together.

    Args:
        header: The file's header.
        tensors: The parts of each tensor.
    """

    def __init__(self, header: Header, tensors: Mapping[str, Tensor]) -> None:
        self._header = header
        self._tensors = tensors
        super().__init__(header.file.path, {name: self._checked(name, tensor) for name, tensor in tensors.items()})

    def _checked(self, name: str, tensor: Tensor) -> TensorInfo:
        """Return a tensor's shape and dtype. Tensors of zeros only are in float32."""
        infos = [self._header.variables[rows.variable].info for rows in tensor.parts if rows.variable is not None]
        dtypes = {mx.float32 if info.dtype in QUANTIZED else info.dtype for info in infos} or {mx.float32}
        count = sum(rows.stop - rows.start for rows in tensor.parts)
        is_inside = all(
            rows.variable is None or rows.stop <= self._header.variables[rows.variable].info.shape[0]
            for rows in tensor.parts
        )
        widths = {math.prod(info.shape[1:]) for info in infos}
        is_number = all(mx.issubdtype(dtype, mx.floating) for dtype in dtypes)
        if (
            len(dtypes) != 1
            or not is_number
            or not is_inside
            or any(width * count != math.prod(tensor.shape) for width in widths)
        ):
            raise self._header.file.error(f"the variables of {name!r} do not fit together")
        return TensorInfo(tensor.shape, next(iter(dtypes)))

    def __getitem__(self, name: str) -> mx.array:
        parts, shape = self._tensors[name]
        width = math.prod(shape) // sum(rows.stop - rows.start for rows in parts)
        arrays = [self._read(rows, width, self.info(name).dtype) for rows in parts]
        return (arrays[0] if len(arrays) == 1 else mx.concatenate(arrays)).reshape(shape)

    def _read(self, rows: Rows, width: int, dtype: mx.Dtype) -> mx.array:
        """Return an array (rows, width)."""
        shape = rows.stop - rows.start, width
        if rows.variable is None:
            return mx.zeros(shape, dtype)
        stored, location = self._header.variables[rows.variable]
        if stored.dtype in QUANTIZED:
            return mx.array(self._header.rows(rows.variable, rows.start, rows.stop))
        row_bytes = width * dtype.size
        part = range(location.start + rows.start * row_bytes, location.start + rows.stop * row_bytes)
        return self._header.file.array(TensorInfo(shape, dtype), part)

    def is_same(self, first: str, second: str) -> bool:
        """Return whether two tensors are equal. Aliases are equal without being read."""
        locations = [
            [
                (rows.start, rows.stop, None if rows.variable is None else self._header.variables[rows.variable])
                for rows in self._tensors[name].parts
            ]
            for name in (first, second)
        ]
        return locations[0] == locations[1] or super().is_same(first, second)
