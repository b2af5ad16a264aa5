"""Opens a model, given its folder or name: the config, the tokenizer, and a checkpoint whose weights are read later."""

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
from ..checkpoints.base import CheckpointView
from ..errors import Float16Error, InputError, note
from ..models import memory_budget
from ..models.base import EncoderDecoder, checked_sources, quantizable
from ..models.device import emulates_bfloat16, on_gpu
from ..models.generation_config import GenerationConfig
from ..subpackages import has_subpackage
from . import manifest
from .names import MODELS, PACKAGE, SNAPSHOTS, model_name, name_of_cache_folder, shown_name
from .task_prefixes import task_prefixes
from .tokenizer import load_tokenizer
from .tokenizer_base import TOKENIZER_FILES, Tokenizer

if TYPE_CHECKING:  # imported at run time only for adapters and speech models
    from ..models.whisper_tokens import AudioConfig
    from .adapter import Adapter

BUNDLED = Path(__file__).resolve().parents[2] / MODELS  # the models bundled with the repository
WEIGHTS = "weights.npz"
DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}
BITS = (4, 8)
GROUP_SIZES = (32, 64, 128)
# Takes a function that builds one rank's model, given the number of ranks, and the whole checkpoint. Returns this
# process's part of the model and of the checkpoint.
Shard = Callable[[Callable[[int], EncoderDecoder], Checkpoint], tuple[EncoderDecoder, Checkpoint]]
LONG_QUANTIZED = 3e8  # bytes; quantizing more weights than this takes seconds


@dataclass(frozen=True)
class ModelHandle:
    """A model whose weights are not loaded yet, so that prompts and model pairs can be checked first.

    nbytes: the weights' size in bytes.
    quantize: bits per weight, if they are quantized while they are read.
    named_tokenizer: the folder of the tokenizer, if the caller named one.
    """

    folder: Path
    model: EncoderDecoder
    tokenizer: Tokenizer
    checkpoint: Checkpoint
    nbytes: int
    adapter: Adapter | None = None
    quantize: int | None = None
    named_tokenizer: Path | None = None

    @property
    def name(self) -> str:
        """The name to show: organisation/model for a model on the Hub, else the folder's name."""
        return model_name(self.folder)

    def load_weights(self) -> None:
        if sys.platform.startswith("linux") and has_subpackage("cpu"):
            from .. import cpu

            cpu.check()
        if self.quantize is not None and self.nbytes >= LONG_QUANTIZED:
            note(
                f"quantizing {self.name} to {self.quantize} bits, which takes a while at each start; "
                f"`speculative-decoding convert --quantize {self.quantize}` writes a folder that loads faster"
            )
        self.model.load_checkpoint(self.checkpoint)


