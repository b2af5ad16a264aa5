"""Lossless speculative decoding for encoder-decoder models on MLX."""

import os
import sys

# Float32 means float32: on M5 with macOS 26.2 or later MLX otherwise computes products of several rows, but not of one,
# in TF32, so a draft would change last bits at 1e-3. Set it to 1 for the faster kind.
os.environ.setdefault("MLX_ENABLE_TF32", "0")

if sys.platform.startswith("linux"):
    from . import linux_cpu

    linux_cpu.prepare()  # before anything imports mlx

from .decoding.request import Request
from .decoding.results import BatchResult, GenerationResponse, GenerationResult
from .decoding.stats import GenerationStats, Round
from .engine import Engine, Event
from .errors import CheckpointError, InputError
from .generate import batch_generate, generate, stream_generate
from .sampling import GenerationOptions
from .scoring import Score, encode, score
from .session import Session, load
from .version import __version__

__all__ = [
    "BatchResult",
    "CheckpointError",
    "Engine",
    "Event",
    "GenerationOptions",
    "GenerationResponse",
    "GenerationResult",
    "GenerationStats",
    "InputError",
    "Request",
    "Round",
    "Score",
    "Session",
    "__version__",
    "batch_generate",
    "encode",
    "generate",
    "load",
    "score",
    "stream_generate",
]
