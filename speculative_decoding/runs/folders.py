"""Finds the files in a folder and in its subfolders."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple


class FoundFile(NamedTuple):
    """A file in a folder.

    Args:
        path: Its path, which begins with the path of the folder.
        is_unreadable: Whether it is a folder that cannot be listed, or a file whose type cannot be determined.
        leads_out: Whether it is a link that leads out of the folder.
    """

    path: str
    is_unreadable: bool = False
    leads_out: bool = False


def is_hidden(name: str) -> bool:
    return name.startswith(".")


def files_below(
    folder: str, skipped: Path | None = None, is_left_out: Callable[[str], bool] = is_hidden, *, stays: bool = False
) -> Iterator[FoundFile]:
    """Yield the files in a folder, then those in its subfolders, in sorted order.

    Each folder is searched only once, because links may form loops.

    Args:
        folder: The folder.
        skipped: A folder that is not searched, unless it is `folder` itself.
        is_left_out: Returns whether a file or folder with this name is left out.
        stays: Whether links to folders and links that lead out of `folder` are not followed. The latter are yielded.
    """
    seen = {identity(each) for each in (folder, skipped) if each is not None and os.path.isdir(each)}
    root = Path(os.path.realpath(folder))
    waiting = [folder]
    while waiting:
        current = waiting.pop()
        try:
            with os.scandir(current) as listed:
                entries = sorted(listed, key=attrgetter("name"))
        except OSError:
            yield FoundFile(current, is_unreadable=True)
            continue
        folders = []
        for entry in entries:
            if is_left_out(entry.name):
                continue
            try:
                own = identity(entry.path) if entry.is_dir() else None
            except PermissionError:
                yield FoundFile(entry.path, is_unreadable=True)
                continue
            except OSError:  # for example, a loop of links
                own = None
            if stays and entry.is_symlink():
                leads_out = not Path(os.path.realpath(entry.path)).is_relative_to(root)
                if own is None or leads_out:  # the files of a linked folder within `folder` are found in that folder
                    yield FoundFile(entry.path, leads_out=leads_out)
            elif own is None:
                yield FoundFile(entry.path)
            elif own not in seen:
                seen.add(own)
                folders.append(entry.path)
        waiting += reversed(folders)


def identity(path: str | Path, follows: bool = True) -> tuple[int, int]:
    """Return a value that is equal for all paths to a file. follows: Whether to follow a link."""
    status = os.stat(path, follow_symlinks=follows)
    return status.st_dev, status.st_ino
