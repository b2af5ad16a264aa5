"""The private folder for caches: no other user can write to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from speculative_decoding.cache_folder import cache_folder, require_private


def test_a_folder_that_others_can_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So are files, links and folders of other users."""
    folder, a_file, a_link = tmp_path / "folder", tmp_path / "file", tmp_path / "link"
    assert require_private(folder, 0o077) == require_private(folder, 0o077) == folder
    assert folder.stat().st_mode & 0o777 == 0o700
    a_file.touch()
    a_link.symlink_to(folder)
    for wrong in (a_file, a_link):
        with pytest.raises(OSError):
            require_private(wrong, 0o002)
    for mode in (0o770, 0o707, 0o755):
        folder.chmod(mode)
        with pytest.raises(OSError, match="not a private folder of this user"):
            require_private(folder, 0o077)
    folder.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(OSError, match="not a private folder of this user"):
        require_private(folder, 0o077)


def test_a_relative_folder_in_the_environment_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "caches")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder("kernels") == tmp_path / "home/.cache/speculative-decoding/kernels" and os.listdir() == ["home"]
