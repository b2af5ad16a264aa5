"""Finds the recordings for the paths on a command line, and names their outputs."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from ..errors import InputError
from ..runs.folders import files_below, identity, is_hidden
from ..runs.places import folded

NAMES = (
    "3g2 3ga 3gp 3gpp aac ac3 aif aifc aiff amr ape asf au avi awb caf dts eac3 flac flv m2t m2ts m4a m4b m4r m4v mk3d"
    " mka mkv mov mp2 mp3 mp4 mpa mpeg mpg mpga mts mxf oga ogg ogv ogx opus spx tod tta vob voc w64 wav wave weba webm"
    " wma wmv wv"
)
SUFFIXES = frozenset(f".{name}" for name in NAMES.split())  # without .ts, because such files are more often TypeScript
ICLOUD = ".icloud"
MAX_STEM_BYTES = 255 - len("..partial-12345678") - len(".json")  # leaves room for the name of a temporary file


def recordings_in(paths: Sequence[str], output: Path | None = None) -> list[str]:
    """Replace each folder with the recordings in it and in its subfolders, in sorted order.

    output: A folder that is not searched, unless it is itself among the paths.

    Raises:
        InputError: A folder contains no recordings.
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
    """Yield the recordings in a folder, then those in its subfolders.

    Unreadable folders and the placeholders of recordings in iCloud are also yielded, so that opening them reports an
    error.
    """
    for found in files_below(folder, output, lambda name: is_hidden(name) and not is_placeholder(name)):
        name = os.path.basename(found.path).removesuffix(ICLOUD)
        if found.is_unreadable or os.path.splitext(name)[1].lower() in SUFFIXES:
            yield found.path


def is_placeholder(name: str) -> bool:
    """Whether `name` belongs to the placeholder of a file that macOS has moved to iCloud, such as .talk.m4a.icloud."""
    return name.startswith(".") and name.endswith(ICLOUD) and len(name) > len(ICLOUD) + 1


def without_repeats(recordings: Sequence[str]) -> list[str]:
    """Remove repeated recordings, even if their paths differ. A link counts as a separate recording."""
    first: dict[object, str] = {}
    for each in recordings:
        path = place(each)
        # On a Mac, names that differ only in case are the same file
        first.setdefault((folded(str(path)), identity(path, False)) if os.path.lexists(path) else path, each)
    return [*first.values()]


def place(path: str | Path) -> Path:
    """Return the absolute path, with links among its folders resolved. The last part may be a link."""
    return Path(os.path.realpath(os.path.dirname(path) or "."), os.path.basename(path))


def output_names(recordings: Sequence[str], finished: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """Return the output name for each recording, without the suffix of the format.

    Usually, the name is the recording's stem. Recordings with the same stem keep their suffix or, if the names are
    still not unique, their path below the folder that all recordings share, or both. Names that differ only in case or
    Unicode normalization count as equal. The names depend on the set of recordings, but not on their order. Long names
    are shortened.

    finished: The names of the complete outputs, by recording. These names are kept, and other recordings are given
        different names.
    """
    paths = [place(each) for each in recordings]
    shared = os.path.commonpath([path.parent for path in paths])
    relative = [Path(os.path.relpath(path, shared)) for path in paths]
    stems = [folded(path.stem) for path in relative]
    levels = dict.fromkeys(stems, 0)
    names: list[str] = []
    # First, choose the names of an uninterrupted run, then other names for outputs that would replace finished ones
    for kept in ({}, finished):
        repeated = set(stems)
        while repeated:
            names = [
                kept.get(recording) or fitting(LEVELS[levels[stem]](path))
                for recording, path, stem in zip(recordings, relative, stems, strict=True)
            ]
            counts = Counter(map(folded, names))
            repeated = {
                stem
                for recording, stem, name in zip(recordings, stems, names, strict=True)
                if counts[folded(name)] > 1 and levels[stem] < len(LEVELS) - 1 and recording not in kept
            }
            for stem in repeated:
                levels[stem] += 1
    return names


def fitting(name: str) -> str:
    """Shorten the last part of a path if it is too long for a file name, and add a hash to keep it unique."""
    folder, base = os.path.split(name)
    content = os.fsencode(base)
    if len(content) <= MAX_STEM_BYTES:
        return name
    end = MAX_STEM_BYTES - 9
    while content[end] & 0xC0 == 0x80:  # in the middle of a character
        end -= 1
    return os.path.join(folder, with_hash(base, os.fsdecode(content[:end])))


def with_hash(path: str | Path, shown: str | None = None) -> str:
    """Return a name with a hash of the path, unique even if case and normalization are ignored. shown: its start."""
    return f"{path if shown is None else shown}.{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}"


LEVELS: tuple[Callable[[Path], str], ...] = (
    lambda path: path.stem,
    lambda path: path.name,
    lambda path: str(path.with_suffix("")),
    str,
    with_hash,
)
