"""Finds Argos Translate packages. A package's root folder is the folder of its model.

A package is an archive (.argosmodel), which is unpacked once into a private cache, or a folder that Argos Translate has
installed. The archive is untrusted: each entry's name, type and size are checked before anything is written.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from ..cache_folder import WAY_OUT, cache_folder, locked
from ..checkpoints.argos_metadata import METADATA, TRANSLATE, Package, read_package
from ..checkpoints.ctranslate2_vocabulary import SEPARATE, SHARED
from ..checkpoints.files import open_if_regular, read_json_object
from ..checkpoints.npz import BoundedFile
from ..errors import CheckpointError, InputError, writing
from ..runs.places import atomic_directory, folded, require_space, sync
from .names import ARCHIVE, ARGOS

MODEL = "model/model.bin"
VOCABULARIES = tuple(f"model/{name}" for name in (*SHARED, *SEPARATE))
WANTED = (METADATA, "sentencepiece.model", "bpe.model", MODEL, "model/config.json", *VOCABULARIES)
ROOT = re.compile(r"\w[\w .+-]{0,99}")  # the names of packages, such as translate-en_de-1_9
REGULAR = (0, stat.S_IFREG, stat.S_IFDIR)  # 0: the archive does not say
FINDER = "__MACOSX"  # where macOS stores attributes of files in archives
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
MAX_ENTRIES = 10_000
MAX_BYTES = 16 << 30
MAX_RATIO = 20  # uncompressed bytes per compressed byte; weights have less than 2, vocabularies about 4
ALWAYS_ALLOWED = 1 << 20  # bytes of a file with any ratio
CHUNK = 1 << 20
MAX_SHOWN = 20  # pairs in a message
RESTORE = "download it again"
Entries = Mapping[str, zipfile.ZipInfo]


def package_folder(name: str) -> Path:
    """Return the root folder of a package. Raises `InputError` if it is missing or damaged.

    name: An archive's path, or `ARGOS` and the languages or the name of an installed package.
    """
    return installed(name) if name.lower().startswith(ARGOS) else unpacked(Path(name))


def unpacked(path: Path) -> Path:
    """Return the folder of an archive's package in the cache, and unpack it if it is not there in full."""
    try:
        open_if_regular(path, MAX_BYTES).close()
        file = BoundedFile(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a valid name"
        raise InputError(f"model {str(path)!r} cannot be read ({reason})", way_out=f"name an {ARCHIVE} file") from error
    try:
        cache = cache_folder("argos")
    except (OSError, RuntimeError) as error:
        raise InputError(f"{path}: there is no folder to unpack it to ({error})", way_out=WAY_OUT) from error
    with file, damage(path), zipfile.ZipFile(file) as archive:
        root, entries = package_entries(path, archive.infolist(), os.fstat(file.fileno()).st_size)
        file.seek(0)
        target = cache / hashlib.file_digest(file, "sha256").hexdigest()
        if not is_complete(target / root, entries):
            require_space(target, sum(entry.file_size for entry in entries.values()), None, WAY_OUT)
            with writing("the cache of packages", target, WAY_OUT), locked(cache):
                if not is_complete(target / root, entries):  # another process may have unpacked it
                    with atomic_directory(target) as partial:
                        for name, entry in entries.items():
                            extract(path, archive, entry, partial / root / name)
    return target / root


@contextmanager
def damage(path: Path) -> Iterator[None]:
    """Convert the errors of `zipfile` and `zlib` to a one-line `InputError`."""
    try:
        yield
    except (
        zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, OSError, OverflowError, ValueError,
    ) as error:  # fmt: skip
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: not a readable package ({error})", way_out=RESTORE) from error


def package_entries(path: Path, entries: list[zipfile.ZipInfo], nbytes: int) -> tuple[str, Entries]:
    """Return the name of the package's root folder, and the entries of `WANTED` files, keyed by their path in it.

    nbytes: The size of the archive.

    Raises `InputError` if any entry is suspicious. Entries that are not unpacked are checked too.
    """

    def refuse(problem: str, way_out: str = RESTORE) -> NoReturn:
        raise InputError(f"{path}: {problem}", way_out=way_out)

    if len(entries) > MAX_ENTRIES:
        refuse(f"has {len(entries)} entries (at most {MAX_ENTRIES} are supported)")
    names: set[str] = set()
    for entry in entries:
        name = entry.filename.removesuffix("/")
        if entry.filename != entry.orig_filename or "\\" in name or {"", ".", ".."} & set(name.split("/")):
            refuse(f"the entry {entry.orig_filename!r} is not a path in the package")
        if stat.S_IFMT(entry.external_attr >> 16) not in REGULAR:
            refuse(f"the entry {name!r} is a link or a special file")
        if entry.flag_bits & 1:
            refuse(f"the entry {name!r} is encrypted", "unpack it, and name the folder")
        if entry.compress_type not in METHODS:
            refuse(f"the entry {name!r} has the compression method {entry.compress_type}, which is not supported")
        if folded(name) in names:
            refuse(f"the entry {name!r} appears twice, or two names differ only in case or Unicode form")
        names.add(folded(name))
    roots = sorted({entry.filename.partition("/")[0] for entry in entries} - {FINDER})
    if len(roots) != 1:
        refuse(f"has {len(roots)} files and folders in its root, not a single folder" if roots else "is empty")
    if not ROOT.fullmatch(root := roots[0]):
        refuse(f"the name of the folder {root!r} is not supported", "unpack it, rename the folder, and name that")
    inside = {entry.filename.removeprefix(f"{root}/"): entry for entry in entries if not entry.is_dir()}
    found = {name: inside[name] for name in WANTED if name in inside}
    if missing := next((name for name in (METADATA, MODEL) if name not in found), None):
        nested = next((name for name in inside if name.lower().endswith((ARCHIVE, ".zip"))), None)
        way_out = f"name an {ARCHIVE} file" if nested is None else f"unpack {nested!r}, and name that"
        refuse(f"not a package, because it lacks {missing}", way_out)
    if sum(entry.compress_size for entry in found.values()) > nbytes:
        refuse("its entries are larger than the archive")
    for name, entry in found.items():
        if entry.file_size > max(ALWAYS_ALLOWED, MAX_RATIO * entry.compress_size):
            refuse(
                f"{name} claims to be {entry.file_size} bytes, more than {MAX_RATIO} times its {entry.compress_size} "
                "compressed bytes"
            )
    if (size := sum(entry.file_size for entry in found.values())) > MAX_BYTES:
        refuse(f"claims to hold {size / 1e9:.0f} GB (at most {MAX_BYTES / 1e9:.0f} GB are supported)")
    return root, found


def is_complete(folder: Path, entries: Entries) -> bool:
    """Return whether an unpacked package has all files. A program that cleans caches may have removed some."""
    paths = {folder / name: entry.file_size for name, entry in entries.items()}
    return all(path.is_file() and path.stat().st_size == size for path, size in paths.items())


def extract(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path) -> None:
    """Write an entry's data to a new file. `zipfile` checks its CRC, and returns at most `entry.file_size` bytes.

    path: The archive's path, for error messages.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as file:
        with damage(path):
            source = archive.open(entry)
        with source:
            while True:
                with damage(path):
                    chunk = source.read(CHUNK)
                if not chunk:
                    break
                file.write(chunk)
    if target.stat().st_size != entry.file_size:
        raise InputError(f"{path}: {entry.filename!r} is shorter than the archive claims", way_out=RESTORE)
    sync(target)
    sync(target.parent)


def installed(name: str) -> Path:
    """Return the folder of an installed package, given `ARGOS` and its languages, its code or its folder's name.

    Raises `InputError` if no package matches, or several packages for different languages do. Of several versions for
    the same languages, the newest is used.
    """
    wanted = name[len(ARGOS) :]
    folders = package_folders()
    found = [path for folder in folders for path in subfolders(folder)]
    packages = [*readable(found)]
    is_pair = normalized(wanted) in {normalized(each.pair) for each in packages}  # old packages have folders like en_de
    if not is_pair and (same_name := [path for path in found if path.name == wanted]):
        return same_name[0]
    matching = [each for each in packages if wanted in (each.code or None, f"{TRANSLATE}-{each.pair}")]
    matching = matching or [each for each in packages if normalized(each.pair) == normalized(wanted)]
    if not matching:
        raise not_installed(name, packages, folders)
    if len({(each.from_code, each.to_code) for each in matching}) > 1:
        names = ", ".join(sorted(ARGOS + each.folder.name for each in matching)[:MAX_SHOWN])
        raise InputError(f"model {name!r} may be any of several packages", way_out=f"name one of {names}")
    return max(matching, key=version).folder  # of equal versions, the first


def package_folders() -> list[Path]:
    """Return the folders that contain packages, as in argostranslate/settings.py. Raises `InputError`."""
    try:
        data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share")
        config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    except RuntimeError as error:
        raise InputError(f"the home folder is unknown ({error})", way_out="name a package's folder") from error
    chosen = os.environ.get("ARGOS_PACKAGES_DIR")
    settings = config / "argos-translate" / "settings.json"
    if chosen is None and settings.is_file():
        chosen = read_json_object(settings).get("ARGOS_PACKAGES_DIR")
        if not isinstance(chosen, str | None):
            raise CheckpointError(f"{settings}: ARGOS_PACKAGES_DIR must be a string; repair it")
    folders = [Path(chosen) if chosen is not None else data / "argos-translate" / "packages"]
    if older := os.environ.get("ARGOS_TRANSLATE_PACKAGE_DIR"):
        folders.append(Path(older))
    return folders


def subfolders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if (path / METADATA).is_file())
    except (OSError, ValueError):  # no package has been installed
        return []


def readable(folders: Iterable[Path]) -> Iterator[Package]:
    """Yield the packages that translate. Damaged packages are skipped, because they are not the only ones."""
    for folder in folders:
        try:
            package = read_package(folder)
        except CheckpointError:
            continue
        if package.type == TRANSLATE and package.from_code and package.to_code:
            yield package


def normalized(pair: str) -> str:
    return pair.replace("-", "_").lower()


def version(package: Package) -> tuple[int, ...]:
    """Return the numbers of a version, without zeros at the end: 1.10 is newer than 1.9, and 1.0 equals 1."""
    numbers = [int(number[:9]) for number in re.findall("[0-9]+", package.package_version)]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def not_installed(name: str, packages: Iterable[Package], folders: Iterable[Path]) -> InputError:
    pairs = sorted({each.pair for each in packages})
    shown = ", ".join(pairs[:MAX_SHOWN]) + (f", ... ({len(pairs)} pairs)" if len(pairs) > MAX_SHOWN else "")
    known = f"(installed: {shown})" if pairs else f"(no packages in {' or '.join(map(str, folders))})"
    way_out = f"install its package with Argos Translate, or download its {ARCHIVE} file and name that"
    return InputError(f"model {name!r} is not installed {known}", way_out=way_out)
