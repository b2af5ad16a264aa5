"""The files in a folder are found once each, in order, and links cannot lead the search elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from speculative_decoding.runs.folders import FoundFile, files_below

FILES = ["b.txt", "a.md", "sub/c.txt", "sub/deep/d.txt", "sub.txt", "z/e", ".hidden", ".git/f.txt", "sub/.g/h.txt"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).touch()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "i.txt").touch()
    return tmp_path / "in"


def found(folder: Path, skipped: Path | None = None, *, stays: bool = False) -> list[FoundFile]:
    return [
        each._replace(path=os.path.relpath(each.path, folder))
        for each in files_below(str(folder), skipped, stays=stays)
    ]


def test_files_come_before_subfolders_and_hidden_ones_are_left_out(folder: Path) -> None:
    wanted = ["a.md", "b.txt", "sub.txt", "sub/c.txt", "sub/deep/d.txt", "z/e"]
    for stays in (False, True):
        assert found(folder, stays=stays) == [*map(FoundFile, wanted)]
        assert found(folder, folder / "sub", stays=stays) == [*map(FoundFile, ["a.md", "b.txt", "sub.txt", "z/e"])]
        assert found(folder, folder, stays=stays) == [*map(FoundFile, wanted)]


def test_links_are_followed_once_or_not_out_of_the_folder(folder: Path) -> None:
    before = [each.path for each in found(folder)]
    (folder / "z" / "loop").symlink_to("..")
    (folder / "z" / "out").symlink_to("../../outside")
    (folder / "z" / "out.txt").symlink_to("../../outside/i.txt")
    (folder / "z" / "in.txt").symlink_to("../b.txt")
    (folder / "z" / "again").symlink_to("../sub")
    (folder / "z" / "self").symlink_to("self")
    followed = [each.path for each in found(folder)]
    assert followed == [*before, "z/in.txt", "z/out.txt", "z/self", "z/out/i.txt"]
    kept = found(folder, stays=True)
    assert [each.path for each in kept if not each.leads_out] == [*before, "z/in.txt", "z/self"]
    assert [each.path for each in kept if each.leads_out] == ["z/out", "z/out.txt"]


def test_a_linked_folder_is_searched_itself(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("in")
    (folder / "own.txt").symlink_to("b.txt")
    assert found(tmp_path / "link", stays=True) == found(folder, stays=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_folders_that_cannot_be_listed_are_named(folder: Path) -> None:
    (folder / "sub").chmod(0)
    try:
        assert FoundFile("sub", is_unreadable=True) in found(folder)
    finally:
        (folder / "sub").chmod(0o700)
