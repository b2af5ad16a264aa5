"""Argos Translate packages: archives are unpacked once and safely, and installed packages are found by language."""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding.errors import CheckpointError, InputError
from speculative_decoding.loading import argos, hub
from speculative_decoding.loading.conversion import find_source
from speculative_decoding.loading.load import local_folder, locate
from speculative_decoding.loading.names import model_name, shown_name
from tests.support.argos import ROOT, WEIGHTS, link, package_files, write_archive, write_package
from tests.support.checkpoint_files import Entry, zip_bytes

ARCHIVE = "mine.argosmodel"
Change = Callable[[Path], object]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Each test works in an empty folder, with its own home folder and no Hub."""
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ARGOS_PACKAGES_DIR", "ARGOS_TRANSLATE_PACKAGE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(hub, "fetch", lambda name, *options: pytest.fail(f"{name} was looked up on the Hub"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    yield tmp_path / "home"


def cached() -> list[Path]:
    """Return what is in the cache of packages, except folders."""
    return [path for path in Path("../cache").rglob("*") if not path.is_dir()]


def refusal(name: str) -> str:
    with pytest.raises(InputError) as refused:
        locate(name)
    assert str(refused.value).isprintable()
    return str(refused.value)


def test_an_archive_is_unpacked_once_into_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = locate(write_archive(Path(ARCHIVE)))
    files = package_files()
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert found == {name: files[name] for name in files if name != "README.md" and not name.startswith("stanza")}
    assert os.listdir() == [ARCHIVE] and folder.name == ROOT and len(cached()) == len(found)
    monkeypatch.setattr(argos, "extract", None)
    shutil.copyfile(ARCHIVE, "copy.ARGOSMODEL")
    assert locate("copy.ARGOSMODEL") == folder == local_folder(Path(ARCHIVE).resolve())


def test_an_unpacked_package_has_the_name_of_its_folder() -> None:
    write_archive(Path(ARCHIVE))
    folder = locate(ARCHIVE)
    assert model_name(folder) == shown_name(folder) == ROOT
    assert find_source(ARCHIVE, None, None, False) == (folder, ROOT, Path("models") / ROOT)


def test_files_that_were_removed_from_the_cache_are_unpacked_again() -> None:
    weights = locate(write_archive(Path(ARCHIVE))) / "model/model.bin"
    for damage in (weights.unlink, lambda: weights.write_bytes(b""), lambda: shutil.rmtree(weights.parent)):
        damage()
        assert locate(ARCHIVE) / "model/model.bin" == weights and weights.read_bytes() == WEIGHTS
    assert all("partial" not in str(path) for path in cached())


def test_only_one_process_unpacks_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    write_archive(Path(ARCHIVE))
    extract, is_complete = argos.extract, argos.is_complete

    def extract_locked(*arguments: Any) -> None:
        descriptor = os.open(argos.cache_folder("argos"), os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(descriptor)
        extract(*arguments)

    monkeypatch.setattr(argos, "extract", extract_locked)
    folder = locate(ARCHIVE)
    found = iter([False])  # another process unpacks it after this one looked for it
    monkeypatch.setattr(argos, "is_complete", lambda *arguments: next(found, None) is None and is_complete(*arguments))
    monkeypatch.setattr(argos, "extract", None)
    assert locate(ARCHIVE) == folder


HOSTILE: dict[str, tuple[Change, str]] = {
    "no archive": (lambda path: path.write_bytes(b"PK\3\4" + bytes(99)), "not a readable package (File is not a zip"),
    "empty file": (lambda path: path.write_bytes(b""), "not a readable package (File is not a zip file); download"),
    "no entries": (lambda path: zipfile.ZipFile(path, "w").close(), "is empty; download it again"),
    "missing": (lambda path: None, "cannot be read (No such file or directory); name an .argosmodel file"),
    "pipe": (os.mkfifo, "cannot be read (not a regular file)"),
    "sparse": (lambda path: write_sparse(path, argos.MAX_BYTES + 1), "cannot be read (larger than 17179869184 bytes)"),
    "sparse and not too large": (lambda path: write_sparse(path, argos.MAX_BYTES), "not a readable package (File is n"),
    "link": (
        lambda path: write_archive(path, more=[(link(f"{ROOT}/model/vmap.txt"), b"/etc/passwd")]),  # type: ignore[list-item]
        f"the entry '{ROOT}/model/vmap.txt' is a link or a special file",
    ),
    "absolute": (lambda path: write_archive(path, more=[("/etc/evil", b"")]), "the entry '/etc/evil' is not a path in"),
    "parent": (
        lambda path: write_archive(path, more=[(f"{ROOT}/../../evil", b"")]),
        f"the entry '{ROOT}/../../evil' is not a path in the package",
    ),
    "backslash": (
        lambda path: write_archive(path, more=[(f"{ROOT}/..\\evil", b"")]),
        f"the entry '{ROOT}/..\\\\evil' is not a path in the package",
    ),
    "twice": (
        lambda path: path.write_bytes(zip_bytes([*entries(), entries()[0]])),
        f"the entry '{ROOT}/metadata.json' appears twice, or two names differ only in case or Unicode form",
    ),
    "case": (lambda path: write_archive(path, more=[(f"{ROOT}/METADATA.json", b"")]), "appears twice, or two names"),
    "Unicode": (
        lambda path: write_archive(path, more=[(f"{ROOT}/caf\xe9", b""), (f"{ROOT}/cafe\u0301", b"")]),
        "appears twice, or two names differ only in case or Unicode form",
    ),
    "two roots": (lambda path: write_archive(path, more=[("other/a", b"")]), "has 2 files and folders in its root"),
    "no root": (lambda path: write_flat(path), "files and folders in its root, not a single folder"),
    "hidden root": (lambda path: write_archive(path, root=".git"), "the name of the folder '.git' is not supported"),
    "terminal": (lambda path: write_archive(path, root="a\x1b[2J"), r"the folder 'a\x1b[2J' is not supported"),
    "encrypted": (lambda path: damaged(path, 1, flags=1), "is encrypted; unpack it, and name the folder"),
    "LZMA": (lambda path: damaged(path, 1, method=14), "has the compression method 14, which is not supported"),
    "no metadata": (
        lambda path: path.write_bytes(zip_bytes(entries()[1:])),
        "not a package, because it lacks metadata",
    ),
    "nested": (
        lambda path: path.write_bytes(zip_bytes([Entry(f"{ROOT}/translate.argosmodel", b"PK")])),
        "not a package, because it lacks metadata.json; unpack 'translate.argosmodel', and name that",
    ),
    "many entries": (
        lambda path: path.write_bytes(zip_bytes([Entry(f"{ROOT}/{i}", b"") for i in range(argos.MAX_ENTRIES + 1)])),
        "has 10001 entries (at most 10000 are supported)",
    ),
    "large directory": (
        lambda path: path.write_bytes(zip_bytes([Entry(f"{ROOT}/{i:060000}", b"") for i in range(90)])),
        "not a readable package (",
    ),
    "wrong CRC": (lambda path: damaged(path, 3, crc=5), "not a readable package (Bad CRC-32 for file"),
    "other local name": (lambda path: damaged(path, 3, local_name="x"), "not a readable package (File name in direct"),
    "longer than the archive": (
        lambda path: damaged(path, 3, nbytes=1 << 31),
        "its entries are larger than the archive",
    ),
    "shorter": (lambda path: damaged(path, 3, nbytes=5), "not a readable package ("),
    "compressed too well": (
        lambda path: write_bomb(path, 64 << 20),
        f"model/model.bin claims to be {64 << 20} bytes, more than 20 times its ",
    ),
    "misstated size": (lambda path: write_bomb(path, 64 << 20, claims=4096), "not a readable package (Bad CRC-32"),
    "no DEFLATE": (lambda path: damaged(path, 3, method=8), "not a readable package ("),
}


def entries() -> list[Entry]:
    return [Entry(f"{ROOT}/{name}", content) for name, content in package_files().items()]


def damaged(path: Path, index: int, **changes: int | str) -> None:
    """Write an archive, one of whose headers is wrong."""
    changed = entries()
    changed[index] = replace(changed[index], **changes)
    path.write_bytes(zip_bytes(changed))


def write_sparse(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


def write_flat(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in package_files().items():
            archive.writestr(name, content)


def write_bomb(path: Path, size: int, claims: int | None = None) -> None:
    """Write an archive whose weights are zeros. claims: the size in the headers, if it is not the true size."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = b"".join([compressor.compress(bytes(1 << 20)) for _ in range(size >> 20)]) + compressor.flush()
    weights = Entry(f"{ROOT}/model/model.bin", data, method=8)
    raw = zip_bytes([*(each for each in entries() if each.name != weights.name), weights])
    fields = len(data).to_bytes(4, "little") * 2  # the compressed and the true size, which zip_bytes makes equal
    wrong = fields[:4] + (claims or size).to_bytes(4, "little")
    path.write_bytes(raw.replace(fields, wrong))


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_archive_is_refused_in_one_line(kind: str) -> None:
    write, message = HOSTILE[kind]
    write(Path(ARCHIVE))
    tracemalloc.start()
    line = refusal(ARCHIVE)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert message.replace("\x1b", r"\x1b") in line and ARCHIVE in line
    assert cached() == [] and not Path("../evil").exists() and peak < 64 << 20


