"""metadata.json of an Argos Translate package: the languages, the version, and the first token of every output."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import CheckpointError
from .files import read_json_object

METADATA = "metadata.json"
MODEL_FOLDER = "model"  # contains the package's CTranslate2 model
TRANSLATE = "translate"
CODE = re.compile(r"[A-Za-z]{2,8}(?:[-_](?!to\b|to_)[A-Za-z0-9]{1,8})*", re.ASCII)  # _to_ separates the two languages
MARKS = {"argos_version", "from_code", "to_code"}  # every package has some of these fields
MAX_CHARACTERS = 100  # in a field


class Package(NamedTuple):
    """The fields of metadata.json that this program uses.

    type: "translate", or the type of a package that does not translate.
    from_code, to_code: The languages, such as en and pt-BR.
    code: A name that the package gives itself; most have none.
    """

    folder: Path
    type: str
    from_code: str
    to_code: str
    target_prefix: str
    package_version: str
    code: str

    @property
    def pair(self) -> str:
        return f"{self.from_code}_{self.to_code}"


def read_package(folder: Path) -> Package:
    """Read a package's metadata.json. Missing fields are empty. Raises `CheckpointError` for a damaged file."""
    path = folder / METADATA
    content = {"type": TRANSLATE} | read_json_object(path)
    texts = [value if (value := content.get(name)) is not None else "" for name in Package._fields[1:]]
    for name, text in zip(Package._fields[1:], texts, strict=True):
        if not isinstance(text, str) or len(text) > MAX_CHARACTERS:
            raise CheckpointError(f"{path}: {name} must be a string of at most {MAX_CHARACTERS} characters")
    return Package(folder, *texts)


def is_package(folder: Path) -> bool:
    """Return whether a folder has the metadata.json of a package. Other programs write files of this name too.

    Raises `CheckpointError` for a damaged file.
    """
    path = folder / METADATA
    return path.is_file() and not MARKS.isdisjoint(read_json_object(path))


def package_fields(folder: Path, vocabulary: Sequence[str]) -> dict[str, Any]:
    """Return the fields of config.json that express a package's languages and how Argos Translate uses its model.

    The languages are those of a translation task whose prompts have no prefix (`loading/task_prefixes.py`).

    vocabulary: The model's tokens, in the order of their ids.

    Raises `CheckpointError` if metadata.json is damaged, or if the package does not translate.
    """
    package = read_package(folder)
    path = folder / METADATA
    if package.type != TRANSLATE:
        raise CheckpointError(
            f"{path}: a package of the type {package.type!r} is not supported; name one of the type {TRANSLATE!r}"
        )
    for name in ("from_code", "to_code"):
        if not CODE.fullmatch(code := getattr(package, name)):
            raise CheckpointError(f"{path}: {name} must be the code of a language, such as en or pt-BR, not {code!r}")
    task = f"translation_{package.from_code}_to_{package.to_code}"
    fields: dict[str, Any] = {
        "task_specific_params": {task: {"prefix": ""}},
        "replace_unknowns": True,
        "min_new_tokens": 1,  # the default of CTranslate2's `min_decoding_length`, which counts the target prefix
    }
    if prefix := package.target_prefix:
        if prefix not in vocabulary:
            raise CheckpointError(f"{path}: target_prefix {prefix!r} is not a token of the model; restore the package")
        fields["forced_bos_token_id"] = vocabulary.index(prefix)
    return fields
