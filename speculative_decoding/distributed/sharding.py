"""Splits the heads and feed-forward units of every layer across the ranks (Shoeybi et al. 2019, "Megatron-LM",
1909.08053, section 3).

The shapes of a model built for one of N ranks determine which tensors are split, and along which axis. A matmul over
part of its inputs yields a partial sum; each attention block and each feed-forward block ends with such a matmul. Every
rank holds the embedding and the norms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

import mlx.core as mx
from mlx.utils import tree_flatten

from ..checkpoints.base import QUANTIZED_PARTS, Checkpoint, TensorInfo, part_name
from ..errors import InputError
from ..models.base import EncoderDecoder
from .process_group import ProcessGroup
from .sharded_model import RankBroadcaster, ShardedModel, sharded_class


@dataclass(frozen=True)
class Shard:
    """Piece number `index` of a tensor that is split into `pieces` equal pieces along `axis`."""

    axis: int
    pieces: int
    index: int

    def bounds(self, shape: Sequence[int]) -> tuple[int, int]:
        """Return the start and the end of the piece along the axis, for a tensor of this shape."""
        size = shape[self.axis] // self.pieces
        return self.index * size, (self.index + 1) * size

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the piece, for a tensor of this shape."""
        return (*shape[: self.axis], shape[self.axis] // self.pieces, *shape[self.axis + 1 :])


class ShardedCheckpoint(Checkpoint):
    """A view of another checkpoint that contains one rank's shards.

    Args:
        shards: Maps each tensor's name to the shard that this rank reads. Tensors that are not listed are read
            completely.
        zeros: Tensors that are zero on this rank.
    """

    def __init__(self, inner: Checkpoint, shards: Mapping[str, Shard], zeros: Set[str]) -> None:
        self._inner = inner
        self._shards = shards
        self._zeros = zeros
        infos = {name: inner.info(name) for name in inner}
        for name, shard in shards.items():
            infos[name] = TensorInfo(shard.shape(infos[name].shape), infos[name].dtype)
        super().__init__(inner, infos)

    def __getitem__(self, name: str) -> mx.array:
        if name in self._zeros:
            info = self.info(name)
            return mx.broadcast_to(mx.zeros((), info.dtype), info.shape)  # takes no memory
        if (shard := self._shards.get(name)) is None:
            return self._inner[name]
        return self._inner.read_slice(name, shard.axis, *shard.bounds(self._inner.info(name).shape))


def shard_model(
    build: Callable[[int], EncoderDecoder], checkpoint: Checkpoint, processes: ProcessGroup
) -> tuple[ShardedModel, ShardedCheckpoint]:
    """Return this rank's shard of a model without weights, and the checkpoint that contains its weights.

    Pass `partial(shard_model, processes=processes)` to `loading.open_model` as `shard`.

    Args:
        build: Builds the model for one rank, given the number of ranks.

    Raises:
        InputError: The model cannot be split over this number of processes.
    """
    full = build(1)
    if full.audio is not None:
        raise InputError(f"{checkpoint}: processes cannot share a speech model; use one process")
    if full.replaces_unknowns:  # `aligned_position` needs the whole model
        raise InputError(f"{checkpoint}: processes cannot share a package of Argos Translate; use one process")
    size = processes.size
    own = build(size)
    plan = shard_plan(full, own, checkpoint, processes.rank, size)
    if plan is None:
        sizes = ", ".join(f"{name} {count}" for name, count in own.config.sharded_sizes.items())
        if any(name.endswith(".scales") for name in checkpoint):
            sizes += " and groups of quantized columns"
        fitting = [n for n in range(2, 9) if shard_plan(full, build(n), checkpoint, 0, n) is not None]
        raise InputError(
            f"{checkpoint}: {size} processes cannot share a model with {sizes}; use "
            f"{' or '.join(map(str, fitting)) or 'one'}, or share the lines of a file with the command batch"
        )

    shards, partial_sums = plan
    sources = own.parameter_sources(own.config, checkpoint.keys())
    # The head and biases of partial sums must be added once, not once per rank.
    added_once = ["head.weight", *(f"{path}.bias" for path in partial_sums)]
    zeros = set[str]()
    if not processes.is_first:
        for path in added_once:
            zeros.update(part_name(name, part) for name in sources.get(path, ()) for part in QUANTIZED_PARTS)
            zeros.update(sources.get(path, ()))

    own.__class__ = sharded_class(type(own))
    assert isinstance(own, ShardedModel)
    own.broadcaster = RankBroadcaster(processes)
    own.partial_sums = partial_sums
    own.ranks = size
    return own, ShardedCheckpoint(checkpoint, shards, zeros)


def shard_plan(
    full: EncoderDecoder, own: EncoderDecoder, checkpoint: Checkpoint, rank: int, size: int
) -> tuple[Mapping[str, Shard], tuple[str, ...]] | None:
    """Compare the full model's parameters with those of a rank's model.

    Returns the shards keyed by tensor name and the paths of the layers whose outputs are partial sums, or None if a
    tensor cannot be split evenly.
    """
    sources = full.parameter_sources(full.config, checkpoint.keys())
    full_parameters: Mapping[str, mx.array] = dict(tree_flatten(full.parameters()))
    own_parameters: Mapping[str, mx.array] = dict(tree_flatten(own.parameters()))
    shards = dict[str, Shard]()
    partial_sums = list[str]()
    for path, array in full_parameters.items():
        shape, own_shape = array.shape, own_parameters[path].shape
        axis = next((axis for axis, count in enumerate(shape) if count != own_shape[axis]), None)
        if axis is None:
            continue
        pieces, remainder = divmod(shape[axis], own_shape[axis])
        names = set(sources[path])
        names |= {part_name(name, part) for name in sources[path] for part in QUANTIZED_PARTS} & checkpoint.keys()
        remainder += sum(checkpoint.info(name).shape[axis] % pieces for name in names)
        # Several ranks may hold the same rows, such as those of a shared key head. No two ranks may hold the same
        # columns, because outputs are summed over them.
        if remainder or size % pieces or (axis == 1 and size != pieces):
            return None
        shards |= dict.fromkeys(names, Shard(axis, pieces, rank * pieces // size))
        if axis == 1 and not path.endswith("position_biases.weight"):
            partial_sums.append(path.removesuffix(".weight"))
    return shards, tuple(partial_sums)
