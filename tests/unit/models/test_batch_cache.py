"""A row of a batch has the logits of a single row, independent of the other rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from speculative_decoding.models.audio import AudioFrames, Source
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.cache import DecoderCache
from speculative_decoding.models.relative_positions import RelativePositionBias
from tests.parity.test_t5 import GOLDENS, load_golden
from tests.support.device import within
from tests.support.tiny import audio_frames, tiny_model
from tests.support.together import every_row_at_the_furthest_offset

TOLERANCE = 1e-4  # the largest logits are of order 1 to 10


@dataclass
class Request:
    source: Source
    tokens: list[int]  # the complete input of its decoder
    cut: int = 0  # tokens in the cache
    expected: NDArray[np.float32] = field(init=False)  # logits (L, V) from a single pass without other rows


def make_request(model: EncoderDecoder, generator: np.random.Generator, length: int) -> Request:
    vocab = model.config.vocab_size
    count = int(generator.integers(1, length))
    source: Source = generator.integers(2, vocab, count).tolist()
    if model.audio is not None:
        source = audio_frames(count, min(count, model.audio.window_frames // 2), model.audio.num_mel_bins)
    request = Request(source, [model.config.decoder_start_token_id, *generator.integers(2, vocab, 90).tolist()])
    cache = model.make_cache(model.encode_rows([request.source])[0])
    request.expected = np.array(model.decode(mx.array([request.tokens]), cache)[0].astype(mx.float32))
    return request


def error(found: mx.array, expected: NDArray[np.float32]) -> float:
    return float(np.abs(np.array(found) - expected).max())


def padded_cache(model: EncoderDecoder, requests: Sequence[Request]) -> DecoderCache:
    """Encode sources of different lengths in one pass. Padding is arbitrary tokens, which the mask must hide."""
    longest = max(len(request.source) for request in requests)
    padded = []
    for request in requests:
        extra = longest - len(request.source)
        if isinstance(request.source, AudioFrames):
            padded.append(mx.pad(request.source.frames, [(0, 2 * extra), (0, 0)]))
        else:
            padded.append(mx.array([*request.source, *(2 + i % 9 for i in range(extra))]))
    mask = mx.array([[i < len(request.source) for i in range(longest)] for request in requests])
    return model.make_cache(model.encode(mx.stack(padded), mask), mask)


def make_requests(model: EncoderDecoder, count: int = 60) -> Iterator[Request]:
    """Yield requests with ever longer sources, so that cross keys are both replaced in place and grown."""
    generator = np.random.default_rng(60)
    return (make_request(model, generator, 6 + 4 * i) for i in range(count))


def drive(
    model: EncoderDecoder,
    requests: Iterable[Request],
    rows: int,
    rounds: int,
    seed: int,
    tolerance: float = 0.0,
) -> dict[str, int]:
    """Compare random passes, rewinds, refills and frozen rows with the expected logits. Counts the events."""
    generator = np.random.default_rng(seed)
    waiting = iter(requests)
    active = [next(waiting) for _ in range(rows)]
    cache = padded_cache(model, active)
    seen = dict.fromkeys(("ragged", "shared", "frozen", "replaced", "grown"), 0)
    for turn in range(rounds):
        width = int(generator.integers(1, 7))
        frozen = {b for b in range(rows) if rows > 1 and generator.random() < 0.15}
        counts = [int(generator.integers(1, width + 1)) for _ in active]  # shorter rows are padded at the end
        passed = []
        for request, count in zip(active, counts, strict=True):
            real = request.tokens[request.cut : request.cut + count]
            passed.append(real + [model.config.pad_token_id] * (width - len(real)))
        seen["ragged" if len(set(cache.offsets)) > 1 else "shared"] += 1
        logits = np.array(model.decode(mx.array(passed), cache).astype(mx.float32))
        for b, (request, count) in enumerate(zip(active, counts, strict=True)):
            if b in frozen:
                seen["frozen"] += 1
                continue
            expected = request.expected[request.cut : request.cut + count]
            got = logits[b, : expected.shape[0]]
            assert np.abs(got - expected).max() < (tolerance or within(TOLERANCE)), (turn, b)
            if not tolerance and mx.default_device() == mx.cpu:  # a GPU may decide near-ties differently
                assert np.array_equal(got.argmax(axis=-1), expected.argmax(axis=-1)), (turn, b)
            request.cut += int(generator.integers(0, expected.shape[0] + 1))  # accepted; the others are rejected
        cache.trim_to([request.cut for request in active])
        if done := [b for b, request in enumerate(active) if request.cut > 78 or generator.random() < 0.12]:
            capacity = cache.source_capacity
            fresh = [next(waiting) for _ in done]
            cache.assign(done, padded_cache(model, fresh))
            for b, request in zip(done, fresh, strict=True):
                active[b] = request
            seen["grown" if cache.source_capacity > capacity else "replaced"] += 1
        if rows > 1 and turn % 11 == 10:  # rewind all rows to one offset
            lowest = min(request.cut for request in active)
            for request in active:
                request.cut = lowest
            cache.trim_to(lowest)
    return seen


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("folder", GOLDENS, ids=lambda folder: folder.name)
def test_a_row_of_a_ragged_batch_equals_a_single_row(folder: Path) -> None:
    model, _ = load_golden(folder)
    seen = drive(model, make_requests(model), rows=4, rounds=30, seed=1)
    if model.audio is not None:  # the longest window fits into the smallest capacity
        del seen["grown"]
    assert min(seen.values()) > 0, seen


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("rows", "head_width"), [(1, 64), (2, 4), (7, 64)])  # 64: Metal's fused attention kernels
def test_batches_of_any_size_equal_single_rows(rows: int, head_width: int) -> None:
    model = tiny_model(d_kv=head_width)
    drive(model, make_requests(model), rows=rows, rounds=40, seed=rows)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("changes", [{}, {"model_type": "umt5", "feed_forward_proj": "gated-gelu"}], ids=str)
def test_passes_over_reserved_buffers_equal_single_rows(changes: dict[str, object]) -> None:
    model = tiny_model(**changes)
    generator = np.random.default_rng(0)
    requests = [make_request(model, generator, 6) for _ in range(3)]
    cache = padded_cache(model, requests)
    cache.reserve(100)
    for cuts in ([0, 0, 0], [3, 1, 5], [9, 2, 6], [4, 2, 13]):
        cache.trim_to(cuts)
        logits = model.decode(
            mx.array([r.tokens[c : c + 8] for r, c in zip(requests, cache.offsets, strict=True)]), cache
        )
        assert cache.capacity == 128
        for row, request, cut in zip(logits, requests, [o - 8 for o in cache.offsets], strict=True):
            assert error(row, request.expected[cut : cut + 8]) < within(TOLERANCE)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_a_batch_keeps_its_dtype(dtype: mx.Dtype) -> None:
    model = tiny_model()
    model.set_dtype(dtype)
    drive(model, make_requests(model), rows=3, rounds=25, seed=3, tolerance=0.5 if dtype == mx.bfloat16 else 0.1)
    requests = [make_request(model, np.random.default_rng(i), 9) for i in range(2)]
    cache = padded_cache(model, requests)
    cache.trim_to([0, 0])
    model.decode(mx.array([r.tokens[:4] for r in requests]), cache)
    cache.trim_to([1, 3])
    logits = model.decode(mx.array([r.tokens[:2] for r in requests]), cache)
    cache.assign([0], padded_cache(model, [make_request(model, np.random.default_rng(9), 40)]))
    layer = cache.layers[0]
    held = (logits, *layer.arrays, cache.source_mask)
    assert {array.dtype for array in held} == {dtype}


@pytest.mark.usefixtures("device")
def test_source_padding_changes_no_row() -> None:
    model = tiny_model()
    requests = [make_request(model, np.random.default_rng(i), 3 + 9 * i) for i in range(4)]
    logits = model.decode(mx.array([request.tokens[:12] for request in requests]), padded_cache(model, requests))
    for row, request in zip(logits, requests, strict=True):
        assert error(row, request.expected[:12]) < within(1e-5)


@pytest.mark.usefixtures("device")
def test_selected_rows_continue_unchanged() -> None:
    model = tiny_model()
    requests = [make_request(model, np.random.default_rng(i), 9) for i in range(4)]
    cache = padded_cache(model, requests)
    model.decode(mx.array([request.tokens[:8] for request in requests]), cache)
    cache.trim_to([8, 2, 5, 3])
    cache.select([2, 1])
    assert cache.offsets == [5, 2] and cache.rows == 2
    logits = model.decode(mx.array([requests[2].tokens[5:9], requests[1].tokens[2:6]]), cache)
    for row, request, cut in zip(logits, (requests[2], requests[1]), (5, 2), strict=True):
        assert error(row, request.expected[cut : cut + 4]) < within(TOLERANCE)


@pytest.mark.usefixtures("device")
def test_a_free_slot_stays_finite_and_changes_no_row() -> None:
    """A row without source tokens; later a request takes its slot, over the stale contents."""
    model = tiny_model()
    request = make_request(model, np.random.default_rng(0), 9)
    length = len(request.source)
    mask = mx.array([[True] * length, [False] * length])
    cache = model.make_cache(model.encode(mx.array([request.source, [0] * length]), mask), mask)
    for start in (0, 4):
        logits = model.decode(mx.array([request.tokens[start : start + 4], [0, 0, 0, 0]]), cache)
        assert mx.isfinite(logits).all().item()
        assert error(logits[0], request.expected[start : start + 4]) < within(TOLERANCE)
    taken = make_request(model, np.random.default_rng(5), 9)
    cache.assign([1], padded_cache(model, [taken]))
    logits = model.decode(mx.array([request.tokens[8:11], taken.tokens[:3]]), cache)
    assert error(logits[0], request.expected[8:11]) < within(TOLERANCE)
    assert error(logits[1], taken.expected[:3]) < within(TOLERANCE)


def test_assigning_copies_no_other_row() -> None:
    """Within the source capacity, buffers are updated in place: nothing of their size is allocated."""
    model = tiny_model(d_kv=64)
    source = mx.array([[5] * 256])
    cache = model.make_cache(model.encode(mx.broadcast_to(source, (32, 256))))
    fresh = model.make_cache(model.encode(source))
    mx.eval(cache.arrays, fresh.arrays)
    size = cache.layers[0].cross_keys.nbytes
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    cache.assign([3], fresh)
    mx.eval(cache.arrays)
    assert mx.get_peak_memory() - before < size / 4


@pytest.mark.parametrize("offsets", [[9], [9, 9, 9, 9], [9, 12, 10, 11]], ids=["one row", "shared", "ragged"])
def test_a_pass_copies_no_cache(offsets: list[int]) -> None:
    """Keys and values are updated in place: a pass allocates far less than one buffer."""
    model = tiny_model(d_kv=64)
    cache = model.make_cache(model.encode(mx.array([[5, 9, 1]] * len(offsets))))
    cache.reserve(4096)
    mx.eval(model.decode(mx.array([[3] * 16] * len(offsets)), cache))
    for _ in range(2):  # the first pass also allocates the position table
        cache.trim_to(offsets)
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        mx.eval(model.decode(mx.array([[5]] * len(offsets)), cache))
        allocated = mx.get_peak_memory() - before
    assert allocated < cache.layers[0].keys_values.nbytes / 4


@pytest.mark.usefixtures("device")
def test_a_request_brings_the_tokens_that_it_has_decoded() -> None:
    """One row has more tokens than the batch's buffer holds. Both rows continue as in separate caches."""
    model = tiny_model()
    sources, read = [[5, 9, 1], [4, 2, 7, 8, 1]], [[3, 5], [6, 2, 4, 9, 3] * 8]
    caches = [model.make_cache(model.encode(mx.array([source]))) for source in sources]
    for cache, tokens in zip(caches, read, strict=True):
        model.decode(mx.array([tokens]), cache)
    together = model.make_cache(model.encode(mx.array([[5, 9, 1]] * 2)))
    for slot, fresh in enumerate(caches):
        together.assign([slot], fresh)
    assert together.offsets == [2, 40]
    found = model.decode(mx.array([[8], [11]]), together)
    for row, (token, cache) in enumerate(zip((8, 11), caches, strict=True)):
        assert mx.allclose(found[row], model.decode(mx.array([[token]]), cache)[0], atol=within(1e-5))


