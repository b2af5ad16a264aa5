"""Opens a model by its folder or name: config, tokenizer, and a checkpoint whose weights are read later."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from .. import checkpoints, models
from ..checkpoints import Checkpoint
from ..checkpoints.base import CastCheckpoint, QuantizedCheckpoint
from ..distributed import ProcessGroup, shard_model
from ..errors import CheckpointError, Float16Error, InputError, written
from ..models.base import EncoderDecoder, checked_sources, quantizable
from ..models.device import emulates_bfloat16, on_gpu
from ..models.generation_config import GenerationConfig
from ..models.memory_budget import GB, fits, require_memory
from . import hub, manifest
from .names import (
    FORMER_NAMES,
    SNAPSHOTS,
    is_hub_name,
    model_name,
    name_in_address,
    name_of_cache_folder,
    nearest,
    shown_name,
)
from .tokenizer import TOKENIZER_FILES, Tokenizer, load_tokenizer

if TYPE_CHECKING:  # imported when an adapter is given
    from .adapter import Adapter

MODELS = Path("models")  # convert.py writes here
BUNDLED = Path(__file__).resolve().parents[2] / MODELS  # the models in the repository
WEIGHTS = "weights.npz"
DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}
BITS = (4, 8)
GROUP_SIZES = (32, 64, 128)


@dataclass(frozen=True)
class ModelHandle:
    """A model whose weights are not loaded yet. Prompts and pairs of models can be checked already."""

    folder: Path
    model: EncoderDecoder
    tokenizer: Tokenizer
    checkpoint: Checkpoint
    adapter: Adapter | None = None

    @property
    def name(self) -> str:
        """The name to show: organisation/model for a model on the Hub, else the folder's name."""
        return model_name(self.folder)

    @property
    def nbytes(self) -> int:
        """The size of the weights."""
        return weight_bytes(self.model, self.checkpoint)

    def load_weights(self) -> None:
        if sys.platform.startswith("linux"):
            from .. import cpu

            cpu.check()
        self.model.load_checkpoint(self.checkpoint)


@dataclass(frozen=True)
class Storage:
    """How weights are stored in a folder or in memory. Raises `InputError` for unsupported values.

    The output head is not quantized: this halves the divergence at 4 bits.

    dtype: a name in `DTYPES`, or None for the type of the checkpoint.
    quantize: bits per weight, or None.
    group_size: columns per group of quantized weights.
    """

    dtype: str | None = None
    quantize: int | None = None
    group_size: int = 64

    def __post_init__(self) -> None:
        for name, choices in (("dtype", (None, *DTYPES)), ("quantize", (None, *BITS)), ("group_size", GROUP_SIZES)):
            value = getattr(self, name)
            if not any(type(value) is type(each) and value == each for each in choices):
                raise InputError(f"must be one of {', '.join(map(str, filter(None, choices)))}, not {value!r}", name)


def open_model(
    path_or_name: str | os.PathLike[str],
    *,
    dtype: str | None = None,
    quantize: int | None = None,
    group_size: int = 64,
    gguf_file: str | os.PathLike[str] | None = None,
    adapter: str | os.PathLike[str] | None = None,
    process_group: ProcessGroup | None = None,
    beside: int = 0,
) -> ModelHandle:
    """Open a folder, or a model on the Hub, which is downloaded if necessary.

    Args:
        dtype: The type to compute in (default: `default_dtype`).
        quantize: Bits per weight.
        group_size: Columns per group of quantized weights.
        gguf_file: Weights to use instead of the folder's: a path, or a name in the folder.
        adapter: A LoRA adapter to merge: a folder, or a name on the Hub.
        process_group: The processes that share the model.
        beside: The size in bytes of a target that is loaded with this model.

    Raises:
        InputError: There is no such model, it exceeds the memory, or an argument is not supported.
        CheckpointError: A file is damaged or unsupported.
    """
    folder = locate(path_or_name, gguf_file)
    gguf = None
    if gguf_file is not None:
        gguf = next(filter(Path.is_file, (Path(str(gguf_file)), folder / str(gguf_file))), None)
        if gguf is None:
            raise InputError(f"gguf_file {str(gguf_file)!r}: no such file, here or in {folder}; name a GGUF file")
    storage = Storage(dtype, quantize, group_size)
    manifest.check_sizes(folder)
    raw, checkpoint = read_folder(folder, gguf)
    storage = replace(storage, dtype=storage.dtype or default_dtype(checkpoint))
    opened_adapter = None if adapter is None else open_adapter(adapter)
    if opened_adapter is not None:
        raw, checkpoint = opened_adapter.merge(raw, checkpoint)  # in float32, whatever the weights have
    elif gguf is None and manifest.read(folder).get("dtype") == storage.dtype:
        storage = replace(storage, dtype=None)  # the weights have this type already
    original = raw, checkpoint
    model, raw, checkpoint = build_unread(*original, storage)
    size = weight_bytes(model, checkpoint) // (1 if process_group is None else process_group.size)
    require_memory(shown_name(folder), size, beside, partial(smaller_precision, *original))
    if storage.dtype == "float16":
        try:
            model, raw, checkpoint = build_model(*original, storage)
        except Float16Error:
            if dtype is not None:
                raise
    if process_group is not None:
        model, checkpoint = shard_model(partial(models.build, raw, checkpoint), checkpoint, process_group)
    tokenizer = load_tokenizer(tokenizer_folder(folder, raw, adapter=opened_adapter))
    model.adapter = manifest.adapter_of(folder) if opened_adapter is None else opened_adapter.fingerprint
    model.pieces = tokenizer.vocabulary.pieces
    model.generation_config = checked_generation_config(folder, raw, model)
    if model.audio is not None:
        from ..models.whisper_tokens import resolved

        generation_config, file = checkpoints.read_generation_config(folder, raw)
        decoder = model.config.decoder_layers, model.config.decoder.num_heads
        pieces, size = tokenizer.vocabulary.pieces, model.config.vocab_size
        model.audio = resolved(model.audio, pieces, generation_config, decoder, size, file)
    return ModelHandle(folder, model, tokenizer, checkpoint, opened_adapter)


