"""A folder or a name -> (model, tokenizer): where checkpoints, models and tokenizers meet."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx

from .. import checkpoints, models
from ..checkpoints import Checkpoint
from ..checkpoints.base import CastCheckpoint, QuantizedCheckpoint
from ..distributed import ProcessGroup, shard_model
from ..errors import InputError
from ..models.base import EncoderDecoder, checked_sources, quantizable
from ..models.generation_config import GenerationConfig
from . import hub, manifest
from .tokenizer import Tokenizer, load_tokenizer

MODELS = Path("models")  # where convert.py puts what it makes
BUNDLED = Path(__file__).resolve().parents[2] / MODELS  # the pair that comes with the repository
HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")  # organisation/model
WEIGHTS = "weights.npz"
BITS, GROUP_SIZES = (4, 8), (32, 64, 128)
SELF_DRAFT, SELF_DRAFT_BITS = "self-8bit", 8  # the target itself, quantised, where there is no smaller relative
DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}


@dataclass(frozen=True)
class Opened:
    """A model without its weights: enough to check a prompt, or a pair of vocabularies, in no time."""

    folder: Path
    model: EncoderDecoder
    tokenizer: Tokenizer
    checkpoint: Checkpoint

    def load_weights(self) -> None:
        if sys.platform.startswith("linux"):
            from .. import linux_cpu

            linux_cpu.check()
        self.model.load_checkpoint(self.checkpoint)


def open_named(
    path_or_name: str | os.PathLike[str],
    *,
    dtype: str | None = None,
    quantize: int | None = None,
    group_size: int = 64,
    gguf_file: str | os.PathLike[str] | None = None,
) -> Opened:
    """A folder, or a model on the Hub, in the storage that is wanted."""
    folder = locate(path_or_name, gguf_file)
    gguf = None
    if gguf_file is not None:
        gguf = next(filter(Path.is_file, (Path(str(gguf_file)), folder / str(gguf_file))), None)
        if gguf is None:
            raise InputError(f"gguf_file {str(gguf_file)!r} is no file, here or in {folder}; name one that is")
    return open_model(folder, dtype=dtype, quantize=quantize, group_size=group_size, gguf=gguf)


def open_model(
    folder: Path,
    *,
    dtype: str | None = None,
    quantize: int | None = None,
    group_size: int = 64,
    gguf: Path | None = None,
    processes: ProcessGroup | None = None,
) -> Opened:
    """`open_named`, but for finding the folder and its files. processes: the processes that share the model."""
    if dtype is None and mx.default_device() == mx.Device(mx.cpu):
        dtype = "float32"
    storage = Storage(dtype, quantize, group_size)
    manifest.check_sizes(folder)
    raw, checkpoint = checked_config(folder, gguf), checkpoints.read(folder, gguf)
    if gguf is None and manifest.read(folder).get("dtype") == dtype:
        storage = replace(storage, dtype=None)  # conversion stored that type already
    raw, checkpoint = transformed(raw, checkpoint, storage)
    if processes is None:
        model = models.build(raw, checkpoint)
    else:
        model, checkpoint = shard_model(partial(models.build, raw, checkpoint), checkpoint, processes)
    tokenizer = load_tokenizer(folder)
    model.pieces = tokenizer.vocabulary.pieces
    model.generation_config = checked_generation_config(folder, raw, model)
    return Opened(folder, model, tokenizer, checkpoint)


def checked_config(folder: Path, gguf: Path | None = None) -> Mapping[str, Any]:
    """config.json with the ids of generation_config.json; those that they replace are checked too."""
    raw = checkpoints.read_config(folder, gguf)
    models.build(raw)
    given, _ = checkpoints.read_generation_config(folder, raw)
    return raw | {name: given[name] for name in checkpoints.ID_FIELDS if given.get(name) is not None}


def checked_generation_config(folder: Path, raw: Mapping[str, Any], model: EncoderDecoder) -> GenerationConfig:
    """raw: from `checked_config`. Raises `CheckpointError` for a field that is impossible."""
    given, file = checkpoints.read_generation_config(folder, raw)
    return GenerationConfig.from_dict(given, model.config.vocab_size, model.config.eos_token_ids, file)


@dataclass(frozen=True)
class Storage:
    """How weights are stored, or kept in memory. Raises `InputError` that names what cannot be.

    dtype: one of `DTYPES`; None: as they are. quantize: 4 or 8 bits, in groups of `group_size` columns; None: not. The
    head stays in `dtype`, which halves the divergence at 4 bits (docs/LOG.md, "What to quantise").
    """

    dtype: str | None = None
    quantize: int | None = None
    group_size: int = 64

    def __post_init__(self) -> None:
        for name, choices in (("dtype", (None, *DTYPES)), ("quantize", (None, *BITS)), ("group_size", GROUP_SIZES)):
            value = getattr(self, name)
            if not any(type(value) is type(each) and value == each for each in choices):
                raise InputError(f"{name} must be one of {', '.join(map(str, filter(None, choices)))}, not {value!r}")


def transformed(
    raw: Mapping[str, Any], checkpoint: Checkpoint, storage: Storage
) -> tuple[Mapping[str, Any], Checkpoint]:
    """config.json and weights as `storage` says; each tensor is made when it is read.

    Conversion and loading share this, so a model quantised in memory is the one that conversion would write.
    Raises `CheckpointError` where config.json and tensors do not fit, before any is read.
    """
    dtype, quantize = storage.dtype, storage.quantize
    checked_sources(models.build(raw), checkpoint)
    if any(name.endswith(".scales") for name in checkpoint) and (quantize or dtype == "float16"):
        raise InputError(
            f"{checkpoint}: is quantised already; take the original to quantise it or to store it in float16"
        )
    if dtype == "float16":
        raw, checkpoint = models.for_float16(raw, checkpoint)
    if dtype is not None:
        checkpoint = CastCheckpoint(checkpoint, DTYPES[dtype])
    if quantize is not None:
        model = models.build(raw, checkpoint)
        sources = checked_sources(model, checkpoint)
        head = "head" if "head.weight" in sources else "embedding"  # where they are tied
        layers = quantizable(model, sources, storage.group_size)
        names = {name for layer, names in layers.items() if layer != head for name in names}
        if not names:
            raise InputError(
                f"quantize: no layer of this model has rows that divide into groups of {storage.group_size}"
            )
        checkpoint = QuantizedCheckpoint(checkpoint, names, quantize, storage.group_size)
    return raw, checkpoint


def locate(path_or_name: str | os.PathLike[str], gguf_file: str | os.PathLike[str] | None = None) -> Path:
    """`find_folder`; else, for a name like organisation/model, the Hub's cache, and the Hub itself."""
    try:
        return find_folder(path_or_name)
    except InputError:
        if not HUB_NAME.fullmatch(str(path_or_name)):
            raise
        return hub.fetch(str(path_or_name), gguf_file=None if gguf_file is None else str(gguf_file))


def find_folder(path_or_name: str | os.PathLike[str]) -> Path:
    """The folder itself, or the one of that name under models/, here or beside the package."""
    if not isinstance(path_or_name, str | os.PathLike):
        raise InputError(f"a model is given by its folder or its name, not as {type(path_or_name).__name__}")
    path = Path(path_or_name)
    for folder in (path, MODELS / path, BUNDLED / path):
        if os.path.isdir(folder):
            return folder
    raise InputError(
        f"model {str(path)!r} is neither a folder nor one under {MODELS}/; make one with convert.py --model, or give "
        "the name of a model on the Hub, organisation/model"
    )
