"""A model over several processes, each of which holds some heads and some units of every layer (Shoeybi et al. 2019,
"Megatron-LM", 1909.08053, section 3).

Where a model for one of several processes is smaller it has a share: which tensors are cut, and along which axis,
follows from the shapes of its parameters. A product over some of the inputs is a part of a sum; the sums, one behind
each attention and one behind each feed-forward, are all that the processes tell each other within a pass. Tables of
tokens and norms are in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten

from ..checkpoints.base import QUANTIZED_PARTS, Checkpoint, Shard, TensorInfo, part_name
from ..distributed import ProcessGroup
from ..errors import InputError
from .base import EncoderDecoder
from .mirror import SharedMirror

MOST_PROCESSES = 8  # that are looked for where a number does not fit
HEAD = "head.weight"  # only the first process has logits


class SharedCheckpoint(Checkpoint):
    """What one process reads of another checkpoint. unread: tensors that are zeros here."""

    def __init__(self, inner: Checkpoint, shares: Mapping[str, Shard], unread: Set[str]) -> None:
        self._inner, self._shares, self._unread = inner, shares, unread
        infos = {name: inner.info(name) for name in inner}
        for name, share in shares.items():
            infos[name] = TensorInfo(share.shape(infos[name].shape), infos[name].dtype)
        super().__init__(inner, infos)

    def __getitem__(self, name: str) -> mx.array:
        if name in self._unread:
            info = self.info(name)
            return mx.broadcast_to(mx.zeros((), info.dtype), info.shape)  # takes no memory
        return self._inner.read_shard(name, self._shares[name]) if name in self._shares else self._inner[name]


class Summed(nn.Module):
    """A layer of which every process has some of the inputs."""

    def __init__(self, layer: nn.Module, group: mx.distributed.Group) -> None:
        super().__init__()
        self.layer, self._group = layer, group

    def __call__(self, x: mx.array) -> mx.array:
        return mx.distributed.all_sum(self.layer(x), group=self._group)


def shared(
    build: Callable[[int], EncoderDecoder], checkpoint: Checkpoint, processes: ProcessGroup
) -> tuple[EncoderDecoder, Checkpoint]:
    """This process's part of a model, and what it reads of its checkpoint. build: a model for one of so many processes.

    Raises `InputError` where there is no such part.
    """
    whole, model, size = build(1), build(processes.size), processes.size
    found = shares_of(whole, model, checkpoint, processes.rank, size)
    if found is None:
        sizes = ", ".join(f"{name} {count}" for name, count in model.config.sharded_sizes.items())
        if any(name.endswith(".scales") for name in checkpoint):
            sizes += " and groups of quantised columns"
        fitting = [n for n in range(2, MOST_PROCESSES + 1) if shares_of(whole, build(n), checkpoint, 0, n)]
        raise InputError(
            f"{checkpoint}: {size} processes cannot share a model with {sizes}; "
            f"{' or '.join(map(str, fitting)) or 'no other number'} can, and a job's lines any: --parallel data"
        )
    shares, summed = found
    sources = model.parameter_sources(model.config, checkpoint.keys())
    once = [HEAD, *(f"{path}.bias" for path in summed)]  # what is added once is the first process's
    unread = {name for path in once for name in sources.get(path, ()) if not processes.is_first}
    unread |= {
        part_name(name, kind) for name in unread for kind in QUANTIZED_PARTS if part_name(name, kind) in checkpoint
    }
    model.mirror = SharedMirror(processes, summed)
    return model, SharedCheckpoint(checkpoint, shares, unread)


def shares_of(
    whole: EncoderDecoder, own: EncoderDecoder, checkpoint: Checkpoint, rank: int, size: int
) -> tuple[dict[str, Shard], list[str]] | None:
    """By tensor, what one of `size` processes reads; and the layers whose outputs are parts of a sum. None: something
    cannot be divided so.
    """
    sources = whole.parameter_sources(whole.config, checkpoint.keys())
    parameters: Mapping[str, mx.array] = dict(tree_flatten(whole.parameters()))
    ours: Mapping[str, mx.array] = dict(tree_flatten(own.parameters()))
    shares, summed = dict[str, Shard](), []
    for path, array in parameters.items():
        axis = next((axis for axis, n in enumerate(array.shape) if n != ours[path].shape[axis]), None)
        if axis is None:
            continue
        pieces, rest = divmod(array.shape[axis], ours[path].shape[axis])
        for name in sources[path]:
            stored = [
                name,
                *(part_name(name, kind) for kind in QUANTIZED_PARTS[1:] if part_name(name, kind) in checkpoint),
            ]
            rest += sum(checkpoint.info(each).shape[axis] % pieces for each in stored)
            shares |= dict.fromkeys(stored, Shard(axis, pieces, rank * pieces // size))
        if rest or size % pieces or (axis == 1 and size != pieces):  # of rows, several processes may have the same
            return None
        if axis == 1 and not path.endswith("position_biases.weight"):
            summed.append(path.removesuffix(".weight"))
    return shares, summed


def add_up(model: EncoderDecoder) -> None:
    """Once its weights are there: what its processes compute parts of, they add up."""
    if isinstance(model.mirror, SharedMirror):
        layers, group = dict(model.named_modules()), model.mirror.processes.group
        model.update_modules(tree_unflatten([(path, Summed(layers[path], group)) for path in model.mirror.summed]))
