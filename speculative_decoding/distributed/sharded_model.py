"""Tensor-parallel decoding: rank 0 decodes, and the other ranks repeat its model calls on their own shards.

Only rank 0 drafts, verifies, samples and reads the clock, so the ranks cannot disagree. It announces each call that
needs all shards as one JSON line. Array arguments are then transferred as a sum over the ranks, to which the other
ranks contribute zeros. All arrays of a result are scheduled immediately, so that all ranks run collective operations in
the same order.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten

from ..checkpoints import Checkpoint
from ..models.base import EncoderDecoder
from ..models.cache import CrossAttentionCache, DecoderCache
from .process_group import ProcessGroup


class ShardedModel(EncoderDecoder):
    """One rank's shard of a model. On rank 0, it behaves like the whole model.

    `sharded_class` combines this class with an architecture. Each method below runs on all ranks when rank 0 calls it.
    Methods that use the embedding or the head, such as `embed` and `logits`, run only on rank 0.
    """

    broadcaster: RankBroadcaster
    partial_sums: tuple[str, ...]  # paths of the layers whose outputs are partial sums
    _keeps_full_cross_attention = False

    def load_checkpoint(self, checkpoint: Checkpoint) -> None:
        super().load_checkpoint(checkpoint)
        layers, group = dict(self.named_modules()), self.broadcaster.processes.group
        self.update_modules(tree_unflatten([(path, AllReduce(layers[path], group)) for path in self.partial_sums]))

    def encode(self, tokens: mx.array, mask: mx.array | None = None) -> mx.array:
        tokens, mask = self.broadcaster.announce("encode", tokens, mask)
        return schedule(super().encode(tokens, mask))  # type: ignore[safe-super]

    def make_cache(self, encoder_output: mx.array, mask: mx.array | None = None, beams: int = 1) -> Any:
        """Like `EncoderDecoder.make_cache`, but returns a `BroadcastCache` on rank 0."""
        encoder_output, mask, _ = self.broadcaster.announce("make_cache", encoder_output, mask, beams)
        cache = super().make_cache(encoder_output, mask, beams)
        full = None
        if self._keeps_full_cross_attention:
            last = cache.last_cross_attention
            full = CrossAttentionCache(self._all_heads(last.cross_keys), self._all_heads(last.cross_values))
        schedule(cache.arrays)
        return self.broadcaster.register(cache, full)

    def states(self, tokens: mx.array, cache: DecoderCache) -> mx.array:
        tokens, cache = self.broadcaster.announce("states", tokens, cache)
        return schedule(super().states(tokens, cache), cache.hidden, cache.arrays)

    def teacher_forced_hidden(
        self, tokens: mx.array, encoder_output: mx.array, mask: mx.array | None = None
    ) -> list[mx.array]:
        tokens, encoder_output, mask = self.broadcaster.announce("teacher_forced_hidden", tokens, encoder_output, mask)
        return schedule(super().teacher_forced_hidden(tokens, encoder_output, mask))

    def keep_full_cross_attention(self) -> None:
        """Gather all heads of the last layer's cross keys and values in every cache created after this call."""
        self.broadcaster.announce("keep_full_cross_attention")
        self._keeps_full_cross_attention = True

    def _all_heads(self, shard: mx.array) -> mx.array:
        """Gather (B, heads of this rank, S, D) from all ranks."""
        heads = mx.distributed.all_gather(shard.swapaxes(0, 1), group=self.broadcaster.processes.group)
        heads = schedule(heads).swapaxes(0, 1)
        copies = heads.shape[1] // self.config.decoder.num_kv_heads  # with fewer heads than ranks, ranks share a head
        return heads[:, ::copies]


def sharded_class(architecture: type[EncoderDecoder]) -> type[ShardedModel]:
    """Create the class for shards of this architecture."""
    return type(f"Sharded{architecture.__name__}", (ShardedModel, architecture), {})


class AllReduce(nn.Module):
    """Sums a layer's outputs over the ranks, because each rank holds only some of the layer's inputs.

    `mlx.nn.layers.distributed.ShardedToAllLinear` slices a complete weight. This class wraps a layer that contains only
    this rank's shard and may be quantized.
    """

    def __init__(self, layer: nn.Module, group: mx.distributed.Group) -> None:
        super().__init__()
        self.layer = layer
        self._group = group

    def __call__(self, x: mx.array) -> mx.array:
        return mx.distributed.all_sum(self.layer(x), group=self._group)


