"""Where MLX's kernels are compiled, by planted faults; and that no time contains a compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from speculative_decoding import cache_folder
from speculative_decoding.backend import kernels
from speculative_decoding.errors import InputError
from tests.integration.test_engine import PROMPTS, Client
from tests.support.paths import ROOT

on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere the folder is the user's own")
on_linux_cpu = pytest.mark.skipif(
    not sys.platform.startswith("linux") or mx.default_device() != mx.cpu, reason="g++ compiles nothing there"
)
CHECK = """
import os, tempfile, warnings
warnings.showwarning = lambda message, *_, **__: print(message)
import speculative_decoding.backend.kernels as kernels
import mlx.core as mx
for _ in range(2):
    kernels.check()
assert os.environ["TMPDIR"] == tempfile.gettempdir()
print(mx.compile(lambda x: mx.exp(x) + 1)(mx.zeros(2)).tolist())
"""


class Machine:
    """A fresh user on it: an empty folder for caches, and one of all users' temporary files."""

    def __init__(self, folder: Path) -> None:
        self.cache, self.temporary = folder / "cache", folder / "tmp"
        self.temporary.mkdir()
        self.folder = self.cache / "speculative-decoding" / "kernels"

    def check(self, **environment: str) -> list[str]:
        """What `kernels.check` says in a fresh process, and a result of MLX."""
        own = {"XDG_CACHE_HOME": str(self.cache), "TMPDIR": str(self.temporary)}
        command = [sys.executable, "-c", CHECK]
        options: dict[str, Any] = {"cwd": ROOT, "env": os.environ | own | environment, "timeout": 600}
        done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
        assert done.returncode == 0 and not done.stderr, done.stderr
        assert not any(self.temporary.iterdir())  # MLX left all users' folder alone
        *said, result = done.stdout.splitlines()
        assert result == "[2.0, 2.0]"
        return said

    @property
    def libraries(self) -> list[Path]:
        return list(self.folder.glob("mlx/*/cpu/lib*.so"))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@on_linux_cpu
def test_kernels_are_compiled_in_a_folder_of_the_users_own_and_damaged_ones_anew(machine: Machine) -> None:
    assert machine.check() == []
    assert machine.folder.stat().st_mode & 0o777 == 0o700
    (library,) = machine.libraries
    size = library.stat().st_size
    os.truncate(library, size // 2)
    assert machine.check() == []
    assert [library.stat().st_size] == [each.stat().st_size for each in machine.libraries] == [size]


@on_linux_cpu
def test_a_folder_that_cannot_be_trusted_is_not_used(machine: Machine) -> None:
    elsewhere = machine.cache / "elsewhere"
    elsewhere.mkdir(parents=True)
    machine.folder.parent.symlink_to(elsewhere)
    (said,) = machine.check()
    assert f"{machine.folder.parent} is not a folder that is yours alone" in said and "XDG_CACHE_HOME" in said
    assert not any(elsewhere.iterdir())


@on_linux
def test_a_relative_folder_of_caches_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "putenv", lambda name, value: None)
    monkeypatch.setenv("XDG_CACHE_HOME", "caches")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(kernels, "_folder", None)
    kernels.use_private_folder()
    assert kernels._folder == tmp_path / "home/.cache/speculative-decoding/kernels" and os.listdir() == ["home"]


@on_linux_cpu
def test_a_compiler_that_fails_is_said_once_and_not_needed(machine: Machine) -> None:
    """A full disk, a folder where nothing may be executed: MLX says it in the same way."""
    compiler = machine.cache / "bin" / "g++"
    compiler.parent.mkdir(parents=True)
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] || { echo "No space left on device" >&2; exit 1; }\n')
    compiler.chmod(0o755)
    (said,) = machine.check(PATH=f"{compiler.parent}:{os.environ['PATH']}")
    assert str(machine.folder) in said and "No space left on device" in said and "\n" not in said


@on_linux
def test_what_somebody_else_owns_or_linked_is_refused_or_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "is_whole", lambda library: True)
    own, link = tmp_path / "mlx/1/cpu/libown.so", tmp_path / "mlx/1/cpu/liblink.so"
    own.parent.mkdir(parents=True)
    own.write_text("a library")
    link.symlink_to(own)
    kernels.remove_unsafe(tmp_path)
    assert own.exists() and not link.is_symlink()
    folder, a_file, a_link = tmp_path / "folder", tmp_path / "file", tmp_path / "link"
    assert cache_folder.own_folder(folder, 0o077) == cache_folder.own_folder(folder, 0o077) == folder
    assert folder.stat().st_mode & 0o777 == 0o700
    a_file.touch()
    a_link.symlink_to(folder)
    for wrong in (a_file, a_link):
        with pytest.raises(OSError):
            cache_folder.own_folder(wrong, 0o002)
    for mode in (0o770, 0o707, 0o755):
        folder.chmod(mode)
        with pytest.raises(OSError, match="yours alone"):
            cache_folder.own_folder(folder, 0o077)
    folder.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(OSError, match="yours alone"):
        cache_folder.own_folder(folder, 0o077)
    kernels.remove_unsafe(tmp_path)
    assert not own.exists()


@on_linux
def test_a_library_that_is_cut_anywhere_is_not_whole(tmp_path: Path) -> None:
    whole = next((ROOT / "speculative_decoding" / "backend").glob("_sgemm*.so"), None) or next(
        path for path in Path(mx.__file__).parent.glob("core*.so")
    )
    content = whole.read_bytes()
    assert kernels.is_whole(whole)
    for length in (0, 1, 63, 64, 4096, len(content) // 2, len(content) - 1):
        (tmp_path / "cut").write_bytes(content[:length])
        assert not kernels.is_whole(tmp_path / "cut"), length


def test_other_errors_of_mlx_stay_what_they_are() -> None:
    failed = RuntimeError("[Compile::eval_cpu] Failed to compile function f:\nNo space left")
    assert isinstance(explained := kernels.explained(failed), InputError) and "No space left" in str(explained)
    other = RuntimeError("out of memory")
    assert kernels.explained(other) is other


def test_a_round_whose_kernels_cannot_be_compiled_ends_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*arrays: Any) -> None:
        raise RuntimeError("[Compile::eval_cpu] Failed to compile function f:\nNo space left")

    client = Client()
    client.submit(PROMPTS[0])
    monkeypatch.setattr(mx, "eval", failing)
    with pytest.raises(InputError, match=r"no kernel can be compiled in .* \(No space left\); make room there"):
        client.step()
