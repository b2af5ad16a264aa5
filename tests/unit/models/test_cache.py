"""The cache of a decoder: its contract, and models that decode with it.

A row appends at its own offset and can rewind to any earlier one without a trace. A row of a batch has the logits of a
single row, independent of the other rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.cache import MIN_CAPACITY, DecoderCache
from speculative_decoding.models.source import AudioFrames, Source
from tests.parity.test_t5 import GOLDENS, load_golden
from tests.support.device import within
from tests.support.metal import pretend_gpu
from tests.support.tiny import audio_frames, tiny_model


def make(rows: int, heads: int = 1, width: int = 2, dtype: mx.Dtype = mx.float32) -> DecoderCache:
    """Make a cache of one layer, for a source of one token."""
    cross = mx.zeros((rows, heads, 1, width), dtype)
    return DecoderCache.empty([(cross, cross)], mx.zeros((rows, 1, 1, 1), dtype))


def append(cache: DecoderCache, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
    """Append keys and values (B, H, L, D) as a pass does."""
    length = keys.shape[2]
    cache.reserve(cache.max_offset + length)
    cache.layers[0].write_index = cache.write_index(length)
    assert cache.layers[0].write_index.dtype == mx.int32  # half the bytes of numpy's default
    all_keys, all_values = cache.layers[0].append(mx.stack([keys, values]))
    cache.advance(length)
    return all_keys, all_values


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    ("rows", "is_gpu", "dtype"),
    [
        (1, False, mx.float32), (5, False, mx.float32), (1, True, mx.float32),
        (2, False, mx.float16), (2, False, mx.bfloat16),
    ],
    ids=str,
)  # fmt: skip
def test_a_cache_with_rewinds_equals_a_list(
    rows: int, is_gpu: bool, dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare random appends and rewinds with plain arrays, across several growth steps."""
    if is_gpu:
        pretend_gpu(monkeypatch)
    generator = np.random.default_rng(rows)
    cache, kept = make(rows, 2, 3, dtype), [np.zeros((2, 0, 3), np.float32) for _ in range(rows)]
    for turn in range(160):
        # small integers, which every dtype represents exactly
        new = generator.integers(-99, 99, (rows, 2, generator.integers(1, 9), 3)).astype(np.float32)
        kept = [np.concatenate(pair, axis=1) for pair in zip(kept, new, strict=True)]
        keys, values = append(cache, mx.array(new).astype(dtype), mx.array(-new).astype(dtype))
        assert keys.dtype == values.dtype == dtype and keys.shape[2] == values.shape[2] == cache.capacity
        for b, row in enumerate(kept):
            held = slice(0, row.shape[1])
            assert np.array_equal(np.array(keys[b, :, held].astype(mx.float32)), row)
            assert np.array_equal(np.array(values[b, :, held].astype(mx.float32)), -row)
        offsets = [int(generator.integers(max(0, row.shape[1] - 6), row.shape[1] + 1)) for row in kept]
        if turn % 16 == 0:  # all rows at one offset
            offsets = [min(offsets)] * rows
        cache.trim_to(offsets if turn % 2 else (offsets[0] if len(set(offsets)) == 1 else offsets))
        kept = [row[:, :offset] for row, offset in zip(kept, offsets, strict=True)]
        assert cache.offsets == offsets and cache.max_offset == max(offsets)
    assert cache.capacity > MIN_CAPACITY


@pytest.mark.usefixtures("device")
def test_rows_are_rewound_separately() -> None:
    cache = make(3)
    append(cache, mx.ones((3, 1, 5, 2)), mx.ones((3, 1, 5, 2)))
    for offsets, expected in (([5, 3, 4], [5, 3, 4]), ([9, 9, 2], [5, 3, 2]), (4, [4, 3, 2])):
        cache.trim_to(offsets)
        assert cache.offsets == expected
    with pytest.raises(ValueError, match="2 offsets for 3 rows"):
        cache.trim_to([1, 1])
    with pytest.raises(ValueError, match="offset"):
        cache.trim_to([1, -1, 1])
    assert cache.offsets == [4, 3, 2]  # a refused rewind changes nothing


@pytest.mark.usefixtures("device")
def test_passes_attend_over_the_reserved_capacity_which_grows_only_when_full() -> None:
    cache = make(2)
    cache.reserve(70)
    for length in (1, 7, 30):
        keys, values = append(cache, mx.ones((2, 1, length, 2)), mx.ones((2, 1, length, 2)))
        assert keys.shape[2] == values.shape[2] == cache.capacity == 128
        cache.trim_to([length, length - 1])
    cache.trim_to([29, 28])
    append(cache, mx.ones((2, 1, 99, 2)), mx.ones((2, 1, 99, 2)))
    assert cache.capacity == 128
    append(cache, mx.ones((2, 1, 1, 2)), mx.ones((2, 1, 1, 2)))
    assert cache.capacity == 256


# Logits of models.


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
@pytest.mark.parametrize("rows", [1, 7])
def test_batches_of_any_size_equal_single_rows(rows: int) -> None:
    model = tiny_model(d_kv=64)  # a width of Metal's fused attention kernels
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
    """Keys and values are updated in place: a rewind and a pass allocate far less than one buffer.

    This holds on the CPU. On a GPU, MLX copies the buffer of a layer that an unfinished pass still holds.
    """
    model = tiny_model(d_kv=64)
    cache = model.make_cache(model.encode(mx.array([[5, 9, 1]] * len(offsets))))
    cache.reserve(4096)
    mx.eval(model.decode(mx.array([[3] * 16] * len(offsets)), cache))
    for _ in range(2):  # the first pass also allocates the position table
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        cache.trim_to(offsets)
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