def test_valid_archives_of_the_writer_of_hostile_ones_are_unpacked() -> None:
    Path(ARCHIVE).write_bytes(zip_bytes(entries()))
    assert (locate(ARCHIVE) / "model/model.bin").read_bytes() == WEIGHTS


def test_a_full_disk_is_reported_before_anything_is_unpacked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_archive(Path(ARCHIVE))
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert "not enough disk space" in (line := refusal(ARCHIVE)) and "XDG_CACHE_HOME" in line and cached() == []


def test_an_error_of_the_disk_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    write_archive(Path(ARCHIVE))
    monkeypatch.setattr(argos, "sync", lambda path: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    assert "cannot be written (No space left on device)" in refusal(ARCHIVE) and cached() == []


def test_a_cache_that_is_not_private_is_refused(tmp_path: Path) -> None:
    write_archive(Path(ARCHIVE))
    (tmp_path / "cache/speculative-decoding").mkdir(parents=True)
    (tmp_path / "cache/speculative-decoding/argos").mkdir(mode=0o777)
    (tmp_path / "cache/speculative-decoding/argos").chmod(0o777)
    assert "there is no folder to unpack it to" in refusal(ARCHIVE)


def test_the_folder_of_a_package_needs_no_unpacking(tmp_path: Path) -> None:
    folder = write_package(tmp_path / "some" / ROOT)
    assert locate(folder) == folder and shown_name(folder) == str(folder) and cached() == []


def installed(folder: Path) -> dict[str, Path]:
    """Install a few packages. Returns the folders of the packages, by name."""
    packages = {
        "translate-en_de-1_9": {},
        "translate-en_de-1_10": {"package_version": "1.10"},
        "translate-en_de-1_2": {"package_version": "1.2.9"},
        "translate-de_en-1_0": {"from_code": "de", "to_code": "en", "code": "my-own"},
        "pt": {"from_code": "pt-BR", "to_code": "en"},
        "sbd": {"type": "sbd", "from_code": "en", "to_code": "fr"},
    }
    return {name: write_package(folder / name, **fields) for name, fields in packages.items()}


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("en_de", "translate-en_de-1_10"),  # the newest, by its number
        ("en-de", "translate-en_de-1_10"),
        ("EN_DE", "translate-en_de-1_10"),
        ("translate-en_de", "translate-en_de-1_10"),
        ("translate-en_de-1_9", "translate-en_de-1_9"),
        ("de_en", "translate-de_en-1_0"),
        ("my-own", "translate-de_en-1_0"),
        ("pt_br_en", "pt"),
        ("pt-BR_en", "pt"),
        ("pt", "pt"),
    ],
)
def test_an_installed_package_is_found_by_its_languages_or_its_name(name: str, found: str, home: Path) -> None:
    packages = installed(home / ".local/share/argos-translate/packages")
    assert locate(f"argos:{name}") == packages[found]


