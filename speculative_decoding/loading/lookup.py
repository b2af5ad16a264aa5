"""Resolves a name that is not a local folder, and is therefore a model on the Hub or a typo."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from ..checkpoints import ADAPTER_CONFIG
from ..errors import InputError, similar_names
from ..sampling.options import is_address
from . import hub
from .names import ARGOS, FORMER_NAMES, MODELS, PAIR, is_hub_name

ADDRESS = re.compile(
    r"(?:(?:https?:/+)?(?:www\.)?(?:huggingface|hf)\.co/|hf:/+)(?:models/)?"
    r"([\w.-]+(?:/(?!(?:tree|blob|resolve)\b)[\w.-]+)?)",
    re.ASCII,
)
MIRROR = re.compile(r"https?:/+[^/]+/([\w.-]+/[\w.-]+)/?(?:(?:tree|blob|resolve)/.*)?(?:[?#].*)?$", re.ASCII)
SIMILARITY = 0.82  # the minimum for a typo; that of flan-t5-base and flan-t5-large is 0.8


class NoFolder(InputError):
    """No local folder has this name.

    known: the local names from which a suggestion is chosen.
    only_paths: whether a folder must be given as a path, as in conversion, which writes to models/.
    is_final: whether the name is a file or a web address, in which case the Hub is not queried.
    nearest: the local name or the Argos Translate package that the user probably meant, or None.
    """

    def __init__(self, name: str, known: Iterable[str], *, only_paths: bool = False) -> None:
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
        if is_address(name):
            super().__init__(f"model {name!r} is an address", way_out="download the model, and name its folder")
            return
        self.is_final = False
        known = list(known)
        self.nearest = similar_model(name, [*folders_beside(name), *known])
        if self.nearest is None and PAIR.fullmatch(name):
            self.nearest = ARGOS + name
        suggestion = f"did you mean {self.nearest}? Otherwise " if self.nearest else ""
        problem = "not a folder" if only_paths else f"neither a folder nor a name in {MODELS}/ ({', '.join(known)})"
        super().__init__(
            f"model {name!r} is {problem}",
            way_out=f"{suggestion}convert one with convert.py --model, or name a model on the Hub, organisation/model",
        )


def download(missing: NoFolder, fetch: Callable[[str], Path]) -> Path:
    """Return the folder of a Hub model whose name is not a local folder. fetch: see `hub.fetch`.

    If the Hub has no such model or is unreachable, the error suggests the most similar known name.
    """
    require_hub_name(missing)
    name = missing.name
    try:
        return fetch(name)
    except hub.UnknownModel as error:
        problem = error.problem if "/" in name else f"{missing.problem}, {error.reason}"
        meant = missing.nearest or similar_model(name, [*hub.cached_names(), *FORMER_NAMES])
        suggestion = f"did you mean {meant}? Otherwise " if meant not in (None, name) else ""
        raise InputError(problem, way_out=f"{suggestion}{error.way_out}") from error


def require_hub_name(missing: NoFolder) -> None:
    """Raise `missing`, without sending a request, if its name is probably not that of a model on the Hub.

    A name without an organisation that resembles a local name is treated as a typo, unless it is in the Hub's cache or
    in `FORMER_NAMES`. Names with an organisation are not checked, because many of them resemble each other.
    """
    name = missing.name
    if missing.is_final or not is_hub_name(name) or name.startswith(f"{MODELS}/"):
        raise missing
    if missing.nearest and "/" not in name and not hub.is_known(name):
        raise missing


def download_adapter(name: str) -> Path:
    """Return the folder of a Hub adapter whose name is not a local folder. Raises `InputError`."""
    meant = name_in_address(name)
    near = similar_model(name, folders_beside(name, ADAPTER_CONFIG))
    if meant or near or not is_hub_name(name):
        way_out = f"name the adapter on the Hub, {meant}" if meant else f"did you mean {near}?" if near else ""
        raise InputError(
            f"{name!r} is neither a folder nor an adapter on the Hub",
            "adapter",
            way_out or "name the folder that PEFT saved, or an adapter on the Hub, organisation/adapter",
        )
    try:
        return hub.fetch(name)
    except hub.UnknownModel as error:
        way_out = "check the name, or name a folder that PEFT saved" if error.is_unreached else str(error.way_out)
        raise InputError(f"{name!r}: not a local folder, {error.reason}", "adapter", way_out) from error
    except InputError as error:
        raise InputError(error.problem, "adapter", error.way_out) from error


def folders_beside(path: str, file: str = "config.json") -> list[str]:
    """Return the sibling folders of `path` that contain `file`, as paths with the same parent."""
    parent = os.path.dirname(path.rstrip("/"))
    with suppress(OSError, ValueError):
        folders = (os.path.join(parent, entry.name) for entry in os.scandir(parent or ".") if entry.is_dir())
        return sorted(folder for folder in folders if os.path.isfile(os.path.join(folder, file)))
    return []


def name_in_address(text: str) -> str | None:
    """Return the model named in an address such as https://huggingface.co/organisation/model, or None if none is."""
    match = ADDRESS.match(text) or MIRROR.match(text)
    return match and match[1]


def similar_model(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that the user probably meant, ignoring organisations and parent folders.

    Digits must match: `whisper-large-v2` is not a misspelling of `whisper-large-v3`, but another model.
    """

    def last_part(text: str) -> str:
        return text.rstrip("/").rsplit("/", 1)[-1].lower()

    def digits(text: str) -> list[str]:
        return re.findall(r"\d", last_part(text))

    similar = similar_names(
        name, [each for each in known if digits(each) == digits(name)], 1, SIMILARITY, key=last_part
    )
    return similar[0] if similar else None
