"""Argos Translate packages: folders and archives, whose weights are no weights."""

from __future__ import annotations

import json
import stat
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.support.paths import GOLDENS

ROOT = "translate-en_de-1_9"
WEIGHTS = bytes(range(256)) * 64
FIELDS: dict[str, Any] = {
    "package_version": "1.9",
    "argos_version": "1.9.0",
    "from_code": "en",
    "from_name": "English",
    "to_code": "de",
    "to_name": "German",
    "target_prefix": "",
    "links": [],
}


def package_config(pair: str) -> dict[str, Any]:
    """Return the fields of a converted package's config.json that its tokenizer needs."""
    source, target = pair.split("_")
    return {
        "model_type": "opennmt",
        **{"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "eos_token_id": 3},
        **{"add_source_bos": False, "add_source_eos": False},
        "task_specific_params": {f"translation_{source}_to_{target}": {"prefix": ""}},
        "replace_unknowns": True,
    }


def package_files(**fields: Any) -> dict[str, bytes]:
    """Return the files of a package, by their path in its folder. fields: of metadata.json."""
    vocabulary = ["<blank>", "<unk>", "<s>", "</s>", "▁a", "▁the"]
    return {
        "metadata.json": json.dumps(FIELDS | fields).encode(),
        "sentencepiece.model": (GOLDENS / "tokenizers/t5/spiece.model").read_bytes(),
        "model/config.json": b'{"add_source_eos": false}',
        "model/model.bin": WEIGHTS,
        "model/shared_vocabulary.json": json.dumps(vocabulary).encode(),
        "README.md": b"A package",
        "stanza/en/tokenize/ewt.pt": bytes(1000),
    }


def write_package(folder: Path, **fields: Any) -> Path:
    """Write the folder of an installed package. fields: of metadata.json."""
    for name, content in package_files(**fields).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def write_archive(path: Path, root: str = ROOT, more: Iterable[tuple[str, bytes]] = (), **fields: Any) -> Path:
    """Write a package's archive. more: further entries, such as links."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in package_files(**fields).items():
            archive.writestr(zipfile.ZipInfo(f"{root}/{name}"), content, zipfile.ZIP_DEFLATED)  # without the date
        for name, content in more:
            archive.writestr(name, content)
    return path


def link(name: str) -> zipfile.ZipInfo:
    """Return the header of a symbolic link."""
    info = zipfile.ZipInfo(name)
    info.create_system = 3
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info