@dataclass(frozen=True)
class Storage:
    """How weights are stored in a folder or in memory. Raises `InputError` for unsupported values.

    The output head is never quantized. At 4 bits, this halves the divergence from the original model.

    dtype: a name in `DTYPES`, or None for the dtype of the checkpoint.
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
    tokenizer: str | os.PathLike[str] | None = None,
    shard: Shard | None = None,
    beside: int = 0,
) -> ModelHandle:
    """Open a local model folder, or a model on the Hub after downloading it if necessary.

    Args:
        dtype: The dtype to compute in (default: `default_dtype`).
        quantize: Bits per weight.
        group_size: Columns per group of quantized weights.
        gguf_file: A GGUF file to use instead of the folder's weights: a path, or a file name in the folder.
        adapter: A LoRA adapter to merge: a folder, or a name on the Hub.
        tokenizer: A folder or a model on the Hub whose tokenizer replaces the model's own.
        shard: Reduces the model to this process's part, if several processes share it.
        beside: The size in bytes of a target that is loaded alongside this model.

    Raises:
        InputError: The model does not exist or does not fit into memory, or an argument is not supported.
        CheckpointError: A file is damaged or unsupported.
    """
    folder = locate(path_or_name, gguf_file)
    gguf = None if gguf_file is None else gguf_path(str(gguf_file), folder)
    storage = Storage(dtype, quantize, group_size)
    facts = manifest.check_sizes(folder)
    raw, checkpoint = read_folder(folder, gguf)
    storage = replace(storage, dtype=storage.dtype or default_dtype(checkpoint))
    opened_adapter = None if adapter is None else open_adapter(adapter)
    if opened_adapter is not None:
        raw, checkpoint = opened_adapter.merge(raw, checkpoint)  # merged in float32, whatever the dtype of the weights
    elif gguf is None and facts.get("dtype") == storage.dtype:
        storage = replace(storage, dtype=None)  # the weights already have this dtype
    original = raw, checkpoint
    model, raw, checkpoint = build_model(*original, storage, shard, unread=True)
    nbytes = weight_bytes(model, checkpoint)
    if nbytes + beside > memory_budget.physical_memory():
        raise memory_budget.too_large(shown_name(folder), nbytes, beside, partial(smaller_precision, *original))
    if storage.dtype == "float16":
        try:
            model, raw, checkpoint = build_model(*original, storage, shard)
        except Float16Error:
            if dtype is not None:
                raise
    files = tokenizer_folder(folder, raw, tokenizer, opened_adapter)
    opened_tokenizer = load_tokenizer(files)
    if files != folder:
        check_tokenizer(opened_tokenizer, folder)
    if model.replaces_unknowns:
        require_replacing(opened_tokenizer, files)
    if opened_adapter is not None:
        model.adapter = opened_adapter.fingerprint
    elif isinstance(merged := facts.get("adapter"), Mapping) and "fingerprint" in merged:
        model.adapter = str(merged["fingerprint"])
    model.pieces = opened_tokenizer.vocabulary.pieces
    model.task_prefixes = task_prefixes(raw, bool(opened_tokenizer.languages))
    model.generation_config = checked_generation_config(folder, raw, model)
    if model.audio is not None:
        model.audio = resolved_audio(model, model.audio, folder, raw)
    named_tokenizer = None if tokenizer is None else files
    return ModelHandle(folder, model, opened_tokenizer, checkpoint, nbytes, opened_adapter, quantize, named_tokenizer)


def resolved_audio(model: EncoderDecoder, audio: AudioConfig, folder: Path, raw: Mapping[str, Any]) -> AudioConfig:
    """Complete a speech model's audio config with values from its tokenizer and generation_config.json."""
    from ..models.whisper_tokens import resolved

    assert model.pieces is not None
    generation_config, file = checkpoints.read_generation_config(folder, raw)
    decoder = model.config.decoder_layers, model.config.decoder.num_heads
    return resolved(audio, model.pieces, generation_config, decoder, model.config.vocab_size, file)


def gguf_path(gguf_file: str, folder: Path) -> Path:
    """Find `gguf_file`, which is a path or a file name in `folder`. Raises `InputError` if it is missing."""
    for path in (Path(gguf_file), folder / gguf_file):
        if path.is_file():
            return path
    raise InputError(f"gguf_file {gguf_file!r}: no such file, here or in {folder}; name a GGUF file")


def read_folder(folder: Path, gguf: Path | None = None) -> tuple[Mapping[str, Any], Checkpoint]:
    """Return config.json, updated with the special token ids in generation_config.json, and the weights.

    Both use Hugging Face's names. The ids in config.json are also checked. Raises an `InputError` that explains how to
    load an adapter if the folder is one.
    """
    if gguf is None and (folder / checkpoints.ADAPTER_CONFIG).is_file():
        from .adapter import refuse_adapter

        refuse_adapter(folder)
    raw = models.hugging_face_config(checkpoints.read_config(folder, gguf))
    models.find(raw).config(raw, None)  # raises an error for invalid fields
    generation_config, _ = checkpoints.read_generation_config(folder, raw)
    ids = {name: generation_config.get(name) for name in checkpoints.ID_FIELDS}
    raw |= {name: value for name, value in ids.items() if value is not None}
    return models.find(raw).adapt(raw, checkpoints.read(folder, gguf))


def open_adapter(path_or_name: str | os.PathLike[str]) -> Adapter:
    """Open an adapter: a folder, or a name on the Hub. Raises `InputError`."""
    from .adapter import Adapter

    if (folder := local_folder(path_or_name)) is None:
        from .lookup import download_adapter

        folder = download_adapter(str(path_or_name))
    return Adapter.open(folder)


