"""Adds the low-rank updates of an adapter to a checkpoint (LoRA, Hu et al. 2021, arXiv 2106.09685).

Updates are added in float32 when a tensor is read, before any casting or quantization. This module depends neither on
models nor on PEFT's tensor names; loading/adapter.py translates those names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import mlx.core as mx

from ..errors import CheckpointError
from .base import Checkpoint, TensorInfo


@dataclass(frozen=True)
class Update:
    """scale * up @ down, added to a weight (outputs, inputs, ...).

    down: the name of a tensor with shape (rank, inputs, ...), or (rank, tokens) for an embedding.
    up: the name of a tensor with shape (outputs, rank, ...), or (width, rank) for an embedding.
    """

    down: str
    up: str
    scale: float
    is_embedding: bool = False

    def shape(self, adapter: Checkpoint) -> tuple[int, ...]:
        """Return the shape of the weight to which the update can be added."""
        down, up = adapter.info(self.down).shape, adapter.info(self.up).shape
        return (down[-1], up[0]) if self.is_embedding else (up[0], *down[1:])

    def compute(self, adapter: Checkpoint) -> mx.array:
        down, up = (adapter[name].astype(mx.float32) for name in (self.down, self.up))
        product = up.reshape(up.shape[0], -1) @ down.reshape(down.shape[0], -1)
        return self.scale * (product.T if self.is_embedding else product.reshape(self.shape(adapter)))


@dataclass(frozen=True)
class Rows:
    """Replaces the rows of a weight at `indices` with the rows of the adapter's tensor `name`."""

    indices: tuple[int, ...]
    name: str


@dataclass(frozen=True)
class Source:
    """A tensor from the base or the adapter, and the changes to it.

    length: for a bias with one value per token, the length to which its last axis is cut or zero-padded, else None.
    """

    name: str
    is_of_adapter: bool = False
    updates: Sequence[Update] = ()
    rows: Sequence[Rows] = ()
    length: int | None = None

    @property
    def is_changed(self) -> bool:
        return bool(self.updates or self.rows)


class MergedCheckpoint(Checkpoint):
    """A base checkpoint with an adapter's changes applied.

    Args:
        base: The base checkpoint. It must not be quantized.
        adapter: The adapter's tensors.
        sources: Maps each tensor's name to its origin. Tensors that are not listed are hidden.

    Raises:
        CheckpointError: An update does not fit its tensor. This check reads no data.
    """

    def __init__(self, base: Checkpoint, adapter: Checkpoint, sources: Mapping[str, Source]) -> None:
        self._base = base
        self._adapter = adapter
        self._sources = sources
        infos: dict[str, TensorInfo] = {}
        for name, source in sources.items():
            infos[name] = info = (adapter if source.is_of_adapter else base).info(source.name)
            for update in source.updates:
                self._check(update.down, update.shape(adapter), name, info.shape)
            for rows in source.rows:
                self._check(rows.name, adapter.info(rows.name).shape, name, (len(rows.indices), *info.shape[1:]))
                if any(not 0 <= index < info.shape[0] for index in rows.indices):
                    raise CheckpointError(f"{adapter}: tensor {rows.name!r} is for a row that {name!r} does not have")
            if source.is_changed:
                infos[name] = TensorInfo(info.shape, mx.float32)
            elif source.length is not None:
                infos[name] = replace(info, shape=(*info.shape[:-1], source.length))
        super().__init__(base, infos)

    def _check(self, update: str, shape: tuple[int, ...], name: str, expected: tuple[int, ...]) -> None:
        if shape != expected:
            raise CheckpointError(
                f"{self._adapter}: tensor {update!r} fits a weight of shape {shape}, but the base's {name!r} has "
                f"{expected}; use the adapter with the model that it was trained for"
            )

    def __getitem__(self, name: str) -> mx.array:
        source = self._sources[name]
        array = (self._adapter if source.is_of_adapter else self._base)[source.name]
        if source.length is not None:
            array = array[..., : source.length]
            return mx.pad(array, [*[(0, 0)] * (array.ndim - 1), (0, source.length - array.shape[-1])])
        if not source.is_changed:
            return array
        array = array.astype(mx.float32)
        for update in source.updates:
            array = array + update.compute(self._adapter)
        for rows in source.rows:
            array[mx.array(rows.indices)] = self._adapter[rows.name].astype(mx.float32)
        return array