def read_folder(folder: Path, gguf: Path | None = None) -> tuple[Mapping[str, Any], Checkpoint]:
    """Return the `checked_config` and the weights of a folder, with Hugging Face's names."""
    return models.adapt(checked_config(folder, gguf), checkpoints.read(folder, gguf))


def checked_config(folder: Path, gguf: Path | None = None) -> Mapping[str, Any]:
    """config.json with the special token ids of generation_config.json. Checks the ids that they replace, too.

    Raises `InputError` for the folder of an adapter, with the way to load it.
    """
    if gguf is None and (folder / hub.ADAPTER_CONFIG).is_file():
        from .adapter import refuse_adapter

        refuse_adapter(folder)
    raw = models.hugging_face_config(checkpoints.read_config(folder, gguf))
    models.check_config(raw)
    generation_config, _ = checkpoints.read_generation_config(folder, raw)
    ids = {name: generation_config.get(name) for name in checkpoints.ID_FIELDS}
    return raw | {name: value for name, value in ids.items() if value is not None}


def open_adapter(path_or_name: str | os.PathLike[str]) -> Adapter:
    """Open an adapter: a folder, or a name on the Hub. Raises `InputError`."""
    from .adapter import Adapter

    try:
        return Adapter.open(find_folder(path_or_name))
    except NoFolder as error:
        name, meant = error.name, name_in_address(error.name)
        near = nearest(name, folders_beside(name, hub.ADAPTER_CONFIG))
    if meant or near or not is_hub_name(name):
        way_out = f"name the adapter on the Hub, {meant}" if meant else f"did you mean {near}?" if near else ""
        raise InputError(
            f"{name!r} is neither a folder nor an adapter on the Hub",
            "adapter",
            way_out or "name the folder that PEFT saved, or an adapter on the Hub, organisation/adapter",
        )
    try:
        return Adapter.open(hub.fetch(name))
    except hub.UnknownModel as error:
        way_out = "check the name, or name a folder that PEFT saved" if error.is_unreached else written(error.way_out)
        raise InputError(f"{name!r}: not a local folder, {error.reason}", "adapter", way_out) from error
    except CheckpointError:
        raise
    except InputError as error:
        raise InputError(error.problem, "adapter", error.way_out) from error


def tokenizer_folder(
    folder: Path, raw: Mapping[str, Any], named: str | None = None, adapter: Adapter | None = None
) -> Path:
    """Return the folder of a model's tokenizer: the named one, the adapter's or the model's own, or one from the Hub.

    Args:
        folder: The model's.
        raw: The model's `checked_config`.
        named: A folder, or a model on the Hub.
        adapter: An adapter, which may have a tokenizer.
    """
    if named is not None:
        try:
            return locate(named, only_tokenizer=True)
        except InputError as error:
            raise InputError(error.problem, "tokenizer", error.way_out) from error
    if adapter is not None and adapter.has_vocabulary:
        return adapter.folder
    default = models.default_tokenizer(raw)
    if default is None or any((folder / name).is_file() for name in TOKENIZER_FILES):
        return folder
    try:
        return hub.fetch(default, only_tokenizer=True)
    except InputError as error:
        problem = f"{folder} has no tokenizer, and the tokenizer of {default} is not available: {error.problem}"
        raise InputError(problem, way_out=f"copy the tokenizer's files from {default} into the folder") from error


