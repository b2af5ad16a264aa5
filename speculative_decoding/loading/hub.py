"""Downloads models from the Hugging Face Hub. The only module that uses the network."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from ..errors import InputError
from .tokenizer import TOKENIZER_FILES

# Draft -> pattern of target names: the smallest model of a family drafts for the larger ones, because they share a
# tokenizer. \1 is the first group of the target's pattern.
SUGGESTED_DRAFTS = {
    "google-t5/t5-small": r"t5-(base|large|3b|11b)",
    "google/t5-v1_1-small": r"t5-v1_1-(base|large|xl|xxl)",
    "google/flan-t5-small": r"flan-t5-(base|large|xl|xxl)|flan-ul2",
    "google/mt5-small": r"mt5-(base|large|xl|xxl)",
    "google/umt5-small": r"umt5-(base|xl|xxl)",
    "google/byt5-small": r"byt5-(base|large|xl|xxl)",
    "google/madlad400-3b-mt": r"madlad400-(7b|10b)-mt",
    "Salesforce/codet5-small": r"codet5-(base|large)",
    "Salesforce/codet5p-220m": r"codet5p-770m",
    "EleutherAI/pile-t5-base": r"pile-t5-(large|xl|xxl)",
    r"sshleifer/distilbart-\1-12-6": r"bart-large-(cnn|xsum)",
    "sshleifer/distill-pegasus-cnn-16-4": r"pegasus-cnn_dailymail",
    "sshleifer/distill-pegasus-xsum-16-4": r"pegasus-xsum",
    "facebook/nllb-200-distilled-600M": r"nllb-200-(distilled-)?(1\.3b|3\.3b)",
    "facebook/m2m100_418M": r"m2m100_1\.2b",
    "distil-whisper/distil-large-v3": r"whisper-large-v3(-mlx)?",
    r"distil-whisper/distil-\1": r"whisper-(large-v2|medium\.en|small\.en)(-mlx)?",
    r"google/t5gemma-2b-2b-\1": r"t5gemma-9b-[29]b-((ul2|prefixlm)(-it)?)",
    "google/t5gemma-2-270m-270m": r"t5gemma-2-(1b-1b|4b-4b)",
}


def suggested_draft(target: str | Path) -> str | None:
    """Return a draft for a well-known target, found by its name or folder, or None."""
    parts = re.split(r"/|--", str(target).lower())  # the Hub's cache has models--google--mt5-base/snapshots/...
    for draft, pattern in SUGGESTED_DRAFTS.items():
        for part in parts:
            if match := re.fullmatch(pattern, part):
                return match.expand(draft)
    return None


def fetch(
    name: str, revision: str | None = None, gguf_file: str | None = None, *, only_tokenizer: bool = False
) -> Path:
    """Download the files of a model that conversion needs, or find them in the Hub's cache.

    gguf_file: a .gguf file to use instead of other weights.
    only_tokenizer: download no weights.

    Raises `InputError` if the model does not exist, or if it is not cached and the Hub cannot be reached.
    """
    from huggingface_hub import HfApi, errors, snapshot_download

    try:
        siblings = HfApi().model_info(name, revision=revision, timeout=20.0).siblings or []
        available = [file.rfilename for file in siblings]
        files = [*TOKENIZER_FILES] if only_tokenizer else needed_files(available, gguf_file)
        return Path(snapshot_download(name, revision=revision, allow_patterns=files))
    except (errors.HFValidationError, errors.RepositoryNotFoundError) as error:
        raise InputError(f"model {name!r}: neither a local folder nor a model on the Hub; check the name") from error
    except errors.RevisionNotFoundError as error:
        raise InputError(f"model {name!r}: no revision {revision!r} on the Hub; check --revision") from error
    except Exception as error:  # network errors come from the client's HTTP library and share no base class
        reason = error
    try:
        return Path(snapshot_download(name, revision=revision, local_files_only=True))
    except (errors.LocalEntryNotFoundError, OSError) as error:
        raise InputError(
            f"model {name!r}: not a local folder, not in the Hub's cache, and the Hub cannot be reached "
            f"({type(reason).__name__}); run `python convert.py --model {name}` on a machine with network access, and "
            f"copy models/{name.rsplit('/', 1)[-1]} here"
        ) from error


def needed_files(files: Iterable[str], gguf_file: str | None = None) -> list[str]:
    """Return the files of a repository that conversion reads."""
    files = list(files)
    if gguf_file is None:
        # A single file, or shards and their index. The first pattern with a match wins.
        patterns = [r"model(-.+)?\.safetensors(\.index\.json)?", r"pytorch_model(-.+)?\.bin(\.index\.json)?"]
        patterns.append(r"weights\.(npz|safetensors)")
    else:
        patterns = [re.escape(gguf_file)]
    weights = ([file for file in files if re.fullmatch(pattern, file)] for pattern in patterns)
    small_files = ("config.json", "generation_config.json", *TOKENIZER_FILES)
    return [file for file in files if file in small_files] + next(filter(None, weights), [])
