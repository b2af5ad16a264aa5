"""A Hugging Face checkpoint -> a folder of ours: weights.npz, config.json, the tokenizer's files, a manifest.

One tensor at a time, so memory is about the largest tensor, and the folder appears whole or not at all.
Tensors keep their Hugging Face names; only those that the model needs are written, each once.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import mlx.core as mx

from . import checkpoints, hub, manifest, models
from .checkpoints import Checkpoint
from .checkpoints.npz import write_npz
from .errors import InputError
from .load import DTYPES, MODELS, WEIGHTS, read_config
from .models.base import checked_sources
from .safe_folder import whole_folder
from .tokenizer import TOKENIZER_FILES, load_tokenizer

SPARE_BYTES = 1 << 26  # room asked for beside the weights: tokenizer files, zip headers

Progress = Callable[[str, int, int], None]  # tensor name, bytes read so far, bytes in all


def convert(
    source: str,
    output: Path | None = None,
    *,
    dtype: str = "bfloat16",
    revision: str | None = None,
    force: bool = False,
    progress: Progress = lambda name, done, total: None,
) -> Path:
    """Convert a local folder or a model on the Hub; return the folder written, by default models/<its name>.

    dtype: float32, bfloat16 or float16, the type the weights are stored in.

    Raises `InputError` or `CheckpointError` before anything is written if an argument, a file or a tensor is wrong.
    A local folder never touches the network.
    """
    if dtype not in DTYPES:
        raise InputError(f"--dtype must be one of {', '.join(DTYPES)}, not {dtype!r}")
    local = Path(source)
    name = local.resolve().name if local.is_dir() else source.rsplit("/", 1)[-1]
    output = output if output is not None else MODELS / name
    if output.exists() and not force:
        raise InputError(f"--output {output} exists already; give --force to replace it")
    folder = local if local.is_dir() else hub.fetch(source, revision)

    checkpoint = checkpoints.read(folder)
    model = models.build(read_config(folder), checkpoint)  # lazy: no parameter is ever computed
    sources = checked_sources(model, checkpoint)
    names = list(dict.fromkeys(name for joined in sources.values() for name in joined))
    load_tokenizer(folder)  # an unusable tokenizer is found now, not after the weights
    check_space(output, sum(math.prod(checkpoint.info(name).shape) for name in names) * DTYPES[dtype].size)

    with whole_folder(output) as partial:
        write_npz(partial / WEIGHTS, tensors(checkpoint, names, DTYPES[dtype], progress))
        for file_name in ("config.json", "generation_config.json", *TOKENIZER_FILES):
            if (folder / file_name).is_file():
                shutil.copyfile(folder / file_name, partial / file_name)
        manifest.write(partial, source=name, revision=revision, dtype=dtype)
        manifest.verify(partial)
    return output


def tensors(
    checkpoint: Checkpoint, names: Sequence[str], dtype: mx.Dtype, progress: Progress
) -> Iterator[tuple[str, mx.array]]:
    """Each tensor in the type it is to be stored in, read only when its turn comes."""
    total = sum(checkpoint.info(name).nbytes for name in names)
    done = 0
    for name in names:
        yield name, checkpoint[name].astype(dtype)
        done += checkpoint.info(name).nbytes
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
