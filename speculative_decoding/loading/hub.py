"""From a name on the Hugging Face Hub to a local folder. The only place that may touch the network."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from ..errors import InputError
from .tokenizer import TOKENIZER_FILES

SMALL_FILES = ("config.json", "generation_config.json", *TOKENIZER_FILES)
SECONDS = 20.0  # how long the Hub may take to answer
# Whole, in shards, and their index; safetensors if there are any.
WEIGHTS = (r"model(-.+)?\.safetensors(\.index\.json)?", r"pytorch_model(-.+)?\.bin(\.index\.json)?")

# For each family its smallest model, as a draft for the others: what they have in common is the tokenizer. \1 is what
# the target's name has in its first brackets.
FAMILIES = {
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
    r"google/t5gemma-2b-2b-\1": r"t5gemma-9b-[29]b-((ul2|prefixlm)(-it)?)",
    "google/t5gemma-2-270m-270m": r"t5gemma-2-(1b-1b|4b-4b)",
}


def suggested_draft(target: str | Path) -> str | None:
    """A draft for a well-known target, by a part of its name, or of its folder's; None for any other."""
    parts = re.split(r"/|--", str(target).lower())  # as the Hub's cache has it: models--google--mt5-base/snapshots/...
    matches = ((re.fullmatch(family, part), draft) for draft, family in FAMILIES.items() for part in parts)
    return next((match.expand(draft) for match, draft in matches if match), None)


def fetch(name: str, revision: str | None = None, gguf_file: str | None = None) -> Path:
    """Download what conversion needs of a model and nothing else; what is in the Hub's cache already is used.

    gguf_file: the one to take in the place of other weights.
    Raises `InputError` if there is no such model, or no network and nothing in the cache.
    """
    from huggingface_hub import HfApi, errors, snapshot_download

    try:
        siblings = HfApi().model_info(name, revision=revision, timeout=SECONDS).siblings or []
        files = needed((file.rfilename for file in siblings), gguf_file)
        return Path(snapshot_download(name, revision=revision, allow_patterns=files))
    except (errors.HFValidationError, errors.RepositoryNotFoundError) as error:
        raise InputError(f"model {name!r} is neither a folder here nor a model on the Hub; check the name") from error
    except errors.RevisionNotFoundError as error:
        raise InputError(f"revision {revision!r} of model {name!r} does not exist on the Hub") from error
    except Exception as error:  # network errors have no common base: they are those of the client's HTTP library
        reason = error
    try:
        return Path(snapshot_download(name, revision=revision, local_files_only=True))
    except (errors.LocalEntryNotFoundError, OSError) as error:
        raise InputError(
            f"model {name!r} is no folder here, not in the Hub's cache, and the Hub cannot be reached "
            f"({type(reason).__name__}); run `python convert.py --model {name}` where there is a network, and bring "
            f"models/{name.rsplit('/', 1)[-1]} here"
        ) from error


def needed(files: Iterable[str], gguf_file: str | None = None) -> list[str]:
    """Of a repository's files, those that conversion reads."""
    files = list(files)
    patterns = WEIGHTS if gguf_file is None else (re.escape(gguf_file),)
    weights = ([file for file in files if re.fullmatch(pattern, file)] for pattern in patterns)
    return [file for file in files if file in SMALL_FILES] + next(filter(None, weights), [])
