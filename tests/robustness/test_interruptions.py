"""kill -9, a full disk: the target of a conversion is the old folder or the new one, and the next run cleans up."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from speculative_decoding import InputError, checkpoints
from speculative_decoding.loading import atomic_io, manifest
from speculative_decoding.loading.conversion import convert
from speculative_decoding.loading.load import BUNDLED, Storage
from tests.unit.loading.test_conversion import make_source
from tools.sparse_t5_11b import make

pytestmark = pytest.mark.slow

# For each number that it reads a process, forked, for imports take longer than the rest; it kills itself at that one
# of the moments that matter: a tensor written, a file synchronised, a name given. What comes back is how that ended.
VICTIMS = """
import os, signal, sys
import speculative_decoding.loading.atomic_io as atomic_io
from pathlib import Path
from speculative_decoding.loading.conversion import convert
from speculative_decoding.loading.load import Storage

source, output = sys.argv[1], Path(sys.argv[2])
moments = last = 0

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

os.fsync = lambda _: None  # what a killed process wrote is not lost, and a disk is slow
for name in ("sync", "replace_folder", "exchange", "clean_up"):
    setattr(atomic_io, name, before_and_after(getattr(atomic_io, name)))
Path.rename = before_and_after(Path.rename)
if "--no-exchange" in sys.argv:
    atomic_io.exchange = lambda *_: False
for line in sys.stdin:
    last = int(line)
    child = os.fork()
    if not child:
        convert(source, output, Storage("float32"), force=True, progress=moment)
        print(moments, flush=True)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        print(status, flush=True)
"""


@contextmanager
def victims(source: Path, output: Path, *more: str) -> Iterator[Callable[[int], int]]:
    """What converts into `output` until a moment of that number: how many there were, or minus the signal."""
    command = [sys.executable, "-c", VICTIMS, str(source), str(output), *more]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=BUNDLED.parent)
    assert process.stdin is not None and process.stdout is not None

    def run(last: int) -> int:
        print(last, file=process.stdin, flush=True)
        return int(process.stdout.readline())

    with process:
        yield run
        process.stdin.close()


def is_whole(folder: Path) -> bool:
    return manifest.verify(folder) > 0


OLD = Storage("bfloat16")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_source(tmp_path_factory.mktemp("source"), "t5")


@pytest.fixture(scope="module")
def moments(source: Path, tmp_path_factory: pytest.TempPathFactory) -> int:
    with victims(source, convert(str(source), tmp_path_factory.mktemp("count") / "model", OLD)) as run:
        return run(0)


def test_killed_at_any_moment_the_target_is_the_old_folder_or_the_new_one(
    source: Path, moments: int, tmp_path: Path
) -> None:
    output = convert(str(source), tmp_path / "model", OLD)
    seen = set()
    with victims(source, output) as run:
        # every moment around the exchange, and a few while tensors are written
        for last in (1, 5, 20, *range(moments - 8, moments + 1)):
            assert run(last) == -signal.SIGKILL
            assert is_whole(output)
            seen.add(checkpoints.read(output).info("shared.weight").dtype)
            convert(str(source), output, OLD, force=True)
            assert os.listdir(tmp_path) == ["model"]
    assert len(seen) == 2  # some were killed before the exchange, some after


def test_without_an_atomic_exchange_the_next_run_restores_the_old_folder(
    source: Path, moments: int, tmp_path: Path
) -> None:
    output = convert(str(source), tmp_path / "model", OLD)
    was_absent = False
    with victims(source, output, "--no-exchange") as run:
        for last in range(moments - 8, moments + 3):
            if run(last) > 0:
                continue
            was_absent |= not output.exists()
            atomic_io.clean_up(output)
            assert is_whole(output) and os.listdir(tmp_path) == ["model"]
    assert was_absent  # the moment that the exchange does away with


def test_a_disk_that_fills_up_leaves_the_old_folder(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = convert(str(source), tmp_path / "model", OLD)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    for function in ("write_npz", "manifest.write", "shutil.copyfile"):
        with monkeypatch.context() as patch:
            patch.setattr(f"speculative_decoding.loading.conversion.{function}", full)
            with pytest.raises(InputError, match="No space left on device"):
                convert(str(source), output, Storage("float32"), force=True)
        assert is_whole(output) and os.listdir(tmp_path) == ["model"]


# A process of its own, whose peak begins with it: Linux hands ru_maxrss on to what a process starts, also behind an
# exec, and the peak of a test run hides any other. VmHWM belongs to the memory that an exec makes anew.
WITNESS = """
import os, re, resource, sys
from pathlib import Path
from speculative_decoding.loading import conversion

def peak():
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

def keep_what_was_written():
    write, kept = conversion.write_npz, []
    def keeping(path, tensors):
        write(path, ((kept.append(pair), pair)[1] for pair in tensors))
    conversion.write_npz = keeping

def keep_what_was_read():
    from speculative_decoding.checkpoints.files import MappedFile
    MappedFile.release = lambda file, extent: None

os.fsync = lambda _: None  # a disk is slow
globals().get(sys.argv[3], lambda: None)()
before = peak()
conversion.convert(sys.argv[1], Path(sys.argv[2]))
print(peak() - before)
"""


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """All layers of T5-11B, a hundred-and-twenty-eighth as wide: the folder, and the bytes of its checkpoint."""
    folder = tmp_path_factory.mktemp("sparse") / "source"
    return folder, make(folder, share=128)


def memory_taken(folder: Path, output: Path, fault: str = "") -> int:
    """Bytes that a conversion takes at most, beyond those of the imports."""
    command = [sys.executable, "-c", WITNESS, str(folder), str(output), fault]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=BUNDLED.parent)
    shutil.rmtree(output)
    return int(done.stdout)


def test_memory_does_not_grow_with_the_model(sparse: tuple[Path, int], tmp_path: Path) -> None:
    """A quarter of the checkpoint is twice what tokenizers and the largest tensor take, and half of what is written."""
    folder, size = sparse
    assert size > 2.5e8
    assert memory_taken(folder, tmp_path / "out") < size / 4


@pytest.mark.parametrize("fault", ["keep_what_was_written", "keep_what_was_read"])
def test_memory_that_grows_with_the_model_is_noticed(sparse: tuple[Path, int], fault: str, tmp_path: Path) -> None:
    """Planted faults."""
    folder, size = sparse
    assert memory_taken(folder, tmp_path / "out", fault) > 0.4 * size
