"""A folder or a name -> (model, tokenizer): where checkpoints, models and tokenizers meet."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import mlx.core as mx

from . import blas, checkpoints, manifest, models
from .errors import CheckpointError, InputError
from .models.base import EncoderDecoder
from .tokenizer import Tokenizer, load_tokenizer

MODELS = Path("models")  # where convert.py puts what it makes
BUNDLED = Path(__file__).resolve().parent.parent / MODELS  # the pair that comes with the repository
WEIGHTS = "weights.npz"
DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}


def load(path_or_name: str | os.PathLike[str], *, dtype: str | None = None) -> tuple[EncoderDecoder, Tokenizer]:
    """Load a converted folder, or a Hugging Face one as it is.

    path_or_name: a folder, or the name of one under models/.
    dtype: float32, bfloat16 or float16 to compute in; by default as stored on a GPU, and float32 on a CPU, for which
        MLX has no fast 16-bit matrix product.

    Raises `InputError` or `CheckpointError` in one line that names the folder, file or tensor.
    """
    folder = find_folder(path_or_name)
    model, tokenizer = prepare(folder)
    load_weights(model, folder, dtype)
    return model, tokenizer


def prepare(folder: Path) -> tuple[EncoderDecoder, Tokenizer]:
    """Everything of `load` but the weights: quick, and enough to check a prompt or a pair of vocabularies."""
    manifest.check_sizes(folder)
    model = models.build(read_config(folder), checkpoints.read(folder))
    model.tokenizer = tokenizer = load_tokenizer(folder)
    return model, tokenizer


def load_weights(model: EncoderDecoder, folder: Path, dtype: str | None = None) -> None:
    if dtype is not None and dtype not in DTYPES:
        raise InputError(f"dtype must be one of {', '.join(DTYPES)}, not {dtype!r}")
    blas.warn_if_slow()
    if dtype is None and mx.default_device() == mx.Device(mx.cpu):
        dtype = "float32"
    model.load_checkpoint(checkpoints.read(folder), None if dtype is None else DTYPES[dtype])


def find_folder(path_or_name: str | os.PathLike[str]) -> Path:
    """The folder itself, or the one of that name under models/, here or beside the package."""
    path = Path(path_or_name)
    for folder in (path, MODELS / path, BUNDLED / path):
        if folder.is_dir():
            return folder
    raise InputError(
        f"model {str(path)!r} is neither a folder nor one under {MODELS}/; make one with convert.py --model"
    )


def read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder}: no config.json in it; is this a model's folder?") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path}: holds no JSON object")
    return config
