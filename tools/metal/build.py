"""Fetches mlx-metal wheels and compiles the runtime into a cache folder. Needs only the standard library."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

PINNED = "0.32.2"  # the version of mlx-metal whose dispatches traces/ records
PLATFORM = "macosx_26_0_arm64"  # its wheel also contains the kernels for the M5's neural accelerators
RUNTIME = Path(__file__).with_name("runtime")
PACKAGES = {"clang++-19": "clang-19", "llvm-config-19": "llvm-19-dev"}  # Debian's
FLAGS = [
    *("-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-fexceptions", "-frtti", "-Wall"),
    *("-mavx2", "-mf16c", "-mfma", "-ffp-contract=off"),
]


class BuildError(Exception):
    """Something needed for a build is missing on this machine, or the build failed."""


def cache_folder() -> Path:
    """Create and return the folder for wheels' metallibs, the compiled runtime and translated kernels.

    It is in the package's cache folder. This does not use `speculative_decoding.cache_folder`, which would import MLX.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    folder = (base if base.is_absolute() else Path.home() / ".cache") / "speculative-decoding" / "metal"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:  # executable code is loaded from this folder
        raise BuildError(f"{folder}: other users may write to this folder. Name another one in XDG_CACHE_HOME")
    return folder


def metallib_of(wheel: str, *, download: bool = False) -> Path:
    """Return the path of a wheel's metallib.

    Args:
        wheel: A version (such as 0.32.4), a version and a platform (0.32.2/macosx_15_0_arm64), or the path of a wheel
            or metallib.
        download: Whether to download a version that is not in the cache folder.
    """
    path = Path(wheel)
    if path.suffix in (".metallib", ".whl") and not path.is_file():
        raise BuildError(f"{path} is not a file. Name a version, or the path of a wheel or metallib")
    if path.suffix == ".metallib":
        return path
    if path.suffix == ".whl":
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        return extracted(path, cache_folder() / "wheels" / digest)
    version, _, platform = wheel.partition("/")
    platform = platform or PLATFORM
    folder = cache_folder() / "wheels" / f"{version}-{platform}"
    if not (folder / "mlx.metallib").exists():
        if not download:
            raise BuildError(f"mlx-metal {wheel} is not here yet. Fetch it with: python3 -m tools.metal build {wheel}")
        extracted(downloaded(version, platform, folder.with_suffix(".download")), folder)
        shutil.rmtree(folder.with_suffix(".download"))
    return folder / "mlx.metallib"


def downloaded(version: str, platform: str, folder: Path) -> Path:
    """Download a wheel from the package index that pip is configured to use."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--platform", platform, "--dest", str(folder), f"mlx-metal=={version}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
        raise BuildError(f"mlx-metal {version} for {platform}: {last}")
    return next(folder.glob("*.whl"))


def extracted(wheel: Path, folder: Path) -> Path:
    """Extract a wheel's metallib into a folder, unless it is already there."""
    target = folder / "mlx.metallib"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f".partial-{os.getpid()}"
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open("mlx/lib/mlx.metallib") as source,
            partial.open("wb") as to,
        ):
            shutil.copyfileobj(source, to)
        partial.rename(target)
    return target


def sources() -> list[Path]:
    return sorted([*RUNTIME.glob("*.cpp"), *RUNTIME.glob("*.h")])


def runtime_digest() -> str:
    """Return a digest of the runtime's sources. It names the folder of all files that this runtime generates."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources())).hexdigest()[:16]


@functools.cache
def library_path(*, compile_it: bool = False) -> Path:
    """Return the path of the compiled runtime. Raises BuildError if it is missing and `compile_it` is false."""
    path = cache_folder() / f"runtime-{runtime_digest()}" / "libmetalkernels.so"
    if path.exists():
        return path
    if not compile_it:
        raise BuildError("the runtime is not compiled yet. Compile it with: python3 -m tools.metal build")
    for program, package in PACKAGES.items():
        if shutil.which(program) is None:
            raise BuildError(f"{program} is missing. Install the Debian package {package}")
    path.parent.mkdir(exist_ok=True)
    partial = path.with_suffix(f".partial-{os.getpid()}")
    files = [str(each) for each in sources() if each.suffix == ".cpp"]
    command = ["clang++-19", *FLAGS, *llvm("--cppflags"), *files, "-o", str(partial), *llvm("--ldflags", "--libs")]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"clang++-19 failed:\n{done.stderr}")
    partial.rename(path)
    return path


def llvm(*options: str) -> list[str]:
    done = subprocess.run(["llvm-config-19", *options], capture_output=True, text=True, check=True)
    return done.stdout.split()


def build(wheels: list[str]) -> None:
    """Compile the runtime and fetch wheels."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        raise BuildError("the runtime executes kernels on Linux x86-64 only")
    print(f"runtime: {library_path(compile_it=True)}")
    for wheel in wheels:
        print(f"mlx-metal {wheel}: {metallib_of(wheel, download=True)}")