def checked_generation_config(folder: Path, raw: Mapping[str, Any], model: EncoderDecoder) -> GenerationConfig:
    """The generation config of a folder with this `checked_config`. Raises `CheckpointError` for invalid fields."""
    generation_config, file = checkpoints.read_generation_config(folder, raw)
    if model.audio is not None:
        for name in ("forced_decoder_ids", "max_length", "max_new_tokens"):  # requests state language, task and length
            generation_config.pop(name, None)
    return GenerationConfig.from_dict(generation_config, model.config.vocab_size, model.config.eos_token_ids, file)


def build_model(
    raw: Mapping[str, Any], checkpoint: Checkpoint, storage: Storage
) -> tuple[EncoderDecoder, Mapping[str, Any], Checkpoint]:
    """Build a model without weights. Returns it with the config.json and the checkpoint for the given storage.

    Conversion and loading share this function, so quantizing while loading gives the weights that conversion writes.
    The returned checkpoint casts and quantizes each tensor when it is read.

    Raises:
        CheckpointError: Tensors and config.json do not match. No tensor is read to find out.
    """
    dtype, quantize = storage.dtype, storage.quantize
    model = models.build(raw, checkpoint)
    sources = checked_sources(model, checkpoint)
    if quantize and any(name.endswith(".scales") for name in checkpoint):
        raise InputError(f"{checkpoint}: is quantized already; use the original to quantize it")
    if dtype == "float16":
        raw, checkpoint = models.for_float16(raw, checkpoint)
        model = models.build(raw, checkpoint)
    if dtype is not None:
        checkpoint = CastCheckpoint(checkpoint, DTYPES[dtype])
    if quantize is not None:
        head = "head" if "head.weight" in sources else "embedding"  # the embedding, if the two are tied
        layers = quantizable(model, sources, storage.group_size)
        names = {name for layer, tensors in layers.items() if layer != head for name in tensors}
        if not names:
            raise InputError(
                f"no layer of this model has rows that divide into groups of {storage.group_size}", "quantize"
            )
        checkpoint = QuantizedCheckpoint(checkpoint, names, quantize, storage.group_size)
    return model, raw, checkpoint


def build_unread(
    raw: Mapping[str, Any], checkpoint: Checkpoint, storage: Storage
) -> tuple[EncoderDecoder, Mapping[str, Any], Checkpoint]:
    """`build_model` with bfloat16 instead of float16, which has the same size. Reads no tensor."""
    return build_model(raw, checkpoint, replace(storage, dtype="bfloat16") if storage.dtype == "float16" else storage)


def weight_bytes(model: EncoderDecoder, checkpoint: Checkpoint) -> int:
    """Return the size of the tensors that the model reads from the checkpoint."""
    names = set(chain.from_iterable(checked_sources(model, checkpoint).values()))
    return sum(checkpoint.info(name).nbytes for name in names)


def smaller_precision(raw: Mapping[str, Any], checkpoint: Checkpoint, limit: int) -> str:
    """Return the way out for weights of more than `limit` bytes: the best precision that fits."""
    ways_out = {
        None: "load it with dtype bfloat16",
        8: "convert it with --quantize 8",
        4: "convert it with --quantize 4",
    }
    for quantize, way_out in ways_out.items():
        with suppress(InputError):  # quantized already, or has no rows that divide into groups
            model, _, smaller = build_unread(raw, checkpoint, Storage("bfloat16", quantize))
            if fits(size := weight_bytes(model, smaller), limit):
                return f"{way_out} ({size / GB:.2f} GB)"
    return "use a smaller model"


def default_dtype(checkpoint: Checkpoint) -> str:
    """Return the type to compute in, for all weights and activations.

    A CPU computes in float32. A GPU computes in the type of most bytes of the checkpoint, because a single float32
    tensor, such as a norm or a position bias, would turn all activations into float32. GPUs that emulate bfloat16
    compute in float16 instead. `open_model` replaces float16 by bfloat16 for models that do not fit in it.
    """
    if not on_gpu():
        return "float32"
    sizes = dict.fromkeys(DTYPES, 0)
    for info in map(checkpoint.info, checkpoint):
        name = str(info.dtype).removeprefix("mlx.core.")
        if name in sizes:
            sizes[name] += info.nbytes
    stored = max(sizes, key=sizes.__getitem__)
    return "float16" if stored == "bfloat16" and emulates_bfloat16() else stored


