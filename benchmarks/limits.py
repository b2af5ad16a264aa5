"""How many bytes a pass has to read, and how many this machine can read per second."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from speculative_decoding.models.base import EncoderDecoder

REPEATS = 15
BANDWIDTH_ROWS = 8192  # square float32 matrix, 268 MB: no cache holds it


def median_ms(work: Callable[[], Any], repeats: int = REPEATS) -> float:
    work()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return 1e3 * statistics.median(times)


def bytes_per_pass(model: EncoderDecoder) -> int:
    """Bytes of weights that one decoder pass reads: its layers and the head.

    Not the encoder, nor the projections of the memory, which are read once per request, nor the embedding, of which a
    pass reads a row, unless it is the head too.
    """
    parameters: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    sizes = {path: value.nbytes for path, value in parameters.items()}
    sources = model.parameter_sources(model.config, set())
    head = "head.weight" if "head.weight" in sources else "embedding.weight"
    total = 0.0
    for path, names in sources.items():
        layer = path.removesuffix(".weight")  # a quantised one has scales and biases too
        size = sum(value for other, value in sizes.items() if other.rpartition(".")[0] == layer)
        read = [name for name in names if name.startswith("decoder.block.") and not is_memory_projection(name)]
        total += size * (1.0 if path == head or path == "decoder.norm.weight" else len(read) / len(names))
    return round(total)


def is_memory_projection(name: str) -> bool:
    return ".EncDecAttention.k." in name or ".EncDecAttention.v." in name


def measure_bandwidth() -> float:
    """Bytes per second that a product of a large float32 matrix with a vector reads: the best of what there is here.

    On a CPU NumPy's product counts too, since the limit is the machine's and not MLX's.
    """
    matrix = mx.random.normal((BANDWIDTH_ROWS, BANDWIDTH_ROWS))
    vector = mx.random.normal((1, BANDWIDTH_ROWS))
    mx.eval(matrix, vector)
    times = [median_ms(lambda: mx.eval(vector @ matrix.T)), median_ms(lambda: mx.eval(matrix @ vector[0]))]
    if mx.default_device() == mx.Device(mx.cpu):
        ours, row = np.array(matrix), np.array(vector)[0]
        times.append(median_ms(lambda: ours @ row))
    return matrix.nbytes / (min(times) / 1e3)
