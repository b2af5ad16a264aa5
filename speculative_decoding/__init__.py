"""Lossless speculative decoding for encoder-decoder models on MLX."""

import os

# Float32 means float32: on M5 with macOS 26.2 or later MLX otherwise computes products of several rows, but not of one,
# in TF32, so a draft would change last bits at 1e-3. Set it to 1 for the faster kind.
os.environ.setdefault("MLX_ENABLE_TF32", "0")

from .backend import blas

blas.load_fast_blas()  # before anything imports mlx

from .backend import kernels  # noqa: E402

kernels.use_private_folder()

from .decoding.results import BatchResult, GenerationResponse, GenerationResult  # noqa: E402
from .decoding.scoring import Score, encode, score  # noqa: E402
from .decoding.stats import GenerationStats, Round  # noqa: E402
from .engine import Engine, Event, Request  # noqa: E402
from .errors import CheckpointError, InputError  # noqa: E402
from .generate import batch_generate, generate, stream_generate  # noqa: E402
from .sampling import GenerationOptions  # noqa: E402
from .session import Session, load  # noqa: E402
from .version import __version__  # noqa: E402

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