@pytest.mark.parametrize("rows", [[], [0, 0], [2], [-1], [0, 1]], ids=str)
def test_an_impossible_assignment_is_refused(rows: list[int]) -> None:
    model = tiny_model()
    cache, fresh = (model.make_cache(model.encode(mx.array([[5, 9, 1]] * count))) for count in (2, 1))
    with pytest.raises(ValueError, match="cannot assign"):
        cache.assign(rows, fresh)


def one_rewind_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    trim = DecoderCache.trim_to
    monkeypatch.setattr(
        DecoderCache, "trim_to", lambda self, offset: trim(self, offset if isinstance(offset, int) else max(offset))
    )


def rows_rewound_one_too_far(monkeypatch: pytest.MonkeyPatch) -> None:
    trim = DecoderCache.trim_to
    monkeypatch.setattr(DecoderCache, "trim_to", lambda self, offset: trim(self, [max(0, o - 1) for o in offset]))


def mask_off_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query also attends to the key after its own position."""
    masks = RelativePositionBias.__call__

    def open_one_more(self: RelativePositionBias, windows: mx.array, offsets: mx.array, length: int) -> list[mx.array]:
        next_key = mx.arange(windows.shape[1]) == offsets[:, None, None, None] + 1 + mx.arange(length)[:, None]
        return [mx.where(next_key, 0.0, mask) for mask in masks(self, windows, offsets, length)]

    monkeypatch.setattr(RelativePositionBias, "__call__", open_one_more)


def bias_of_the_next_position(monkeypatch: pytest.MonkeyPatch) -> None:
    masks = RelativePositionBias.__call__
    monkeypatch.setattr(
        RelativePositionBias,
        "__call__",
        lambda self, windows, offsets, length: masks(self, windows, mx.maximum(offsets - 1, 0), length),
    )


def bias_of_the_first_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows use the mask of the first row."""
    masks = RelativePositionBias.__call__
    monkeypatch.setattr(
        RelativePositionBias,
        "__call__",
        lambda self, windows, offsets, length: masks(self, windows, offsets[:1], length),
    )


