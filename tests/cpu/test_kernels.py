"""The private folder for compiled kernels, on machines with faults, and the calls that report them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from speculative_decoding.cli.common import run
from speculative_decoding.cpu import kernels
from speculative_decoding.drafters import NoDrafter, RequestView
from tests.integration.test_engine import PROMPTS, Client
from tests.support.paths import ROOT

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
@pytest.mark.slow
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
def test_failing_compiler_gives_one_warning_and_unfused_kernels(machine: Machine) -> None:
    """MLX reports a full disk and a folder mounted noexec in the same way."""
    compiler = machine.cache / "bin" / "g++"
    compiler.parent.mkdir(parents=True)
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] || { echo "No space left on device" >&2; exit 1; }\n')
    compiler.chmod(0o755)
    (said,) = machine.check(PATH=f"{compiler.parent}:{os.environ['PATH']}")
    assert str(machine.folder) in said and "No space left on device" in said and "\n" not in said


@on_linux
def test_missing_compiler_gives_one_warning_and_unfused_kernels(machine: Machine) -> None:
    (said,) = machine.check(PATH=str(machine.cache))
    assert said.endswith(f"{kernels.UNFUSED}: no compiler is installed; install g++")


@on_linux
def test_hanging_compiler_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\nexec sleep 600\n")
    compiler.chmod(0o755)
    monkeypatch.setattr(kernels, "COMPILER_SECONDS", 0.01)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert kernels.compiler_problem(tmp_path) == "g++ did not finish within 0.01 s; repair it"


def complete_library() -> Path:
    extension = next((ROOT / "speculative_decoding" / "cpu").glob("_sgemm*.so"), None)
    return extension or next(Path(mx.__file__).parent.glob("core*.so"))


@on_linux
def test_links_and_kernels_of_other_users_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, link = tmp_path / "mlx/1/cpu/libown.so", tmp_path / "mlx/1/cpu/liblink.so"
    own.parent.mkdir(parents=True)
    shutil.copy(complete_library(), own)
    link.symlink_to(own)
    kernels.remove_unsafe_kernels(tmp_path)
    assert own.exists() and not link.is_symlink()
    monkeypatch.setattr(os, "geteuid", lambda: own.stat().st_uid + 1)
    kernels.remove_unsafe_kernels(tmp_path)
    assert not own.exists()


@on_linux
def test_truncated_library_is_not_complete(tmp_path: Path) -> None:
    complete = complete_library()
    content = complete.read_bytes()
    assert kernels.is_complete(complete)
    for length in (0, 1, 63, 64, 4096, len(content) // 2, len(content) - 1):
        (tmp_path / "cut").write_bytes(content[:length])
        assert not kernels.is_complete(tmp_path / "cut"), length


class Failing(NoDrafter):
    """Fails in each round as MLX does."""

    def __init__(self, error: str) -> None:
        super().__init__()
        self.error = error

    def kind_and_limit(self, request: RequestView) -> tuple[str, int]:
        raise RuntimeError(self.error)


def test_kernel_that_cannot_be_compiled_ends_the_command_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    client = Client(Failing("[Compile::eval_cpu] Failed to compile function f:\nNo space left"))
    client.submit(PROMPTS[0])
    assert run("generate", lambda: bool(client.step())) == 2
    err = capsys.readouterr().err
    assert err.startswith(
        "generate: error: MLX cannot compile kernels (No space left); free space, or name another folder"
    )
    assert err.count("\n") == 1
    client = Client(Failing("out of memory"))
    client.submit(PROMPTS[0])
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
