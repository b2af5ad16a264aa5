"""Adds the low-rank updates of an adapter to a checkpoint (LoRA, Hu et al. 2021, arXiv 2106.09685).

Each tensor is changed when it is read, in float32, so that casting and quantizing see the sum. Knows neither models nor
the names that PEFT gives tensors; loading/adapter.py does.
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

    down: the name of a tensor (rank, inputs, ...); of an embedding: (rank, tokens).
    up: the name of a tensor (outputs, rank, ...); of an embedding: (width, rank).
    """

    down: str
    up: str
    scale: float
    is_embedding: bool = False

    def shape(self, adapter: Checkpoint) -> tuple[int, ...]:
        """Return the shape of the weight that the update fits."""
        down, up = adapter.info(self.down).shape, adapter.info(self.up).shape
        return (down[-1], up[0]) if self.is_embedding else (up[0], *down[1:])

    def compute(self, adapter: Checkpoint) -> mx.array:
        down, up = (adapter[name].astype(mx.float32) for name in (self.down, self.up))
        product = up.reshape(up.shape[0], -1) @ down.reshape(down.shape[0], -1)
        return self.scale * (product.T if self.is_embedding else product.reshape(self.shape(adapter)))


@dataclass(frozen=True)
class Rows:
    """Rows of a weight that are replaced: those with these indices by the rows of a tensor."""

    indices: tuple[int, ...]
    name: str


@dataclass(frozen=True)
class Source:
    """A tensor of the base or the adapter, and what changes it.

    length: of the last axis of a bias per token, which is cut or filled with zeros; None for other tensors.
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
    """A base with the changes of an adapter.

    Args:
        base: Not quantized.
        adapter: The adapter's tensors.
        sources: Where each tensor comes from. Tensors that are not listed do not exist.

    Raises:
        CheckpointError: An update does not fit its tensor. No data is read to find out.
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
