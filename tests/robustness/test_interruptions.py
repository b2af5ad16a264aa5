"""After kill -9 or on a full disk, a conversion leaves the old folder or the new one, and the next run cleans up."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from speculative_decoding import InputError, checkpoints
from speculative_decoding.loading import manifest
from speculative_decoding.loading.conversion import convert
from speculative_decoding.loading.load import BUNDLED, Storage
from speculative_decoding.runs import places
from tests.support.kill_states import KillStates
from tests.unit.loading.test_conversion import make_source
from tools.sparse_t5_11b import make

pytestmark = pytest.mark.slow


def is_complete(folder: Path) -> bool:
    return manifest.verify(folder) > 0


OLD_FORMAT = Storage("bfloat16")


@pytest.fixture
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_source(tmp_path_factory.mktemp("source"), "t5")


def kill_states(source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Replace a converted model, and copy its parent folder around each system call and after each tensor."""
    monkeypatch.setattr(os, "fsync", lambda _: None)  # slow, and needed only after a power failure
    output = convert(str(source), folder / "before" / "model", OLD_FORMAT)
    states = KillStates(output.parent, folder / "states")
    with monkeypatch.context() as patch:
        for name in ("sync", "replace_folder", "exchange", "clean_up"):
            states.around(patch, places, name)
        states.around(patch, Path, "rename")
        convert(str(source), output, Storage("float32"), force=True, progress=states.moment)
    return states.paths


def test_a_kill_leaves_the_old_folder_or_the_new_one(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = kill_states(source, tmp_path, monkeypatch)
    assert all(is_complete(state / "model") for state in states)
    types = [str(checkpoints.read(state / "model").info("shared.weight").dtype) for state in states]
    assert types == sorted(types) and len(set(types)) == 2  # killed before and after the exchange
    # all moments around the exchange, and a few while tensors are written
    for state in (states[1], states[5], states[20], *states[-9:]):
        convert(str(source), state / "model", OLD_FORMAT, force=True)
        assert os.listdir(state) == ["model"]


def test_without_atomic_exchange_the_next_run_restores_the_old_folder(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "exchange", lambda *_: False)
    states = kill_states(source, tmp_path, monkeypatch)
    assert not all((state / "model").exists() for state in states)  # an atomic exchange never leaves such a state
    for state in states:
        places.clean_up(state / "model")
        assert is_complete(state / "model") and os.listdir(state) == ["model"]


def test_a_full_disk_leaves_the_old_folder(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = convert(str(source), tmp_path / "model", OLD_FORMAT)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    for function in ("write_npz", "manifest.write", "write_tokenizer"):
        with monkeypatch.context() as patch:
            patch.setattr(f"speculative_decoding.loading.conversion.{function}", full)
            with pytest.raises(InputError, match="No space left on device"):
                convert(str(source), output, Storage("float32"), force=True)
        assert is_complete(output) and os.listdir(tmp_path) == ["model"]


# Measures the peak memory of a conversion in a separate process. A new process inherits ru_maxrss, so the peak of the
# test run would hide it. VmHWM starts from zero after an exec.
MEASURED_CONVERSION = """
import os, re, sys
from pathlib import Path
from speculative_decoding.loading import conversion

def peak():
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

def keep_written_tensors():
    write, kept = conversion.write_npz, []
    def keeping(path, tensors):
        write(path, ((kept.append(pair), pair)[1] for pair in tensors))
    conversion.write_npz = keeping

def keep_read_pages():
    from speculative_decoding.checkpoints.mapped import MappedFile
    MappedFile.release = lambda file, extent: None

os.fsync = lambda _: None  # slow
globals().get(sys.argv[3], lambda: None)()
before = peak()
conversion.convert(sys.argv[1], Path(sys.argv[2]))
print(peak() - before)
"""


# macOS keeps released pages of a file resident until it needs their memory (VM_BEHAVIOR_DONTNEED in XNU).
reads_peak_memory = pytest.mark.skipif(sys.platform != "linux", reason="only Linux frees pages of a file at once")


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


@reads_peak_memory
def test_memory_does_not_grow_with_the_model(sparse: tuple[Path, int], tmp_path: Path) -> None:
    """The limit, a quarter of the checkpoint, is twice the memory of the tokenizer and the largest tensor."""
    folder, size = sparse
    assert size > 2.5e8
    assert memory_taken(folder, tmp_path / "out") < size / 4


@reads_peak_memory
@pytest.mark.parametrize("fault", ["keep_written_tensors", "keep_read_pages"])
def test_memory_that_grows_with_the_model_is_detected(sparse: tuple[Path, int], fault: str, tmp_path: Path) -> None:
    folder, size = sparse
    assert memory_taken(folder, tmp_path / "out", fault) > 0.4 * size
