"""What a round costs on this machine: measured once for each pair of models and number of rows, and kept in the user's
cache folder.

Knows models and clocks, nothing of acceptance. Costs never change a result: they only say which length is fastest.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from .. import blas
from ..loading.safe_folder import write_file
from ..models.base import EncoderDecoder
from ..models.cache import DecoderCache
from ..models.compiled import pass_width

WIDEST = 16  # positions of the widest pass that is measured
DRAFTED = (1, 3, 7)  # lengths of the drafts that are timed
RAGGED = 4  # how far rows are apart
SOURCE_TOKENS, OFFSET = 32, 16  # a typical prompt, and tokens already in the cache
BUDGET = 1.0  # seconds
LEAST_REPEATS, MOST_REPEATS = 3, 15


@dataclass(frozen=True)
class Costs:
    """Seconds of the parts of a round: a round with g drafted tokens takes t(g + 1) + s + g c + h, without s if g = 0.

    passes: t(1), t(2) and so on: a pass of the target over that many positions, with arg-max and read-back. Not always
        increasing: some kernels are faster at whole tiles.
    draft: c, one drafted token, in a chain that nobody waits for before the pass that verifies it.
    host: h, what each round costs besides.
    start: s, what each round that drafts costs besides.
    reading: what the draft model costs once in a request, for its encoder reads the source.
    """

    passes: tuple[float, ...]
    draft: float = 0.0
    host: float = 0.0
    start: float = 0.0
    reading: float = 0.0

    def __post_init__(self) -> None:
        besides = self.draft, self.host, self.start, self.reading
        finite = all(map(math.isfinite, (*self.passes, *besides)))
        if len(self.passes) < 2 or not finite or min(self.passes) <= 0 or min(besides) < 0:
            raise ValueError(f"costs must be positive, with two passes at least: {self}")

    def pass_seconds(self, width: int) -> float:
        """t(width). Beyond what was measured, along the line through the first and the last pass."""
        measured = len(self.passes)
        if width <= measured:
            return self.passes[width - 1]
        slope = max(0.0, self.passes[-1] - self.passes[0]) / (measured - 1)
        return self.passes[-1] + (width - measured) * slope

    def draft_seconds(self, drafted: int) -> float:
        return self.start + drafted * self.draft if drafted else 0.0

    def round_seconds(self, drafted: int) -> float:
        return self.pass_seconds(drafted + 1) + self.draft_seconds(drafted) + self.host

    def with_free_draft(self) -> Costs:
        """The same target with a draft that is only looked up."""
        return replace(self, draft=0.0, start=0.0, reading=0.0)

    def with_reading_spread(self, rounds: float) -> Costs:
        """Where a request has so many rounds that draft: each starts with its share of the reading."""
        return replace(self, start=self.start + self.reading / rounds, reading=0.0)


def costs_of(target: EncoderDecoder, draft_model: EncoderDecoder | None = None, rows: int = 1) -> Costs:
    """Measured in an earlier run with the same models, device and libraries, or measured now and kept."""
    key = cost_key(target, draft_model, rows)
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    path = blas.cache_folder() / f"costs-{name}.json"
    costs = read(path, key)
    if costs is None:
        costs = measure(target, draft_model, rows)
        try:
            write(path, key, costs)
        except OSError as error:
            warnings.warn(f"costs are measured anew in every run, for they cannot be kept: {error}", stacklevel=2)
    return costs


def cost_key(target: EncoderDecoder, draft_model: EncoderDecoder | None, rows: int = 1) -> dict[str, Any]:
    """What costs depend on; weights do not matter, their shapes and types do."""
    device = mx.default_device()
    threads = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
    return {
        "version": 5,  # of the way they are measured
        "rows": rows,
        "target": shapes(target),
        "draft": None if draft_model is None else shapes(draft_model),
        "device": [str(device), str(mx.device_info().get("device_name"))],
        "mlx": metadata.version("mlx"),
        "blas": blas.chosen(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": {name: os.environ[name] for name in threads if name in os.environ},
    }


def shapes(model: EncoderDecoder) -> str:
    """A digest of the configuration and of each parameter's name, shape and type; quantised layers show in them."""
    parameters: Mapping[str, mx.array] = dict(tree_flatten(model.parameters()))
    lines = [repr(model.config), *(f"{name} {a.shape} {a.dtype}" for name, a in sorted(parameters.items()))]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def read(path: Path, key: Mapping[str, Any]) -> Costs | None:
    """None if there is no such file, if it is damaged, or if it belongs to another key."""
    try:
        record = json.loads(path.read_text())
        if record["key"] != key:
            return None
        parts = dict(record["costs"])
        passes = tuple(map(float, parts.pop("passes")))
        return Costs(passes, **{name: float(part) for name, part in parts.items()})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(path: Path, key: Mapping[str, Any], costs: Costs) -> None:
    """Whole or not at all, also when two processes do this at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, json.dumps({"key": key, "costs": asdict(costs)}, indent=1))


def measure(
    target: EncoderDecoder, draft_model: EncoderDecoder | None = None, rows: int = 1, *, budget: float = BUDGET
) -> Costs:
    """Time passes and rounds for `budget` seconds. Large models get fewer repeats, but three in any case."""
    measurement = Measurement(target, draft_model, rows)
    measurement.take(budget, LEAST_REPEATS)
    return measurement.costs()


class Measurement:
    """Passes and rounds on random ids, timed in turns, because a machine is now slower and now faster, which must not
    favour one width; medians. It may go on later, beside something else that is measured.
    """

    def __init__(self, target: EncoderDecoder, draft_model: EncoderDecoder | None = None, rows: int = 1) -> None:
        self._rig = rig = Rig(target, draft_model, rows)
        self._rows, self._drafted = rows, DRAFTED if draft_model is not None else ()
        widths = dict.fromkeys(pass_width(tokens) for tokens in range(1, WIDEST + 1))
        self._jobs: list[tuple[Callable[[int], None], int]] = [(rig.one_pass, width) for width in widths]
        self._jobs += 2 * [(rig.round, count) for count in (0, *self._drafted)]  # their differences are small
        if self._drafted:
            self._jobs.append((rig.read, SOURCE_TOKENS))
        self._samples = {job: list[float]() for job in self._jobs}
        for run, size in self._samples:
            run(size)  # compiles kernels, allocates

    def take(self, budget: float, least: int) -> None:
        """More samples of everything, until `budget` seconds are spent, `least` at least and `MOST_REPEATS` at most."""
        started = time.perf_counter()
        for repeat in range(MOST_REPEATS):
            if repeat >= least and time.perf_counter() - started > budget:
                break
            for job in self._jobs if repeat % 2 else reversed(self._jobs):
                self._samples[job].append(seconds_of(*job))

    def costs(self) -> Costs:
        rig, drafted = self._rig, self._drafted
        medians = {job: statistics.median(taken) for job, taken in self._samples.items()}
        passes = tuple(medians[rig.one_pass, pass_width(tokens)] for tokens in range(1, WIDEST + 1))
        host = medians[rig.round, 0] - passes[0]  # below 0 where one evaluation for all is cheaper
        drafts = [medians[rig.round, count] - passes[count] - host for count in drafted]
        slope, start = statistics.linear_regression(drafted, drafts) if drafts else (0.0, 0.0)
        if start < 0:  # by noise: the line through 0 that fits best
            slope, start = statistics.linear_regression(drafted, drafts, proportional=True)
        reading = medians.get((rig.read, SOURCE_TOKENS), 0.0) / self._rows
        return Costs(passes, max(0.0, slope), max(0.0, host), start, reading)


def seconds_of(job: Callable[[int], None], size: int) -> float:
    started = time.perf_counter()
    job(size)
    return time.perf_counter() - started


class Rig:
    """Both models in the middle of their requests, on ids that mean nothing, doing what a round does."""

    def __init__(self, target: EncoderDecoder, draft_model: EncoderDecoder | None, rows: int = 1) -> None:
        models = [target] if draft_model is None else [target, draft_model]
        dice, vocab = random.Random(0), min(model.config.vocab_size for model in models)
        lengths = SOURCE_TOKENS, OFFSET + WIDEST + 1
        self._source, self._tokens = ([dice.randrange(vocab) for _ in range(length)] for length in lengths)
        self._models, self._rows = models, rows
        self._offsets = [OFFSET - row % RAGGED for row in range(rows)]  # rows of a batch do not keep step
        self._caches = [self._begun(model) for model in models]

    def _begun(self, model: EncoderDecoder) -> DecoderCache:
        cache = self._read(model, self._source)
        mx.eval(model.decode(mx.array([self._tokens] * self._rows), cache))  # the buffers as large as they get
        cache.trim_to(self._offsets)
        return cache

    def _read(self, model: EncoderDecoder, source: Sequence[int]) -> DecoderCache:
        return model.make_cache(model.encode(mx.array([source] * self._rows)))

    def read(self, length: int) -> None:
        """The draft model reads `length` tokens of a source for each row."""
        mx.eval(self._read(self._models[1], self._source[:length]).arrays)

    def one_pass(self, width: int) -> None:
        """The target reads `width` tokens at once."""
        fed = mx.array([self._tokens[OFFSET : OFFSET + width]] * self._rows)
        mx.argmax(self._models[0].decode(fed, self._caches[0]), axis=-1).tolist()
        self._caches[0].trim_to(self._offsets)

    def round(self, drafted: int) -> None:
        """A round of greedy decoding: drafted one by one, verified and read in one evaluation."""
        new = last = mx.array([[self._tokens[OFFSET]]] * self._rows, mx.uint32)
        draft = []
        for _ in range(drafted):
            new = mx.argmax(self._models[1].decode(new, self._caches[1])[:, -1:], axis=-1)
            mx.async_eval(new)  # type: ignore[no-untyped-call]
            draft.append(new)
        padding = mx.zeros((self._rows, pass_width(drafted + 1) - drafted - 1), mx.uint32)
        tokens = mx.concatenate([last, *draft, padding], axis=1)
        best = mx.argmax(self._models[0].decode(tokens, self._caches[0]), axis=-1)
        accepted = mx.cumprod(tokens[:, 1:] == best[:, :-1], axis=1).sum(axis=1)
        mx.eval(accepted, best, tokens)
        _ = accepted.tolist(), best.tolist(), tokens.tolist()
        for cache in self._caches:
            cache.trim_to(self._offsets)