def tokenizer_folder(
    folder: Path,
    raw: Mapping[str, Any],
    named: str | os.PathLike[str] | None = None,
    adapter: Adapter | None = None,
) -> Path:
    """Return the folder of a model's tokenizer: `named`, the adapter's, the model's own, or one from the Hub.

    Args:
        folder: The model's folder.
        raw: The model's config.json, as `read_folder` returns it.
        named: A folder, or a model on the Hub.
        adapter: An adapter, which may include a tokenizer.
    """
    if named is not None:
        try:
            return locate(named, only_tokenizer=True)
        except InputError as error:
            raise InputError(error.problem, "tokenizer", error.way_out) from error
    if adapter is not None and adapter.has_vocabulary:
        return adapter.folder
    if any((folder / name).is_file() for name in TOKENIZER_FILES) or (default := models.default_tokenizer(raw)) is None:
        return folder
    from . import hub
    from .ctranslate2_tokenizer import WAY_OUT

    try:
        return hub.fetch(default, only_tokenizer=True)
    except InputError as error:
        problem = f"{folder} has no tokenizer, and the tokenizer of {default} is not available: {error.problem}"
        raise InputError(problem, way_out=WAY_OUT) from error


def check_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Raise `InputError` if a tokenizer from elsewhere contradicts the vocabulary in a CTranslate2 model's folder."""
    from .ctranslate2_tokenizer import ModelVocabulary

    if (vocabulary := ModelVocabulary.find(folder)) is not None:
        vocabulary.check(tokenizer)


def require_replacing(tokenizer: Tokenizer, folder: Path) -> None:
    """Raise `InputError` for a tokenizer that cannot show the source pieces of unknown tokens."""
    from .unknown_tokens import ReplacingTokenizer

    if not isinstance(tokenizer, ReplacingTokenizer):
        raise InputError(
            f"{folder}: this tokenizer cannot show unknown tokens as the package requires",
            "tokenizer",
            "use the package's own",
        )


def checked_generation_config(folder: Path, raw: Mapping[str, Any], model: EncoderDecoder) -> GenerationConfig:
    """Return a folder's generation config. raw: see `read_folder`. Raises `CheckpointError` for invalid fields."""
    generation_config, file = checkpoints.read_generation_config(folder, raw)
    if model.audio is not None:
        for name in (
            "forced_decoder_ids",
            "max_length",
            "max_new_tokens",
        ):  # each request sets its language, task and length
            generation_config.pop(name, None)
    return GenerationConfig.from_dict(generation_config, model.config.vocab_size, model.config.eos_token_ids, file)


def build_model(
    raw: Mapping[str, Any],
    checkpoint: Checkpoint,
    storage: Storage,
    shard: Shard | None = None,
    *,
    unread: bool = False,
) -> tuple[EncoderDecoder, Mapping[str, Any], Checkpoint]:
    """Build a model without weights. Returns the model, and config.json and the checkpoint as adapted to `storage`.

    Conversion and loading share this function, so quantizing while loading yields the same weights as converting. The
    returned checkpoint casts and quantizes each tensor when it is read. Only float16 requires reading some tensors
    immediately, because its range is small.

    unread: use bfloat16 in place of float16. The weights have the same size, and no tensor needs to be read.

    Raises:
        CheckpointError: Tensors do not match config.json. This is checked without reading tensors.
    """
    dtype, quantize = storage.dtype, storage.quantize
    if unread and dtype == "float16":
        dtype = "bfloat16"
    model = models.build(raw, checkpoint)
    sources = checked_sources(model, checkpoint)
    if quantize and any(name.endswith(".scales") for name in checkpoint):
        raise InputError(f"{checkpoint}: is quantized already; use the original to quantize it")
    if dtype == "float16":
        raw, checkpoint = models.for_float16(raw, checkpoint)
        model = models.build(raw, checkpoint)
    if dtype is not None:
        checkpoint = CheckpointView(checkpoint, dtype=DTYPES[dtype])
    if quantize is not None:
        from ..checkpoints.quantized import QuantizedCheckpoint

        head = "head" if "head.weight" in sources else "embedding"  # the embedding, if the two are tied
        layers = quantizable(model, sources, storage.group_size)
        names = {name for layer, tensors in layers.items() if layer != head for name in tensors}
        if not names:
            raise InputError(
                f"no layer of this model has rows that divide into groups of {storage.group_size}", "quantize"
            )
        checkpoint = QuantizedCheckpoint(checkpoint, names, quantize, storage.group_size)
    if shard is not None:
        model, checkpoint = shard(partial(models.build, raw, checkpoint), checkpoint)
    return model, raw, checkpoint


