"""A checkpoint in another floating-point type. Quantised integers stay what they are."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx

from .base import Checkpoint, TensorInfo


class CastCheckpoint(Checkpoint):
    def __init__(self, inner: Checkpoint, dtype: mx.Dtype) -> None:
        self._inner, self._dtype = inner, dtype

    def info(self, name: str) -> TensorInfo:
        info = self._inner.info(name)
        return TensorInfo(info.shape, self._dtype) if mx.issubdtype(info.dtype, mx.floating) else info

    def __getitem__(self, name: str) -> mx.array:
        return self._inner[name].astype(self.info(name).dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self._inner)

    def __len__(self) -> int:
        return len(self._inner)

    def __str__(self) -> str:
        return str(self._inner)
