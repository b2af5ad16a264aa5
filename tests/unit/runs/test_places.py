"""Tests that a folder or text file is replaced completely or not at all."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding import InputError
from speculative_decoding.runs import places
from speculative_decoding.runs.places import atomic_directory, atomic_write, new_file

WRITER = """
import sys, time
from pathlib import Path
from typing import Any
from speculative_decoding.runs.places import atomic_directory
with atomic_directory(Path(sys.argv[1])) as folder:
    (folder / "a").write_text("new")
    print("written", flush=True)
    time.sleep(60)
"""


def write(target: Path, text: str) -> None:
    with atomic_directory(target) as folder:
        (folder / "a").write_text(text)


def test_a_folder_appears_and_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "model"
    for text in ("one", "two"):
        write(target, text)
        assert (target / "a").read_text() == text
        assert os.listdir(tmp_path) == ["model"]


def test_an_error_leaves_the_old_folder(tmp_path: Path) -> None:
    target = tmp_path / "model"
    write(target, "old")
    with pytest.raises(KeyboardInterrupt), atomic_directory(target) as folder:
        (folder / "a").write_text("new")
        raise KeyboardInterrupt
    assert (target / "a").read_text() == "old" and os.listdir(tmp_path) == ["model"]


def test_a_killed_writer_leaves_the_old_folder_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    target = tmp_path / "model"
    write(target, "old")
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(target)], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"written\n"

    places.clean_up(target)
    assert len(os.listdir(tmp_path)) == 2  # the writer is still running, so its folder is kept

    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert (target / "a").read_text() == "old" and len(os.listdir(tmp_path)) == 2
    write(target, "new")
    assert (target / "a").read_text() == "new" and os.listdir(tmp_path) == ["model"]


def test_an_old_folder_is_restored_after_an_interrupted_swap(tmp_path: Path) -> None:
    target = tmp_path / "model"
    write(target, "old")
    target.rename(places.old_name(target))  # killed between the two renames
    places.clean_up(target)
    assert (target / "a").read_text() == "old" and os.listdir(tmp_path) == ["model"]


def test_a_folder_is_replaced_where_two_names_cannot_be_swapped(tmp_path: Path) -> None:
    target, folder = tmp_path / "model", tmp_path / "new"
    write(target, "old")
    write(folder, "new")
    places.replace_folder(folder, target, swap=lambda one, other: False)
    assert (target / "a").read_text() == "new" and os.listdir(tmp_path) == ["model"]


def test_a_new_file_appears_when_it_is_complete_and_errors_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "text"
    with new_file(path, "output", "make space") as write:
        write(b"o")
        (path.parent / ".text.partial-12345678").write_text("killed")
        assert not path.exists()
        write(b"ld")
    assert path.read_bytes() == b"old" and os.listdir(path.parent) != ["text"]
    with pytest.raises(KeyboardInterrupt), new_file(path, "output", "make space") as write:
        write(b"new")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old" and os.listdir(path.parent) == ["text"]
    with new_file(path, "output", "make space") as write:
        write(b"new")
    assert path.read_bytes() == b"new"
    with pytest.raises(InputError) as error, new_file(path / "under", "output", "make space"):
        pass
    assert str(error.value) == f"output: {path / 'under'} cannot be written (File exists); make space"


def test_the_file_of_a_killed_writer_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".text.partial-12345678").write_text("killed")
    atomic_write(tmp_path / "text", "new", 0o600)
    places.clean_up(tmp_path / "text")
    assert os.listdir(tmp_path) == ["text"] and (tmp_path / "text").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["model", "m*"])
def test_unrelated_folders_with_similar_names_are_kept(name: str, tmp_path: Path) -> None:
    unrelated = [tmp_path / hidden for hidden in (".model.old", ".model.partial-mine", ".mine.partial-abcd1234")]
    for folder in unrelated:
        write(folder, "years of work")
    write(tmp_path / name, "new")
    assert sorted(os.listdir(tmp_path)) == sorted([name, *(folder.name for folder in unrelated)])


def test_a_text_file_is_replaced_or_stays(tmp_path: Path) -> None:
    path = tmp_path / "text"
    atomic_write(path, "old")
    with path.open() as reader:
        with pytest.raises(UnicodeEncodeError):
            atomic_write(path, "new\ud800")
        assert path.read_text() == "old" and os.listdir(tmp_path) == ["text"]
        atomic_write(path, "new")
        assert reader.read() == "old"  # the old file was not overwritten
    assert path.read_text() == "new" and os.listdir(tmp_path) == ["text"]


def test_a_lock_is_of_the_file_at_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a run ends, it removes its empty log. Another run may have opened that log before."""
    path = tmp_path / "log"
    flock = fcntl.flock
    removed: list[bool] = []

    def removing(file: Any, how: int) -> None:
        if not removed:
            removed.append(True)
            path.unlink()
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", removing)
    with places.open_locked(path, InputError("busy")) as file:
        assert removed and os.path.samestat(os.fstat(file.fileno()), path.stat())
