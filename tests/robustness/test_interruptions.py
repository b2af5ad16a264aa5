"""After kill -9 or on a full disk, a conversion leaves the old folder or the new one, and the next run cleans up."""

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

# A program that reads numbers. For each it forks a child, because imports are slow. The child converts, and kills
# itself at the moment with that number: when a tensor is written, a file synchronized or a path renamed. The program
# prints the number of moments if the child finishes, or else its exit code.
CONVERTER = """
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

os.fsync = lambda _: None  # slow, and needed only after a power failure
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
def converter(source: Path, output: Path, *more: str) -> Iterator[Callable[[int], int]]:
    """Start the program. Return a function that runs a conversion, killed at a given moment.

    That function returns the number of moments, or the negated number of the signal that ended the child.
    """
    command = [sys.executable, "-c", CONVERTER, str(source), str(output), *more]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=BUNDLED.parent)
    assert process.stdin is not None and process.stdout is not None

    def run(last: int) -> int:
        print(last, file=process.stdin, flush=True)
        return int(process.stdout.readline())

    with process:
        yield run
        process.stdin.close()


def is_complete(folder: Path) -> bool:
    return manifest.verify(folder) > 0


OLD_FORMAT = Storage("bfloat16")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_source(tmp_path_factory.mktemp("source"), "t5")


@pytest.fixture(scope="module")
def moments(source: Path, tmp_path_factory: pytest.TempPathFactory) -> int:
    with converter(source, convert(str(source), tmp_path_factory.mktemp("count") / "model", OLD_FORMAT)) as run:
        return run(0)


def test_a_kill_leaves_the_old_folder_or_the_new_one(source: Path, moments: int, tmp_path: Path) -> None:
    output = convert(str(source), tmp_path / "model", OLD_FORMAT)
    seen = set()
    with converter(source, output) as run:
        # all moments around the exchange, and a few while tensors are written
        for last in (1, 5, 20, *range(moments - 8, moments + 1)):
            assert run(last) == -signal.SIGKILL
            assert is_complete(output)
            seen.add(checkpoints.read(output).info("shared.weight").dtype)
            convert(str(source), output, OLD_FORMAT, force=True)
            assert os.listdir(tmp_path) == ["model"]
    assert len(seen) == 2  # some were killed before the exchange, some after


def test_without_atomic_exchange_the_next_run_restores_the_old_folder(
    source: Path, moments: int, tmp_path: Path
) -> None:
    output = convert(str(source), tmp_path / "model", OLD_FORMAT)
    was_absent = False
    with converter(source, output, "--no-exchange") as run:
        for last in range(moments - 8, moments + 3):
            if run(last) > 0:
                continue
            was_absent |= not output.exists()
            atomic_io.clean_up(output)
            assert is_complete(output) and os.listdir(tmp_path) == ["model"]
    assert was_absent  # an atomic exchange never leaves such a moment


def test_a_full_disk_leaves_the_old_folder(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = convert(str(source), tmp_path / "model", OLD_FORMAT)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    for function in ("write_npz", "manifest.write", "shutil.copyfile"):
        with monkeypatch.context() as patch:
            patch.setattr(f"speculative_decoding.loading.conversion.{function}", full)
            with pytest.raises(InputError, match="No space left on device"):
                convert(str(source), output, Storage("float32"), force=True)
        assert is_complete(output) and os.listdir(tmp_path) == ["model"]


# Measures the peak memory of a conversion in a separate process. On Linux a new process inherits ru_maxrss, so the peak
# of the test run would hide it. VmHWM starts from zero after an exec.
MEASURED_CONVERSION = """
import os, re, resource, sys
from pathlib import Path
from speculative_decoding.loading import conversion

def peak():
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

def keep_written_tensors():
    write, kept = conversion.write_npz, []
    def keeping(path, tensors):
        write(path, ((kept.append(pair), pair)[1] for pair in tensors))
    conversion.write_npz = keeping

def keep_read_pages():
    from speculative_decoding.checkpoints.files import MappedFile
    MappedFile.release = lambda file, extent: None

os.fsync = lambda _: None  # slow
globals().get(sys.argv[3], lambda: None)()
before = peak()
conversion.convert(sys.argv[1], Path(sys.argv[2]))
print(peak() - before)
"""


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """Make T5-11B with 1/128 of its width. Return the folder and the size of its checkpoint in bytes."""
    folder = tmp_path_factory.mktemp("sparse") / "source"
    return folder, make(folder, share=128)


def memory_taken(folder: Path, output: Path, fault: str = "") -> int:
    """Return the peak memory of a conversion in bytes, excluding imports."""
    command = [sys.executable, "-c", MEASURED_CONVERSION, str(folder), str(output), fault]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=BUNDLED.parent)
    shutil.rmtree(output)
    return int(done.stdout)


def test_memory_does_not_grow_with_the_model(sparse: tuple[Path, int], tmp_path: Path) -> None:
    """The limit, a quarter of the checkpoint, is twice the memory of the tokenizer and the largest tensor."""
    folder, size = sparse
    assert size > 2.5e8
    assert memory_taken(folder, tmp_path / "out") < size / 4


@pytest.mark.parametrize("fault", ["keep_written_tensors", "keep_read_pages"])
def test_memory_that_grows_with_the_model_is_detected(sparse: tuple[Path, int], fault: str, tmp_path: Path) -> None:
    folder, size = sparse
    assert memory_taken(folder, tmp_path / "out", fault) > 0.4 * size