def weight_bytes(model: EncoderDecoder, checkpoint: Checkpoint) -> int:
    """Return the total size in bytes of the tensors that the model reads from the checkpoint."""
    names = set(chain.from_iterable(checked_sources(model, checkpoint).values()))
    return sum(checkpoint.info(name).nbytes for name in names)


def smaller_precision(raw: Mapping[str, Any], checkpoint: Checkpoint, limit: int) -> str:
    """Return advice for weights of more than `limit` bytes: how to obtain the highest precision that fits."""
    ways_out = {
        None: "load it with dtype bfloat16",
        8: "convert it with --quantize 8",
        4: "convert it with --quantize 4",
    }
    for quantize, way_out in ways_out.items():
        with suppress(InputError):  # already quantized, or no rows divide evenly into groups
            model, _, smaller = build_model(raw, checkpoint, Storage("bfloat16", quantize))
            if memory_budget.fits(size := weight_bytes(model, smaller), limit):
                return f"{way_out} ({size / memory_budget.GB:.2f} GB)"
    return "use a smaller model"


def default_dtype(checkpoint: Checkpoint) -> str:
    """Return the dtype to compute in, for all weights and activations.

    A CPU computes in float32. A GPU computes in the dtype that accounts for most of the checkpoint's bytes. If dtypes
    were mixed, a single float32 tensor, such as a norm or a position bias, would promote all activations to float32.
    GPUs that emulate bfloat16 compute in float16 instead. `open_model` falls back to bfloat16 for models that exceed
    float16's range.
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
    """Return a model's folder: a `local_folder`, or else that of the Hub model with this name (`lookup.download`).

    gguf_file: a GGUF file to use instead of other weights: a path, or a file name in the model's folder.
    only_tokenizer: the folder may lack weights.
    """
    if (folder := local_folder(path_or_name)) is not None:
        return folder
    from . import hub
    from .lookup import NoFolder, download

    has_weights = gguf_file is not None and os.path.isfile(gguf_file)
    options: dict[str, Any] = {"only_tokenizer": only_tokenizer or has_weights}
    if gguf_file is not None and not has_weights:
        options["gguf_file"] = str(gguf_file)
    return download(NoFolder(str(path_or_name), model_names()), partial(hub.fetch, **options))


def local_folder(path_or_name: str | os.PathLike[str]) -> Path | None:
    """Return the folder at this path, or the one with this name in ./models or the repository's models/; else None.

    The name may also denote an Argos Translate package (`loading/argos.py`).

    Raises `InputError` for a folder in the Hub's cache that contains snapshots instead of a model, and for a package
    that is not found or damaged.
    """
    if not isinstance(path_or_name, str | os.PathLike):
        raise InputError(f"a model must be a folder or a name, not {type(path_or_name).__name__}")
    path = Path(path_or_name)
    for folder in (path, MODELS / path, BUNDLED / path):
        if os.path.isdir(folder):
            if (folder / SNAPSHOTS).is_dir() and (name := name_of_cache_folder(folder.resolve().name)):
                raise InputError(
                    f"model {str(path)!r} is a folder of the Hub's cache", way_out=f"name the model, {name}"
                )
            return folder
    if PACKAGE.match(name := str(path)):
        from .argos import package_folder

        return package_folder(name)
    return None


def model_names() -> list[str]:
    """Return the names of the folders in ./models and in the repository's models/."""
    return sorted({path.name for path in model_folders()})


def model_folders() -> list[Path]:
    return [path for models in (MODELS, BUNDLED) for path in models.glob("*/") if path.is_dir()]
