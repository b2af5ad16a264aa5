"""The private folder for compiled kernels, with injected faults, and the two guarded calls of the package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from speculative_decoding import InputError, cache_folder
from speculative_decoding.cli.common import run
from speculative_decoding.cpu import kernels
from tests.integration.test_engine import PROMPTS, Client
from tests.support.paths import ROOT

on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the folder is redirected on Linux only")
on_linux = pytest.mark.skipif(
    not sys.platform.startswith("linux") or mx.default_device() != mx.cpu,
    reason="g++ compiles kernels on Linux CPUs only",
)
CHECK = """
import os, tempfile, warnings
warnings.showwarning = lambda message, *_, **__: print(message)
import speculative_decoding.cpu as cpu
import mlx.core as mx
for _ in range(2):
    cpu.check()
assert os.environ["TMPDIR"] == tempfile.gettempdir()
print(mx.compile(lambda x: mx.exp(x) + 1)(mx.zeros(2)).tolist())
"""


class Machine:
    """A machine as a new user sees it: an empty cache folder and a shared folder for temporary files."""

    def __init__(self, folder: Path) -> None:
        self.cache, self.temporary = folder / "cache", folder / "tmp"
        self.temporary.mkdir()
        self.folder = self.cache / "speculative-decoding" / "kernels"

    def check(self, **environment: str) -> list[str]:
        """Return the warnings of `cpu.check` in a fresh process that also runs a compiled function."""
        own = {"XDG_CACHE_HOME": str(self.cache), "TMPDIR": str(self.temporary)}
        command = [sys.executable, "-c", CHECK]
        options: dict[str, Any] = {"cwd": ROOT, "env": os.environ | own | environment, "timeout": 600}
        done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
        assert done.returncode == 0 and not done.stderr, done.stderr
        assert not any(self.temporary.iterdir())  # MLX wrote nothing into the shared folder
        *said, result = done.stdout.splitlines()
        assert result == "[2.0, 2.0]"
        return said

    @property
    def libraries(self) -> list[Path]:
        return list(self.folder.glob("mlx/*/cpu/lib*.so"))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@on_linux
def test_kernels_are_compiled_in_a_private_folder_and_damaged_ones_are_replaced(machine: Machine) -> None:
    assert machine.check() == []
    assert machine.folder.stat().st_mode & 0o777 == 0o700
    (library,) = machine.libraries
    size = library.stat().st_size
    os.truncate(library, size // 2)
    assert machine.check() == []
    assert [library.stat().st_size] == [each.stat().st_size for each in machine.libraries] == [size]


CHILD = """
import os, subprocess, sys, tempfile
import speculative_decoding
import mlx.core as mx
mx.eval(mx.compile(lambda x: mx.exp(x) + 1)(mx.zeros(2)))
show = "import os, tempfile; print(os.environ.get('TMPDIR'), tempfile.gettempdir())"
child = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True).stdout
assert child.split() == [str(os.environ.get("TMPDIR")), tempfile.gettempdir()], child
"""


@on_linux
def test_child_processes_keep_their_folder_for_temporary_files(machine: Machine) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in kernels.TEMPORARY_FOLDERS}
    environment |= {"XDG_CACHE_HOME": str(machine.cache), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(machine.libraries) == 1


@on_linux
def test_untrusted_folder_is_not_used(machine: Machine) -> None:
    elsewhere = machine.cache / "elsewhere"
    elsewhere.mkdir(parents=True)
    machine.folder.parent.symlink_to(elsewhere)
    (said,) = machine.check()
    assert f"{machine.folder.parent}: not a private folder of this user" in said and "XDG_CACHE_HOME" in said
    assert not any(elsewhere.iterdir())


@on_linux
def test_relative_cache_folder_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "putenv", lambda name, value: None)
    monkeypatch.setenv("XDG_CACHE_HOME", "caches")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(kernels, "_folder", None)
    kernels.use_private_folder()
    assert kernels._folder == tmp_path / "home/.cache/speculative-decoding/kernels" and os.listdir() == ["home"]


@on_linux
def test_failing_compiler_gives_one_warning_and_unfused_kernels(machine: Machine) -> None:
    """MLX reports a full disk and a folder mounted noexec in the same way."""
    compiler = machine.cache / "bin" / "g++"
    compiler.parent.mkdir(parents=True)
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] || { echo "No space left on device" >&2; exit 1; }\n')
    compiler.chmod(0o755)
    (said,) = machine.check(PATH=f"{compiler.parent}:{os.environ['PATH']}")
    assert str(machine.folder) in said and "No space left on device" in said and "\n" not in said


@on_linux
def test_missing_or_hanging_compiler_gives_one_warning_and_unfused_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[str] = []
    disabled: list[bool] = []
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\nexec sleep 600\n")
    compiler.chmod(0o755)
    monkeypatch.setattr(kernels, "_folder", tmp_path)
    monkeypatch.setattr(kernels, "problems", noted)
    monkeypatch.setattr(kernels, "COMPILER_SECONDS", 0.01)
    monkeypatch.setattr(mx, "compile", None)  # not reached
    monkeypatch.setattr(mx, "disable_compile", lambda: disabled.append(True))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    kernels.disable_fusion_without_compiler()
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    kernels.disable_fusion_without_compiler()
    assert [each.removeprefix(kernels.UNFUSED) for each in noted] == [
        ": g++ did not finish within 0.01 s; repair it",
        ": no compiler is installed; install g++",
    ]
    assert disabled == [True, True]


@on_linux
def test_links_and_files_of_other_users_are_refused_or_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "is_complete", lambda library: True)
    own, link = tmp_path / "mlx/1/cpu/libown.so", tmp_path / "mlx/1/cpu/liblink.so"
    own.parent.mkdir(parents=True)
    own.write_text("a library")
    link.symlink_to(own)
    kernels.remove_unsafe_kernels(tmp_path)
    assert own.exists() and not link.is_symlink()
    folder, a_file, a_link = tmp_path / "folder", tmp_path / "file", tmp_path / "link"
    assert cache_folder.require_private(folder, 0o077) == cache_folder.require_private(folder, 0o077) == folder
    assert folder.stat().st_mode & 0o777 == 0o700
    a_file.touch()
    a_link.symlink_to(folder)
    for wrong in (a_file, a_link):
        with pytest.raises(OSError):
            cache_folder.require_private(wrong, 0o002)
    for mode in (0o770, 0o707, 0o755):
        folder.chmod(mode)
        with pytest.raises(OSError, match="not a private folder of this user"):
            cache_folder.require_private(folder, 0o077)
    folder.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(OSError, match="not a private folder of this user"):
        cache_folder.require_private(folder, 0o077)
    kernels.remove_unsafe_kernels(tmp_path)
    assert not own.exists()


@on_linux
def test_truncated_library_is_not_complete(tmp_path: Path) -> None:
    complete = next((ROOT / "speculative_decoding" / "cpu").glob("_sgemm*.so"), None) or next(
        path for path in Path(mx.__file__).parent.glob("core*.so")
    )
    content = complete.read_bytes()
    assert kernels.is_complete(complete)
    for length in (0, 1, 63, 64, 4096, len(content) // 2, len(content) - 1):
        (tmp_path / "cut").write_bytes(content[:length])
        assert not kernels.is_complete(tmp_path / "cut"), length


def test_kernel_that_cannot_be_compiled_ends_the_command_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail_to_compile(*arrays: Any) -> None:
        raise RuntimeError("[Compile::eval_cpu] Failed to compile function f:\nNo space left")

    def fail_otherwise(*arrays: Any) -> None:
        raise RuntimeError("out of memory")

    client = Client()
    client.submit(PROMPTS[0])
    monkeypatch.setattr(mx, "eval", fail_to_compile)
    assert run("generate", lambda: bool(client.step())) == 2
    err = capsys.readouterr().err
    assert err.startswith(
        "generate: error: MLX cannot compile kernels (No space left); free space, or name another folder"
    )
    assert err.count("\n") == 1
    with pytest.raises(InputError, match="^MLX cannot compile kernels .No space left.; free space, or name another"):
        client.step()

    monkeypatch.setattr(mx, "eval", fail_otherwise)
    with pytest.raises(RuntimeError, match="out of memory"):
        run("generate", lambda: bool(client.step()))


def test_nothing_of_cpu_is_imported_on_macos() -> None:
    code = """
import sys
sys.platform = "darwin"
import speculative_decoding
model, _ = speculative_decoding.load(MODEL)
assert model
print([name for name in sys.modules if name.startswith("speculative_decoding.cpu")])
"""
    model = f"MODEL = {str(ROOT / 'models' / 't5-web-docs')!r}"
    done = subprocess.run(
        [sys.executable, "-c", model + code], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.stdout == "[]\n", done.stderr
