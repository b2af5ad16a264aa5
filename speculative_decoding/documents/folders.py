"""Finds the documents in the folders on a command line, and names their outputs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import InputError, Message
from ..runs.folders import files_below
from .formats import BY_SUFFIX, FORMATS

MAX_SHOWN = 8  # suffixes to name in a note


@dataclass
class FoundDocuments:
    """The documents that a command line names, in order.

    Args:
        files: Their paths; - is standard input.
        names: The names of their outputs, relative to the output folder.
        in_folders: The paths of the documents that were found in folders.
        failures: The errors of the files that cannot be decoded, keyed by path.
        others: For each folder, how many of its files are not documents, by suffix.
    """

    files: list[str] = field(default_factory=list)
    names: list[Path] = field(default_factory=list)
    in_folders: set[str] = field(default_factory=set)
    failures: dict[str, InputError] = field(default_factory=dict)
    others: dict[str, Counter[str]] = field(default_factory=dict)

    @classmethod
    def search(cls, paths: Sequence[str], output: str | None, format: str | None) -> FoundDocuments:
        """Replace each folder with the documents in it and in its subfolders, in sorted order.

        Args:
            paths: Files and folders.
            output: The output, which is not searched if it is a folder.
            format: The format of all documents, or None to read every supported suffix.

        Raises:
            InputError: A folder contains no documents.
        """
        found = cls()
        suffixes = suffixes_of(format)
        for path in paths:
            if os.path.isdir(path):
                found._add_folder(path, None if output is None else Path(output), suffixes)
            else:
                found.files.append(path)
                found.names.append(Path(Path(path).name))
        return found

    @property
    def has_folders(self) -> bool:
        return bool(self.others)

    def notes(self) -> list[str]:
        """Return a line for each folder that contains other files."""
        return [f"{folder}: neither decoded nor copied: {listed(each)}" for folder, each in self.others.items() if each]

    def _add_folder(self, folder: str, output: Path | None, suffixes: frozenset[str]) -> None:
        others = self.others[folder] = Counter()
        count = len(self.files)
        for found in files_below(folder, output, stays=True):
            suffix = Path(found.path).suffix.lower()
            if found.is_unreadable:
                self.failures[found.path] = InputError(f"{found.path}: not readable")
            elif found.leads_out:
                others["links that lead out of the folder"] += 1
            elif suffix in suffixes:
                self.files.append(found.path)
                self.names.append(Path(os.path.relpath(found.path, folder)))
                self.in_folders.add(found.path)
            else:
                others[suffix or "without a suffix"] += 1
        if len(self.files) == count:
            way_out = f"name its files, or a folder with documents (of the suffixes {' '.join(sorted(suffixes))})"
            data = [name for name, each in FORMATS.items() if each.is_data and any(map(others.get, each.suffixes))]
            raise InputError(
                f"{folder} is a folder without documents",
                "files",
                Message("decode its data with {format} {names}", names=" or ".join(data)) if data else way_out,
            )


def suffixes_of(format: str | None) -> frozenset[str]:
    """Return the suffixes of the files that are read in a folder. format: See `FoundDocuments.search`."""
    if format is None:
        return frozenset(suffix for suffix, name in BY_SUFFIX.items() if not FORMATS[name].is_data)
    return frozenset(FORMATS[format].suffixes)


def listed(counts: Counter[str]) -> str:
    """Describe numbers of files, most frequent first, such as "7 .png, 1 .yml"."""
    common = counts.most_common()
    more = sum(count for _, count in common[MAX_SHOWN:])
    shown = [f"{count} {what}" for what, count in common[:MAX_SHOWN]]
    return ", ".join([*shown, *([f"{more} others"] if more else [])])