def stale_cross_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slot still attends over the source of its previous request."""

    def keep_cross_attention(self: DecoderCache, rows: Sequence[int], fresh: DecoderCache) -> None:
        for row in rows:
            self.offsets[row] = 0

    monkeypatch.setattr(DecoderCache, "assign", keep_cross_attention)


def stale_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slot has a new source, but the mask of its previous request."""
    assign = DecoderCache.assign

    def keep_mask(self: DecoderCache, rows: Sequence[int], fresh: DecoderCache) -> None:
        before = mx.array(self.source_mask)
        assign(self, rows, fresh)
        if before.shape == self.source_mask.shape:
            self.source_mask = before

    monkeypatch.setattr(DecoderCache, "assign", keep_mask)


FAULTS = [
    every_row_at_the_furthest_offset,
    one_rewind_for_all,
    rows_rewound_one_too_far,
    mask_off_by_one,
    bias_of_the_next_position,
    bias_of_the_first_row,
    stale_cross_attention,
    stale_mask,
]


@pytest.mark.parametrize("plant", FAULTS)
@pytest.mark.parametrize("model_type", ["t5", "umt5"])
def test_a_planted_fault_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(model_type=model_type)
    requests = [*make_requests(model, 24)]  # the expected logits come from the code without the fault
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        drive(model, requests, rows=4, rounds=40, seed=2)


def test_the_same_events_pass_without_a_fault() -> None:
    for model_type in ("t5", "umt5"):
        model = tiny_model(model_type=model_type)
        seen = drive(model, make_requests(model), rows=4, rounds=40, seed=2)
        assert min(seen.values()) > 0, seen
