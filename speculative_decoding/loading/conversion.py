"""Converts a Hugging Face checkpoint to a folder with weights.npz, config.json, the tokenizer and a manifest.

Tensors are converted one at a time, so memory use is bounded by the largest tensor. The folder appears completely or
not at all. Tensors keep their Hugging Face names; unused and duplicate tensors are not written.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..checkpoints import Checkpoint
from ..checkpoints.npz import write_npz
from ..errors import InputError, Message, Name, writing
from ..models.base import checked_sources
from ..runs.places import atomic_directory, require_space
from . import hub, manifest
from .canonical_tokenizer import canonical_tokenizer, write_tokenizer
from .load import (
    WEIGHTS,
    Storage,
    build_model,
    check_tokenizer,
    checked_generation_config,
    local_folder,
    model_folders,
    open_adapter,
    read_folder,
    tokenizer_folder,
)
from .lookup import NoFolder, download, require_hub_name
from .names import MODELS, model_name
from .tokenizer import load_tokenizer

Progress = Callable[[str, int, int], None]  # tensor name, bytes read so far, total bytes


def convert(
    source: str,
    output: Path | None = None,
    storage: Storage = Storage("bfloat16"),  # noqa: B008
    *,
    tokenizer: str | None = None,
    adapter: str | None = None,
    revision: str | None = None,
    force: bool = False,
    progress: Progress = lambda name, done, total: None,
) -> Path:
    """Convert a local folder or a model on the Hub, and return the output folder.

    Args:
        source: A local folder, or a name on the Hub.
        output: The folder to write; None means models/NAME.
        storage: The dtype and quantization of the weights.
        tokenizer: A folder or a model on the Hub whose tokenizer replaces the model's own.
        adapter: A LoRA adapter to merge: a folder, or a name on the Hub.
        revision: A branch, tag or commit on the Hub.
        force: Replace an existing `output`.
        progress: Called after each tensor with its name, the bytes read so far and the total bytes.

    Raises `InputError` or `CheckpointError` for an invalid argument, file or tensor, before anything is written.
    """
    folder, name, output = find_source(source, output, revision, force)
    config, original = read_folder(folder)
    facts: dict[str, Any] = {}
    opened_adapter = None
    if adapter is not None:
        opened_adapter = open_adapter(adapter)
        config, original = opened_adapter.merge(config, original)
        facts["adapter"] = {"name": model_name(opened_adapter.folder), "fingerprint": opened_adapter.fingerprint}
    elif (converted := manifest.read(folder).get("adapter")) is not None:
        facts["adapter"] = converted
    tokenizer_files = tokenizer_folder(folder, config, tokenizer, opened_adapter)
    proven_tokenizer = canonical_tokenizer(tokenizer_files)
    if tokenizer_files != folder:
        check_tokenizer(proven_tokenizer or load_tokenizer(tokenizer_files), folder)
    model, raw, checkpoint = build_model(config, original, storage)
    checked_generation_config(folder, raw, model)
    sources = checked_sources(model, checkpoint)
    names = list(dict.fromkeys(name for joined in sources.values() for name in joined))
    way_out = Message("name a folder on a larger disk, or choose a smaller {dtype}")
    require_space(output, sum(checkpoint.info(name).nbytes for name in names), "output", way_out)

    with writing(Name("output"), output, "nothing was written"), atomic_directory(output) as partial:
        write_npz(partial / WEIGHTS, tensors(original, checkpoint, names, progress))
        (partial / "config.json").write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")
        if (path := folder / "generation_config.json").is_file():
            shutil.copyfile(path, partial / path.name)
        record = write_tokenizer(tokenizer_files, proven_tokenizer, partial)
        quantization = None
        if storage.quantize is not None:
            quantization = {"bits": storage.quantize, "group_size": storage.group_size}
        facts |= {"dtype": storage.dtype, "quantization": quantization, "tokenizer": record}
        manifest.write(partial, source=name, revision=revision, **facts)
    return output


def find_source(source: str, output: Path | None, revision: str | None, force: bool) -> tuple[Path, str, Path]:
    """Return the source's folder (downloaded if necessary), the source's name, and the output folder. See `convert`.

    Raises `InputError` before downloading anything if the output cannot be written.
    """
    # Do not look in models/ for the name of a known Hub model, because an earlier conversion may have written it there.
    folder = local_folder(source) if os.path.isdir(source) or not hub.is_known(source) else None
    if folder is not None and revision is not None:
        raise InputError(f"{revision} has no effect on the local folder {folder}", "revision", "leave it out")
    missing = None if folder is not None else NoFolder(source, map(str, model_folders()), only_paths=True)
    if missing is not None:
        require_hub_name(missing)
    name = source if folder is None else model_name(folder)
    output = output if output is not None else MODELS / name.rsplit("/", 1)[-1]
    require_replaceable(output, folder or Path(source), force)
    if missing is not None:
        folder = download(missing, lambda name: hub.fetch(name, revision))
    assert folder is not None
    return folder, name, output


def require_replaceable(output: Path, source: Path, force: bool) -> None:
    """Raise `InputError` if writing `output` could destroy data.

    With `force`, a folder may be replaced if it is empty or contains only the files in its manifest.
    """
    way_out = "name another folder"
    if output.name in ("", ".."):
        raise InputError(f"{output} does not end with a folder name", "output", way_out)
    if output.is_symlink() or (output.exists() and not output.is_dir()):
        raise InputError(f"{output} is {'a link' if output.is_symlink() else 'a file'}", "output", way_out)
    if not output.exists():
        return
    if source.is_dir() and output.samefile(source):
        raise InputError(f"{output} is the model to convert", "output", way_out)
    if not force:
        raise InputError(
            f"{output} already exists", "output", Message("name another folder, or replace it with {force}")
        )
    written = {manifest.MANIFEST, *manifest.read(output)["files"]}
    if others := sorted(path.name for path in output.iterdir() if path.name not in written or not path.is_file()):
        raise InputError(f"{output} contains {others[0]!r}, which no conversion wrote", "output", way_out)


def tensors(
    original: Checkpoint, checkpoint: Checkpoint, names: Sequence[str], progress: Progress
) -> Iterator[tuple[str, mx.array]]:
    """Yield each tensor in the form in which it will be stored. A tensor is read only when it is yielded."""
    sizes = {name: original.info(name).nbytes if name in original else 0 for name in names}
    total = sum(sizes.values())
    done = 0
    for name in names:
        yield name, checkpoint[name]
        done += sizes[name]
        progress(name, done, total)
