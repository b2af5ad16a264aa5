"""Writes CTranslate2 folders: model.bin of versions 4 to 6, config.json and vocabularies. Needs only NumPy.

tools/goldens/make_ctranslate2_goldens.py records the SHA-256 of the files that CTranslate2 writes for equal arrays.
An array of uint16 contains the bits of bfloat16.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

DTYPES = ("float32", "int8", "int16", "int32", "float16", "uint16")  # in the order of their numbers
BFLOAT16 = "uint16"
QUANTIZATIONS = (None, "int8", "int16", "int8_float16", "int8_bfloat16", "float16", "bfloat16")
QUANTIZED = ("weight",)  # the last parts of the names of variables that may be stored in 8 or 16 bits with scales
Array = NDArray[Any]
Value = Array | np.generic | str | bool | int | float


def random_array(seed: int, name: str, shape: Sequence[int]) -> NDArray[np.float32]:
    """Return uniform numbers that depend only on the arguments, on every platform.

    The scales make every part of a model matter, and let greedy outputs vary.
    """
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    numbers = np.random.RandomState(int.from_bytes(digest[:4], "little")).random_sample(tuple(shape)) * 2 - 1
    scope, _, part = name.rpartition("/")
    if part == "gamma":
        numbers = 1 + 0.5 * numbers
    elif part == "relative_attention_bias":
        numbers *= 2
    elif part in ("beta", "bias"):
        numbers *= 0.25
    elif part == "encodings":
        numbers *= 2
    elif part == "weight" and "embeddings" in scope:
        numbers *= 0.5
    elif part == "weight":
        numbers *= 4 / np.sqrt(np.prod(shape[1:]))
    return numbers.astype(np.float32)


def bfloat16(array: Array) -> NDArray[np.uint16]:
    """Return the bits of an array of finite numbers, rounded to the nearest even."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def quantized(variables: Mapping[str, Value], quantization: str | None) -> dict[str, Value]:
    """Quantize or cast all arrays in float32, as `_quantize` in CTranslate2's specs does.

    Weights in int8 have a scale for each row, and those in int16 have one scale.
    """
    weights, _, others = (quantization or "float32").partition("_")
    others = others or {"int8": "", "int16": "float32"}.get(weights, weights)
    out: dict[str, Value] = {}
    for name, value in variables.items():
        if not isinstance(value, np.ndarray) or value.ndim == 0 or value.dtype != np.float32:
            out[name] = value
        elif name.rpartition("/")[2] not in QUANTIZED:
            out[name] = cast(value, others or "float32")
        elif weights == "int8":
            rows = value.reshape(len(value), -1)
            largest = np.abs(rows).max(axis=1)
            largest[largest == 0] = 127.0
            scales = np.float32(127) / largest
            out[name] = np.rint(rows * scales[:, None]).astype(np.int8).reshape(value.shape)
            out[name + "_scale"] = scales
        elif weights == "int16":
            scale = np.float32(2**10 / np.abs(value).max())
            out[name] = np.clip(np.rint(value * scale), -(2**15), 2**15 - 1).astype(np.int16)
            out[name + "_scale"] = scale
        else:
            out[name] = cast(value, weights)
    return out


def cast(array: Array, dtype: str) -> Array:
    return bfloat16(array) if dtype == "bfloat16" else array.astype(dtype)


def stored(value: Value) -> Array:
    """Return a value as CTranslate2 stores it: flags as int8, whole numbers as int32, strings as vectors of int8."""
    match value:
        case str():
            return np.frombuffer(value.encode(), np.int8)
        case bool():
            return np.array(value, np.int8)
        case int():
            return np.array(value, np.int32)
        case float():
            return np.array(value, np.float32)
        case _:
            return np.asarray(value)


def string(text: str) -> bytes:
    return struct.pack("<H", len(text.encode()) + 1) + text.encode() + b"\0"


def variable(name: str, value: Value) -> bytes:
    array = stored(value)
    header = struct.pack(f"<B{array.ndim}IBI", array.ndim, *array.shape, DTYPES.index(array.dtype.name), array.nbytes)
    return string(name) + header + array.astype(array.dtype.newbyteorder("<")).tobytes()


def model_bytes(
    spec: str,
    revision: int,
    variables: Mapping[str, Value],
    aliases: Iterable[tuple[str, str]] = (),
    version: int = 6,
) -> bytes:
    """Return a model.bin. Variables are sorted by name, as CTranslate2's converters sort them.

    aliases: pairs of an alias and the name of a variable.
    """
    aliases = list(aliases)
    head = struct.pack("<I", version) + string(spec) + struct.pack("<II", revision, len(variables))
    body = b"".join(variable(name, variables[name]) for name in sorted(variables))
    return head + body + struct.pack("<I", len(aliases)) + b"".join(string(a) + string(b) for a, b in aliases)


def variables_of(case: Mapping[str, Any], tensors: Mapping[str, Array]) -> dict[str, Value]:
    """Return the variables of a recorded case before quantization. tensors: those of the model that was converted."""
    out: dict[str, Value] = {}
    for name, dtype, content, *parts in case["variables"]:
        if dtype == "string":
            out[name] = content
        elif not isinstance(content, list):
            out[name] = np.dtype(dtype).type(content)
        elif not parts:
            out[name] = random_array(case["seed"], name, content)
        elif isinstance(parts[0], str):  # a table that the converter computed
            out[name] = np.frombuffer(base64.b64decode(parts[0]), "<f4").reshape(content)
        else:
            rows = [
                np.zeros((stop, *content[1:]), np.float32) if tensor is None else tensors[tensor][start:stop]
                for tensor, start, stop in parts[0]
            ]
            out[name] = np.concatenate(rows)
    return out


def write_folder(
    folder: Path,
    model: bytes,
    config: Mapping[str, Any] | None = None,
    tokens: Sequence[str] = (),
    vocabulary: str = "shared_vocabulary.json",
) -> Path:
    """Write model.bin, config.json and a vocabulary, which is a JSON list or has one token per line."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.bin").write_bytes(model)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(dict(config)))
    text = json.dumps(list(tokens)) if vocabulary.endswith(".json") else "".join(f"{token}\n" for token in tokens)
    (folder / vocabulary).write_bytes(text.encode())
    return folder


def first_pieces(path: Path, size: int) -> bytes:
    """Return a SentencePiece model with the first pieces of another one."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(path.read_bytes())  # type: ignore[attr-defined]
    del model.pieces[size:]
    return bytes(model.SerializeToString())
