"""Which recordings the paths of a command line mean, and what their outputs are called."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path

from ..errors import InputError
from ..runs.places import folded

SUFFIXES = frozenset(  # .ts is left out: it is TypeScript more often than a recording
    f".{name}"
    for name in (
        *("3g2", "3gp", "aac", "ac3", "aif", "aifc", "aiff", "amr", "ape", "asf", "au", "avi", "caf", "dts", "flac"),
        *("flv", "m2ts", "m4a", "m4b", "m4v", "mka", "mkv", "mov", "mp2", "mp3", "mp4", "mpeg", "mpg", "mpga", "mts"),
        *("mxf", "oga", "ogg", "ogv", "opus", "spx", "tta", "vob", "w64", "wav", "weba", "webm", "wma", "wmv", "wv"),
    )
)


def recordings_in(paths: Sequence[str], output: Path | None = None) -> list[str]:
    """Replace folders by the recordings in them and in the folders below, in sorted order.

    output: A folder that is not searched, unless it is itself among the paths.

    Raises:
        InputError: A folder has no recordings.
    """
    found: list[str] = []
    for path in paths:
        own = [*search(path, output)] if os.path.isdir(path) else [path]
        if not own:
            suffixes = ", ".join(sorted(each[1:] for each in SUFFIXES))
            way_out = f"name its files, or a folder with recordings (of the suffixes {suffixes})"
            raise InputError(f"{path} is a folder without recordings", "audio", way_out)
        found += own
    return found


def search(folder: str, output: Path | None) -> Iterator[str]:
    """Yield the recordings in a folder, then those in the folders below. A folder that cannot be read yields itself.

    Hidden files are skipped, and so are folders that were searched already, because links may form loops.
    """
    seen = {identity(each) for each in (folder, output) if each is not None and os.path.isdir(each)}
    waiting = [folder]
    while waiting:
        current = waiting.pop()
        try:
            with os.scandir(current) as listed:
                entries = sorted(listed, key=attrgetter("name"))
        except OSError:
            yield current
            continue
        folders = []
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if not os.path.isdir(entry.path):
                if os.path.splitext(entry.name)[1].lower() in SUFFIXES:
                    yield entry.path
            elif (own := identity(entry.path)) not in seen:
                seen.add(own)
                folders.append(entry.path)
        waiting += reversed(folders)


def identity(path: str | Path, follows: bool = True) -> tuple[int, int]:
    status = os.stat(path, follow_symlinks=follows)
    return status.st_dev, status.st_ino


def without_repeats(recordings: Sequence[str]) -> list[str]:
    """Leave out repeated recordings, even if they are named differently. A link to a recording is another recording."""
    first: dict[object, str] = {}
    for each in recordings:
        path = place(each)
        # On a Mac, names that differ in case are the same file
        first.setdefault((folded(str(path)), identity(path, False)) if os.path.lexists(path) else path, each)
    return [*first.values()]


def place(path: str | Path) -> Path:
    """Return an absolute path without links, except for one that the path itself is."""
    return Path(os.path.realpath(os.path.dirname(path) or "."), os.path.basename(path))


def output_names(recordings: Sequence[str]) -> list[str]:
    """Return what the outputs of each recording are called, without the suffix of their format: its stem.

    Recordings of one stem keep their suffix. If that is not enough, they keep the folder below the folder that all
    recordings share, or both. Names are compared as file systems do that ignore case or normalize Unicode. They depend
    on all recordings together, but not on their order.
    """
    paths = [place(each) for each in recordings]
    shared = os.path.commonpath([path.parent for path in paths])
    relative = [Path(os.path.relpath(path, shared)) for path in paths]
    stems = [folded(path.stem) for path in relative]
    levels = dict.fromkeys(stems, 0)
    while True:
        names = [LEVELS[levels[stem]](path) for path, stem in zip(relative, stems, strict=True)]
        counts = Counter(map(folded, names))
        repeated = {
            stem
            for stem, name in zip(stems, names, strict=True)
            if counts[folded(name)] > 1 and levels[stem] < len(LEVELS) - 1
        }
        if not repeated:
            return names
        for stem in repeated:
            levels[stem] += 1


def with_hash(path: Path) -> str:
    """Return a name that differs from those of other paths in more than case or normalization."""
    return f"{path}.{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}"


LEVELS: tuple[Callable[[Path], str], ...] = (
    lambda path: path.stem,
    lambda path: path.name,
    lambda path: str(path.with_suffix("")),
    str,
    with_hash,
)
