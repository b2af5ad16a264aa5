"""Simulates macOS on Linux for this repository's code. Python imports this file at startup; PYTHONPATH has its folder.

MLX still runs on the CPU; tests/unit/models/test_metal_kernels.py covers the branches for GPUs.

- `sys.platform`, `platform`, `os`, `ctypes` and `resource` behave as on macOS, but only in our modules, because the
  standard library would call functions that Linux lacks.
- Opening /proc or /dev/full fails, and so does forking. Using a file name that differs from an existing one only in
  case is an error.
- At most 256 files can be open.
"""

from __future__ import annotations

import builtins
import errno
import os
import platform
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OURS = {"__main__", "benchmarks", "convert", "main", "speculative_decoding", "tests", "tools"}
LINUX_ONLY = (
    "copy_file_range eventfd getrandom getxattr listxattr memfd_create pipe2 posix_fadvise posix_fallocate setxattr "
    "sched_getaffinity sched_setaffinity sched_setscheduler splice O_DIRECT O_PATH O_TMPFILE SCHED_BATCH"
)


class Disguise:
    """A module with some attributes hidden or replaced. Everything else is read from and written to the original."""

    __slots__ = ("_hidden", "_module", "_replaced")

    def __init__(self, module: ModuleType, hidden: Sequence[str] = (), **replaced: Any) -> None:
        for name, value in (("_module", module), ("_hidden", hidden), ("_replaced", replaced)):
            object.__setattr__(self, name, value)

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]  # monkeypatch.setattr reads it
        return {**vars(self._module), **self._replaced}

    def __getattr__(self, name: str) -> Any:
        if name in self._hidden:
            raise AttributeError(f"module {self._module.__name__!r} has no attribute {name!r}")
        return self._replaced[name] if name in self._replaced else getattr(self._module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._replaced:
            self._replaced[name] = value
        else:
            setattr(self._module, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._module, name)


def getrusage(who: int) -> resource.struct_rusage:
    usage = resource.getrusage(who)
    return resource.struct_rusage((*usage[:2], usage.ru_maxrss * 1024, *usage[3:]))  # bytes


def disguises() -> dict[str, Disguise]:
    import ctypes

    class CDLL(ctypes.CDLL):
        def renamex_np(self, first: bytes, second: bytes, flags: int) -> int:
            return int(self.renameat2(-100, first, -100, second, flags))

    return {
        "sys": Disguise(sys, platform="darwin"),
        "os": Disguise(os, hidden=LINUX_ONLY.split()),
        "platform": Disguise(
            platform,
            system=lambda: "Darwin",
            machine=lambda: "arm64",
            processor=lambda: "arm",
            release=lambda: "25.2.0",
            mac_ver=lambda: ("26.2", ("", "", ""), "arm64"),
        ),
        "resource": Disguise(resource, getrusage=getrusage),
        "ctypes": Disguise(ctypes, CDLL=CDLL),
    }


def is_ours(name: str) -> bool:
    return name.split(".")[0] in OURS or name.startswith("test_")


def import_as_on_a_mac() -> None:
    """Replace `__import__`. The new one also prepares MLX, because the package does so only on Linux."""
    original, modules = builtins.__import__, disguises()
    originals = {name: module._module for name, module in modules.items()}

    def imported(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> ModuleType:
        top = name.split(".")[0]
        if top == "mlx" and level == 0 and "linux" not in sys.modules:
            prepare_mlx()
        module = original(name, globals, locals, fromlist, level)
        if level == 0 and module is originals.get(top) and is_ours((globals or {}).get("__name__", "")):
            return modules[top]  # type: ignore[return-value]
        return module

    builtins.__import__ = imported


def prepare_mlx() -> None:
    """Load a fast BLAS and the kernel folder, using a separate copy of the package that detects Linux."""
    package = ModuleType("linux")
    package.__path__ = [str(ROOT / "speculative_decoding")]
    sys.modules["linux"] = package
    os.putenv("PATH", os.environ["PRETEND_MAC_PATH"])  # for MLX only: Python searches os.environ
    from linux import cpu  # type: ignore[import-not-found]

    cpu.prepare()


def refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook that raises the error that macOS would raise."""
    if event in ("os.fork", "os.forkpty"):
        raise RuntimeError("fork: a process that may have used Metal must not fork")
    position = {"open": 0, "os.listdir": 0, "os.scandir": 0, "os.mkdir": 0, "os.rename": 1, "os.symlink": 1}.get(event)
    if position is not None and isinstance(arguments[position], str | bytes | os.PathLike):
        check_path(os.fsdecode(arguments[position]))


def check_path(path: str) -> None:
    if path == "/proc/self/maps":  # threadpoolctl reads it only on Linux
        return
    if path == "/dev/full" or path == "/proc" or path.startswith("/proc/"):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    try:
        path.encode()
    except UnicodeError:
        raise OSError(errno.EILSEQ, os.strerror(errno.EILSEQ), path) from None
    folder, name = os.path.split(path)
    if path.startswith((str(ROOT), os.environ["PRETEND_MAC"])) and os.path.isdir(folder) and not os.path.lexists(path):
        same = [other for other in os.listdir(folder) if other.lower() == name.lower()]
        if same:
            raise RuntimeError(f"{path}: a file system that ignores case takes this for {same[0]}")


import_as_on_a_mac()
sys.addaudithook(refuse)
if os.environ.get("PATH") == os.environ["PRETEND_MAC_PATH"]:  # as set by the parent's `putenv`
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PRETEND_MAC']}/bin"
os.environ["TMPDIR"] = f"{os.environ['PRETEND_MAC']}/var/folders"
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
