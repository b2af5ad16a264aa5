"""kill -9, a full disk: the target of a conversion is the old folder or the new one, and the next run cleans up."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from speculative_decoding import InputError, checkpoints, manifest, safe_folder
from speculative_decoding.conversion import convert
from speculative_decoding.load import BUNDLED
from tests.sparse_t5_11b import make

SOURCE = BUNDLED / "t5-web-docs-draft"

# Kills itself at the n-th of the moments that matter: a tensor written, a file synchronised, a name given.
VICTIM = """
import os, signal, sys
import speculative_decoding.safe_folder as safe_folder
from pathlib import Path
from speculative_decoding.conversion import convert

source, output, last = sys.argv[1], sys.argv[2], int(sys.argv[3])
moments = 0

def moment(*_):
    global moments
    moments += 1
    if moments == last:
        os.kill(os.getpid(), signal.SIGKILL)

def before_and_after(function):
    def wrapped(*arguments):
        moment()
        result = function(*arguments)
        moment()
        return result
    return wrapped

for name in ("sync", "replace_folder", "exchange", "clean_up"):
    setattr(safe_folder, name, before_and_after(getattr(safe_folder, name)))
Path.rename = before_and_after(Path.rename)
if "--no-exchange" in sys.argv:
    safe_folder.exchange = lambda *_: False
convert(source, Path(output), dtype="float32", force=True, progress=moment)
print(moments)
"""


def run_victim(output: Path, last: int, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", VICTIM, str(SOURCE), str(output), str(last), *more]
    return subprocess.run(command, capture_output=True, text=True, cwd=BUNDLED.parent)


def is_whole(folder: Path) -> bool:
    return manifest.verify(folder) > 0


@pytest.fixture(scope="module")
def moments(tmp_path_factory: pytest.TempPathFactory) -> int:
    done = run_victim(convert(str(SOURCE), tmp_path_factory.mktemp("count") / "model"), 0)
    return int(done.stdout)


def test_killed_at_any_moment_the_target_is_the_old_folder_or_the_new_one(moments: int, tmp_path: Path) -> None:
    output = convert(str(SOURCE), tmp_path / "model")  # bfloat16
    seen = set()
    # every moment around the exchange, and a few while tensors are written
    for last in (1, 5, 20, *range(moments - 8, moments + 1)):
        assert run_victim(output, last).returncode == -signal.SIGKILL
        assert is_whole(output)
        seen.add(checkpoints.read(output).info("shared.weight").dtype)
        convert(str(SOURCE), output, force=True)
        assert os.listdir(tmp_path) == ["model"]
    assert len(seen) == 2  # some were killed before the exchange, some after


def test_without_an_atomic_exchange_the_next_run_brings_a_whole_folder_back(moments: int, tmp_path: Path) -> None:
    output = convert(str(SOURCE), tmp_path / "model")
    was_absent = False
    for last in range(moments - 8, moments + 3):
        if run_victim(output, last, "--no-exchange").returncode == 0:
            continue
        was_absent |= not output.exists()
        safe_folder.clean_up(output)
        assert is_whole(output) and os.listdir(tmp_path) == ["model"]
    assert was_absent  # the moment that the exchange does away with


def test_a_disk_that_fills_up_leaves_the_old_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = convert(str(SOURCE), tmp_path / "model")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    for function in ("write_npz", "manifest.write", "shutil.copyfile"):
        with monkeypatch.context() as patch:
            patch.setattr(f"speculative_decoding.conversion.{function}", full)
            with pytest.raises(InputError, match="No space left on device"):
                convert(str(SOURCE), output, dtype="float32", force=True)
        assert is_whole(output) and os.listdir(tmp_path) == ["model"]


def test_memory_does_not_grow_with_the_model(tmp_path: Path) -> None:
    """A twentieth of T5-11B, 2.2 GB, within a twentieth of 3 GiB beyond what the imports take."""
    size = make(tmp_path / "source", share=20)
    assert size > 2.1e9
    code = """
import resource, sys
from pathlib import Path
from speculative_decoding import conversion
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
before = peak()
conversion.convert(sys.argv[1], Path(sys.argv[2]))
print(peak() - before)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "source"), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=BUNDLED.parent)
    assert int(done.stdout) < 3 * 2**30 / 20
    shutil.rmtree(tmp_path / "out")