def locate(
    path_or_name: str | os.PathLike[str],
    gguf_file: str | os.PathLike[str] | None = None,
    *,
    only_tokenizer: bool = False,
) -> Path:
    """Return the folder of a model: `find_folder`, else the model of this name on the Hub (`download`).

    gguf_file: a path, or a name in the model's folder, of weights to use instead of others.
    only_tokenizer: the folder may lack weights.
    """
    try:
        return find_folder(path_or_name)
    except NoFolder as error:
        has_weights = gguf_file is not None and os.path.isfile(gguf_file)
        options: dict[str, Any] = {"only_tokenizer": only_tokenizer or has_weights}
        if gguf_file is not None and not has_weights:
            options["gguf_file"] = str(gguf_file)
        return download(error, partial(hub.fetch, **options))


def download(missing: NoFolder, fetch: Callable[[str], Path]) -> Path:
    """Return the folder of a model on the Hub, for a name that is not a local folder. fetch: see `hub.fetch`.

    If the Hub has no such model, or cannot be reached, the error proposes the nearest name that is known here.
    """
    require_hub_name(missing)
    name = missing.name
    try:
        return fetch(name)
    except hub.UnknownModel as error:
        problem = error.problem if "/" in name else f"{missing.problem}, {error.reason}"
        meant = missing.nearest or nearest(name, [*hub.cached_names(), *FORMER_NAMES])
        suggestion = f"did you mean {meant}? Otherwise " if meant else ""
        raise InputError(problem, way_out=f"{suggestion}{error.way_out}") from error


def require_hub_name(missing: NoFolder) -> None:
    """Raise the error without asking the Hub if the name is probably not one of the Hub's.

    A name without an organisation that resembles a local one is a typing error, unless the Hub is known to have it: a
    model in its cache, or one of `FORMER_NAMES`. Names with an organisation resemble each other too often.
    """
    name = missing.name
    if missing.is_final or not is_hub_name(name) or name.startswith(f"{MODELS}/"):
        raise missing
    if missing.nearest and "/" not in name and not hub.is_known(name):
        raise missing


class NoFolder(InputError):
    """A name is not the name of a local folder.

    only_paths: names of folders in models/ are not accepted either, because conversion writes them.
    is_final: it is a file, or the address of a model's page, so the Hub is not asked.
    nearest: a local name that was probably meant, or None.
    """

    def __init__(self, name: str, *, only_paths: bool = False) -> None:
        self.name = name
        self.nearest = None
        self.is_final = True
        if os.path.isfile(name):
            way_out = "name its folder, which must contain the tokenizer too"
            super().__init__(f"model {name!r} is a file", way_out=way_out)
            return
        if (meant := name_in_address(name)) is not None:
            super().__init__(f"model {name!r} is an address", way_out=f"name the model on the Hub, {meant}")
            return
        self.is_final = False
        known = [str(folder) for folder in model_folders()] if only_paths else model_names()
        self.nearest = nearest(name, [*folders_beside(name), *known])
        suggestion = f"did you mean {self.nearest}? Otherwise " if self.nearest else ""
        problem = "not a folder" if only_paths else f"neither a folder nor a name in {MODELS}/ ({', '.join(known)})"
        super().__init__(
            f"model {name!r} is {problem}",
            way_out=f"{suggestion}convert one with convert.py --model, or name a model on the Hub, organisation/model",
        )


def find_folder(path_or_name: str | os.PathLike[str]) -> Path:
    """A local folder: the path itself, or the folder of this name in models/, here or in the repository."""
    if not isinstance(path_or_name, str | os.PathLike):
        raise InputError(f"a model must be a folder or a name, not {type(path_or_name).__name__}")
    path = Path(path_or_name)
    for folder in (path, MODELS / path, BUNDLED / path):
        if not os.path.isdir(folder):
            continue
        if (folder / SNAPSHOTS).is_dir() and (name := name_of_cache_folder(folder.resolve().name)):
            raise InputError(f"model {str(path)!r} is a folder of the Hub's cache", way_out=f"name the model, {name}")
        return folder
    raise NoFolder(str(path_or_name))


def folders_beside(path: str, file: str = "config.json") -> list[str]:
    """Return the folders that have a file, beside the one that a path names and written in the same way."""
    parent = os.path.dirname(path.rstrip("/"))
    with suppress(OSError, ValueError):
        folders = (os.path.join(parent, entry.name) for entry in os.scandir(parent or ".") if entry.is_dir())
        return sorted(folder for folder in folders if os.path.isfile(os.path.join(folder, file)))
    return []


def model_names() -> list[str]:
    """The folders in models/, here and in the repository."""
    return sorted({path.name for path in model_folders()})


def model_folders() -> list[Path]:
    return [path for models in (MODELS, BUNDLED) for path in models.glob("*/") if path.is_dir()]
