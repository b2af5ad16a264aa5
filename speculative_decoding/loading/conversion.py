"""A Hugging Face checkpoint -> a folder of ours: weights.npz, config.json, the tokenizer's files, a manifest.

One tensor at a time, so memory is about the largest tensor, and the folder appears whole or not at all.
Tensors keep their Hugging Face names; only those that the model needs are written, each once.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import mlx.core as mx

from .. import checkpoints, models
from ..checkpoints import Checkpoint
from ..checkpoints.npz import write_npz
from ..errors import InputError, writing
from ..models.base import checked_sources
from . import hub, manifest
from .atomic_io import atomic_directory
from .load import MODELS, WEIGHTS, Storage, checked_config, checked_generation_config, transformed
from .tokenizer import TOKENIZER_FILES, load_tokenizer

IN_BFLOAT16 = Storage("bfloat16")
SPARE_BYTES = 1 << 26  # disk space needed beside the weights: tokenizer files, zip headers

Progress = Callable[[str, int, int], None]  # tensor name, bytes read so far, bytes in all


def convert(
    source: str,
    output: Path | None = None,
    storage: Storage = IN_BFLOAT16,
    *,
    revision: str | None = None,
    force: bool = False,
    progress: Progress = lambda name, done, total: None,
) -> Path:
    """Convert a local folder or a model on the Hub; return the folder written, by default models/<its name>.

    progress: called after each tensor with its name, the bytes read so far and the bytes in all.

    Raises `InputError` or `CheckpointError` before anything is written if an argument, a file or a tensor is wrong.
    A local folder never touches the network.
    """
    local = Path(source)
    if os.path.isfile(source):
        raise InputError(f"--model {source} is a file; name its folder, with the tokenizer's files beside it")
    if os.path.isdir(source) and revision is not None:
        raise InputError(f"--revision {revision} belongs to a model on the Hub, but {source} is a local folder")
    name = local.resolve().name if os.path.isdir(source) else source.rsplit("/", 1)[-1]
    output = output if output is not None else MODELS / name
    require_free(output, local, force)
    folder = local if os.path.isdir(source) else hub.fetch(source, revision)

    original = checkpoints.read(folder)
    config = checked_config(folder)
    load_tokenizer(folder)
    raw, checkpoint = transformed(config, original, storage)
    model = models.build(raw, checkpoint)  # lazy: no parameter is ever computed
    checked_generation_config(folder, raw, model)
    sources = checked_sources(model, checkpoint)
    names = list(dict.fromkeys(name for joined in sources.values() for name in joined))
    check_space(output, sum(checkpoint.info(name).nbytes for name in names))

    with writing("--output", output, "nothing was left there"), atomic_directory(output) as partial:
        write_npz(partial / WEIGHTS, tensors(original, checkpoint, names, progress))
        (partial / "config.json").write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")
        for file_name in ("generation_config.json", *TOKENIZER_FILES):
            if (folder / file_name).is_file():
                shutil.copyfile(folder / file_name, partial / file_name)
        quantization = None
        if storage.quantize is not None:
            quantization = {"bits": storage.quantize, "group_size": storage.group_size}
        manifest.write(partial, source=name, revision=revision, dtype=storage.dtype, quantization=quantization)
    return output


def require_free(output: Path, source: Path, force: bool) -> None:
    """Raise `InputError` unless nothing would be lost: only an empty folder, or one that holds nothing but what its
    manifest says we wrote, is ever replaced.
    """
    way_out = "name another folder"
    if output.name in ("", ".."):
        raise InputError(f"--output {output} does not name a folder by its own name; {way_out}")
    if output.is_symlink() or (output.exists() and not output.is_dir()):
        raise InputError(f"--output {output} is {'a link' if output.is_symlink() else 'a file'}; {way_out}")
    if not output.exists():
        return
    if source.is_dir() and output.samefile(source):
        raise InputError(f"--output {output} is the model that is to be converted; {way_out}")
    if not force:
        raise InputError(f"--output {output} exists already; give --force to replace it")
    ours = {manifest.MANIFEST, *manifest.files_of(output)}
    if others := sorted(path.name for path in output.iterdir() if path.name not in ours or not path.is_file()):
        raise InputError(f"--output {output} holds {others[0]!r}, which no conversion wrote; {way_out}")


def tensors(
    original: Checkpoint, checkpoint: Checkpoint, names: Sequence[str], progress: Progress
) -> Iterator[tuple[str, mx.array]]:
    """Each tensor as it is to be stored, read only when its turn comes."""
    read = {name: original.info(name).nbytes if name in original else 0 for name in names}
    total, done = sum(read.values()), 0
    for name in names:
        yield name, checkpoint[name]
        done += read[name]
        progress(name, done, total)


def check_space(output: Path, weight_bytes: int) -> None:
    """Raise `InputError` if the disk that holds `output` has no room, before anything is written."""
    needed = weight_bytes + SPARE_BYTES
    existing = next(folder for folder in output.resolve().parents if folder.exists())
    if (free := shutil.disk_usage(existing).free) < needed:
        raise InputError(
            f"--output {output}: {needed / 1e9:.1f} GB are needed there, {free / 1e9:.1f} GB are free; "
            "name a folder on a larger disk, or choose a smaller --dtype"
        )