def test_a_folder_with_this_name_has_precedence(home: Path) -> None:
    installed(home / ".local/share/argos-translate/packages")
    Path("argos:en_de").mkdir()
    assert locate("argos:en_de") == Path("argos:en_de")


def test_the_folders_of_packages_are_those_of_argos_translate(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each place has precedence over the ones before; the deprecated one is searched last."""
    settings = home / ".config/argos-translate/settings.json"
    settings.parent.mkdir(parents=True)
    default = write_package(home / ".local/share/argos-translate/packages/a")
    assert locate("argos:en_de") == default
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    in_data = write_package(tmp_path / "data/argos-translate/packages/a")
    assert locate("argos:en_de") == in_data
    settings.write_text(json.dumps({"ARGOS_PACKAGES_DIR": str(tmp_path / "set")}))
    in_settings = write_package(tmp_path / "set/a")
    assert locate("argos:en_de") == in_settings
    monkeypatch.setenv("ARGOS_PACKAGES_DIR", str(tmp_path / "own"))
    assert "is not installed (no packages in" in refusal("argos:en_de")
    own = write_package(tmp_path / "own/a")
    assert locate("argos:en_de") == own
    monkeypatch.setenv("ARGOS_TRANSLATE_PACKAGE_DIR", str(tmp_path / "older"))
    older = write_package(tmp_path / "older/b", to_code="fr")
    assert locate("argos:en_fr") == older and locate("argos:en_de") == own
    monkeypatch.delenv("ARGOS_PACKAGES_DIR")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert locate("argos:en_de") == in_data


def test_a_folder_named_after_its_languages_is_not_preferred_to_a_newer_version(home: Path) -> None:
    folder = home / ".local/share/argos-translate/packages"
    old = write_package(folder / "en_de", package_version="1.0")
    assert locate("argos:en_de") == old
    newer = write_package(folder / "translate-en_de-1_9")
    assert locate("argos:en_de") == newer


@pytest.mark.parametrize("content", ["{", '{"ARGOS_PACKAGES_DIR": 3}'])
def test_damaged_settings_are_refused(content: str, home: Path) -> None:
    settings = home / ".config/argos-translate/settings.json"
    settings.parent.mkdir(parents=True)
    settings.write_text(content)
    with pytest.raises(CheckpointError, match="settings.json: "):
        locate("argos:en_de")


def test_an_archive_that_finder_made_is_unpacked(home: Path, tmp_path: Path) -> None:
    """macOS adds a folder with attributes of the files."""
    archive = write_archive(tmp_path / "x.argosmodel", more=[(f"__MACOSX/{ROOT}/._metadata.json", b"attributes")])
    folder = locate(archive)
    assert folder.name == ROOT and not (folder / "__MACOSX").exists() and not (folder.parent / "__MACOSX").exists()


def test_a_package_that_is_not_installed_is_refused_with_the_installed_pairs(home: Path) -> None:
    folder = home / ".local/share/argos-translate/packages"
    line = refusal("argos:en_fr")
    assert line == (
        f"model 'argos:en_fr' is not installed (no packages in {folder}); install its package with "
        "Argos Translate, or download its .argosmodel file and name that"
    )
    installed(folder)
    (folder / "translate-en_de-1_9/metadata.json").write_text("{")  # is skipped
    line = refusal("argos:en_fr")  # `sbd` translates nothing
    assert "'argos:en_fr' is not installed (installed: de_en, en_de, pt-BR_en); install its package" in line
    assert "is not installed" in refusal("argos:") and "is not installed" in refusal("argos:" + "x" * 5000)
    assert locate("argos:en_de").name == "translate-en_de-1_10"


def test_a_name_for_several_pairs_is_refused(home: Path) -> None:
    folder = home / ".local/share/argos-translate/packages"
    for name, code in (("one", "de"), ("two", "fr")):
        write_package(folder / name, to_code=code, code="mine")
    line = refusal("argos:mine")
    assert "'argos:mine' may be any of several packages; name one of argos:one, argos:two" in line
    assert locate("argos:two") == folder / "two"


@pytest.mark.parametrize("seed", range(3))
def test_versions_are_compared_by_their_numbers(seed: int, home: Path) -> None:
    folder = home / ".local/share/argos-translate/packages"
    versions = ["", "0.9", "1.0", "1.0.1", "1.1", "1.9", "1.10", "2", "10.0"]
    names = [f"p{i}" for i in range(len(versions))]
    random.Random(seed).shuffle(names)
    for name, version in zip(names, versions, strict=True):
        assert locate(f"argos:{write_package(folder / name, package_version=version).name}") == folder / name
        assert locate("argos:en_de").name == name  # each is newer than those before


def test_other_files_are_not_packages() -> None:
    Path("model.bin").write_bytes(b"")
    assert "is a file; name its folder" in refusal("model.bin")
