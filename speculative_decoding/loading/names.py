"""Names of models: on the Hub, in its cache, and of Argos Translate packages."""

from __future__ import annotations

import re
from pathlib import Path

MODELS = Path("models")  # convert.py writes here
HUB_NAME = re.compile(r"(\w[\w.-]*/)?\w[\w.-]*(?<![.-])", re.ASCII)
MAX_CHARACTERS = 96  # in a name on the Hub
CACHED = "models--"  # the Hub's cache has models--google--flan-t5-base/snapshots/COMMIT
SNAPSHOTS = "snapshots"
ARGOS = "argos:"  # before the name of an installed Argos Translate package, such as argos:en_de
ARCHIVE = ".argosmodel"  # the suffix of a package that is not installed
PACKAGE = re.compile(rf"{ARGOS}|.*{re.escape(ARCHIVE)}\Z", re.IGNORECASE | re.DOTALL)
PAIR = re.compile(r"(translate-)?[a-z]{2,3}_[a-z]{2,3}(-\d+(_\d+)*)?")  # a package's name without `ARGOS`
UNPACKED = re.compile(r"[0-9a-f]{64}")  # an unpacked package is in a folder named after the hash of its archive
# Names of models that were published before the Hub had organisations. The Hub redirects these names.
FORMER_NAMES = {f"t5-{size}": f"google-t5/t5-{size}" for size in ("small", "base", "large", "3b", "11b")}


def is_hub_name(name: str) -> bool:
    """Return whether the name has a form that is valid on the Hub: organisation/model, or just model."""
    is_valid = len(name) <= MAX_CHARACTERS and not name.endswith(".git") and "--" not in name and ".." not in name
    return is_valid and HUB_NAME.fullmatch(name) is not None


def other_names(name: str) -> list[str]:
    """Return a model's other names on the Hub: `t5-small` is also `google-t5/t5-small`."""
    return [other for pair in FORMER_NAMES.items() if name in pair for other in pair if other != name]


def cache_folder_name(name: str) -> str:
    """Return the name of a model's folder in the Hub's cache."""
    return CACHED + name.replace("/", "--")


def name_of_cache_folder(folder_name: str) -> str | None:
    """Return the name of the model whose folder in the Hub's cache has this name, or None for other folders."""
    name = folder_name.removeprefix(CACHED).replace("--", "/", 1)
    return name if folder_name.startswith(CACHED) and is_hub_name(name) else None


def hub_name(folder: Path) -> str | None:
    """Return the name of the model in a snapshot folder of the Hub's cache, or None for other folders."""
    snapshots = folder.resolve().parent
    return name_of_cache_folder(snapshots.parent.name) if snapshots.name == SNAPSHOTS else None


def model_name(folder: Path) -> str:
    """Return the name of the model in a folder: organisation/model in the Hub's cache, otherwise the folder's name."""
    return hub_name(folder) or folder.resolve().name


def shown_name(folder: Path) -> str:
    """Return a model's name for display: its `model_name` if it is in the Hub's cache or unpacked, else its path."""
    return model_name(folder) if UNPACKED.fullmatch(folder.parent.name) else hub_name(folder) or str(folder)
