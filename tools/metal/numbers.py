"""Stores numpy arrays in float32, float16 or bfloat16. numpy has no bfloat16, so its bits are stored as uint16."""

from __future__ import annotations

from typing import Any

import numpy as np

Values = np.ndarray[Any, Any]
STORED: dict[str, Any] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": np.uint16,
    "uint32": np.uint32,
    "int32": np.int32,
}
EPSILON = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}  # the distance from 1 to the next number


def encode(values: Values, dtype: str) -> Values:
    """Round values to a dtype (to nearest, ties to even), and return them in stored form."""
    if dtype != "bfloat16":
        return np.ascontiguousarray(values, dtype=STORED[dtype])
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def decode(stored: Values, dtype: str) -> Values:
    """Convert stored values to float64."""
    if dtype == "bfloat16":
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float64)