class RankBroadcaster:
    """Sends rank 0's calls to the other ranks, and holds the caches on those ranks."""

    def __init__(self, processes: ProcessGroup) -> None:
        self.processes = processes
        self._cache_count = 0
        self._caches: dict[int, DecoderCache] = {}  # on the other ranks
        self._changes: list[Any] = []  # on rank 0: changes to its caches since the last announced call

    def announce(self, method: str, *arguments: Any) -> tuple[Any, ...]:
        """Send a model call to the other ranks, and return the arguments to use, which are the same on all ranks."""
        if self.processes.is_first:
            count = len(self._changes)  # deleting a cache may add a change at any time
            self.processes.channel.send([self._changes[:count], method, *map(as_message, arguments)])
            del self._changes[:count]
        return tuple(self._broadcast(each) if isinstance(each, mx.array) else local(each) for each in arguments)

    def register(self, cache: DecoderCache, full: CrossAttentionCache | None) -> BroadcastCache | DecoderCache:
        """Assign a number to a new cache that exists on all ranks. Returns a proxy on rank 0, the cache on other ranks.

        Args:
            cache: This rank's shard.
            full: The last layer's cross keys and values with all heads, if a draft head reads them.
        """
        number = self._cache_count
        self._cache_count += 1
        if not self.processes.is_first:
            self._caches[number] = cache
            return cache
        handle = BroadcastCache(cache, full, number, self._changes)
        weakref.finalize(handle, self._changes.append, [number, "delete"])
        return handle

    def serve(self, model: ShardedModel) -> int:
        """Repeat rank 0's calls until rank 0 leaves, and return its exit status."""
        while True:
            _, message = self.processes.channel.receive()
            if isinstance(message, dict):
                return int(message["leaves"])
            changes, method, *arguments = message
            for number, change, *values in changes:
                if change == "delete":
                    del self._caches[number]
                else:
                    getattr(self._caches[number], change)(*map(self._from_message, values))
            getattr(model, method)(*map(self._from_message, arguments))

    def _broadcast(self, array: mx.array) -> mx.array:
        numbers = array.astype(mx.uint8) if array.dtype == mx.bool_ else array
        return schedule(mx.distributed.all_sum(numbers, group=self.processes.group).astype(array.dtype))

    def _from_message(self, argument: Any) -> Any:
        if isinstance(argument, list):
            return tuple(argument)
        if not isinstance(argument, Mapping):
            return argument
        if "cache" in argument:
            return self._caches[argument["cache"]]
        return mx.zeros(argument["shape"], getattr(mx, argument["dtype"]))


class BroadcastCache:
    """Rank 0's proxy for a `DecoderCache`, which records changes for the other ranks.

    It records assignments and calls to methods that return None. Other methods do not change the cache. The changes are
    sent as JSON, so their arguments must not be arrays.
    """

    def __init__(self, cache: DecoderCache, full: CrossAttentionCache | None, number: int, changes: list[Any]) -> None:
        vars(self).update(cache=cache, number=number, _full=full, _changes=changes)

    @property
    def last_cross_attention(self) -> CrossAttentionCache:
        return self.cache.last_cross_attention if self._full is None else self._full

    @property
    def arrays(self) -> list[mx.array]:
        return self.cache.arrays + ([] if self._full is None else self._full.arrays)

    def select(self, requests: Sequence[int]) -> None:
        self._record("select", requests)
        if self._full is not None:
            self._full.select_prompts(mx.array(list(requests)))

    def assign(self, slots: Sequence[int], fresh: BroadcastCache) -> None:
        self._record("assign", slots, fresh)
        if self._full is not None:
            for i, slot in enumerate(slots):
                self._full.assign_prompt(slot, fresh.last_cross_attention, i)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.cache, name)
        return partial(self._record, name) if callable(value) else value

    def _record(self, method: str, *arguments: Any) -> Any:
        result = getattr(self.cache, method)(*map(local, arguments))
        if result is None:
            self._add_change(method, *arguments)
        return result

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.cache, name, value)
        self._add_change("__setattr__", name, value)

    def _add_change(self, method: str, *arguments: Any) -> None:
        for each in arguments:
            if any(isinstance(part, mx.array) for part in (each if isinstance(each, list | tuple) else [each])):
                raise TypeError(f"DecoderCache.{method}: other ranks cannot receive an array; pass numbers")
        self._changes.append([self.number, method, *map(as_message, arguments)])


def as_message(argument: Any) -> Any:
    """Convert the argument of a call to JSON, for `RankBroadcaster._from_message`."""
    if isinstance(argument, mx.array):
        dtype = "bool_" if argument.dtype == mx.bool_ else str(argument.dtype).removeprefix("mlx.core.")
        return {"shape": argument.shape, "dtype": dtype}
    if isinstance(argument, BroadcastCache):
        return {"cache": argument.number}
    if isinstance(argument, list | tuple | range):
        return list(argument)  # a copy, because it is sent later
    return argument


def local(argument: Any) -> Any:
    """Replace a cache's proxy with the cache itself."""
    return argument.cache if isinstance(argument, BroadcastCache) else argument


def schedule(*arrays: Any) -> Any:
    """Start the evaluation of all arrays, and return the first."""
    mx.async_eval(arrays)  # type: ignore[no-untyped-call]
    return arrays[0]
