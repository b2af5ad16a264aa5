"""Lossless speculative decoding for encoder-decoder models on MLX."""

import os
import sys

# `python -m speculative_decoding.train` imports this package before the module. During this import, sys.argv contains
# "-m" and the module's arguments, and sys.orig_argv contains the module's name before those arguments. Other programs
# that import this package handle Ctrl-C themselves.
if sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)].removeprefix("-m").partition(".")[0] == __name__:
    from speculative_decoding_program import handle_ctrl_c

    handle_ctrl_c("speculative_decoding")

# On an M5 with macOS 26.2 or later, MLX computes float32 matmuls of several rows in TF32, but matmuls of one row in
# full precision. A draft would then change results by about 1e-3, so this turns TF32 off, unless the user has set the
# variable.
os.environ.setdefault("MLX_ENABLE_TF32", "0")

# By default, MLX submits work to a Mac's GPU after every 40 or 50 kernels, which splits a small model's pass into
# several command buffers. It also submits at each evaluation, so a larger number delays nothing for the host.
if sys.platform == "darwin":
    os.environ.setdefault("MLX_MAX_OPS_PER_BUFFER", "200")

from .subpackages import has_subpackage

if sys.platform.startswith("linux") and has_subpackage("cpu"):
    from . import cpu

    cpu.prepare()  # before anything imports mlx

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .decoding.request import Request
from .decoding.results import GenerationResponse, GenerationResult, GenerationStats, Round
from .draft_length.base import DraftLength
from .drafters import Draft, NgramDrafter
from .engine import Engine, Event
from .errors import CheckpointError, InputError
from .generate import batch_generate, generate, stream_generate
from .models.memory_budget import memory_limits
from .sampling import GenerationOptions
from .session import Session, load
from .version import __version__

if TYPE_CHECKING:
    from .drafters import DraftModel, TextStore
    from .loading.conversion import convert
    from .rows.scheduling import BatchResult
    from .scoring import Score, encode, score

LATER = {  # imported on first use, because most runs do not need them
    "BatchResult": ".rows.scheduling",
    "DraftModel": ".drafters",
    "Score": ".scoring",
    "TextStore": ".drafters",
    "convert": ".loading.conversion",
    "encode": ".scoring",
    "score": ".scoring",
}


def __getattr__(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(LATER[name], __name__), name)


__all__ = [
    "BatchResult",
    "CheckpointError",
    "Draft",
    "DraftLength",
    "DraftModel",
    "Engine",
    "Event",
    "GenerationOptions",
    "GenerationResponse",
    "GenerationResult",
    "GenerationStats",
    "InputError",
    "NgramDrafter",
    "Request",
    "Round",
    "Score",
    "Session",
    "TextStore",
    "__version__",
    "batch_generate",
    "convert",
    "encode",
    "generate",
    "load",
    "memory_limits",
    "score",
    "stream_generate",
]
