"""Times the passes of a target and its draft on this device, and compares passes' bits. Used for calibration."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from ..drafters.base import BatchDrafter, RequestView
from ..models.base import EncoderDecoder
from ..models.cache import MIN_CAPACITY, SOURCE_STEP, DecoderCache, padding_mask
from ..models.source import AudioFrames, Source
from ..sampling import GenerationOptions

if TYPE_CHECKING:
    from .kernel_bits import Bits, Shape

MAX_RUNS = 3  # per timing
MAX_RUN_SECONDS = 0.02  # total time after which a timing starts no more runs
CAPACITIES = (32, 1024, 2048)  # of the KV cache
FEW_POSITIONS = 2  # number of positions whose bits are compared, except at the smallest capacity


class Probe:
    """Measures one target, and its draft if it has one.

    Args:
        model: The target.
        make_drafter: Creates a drafter whose drafts are of the kind `MODEL`; None without a draft.
    """

    def __init__(self, model: EncoderDecoder, make_drafter: Callable[[], BatchDrafter] | None = None) -> None:
        self._model = model
        self._make_drafter = make_drafter
        self._traced: set[tuple[int, int]] = set()
        self._caches: dict[int, DecoderCache] = {}  # by rows
        self._noise: dict[tuple[tuple[int, ...], mx.Dtype], mx.array] = {}
        self._window: AudioFrames | None = None  # for a speech model, in which all windows have the same length
        self._window_layers: list[tuple[mx.array, mx.array]] = []  # the window's cross keys and values
        self._ids = np.random.default_rng(0).integers(0, model.config.vocab_size, 4096).tolist()

    def pass_seconds(self, rows: int, width: int) -> list[float]:
        """The seconds that each of a few passes takes, including the computation of logits.

        The first pass of a shape is not timed, because MLX traces and compiles it.
        """
        cache = self._cache(rows)
        tokens = mx.array([self._ids[:width]] * rows, mx.uint32)

        def run_pass() -> None:
            mx.eval(mx.argmax(self._model.decode(tokens, cache), axis=-1))
            cache.trim_to(0)

        if (rows, width) not in self._traced:
            run_pass()
            self._traced.add((rows, width))
        return time_runs(run_pass)

    def draft_seconds(self, rows: int) -> tuple[float, float, float]:
        """The costs (step, start, prefill) of `RoundCosts`."""
        if self._make_drafter is None:
            return 0.0, 0.0, 0.0
        output_tokens = 15  # a request's first draft often comes late, so the draft model first reads this many tokens
        steps = 8  # additional steps in the longer of two drafts; the difference in time yields the cost of a step

        drafter = self._make_drafter()
        cache = self._cache(rows)
        drafter.use_cache(cache)
        start_token = self._model.config.decoder_start_token_id
        tokens = [start_token, *self._ids[:output_tokens]]
        batch = [RequestView(GenerationOptions(), self._source(slot), tokens, slot) for slot in range(rows)]
        encoder_outputs = self._model.encode_rows([request.source for request in batch])
        mx.eval(encoder_outputs)

        def propose(count: int) -> None:
            mx.eval(drafter.propose(dict.fromkeys(batch, count), rows).tokens)

        def prefill() -> None:
            for request, encoder_output in zip(batch, encoder_outputs, strict=True):
                if isinstance(request.source, AudioFrames):
                    request.source = replace(request.source)  # a copy that has not been encoded yet
                drafter.begin(request, encoder_output)
            propose(1)

        prefill()
        states = self._model.states(mx.array([[start_token]] * rows, mx.uint32), cache)
        cache.trim_to(0)
        mx.eval(states)
        drafter.observe(batch, [1] * rows)
        propose(1 + steps)
        shortest, longest, with_prefill = (
            statistics.median(time_runs(run)) for run in (partial(propose, 1), partial(propose, 1 + steps), prefill)
        )
        step = max(0.0, (longest - shortest) / steps)
        return step, max(0.0, shortest - step), max(0.0, with_prefill - shortest) / rows

    def bits(self, width: int) -> list[Bits]:
        """The bits of a single row in passes of this width, at each cache capacity that the model's positions allow."""
        found = []
        limit = self._model.max_positions
        for capacity in CAPACITIES:
            if capacity == CAPACITIES[0]:
                offset = 0
                count = 12
            else:
                offset = capacity // 2 + 1
                count = FEW_POSITIONS
            if limit is None or offset + count + width <= limit:
                found.append(self._decode(self._filled_cache(capacity, offset), width, count, [0])[0])
        return found

    def kernel_bits(self, shapes: Sequence[Shape]) -> dict[Shape, Bits]:
        """The bits of each kernel in passes of these shapes (rows, width)."""
        from .kernel_bits import KernelBits

        return KernelBits(self._model).of_passes(shapes)

    def borders(self, widths: Sequence[int]) -> tuple[list[int], list[int]]:
        """The KV-cache capacities and the source capacities at which the bits of passes of these widths change."""
        from .kernel_bits import KernelBits

        kernels = KernelBits(self._model)
        capacities = {border for width in widths for border in kernels.capacity_borders(width)}
        limit = self._model.max_positions
        for border in (2 * MIN_CAPACITY, 1024):  # a second check, with whole passes
            offset = border // 2 - max(FEW_POSITIONS, *widths)
            if offset >= 0 and (limit is None or border <= limit):
                for width in widths:
                    smaller, larger = (
                        self._decode(self._filled_cache(capacity, offset), width, FEW_POSITIONS, [0])
                        for capacity in (border // 2, border)
                    )
                    capacities |= {border} if smaller != larger else set()
        sources = {border for width in widths for border in kernels.source_borders(width)}
        return sorted(capacities), sorted(sources)

    def batch_bits(self, rows: int, width: int) -> list[Bits]:
        """The bits of the first two rows of a batch, whose sources differ in length.

        The sources are encoded one by one, as for exact passes.
        """
        batch: DecoderCache | None = None
        for slot in range(rows):
            (encoder_output,) = self._model.encode_rows([self._source(slot)])
            batch = self._model.assign_slot(batch, slot, rows, encoder_output)
        assert batch is not None
        return self._decode(batch, width, FEW_POSITIONS, range(min(2, rows)))

    def single_bits(self, row: int, width: int) -> Bits:
        """The bits of row `row` of `batch_bits` when decoded as a single row."""
        encoder_output = self._model.encode_rows([self._source(row)])[0]
        return self._decode(self._model.make_cache(encoder_output), width, FEW_POSITIONS, [0])[0]

    def _decode(self, cache: DecoderCache, width: int, count: int, rows: Sequence[int]) -> list[Bits]:
        """Decode at least `count` tokens in passes of this width. Returns bits of each row's first `count` tokens."""
        logits = []
        for start in range(0, count, width):
            tokens = mx.array([self._ids[start : start + width]] * cache.rows, mx.uint32)
            logits.append(mx.contiguous(self._model.decode(tokens, cache)[: max(rows) + 1]))
            mx.eval(logits)
        passes = [np.array(each.view(mx.uint8)) for each in logits]  # NumPy has no bfloat16
        return [[passes[i // width][row, i % width].tobytes() for i in range(count)] for row in rows]

    def _filled_cache(self, capacity: int, offset: int) -> DecoderCache:
        """A cache that holds `offset` tokens, with the same random keys and values for every layer and call."""
        cache = self._new_cache()
        cache.reserve(capacity)
        if offset:
            for layer in cache.layers:
                parts, rows, heads, _, width = layer.keys_values.shape
                shape = (parts, rows, heads, CAPACITIES[-1], width)
                dtype = layer.keys_values.dtype
                if (shape, dtype) not in self._noise:
                    self._noise[shape, dtype] = mx.random.normal(shape, dtype, key=mx.random.key(0))
                layer.keys_values = mx.contiguous(self._noise[shape, dtype][:, :, :, :capacity])
        cache.advance(offset)
        return cache

    def _new_cache(self) -> DecoderCache:
        """An empty cache for one row. For an audio window, only a few positions are projected and then repeated."""
        (encoder_output,) = self._model.encode_rows([self._source(0)])
        if self._model.audio is None:
            return self._model.make_cache(encoder_output)
        if not self._window_layers:
            few = self._model.make_cache(encoder_output[:, :SOURCE_STEP])
            copies = (1, 1, -(-encoder_output.shape[1] // SOURCE_STEP), 1)
            for layer in few.layers:
                self._window_layers.append((mx.tile(layer.cross_keys, copies), mx.tile(layer.cross_values, copies)))
            mx.eval(self._window_layers)
        positions = mx.arange(self._window_layers[0][0].shape[2])[None]
        mask = padding_mask(positions < encoder_output.shape[1], encoder_output.dtype)
        return DecoderCache.empty(self._window_layers, mask)

    def _source(self, row: int) -> Source:
        audio = self._model.audio
        if audio is not None:
            if self._window is None:
                from ..models.whisper import NoiseFrames

                self._window = NoiseFrames(mx.zeros((audio.window_frames, audio.num_mel_bins)))
                self._window.encoder_output(
                    self._model, audio.num_mel_bins, self._noise_output
                )  # skips the encoder, which takes longer than all passes
            return self._window
        length = 24 + 11 * (row % 5)
        return self._ids[row : row + length]

    def _noise_output(self, frames: mx.array) -> mx.array:
        """Noise in place of a window's encoder output."""
        weights: Any = tree_flatten(self._model.parameters())
        dtype = next(weight.dtype for _, weight in weights if mx.issubdtype(weight.dtype, mx.floating))
        return mx.random.normal((1, len(frames) // 2, self._model.config.d_model), dtype, key=mx.random.key(1))

    def _cache(self, rows: int) -> DecoderCache:
        if rows not in self._caches:
            cache = self._new_cache()
            if rows > 1:
                cache.select([0] * rows)
            if self._make_drafter is not None:
                self._make_drafter().use_cache(
                    cache
                )  # the drafter may request some layers' states, which changes the graph
            self._caches[rows] = cache
        return self._caches[rows]


def time_runs(run: Callable[[], None]) -> list[float]:
    """Return the seconds that each of a few runs takes."""
    taken: list[float] = []
    while len(taken) < MAX_RUNS and sum(taken) < MAX_RUN_SECONDS:
        started = time.perf_counter()
        run()
        taken.append(time.perf_counter() - started)
    return taken
