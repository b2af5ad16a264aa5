"""Rank 0 sends its calls and the changes of its caches; another rank that repeats them has the same caches."""

from __future__ import annotations

import gc
import json
from functools import partial
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

from speculative_decoding import InputError
from speculative_decoding.distributed import shard_model
from speculative_decoding.distributed.sharded_model import BroadcastCache, RankBroadcaster, sharded_class
from speculative_decoding.loading.load import BUNDLED, open_model
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.cache import DecoderCache
from tests.support.metal import pretend_memory
from tests.support.tiny import tiny_model

ENCODED = mx.random.normal((3, 5, 16), key=mx.random.key(0))


class Line:
    """A connection that delivers the messages of rank 0 to another rank as JSON."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def send(self, message: Any) -> None:
        self.messages.append(json.loads(json.dumps(message)))

    def receive(self) -> tuple[int, Any]:
        return 0, self.messages.pop(0)


def rank(number: int, line: Line) -> EncoderDecoder:
    """Make the model of one of two ranks. Both have all weights, so their layers need no all-reduce."""
    model: Any = tiny_model(num_layers=2)
    model.__class__ = sharded_class(type(model))
    model.ranks = 2
    model.broadcaster = RankBroadcaster(SimpleNamespace(is_first=number == 0, size=2, group=None, channel=line))  # type: ignore[arg-type]
    return model


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, Line]:
    """Return both ranks and their connection. An all-reduce returns the array of rank 0."""
    line = Line()
    sent: list[mx.array] = []

    def all_sum(array: mx.array, group: None) -> mx.array:
        if array.size and mx.any(array != 0).item():  # called by rank 0; other ranks contribute zeros
            sent.append(array)
            return array
        return sent.pop(0)

    monkeypatch.setattr(mx.distributed, "all_sum", all_sum)
    return rank(0, line), rank(1, line), line


def follow(model: Any, line: Line) -> dict[int, DecoderCache]:
    line.send({"leaves": 0})
    assert model.broadcaster.serve(model) == 0
    caches: dict[int, DecoderCache] = model.broadcaster._caches
    return caches


def test_caches_of_other_ranks_repeat_all_changes(ranks: tuple[Any, Any, Line]) -> None:
    first, other, line = ranks
    tokens = mx.array([[3, 4], [5, 6], [7, 8]])
    cache = first.make_cache(ENCODED)
    assert isinstance(cache, BroadcastCache) and first.ranks == 2
    cache.recorded_layers = (0, 1)
    cache.reserve(70)
    first.states(tokens, cache)
    cache.trim_to([2, 1, 2])
    cache.zero_after(1, 0)
    cache.assign([1], first.make_cache(ENCODED[:1] * 2))
    cache.select([2, 1])
    first.states(tokens[:2], cache)
    (repeated,) = [each for each in follow(other, line).values() if each.rows == 2]
    assert (repeated.offsets, repeated.capacity) == (cache.offsets, cache.capacity) == ([4, 2], 128)
    assert repeated.recorded_layers == (0, 1) and len(repeated.hidden) == 2
    for ours, theirs in zip(cache.arrays, repeated.arrays, strict=True):
        assert mx.array_equal(ours, theirs)


def test_a_new_method_of_a_cache_is_repeated_without_being_listed(
    ranks: tuple[Any, Any, Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    def skip(self: DecoderCache, row: int, by: int) -> None:
        self.offsets[row] += by

    monkeypatch.setattr(DecoderCache, "skip", skip, raising=False)
    first, other, line = ranks
    cache = first.make_cache(ENCODED)
    cache.skip(1, 5)
    first.states(mx.array([[3], [4], [5]]), cache)
    assert [each.offsets for each in follow(other, line).values()] == [[1, 6, 1]] == [cache.offsets]


@pytest.mark.parametrize("wrap", [lambda array: array, lambda array: [array]])
def test_an_array_in_a_change_of_a_cache_is_refused(
    wrap: Any, ranks: tuple[Any, Any, Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DecoderCache, "fill", lambda self, values: None, raising=False)
    cache = ranks[0].make_cache(ENCODED)
    with pytest.raises(TypeError, match=r"^DecoderCache.fill: other ranks cannot receive an array; pass numbers$"):
        cache.fill(wrap(mx.ones(3)))
    with pytest.raises(TypeError, match="other ranks cannot receive an array"):
        cache.source_mask = wrap(cache.source_mask)


def test_other_ranks_free_deleted_caches(ranks: tuple[Any, Any, Line]) -> None:
    first, other, line = ranks
    kept, dropped = first.make_cache(ENCODED), first.make_cache(ENCODED)
    del dropped
    gc.collect()
    first.states(mx.array([[3], [4], [5]]), kept)
    assert follow(other, line).keys() == {kept.number}


def test_a_process_opens_its_shard_and_needs_memory_for_that_only(monkeypatch: pytest.MonkeyPatch) -> None:
    processes: Any = SimpleNamespace(rank=1, size=2, is_first=False)
    shard = partial(shard_model, processes=processes)
    opened = partial(open_model, BUNDLED / "t5-web-docs", dtype="float32")
    whole, own = opened(), opened(shard=shard)
    assert (whole.model.ranks, own.model.ranks) == (1, 2)
    assert whole.nbytes / 2 < own.nbytes < whole.nbytes  # each process holds the embedding and the norms
    pretend_memory(monkeypatch, own.nbytes, 1e9)
    assert opened(shard=shard).nbytes == own.nbytes
    with pytest.raises(InputError, match="exceed this computer's memory"):
        opened()
