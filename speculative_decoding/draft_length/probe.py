"""Times a target and its draft on this device, and compares the bits of its passes. The only clock of calibration."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache

import mlx.core as mx
import numpy as np

from ..drafters.base import MODEL, BatchDrafter, Row, Verified, Wanted
from ..models.base import EncoderDecoder
from ..models.cache import DecoderCache
from ..sampling import GenerationOptions

SOURCE_TOKENS = 24
REPEATS, ENOUGH_SECONDS = 5, 0.02  # of timing the same once
POSITIONS = 12  # whose bits are compared at the smallest capacity of the cache
POSITIONS_FURTHER = 2  # and at each of the larger ones
CAPACITIES = (32, 1024, 2048)  # MLX's fused attention works in two passes from 1,024 keys
STEPS = 8  # of a draft that is compared with a draft of one token
WRITTEN = 15  # tokens before the first draft of a request: a draft model that was not asked reads them then
SWEEPS = 3  # over all that is compared: a device changes its speed within a second

Bits = list[bytes]  # of the logits of each position


class Probe:
    """make_drafter: gives a new drafter whose kind of draft is `MODEL`, or None where nothing like it drafts."""

    def __init__(self, model: EncoderDecoder, make_drafter: Callable[[], BatchDrafter] | None = None) -> None:
        self._model, self._make_drafter = model, make_drafter
        size = model.config.vocab_size
        self._seconds: dict[tuple[int, int], float] = {}
        self._traced: set[tuple[int, int]] = set()
        self._ids = np.random.default_rng(0).integers(0, size, 4096).tolist()

    def pass_seconds(self, rows: int, width: int) -> float:
        """Of one pass with its logits, as a round has it: the fastest so far. The first of a shape, in which MLX traces
        and compiles, is not timed.
        """
        cache, tokens = self._cache(rows), mx.array([self._ids[:width]] * rows, mx.uint32)

        def one_pass() -> None:
            mx.eval(mx.argmax(self._model.decode(tokens, cache), axis=-1))
            cache.trim_to(0)

        if (rows, width) not in self._traced:
            one_pass()
            self._traced.add((rows, width))
        self._seconds[rows, width] = min(fastest(one_pass), self._seconds.get((rows, width), float("inf")))
        return self._seconds[rows, width]

    def forget(self) -> None:
        """Time all anew: the device's speed has changed."""
        self._seconds.clear()

    def draft_seconds(self, rows: int) -> tuple[float, float, float]:
        """(step, start, source): see `RoundCosts`."""
        if self._make_drafter is None:
            return 0.0, 0.0, 0.0
        drafter, cache = self._make_drafter(), self._cache(rows)
        drafter.share(cache)
        start = self._model.config.decoder_start_token_id
        tokens = [start, *self._ids[:WRITTEN]]
        batch = [Row(GenerationOptions(), self._source(slot), tokens, slot) for slot in range(rows)]

        def propose(count: int) -> None:
            mx.eval(drafter.propose([Wanted(row, count, MODEL) for row in batch], rows).tokens)

        def begin() -> None:
            for row in batch:
                drafter.begin(row)
            propose(1)

        begin()
        states = self._model.states(mx.array([[start]] * rows, mx.uint32), cache)
        cache.trim_to(0)
        mx.eval(states)
        drafter.observe(batch, Verified(states, dict.fromkeys(range(rows), 1)))
        propose(1 + STEPS)
        sweeps = [[fastest(lambda: propose(1)), fastest(lambda: propose(1 + STEPS))] for _ in range(SWEEPS)]
        shortest, longest = np.min(sweeps, axis=0).tolist()
        reading = fastest(begin)
        step = max(0.0, (longest - shortest) / STEPS)
        return step, max(0.0, shortest - step), max(0.0, reading - shortest) / rows

    def bits(self, width: int) -> list[Bits]:
        """Of a row alone, in passes of this width, at each capacity of the cache that the model has positions for."""
        found = []
        for capacity in CAPACITIES:
            offset = capacity // 2 + 1 if capacity > CAPACITIES[0] else 0
            count = POSITIONS_FURTHER if offset else POSITIONS
            most = self._model.most_positions
            if most is None or offset + count + width <= most:
                found.append(self._passes(self._filled(capacity, offset), width, count, [0])[0])
        return found

    def capacity_matters(self, width: int) -> bool:
        """Whether the same tokens have other bits in a larger cache."""
        small, large = (
            self._passes(self._filled(size, 0), width, POSITIONS_FURTHER, [0])[0] for size in CAPACITIES[:2]
        )
        return small != large

    def batch_bits(self, rows: int, width: int) -> list[Bits]:
        """Of the first two rows of a batch with sources of several lengths, encoded together."""
        batch: DecoderCache | None = None
        for slot, encoder_output in enumerate(self._model.encode_rows([self._source(slot) for slot in range(rows)])):
            batch = self._model.assign_slot(batch, slot, rows, encoder_output)
        assert batch is not None
        return self._passes(batch, width, POSITIONS_FURTHER, range(min(2, rows)))

    def single_bits(self, row: int, width: int) -> Bits:
        """Of the same tokens as a row of `batch_bits`, alone."""
        encoder_output = self._model.encode_rows([self._source(row)])[0]
        return self._passes(self._model.make_cache(encoder_output), width, POSITIONS_FURTHER, [0])[0]

    def _passes(self, cache: DecoderCache, width: int, count: int, rows: Sequence[int]) -> list[Bits]:
        """Decode at least `count` tokens in passes of this width; the bits of the first `count` positions."""
        logits = []
        for start in range(0, count, width):
            tokens = mx.array([self._ids[start : start + width]] * cache.rows, mx.uint32)
            logits.append(mx.contiguous(self._model.decode(tokens, cache)[: max(rows) + 1]))
            mx.eval(logits)
        every = [np.array(each.view(mx.uint8)) for each in logits]  # bfloat16 is no type of numpy's
        return [[every[i // width][row, i % width].tobytes() for i in range(count)] for row in rows]

    def _filled(self, capacity: int, offset: int) -> DecoderCache:
        """A cache that holds `offset` tokens: random keys and values, the same each time and in each layer."""
        cache = self._model.make_cache(self._encoder_output)
        cache.reserve(capacity)
        for layer in cache.layers if offset else ():
            layer.keys = layer.values = self._noise(layer.keys.shape, layer.keys.dtype)
        cache.advance(offset)
        return cache

    @cache  # noqa: B019
    def _noise(self, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
        return mx.random.normal(shape, dtype, key=mx.random.key(0))

    @property
    def _encoder_output(self) -> mx.array:
        return self._model.encode_rows([self._source(0)])[0]

    def _source(self, row: int) -> list[int]:
        length = SOURCE_TOKENS + 11 * (row % 5)
        return self._ids[row : row + length]

    @cache  # noqa: B019  # as long as the probe lives, which is as long as its session
    def _cache(self, rows: int) -> DecoderCache:
        found = self._model.make_cache(mx.repeat(self._encoder_output, rows, axis=0))
        if self._make_drafter is not None:
            self._make_drafter().share(found)  # which may ask for the states of some layers, another graph
        return found


def fastest(run: Callable[[], None]) -> float:
    """Seconds of the fastest of some runs: one that takes longer has waited for other programs."""
    taken: list[float] = []
    while len(taken) < REPEATS and sum(taken) < ENOUGH_SECONDS:
        started = time.perf_counter()
        run()
        taken.append(time.perf_counter() - started)
    return min(taken)
