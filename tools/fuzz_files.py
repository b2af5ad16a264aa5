"""Damages files at random and reads them. A reader must succeed, or raise an `InputError` with a one-line message.

    python -m tools.fuzz_files --count 5000
    python -m tools.fuzz_files --format config audio --count 1000

Each format is tested in a separate process, with limits on additional address space and on CPU time per file (2 s). The
tool prints one line per format. File i depends only on the format, the seed and i, so failures are reproducible. For
the formats "config", "tokenizer", "side", "head" and "vocabulary", folders are loaded whose small files are damaged
(tests/support/damaged_folders.py); those of "vocabulary" are CTranslate2's. "argos" unpacks archives of Argos
Translate, and "bpe" reads the tokenizer of such packages. "audio" needs PyAV, which decodes recordings of five formats
in C. Documents are decoded with the identity function.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from types import FrameType

import mlx.core as mx
import numpy as np
from safetensors.numpy import save
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

from speculative_decoding.checkpoints.base import Checkpoint
from speculative_decoding.checkpoints.ctranslate2_layout import read_ctranslate2
from speculative_decoding.checkpoints.gguf import gguf_config, read_gguf
from speculative_decoding.checkpoints.npz import read_npz
from speculative_decoding.checkpoints.safetensors import read_safetensors
from speculative_decoding.checkpoints.torch_bin import read_torch
from speculative_decoding.errors import InputError
from speculative_decoding.subpackages import has_subpackage
from tests.support.checkpoint_files import (
    VIEWS,
    Entry,
    Ordered,
    container,
    gguf_example,
    pickle,
    raw_storages,
    state_dict,
    torch_entries,
    zip_bytes,
)
from tests.support.damaged_folders import (
    damaged_ctranslate2,
    load_and_use,
    open_ctranslate2,
    use_head,
    use_tokenizer,
    write_damaged_folder,
    write_damaged_head,
    write_damaged_side_file,
    write_damaged_tokenizer,
    write_damaged_vocabulary,
)
from tests.support.paths import GOLDENS

MEMORY_BYTES = {"config": 500 << 20}  # other formats: 1 GiB
SECONDS = 2.0
HUGE = (-1, 1 << 15, (1 << 16) - 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, 1 << 62, 1 << 40)
PAYLOAD = b"cposix\nsystem\nX\x0c\x00\x00\x00touch canary\x85R"
SNIPPETS = (
    PAYLOAD,
    b"(X\x0c\x00\x00\x00touch canaryios\nsystem\n",
    b"]q\x00h\x00a",  # a list that contains itself
    b"}q\x00X\x01\x00\x00\x00ah\x00s",
    b"(" * 200,
    b"2" * 200,
    b")" + b"\x85" * 500,
    b"X\xff\xff\xff\x7f",
    b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\x8b\xff\xff\xff\x7f",
    b"r\xff\xff\xff\xff",
    b"ccollections\nOrderedDict\n)R",
    b"ctorch._utils\n_rebuild_tensor_v2\n",
    b"\x93\x81\x82\x01R.bou",
)
Random = random.Random
Mutation = Callable[[bytes, Random], bytes]


def position_in(data: bytes, rng: Random) -> int:
    """Return a random position, usually near one of the ends, where headers and directories are."""
    near = min(len(data), 512)
    return rng.choice((rng.randrange(len(data) + 1), rng.randrange(near + 1), len(data) - rng.randrange(near + 1)))


def flip_bits(data: bytes, rng: Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randint(1, 8) if out else 0):
        out[min(position_in(data, rng), len(out) - 1)] ^= 1 << rng.randrange(8)
    return bytes(out)


def truncate(data: bytes, rng: Random) -> bytes:
    return data[: position_in(data, rng)]


def insert_opcodes(data: bytes, rng: Random) -> bytes:
    at = position_in(data, rng)
    return data[:at] + rng.choice(SNIPPETS) + data[at:]


def write_huge(data: bytes, rng: Random) -> bytes:
    """Overwrite what may be a count, offset or size with an extreme value."""
    at = position_in(data, rng)
    size = rng.choice((2, 4, 8))
    value = rng.choice(HUGE) & ((1 << 8 * size) - 1)
    return data[:at] + value.to_bytes(size, rng.choice(("little", "big"))) + data[at + size :]


def write_huge_text(data: bytes, rng: Random) -> bytes:
    """Replace a digit with a huge number."""
    digits = [at for at, byte in enumerate(data[:4096]) if 48 <= byte < 58]
    at = rng.choice(digits) if digits else 0
    return data[:at] + str(rng.choice(HUGE)).encode() + data[at + 1 :]


def splice(data: bytes, rng: Random) -> bytes:
    """Overwrite or insert a piece of the file, or remove all its occurrences."""
    start = position_in(data, rng)
    to = position_in(data, rng)
    piece = data[start : start + rng.randint(1, 200)] * rng.choice((1, 1, 1, 50))
    return (
        data[:to] + piece + data[to + rng.choice((0, len(piece))) :] if rng.random() < 0.8 else data.replace(piece, b"")
    )


MUTATIONS: tuple[Mutation, ...] = (flip_bits, truncate, insert_opcodes, write_huge, write_huge_text, splice)


def mutate(data: bytes, rng: Random) -> bytes:
    for _ in range(rng.choice((1, 1, 2, 4))):
        data = rng.choice(MUTATIONS)(data, rng)
    return data


def tricked(entries: list[Entry], rng: Random) -> list[Entry]:
    """Apply one zip trick, such as a duplicate name, a wrong CRC, path traversal, or overlapping or compressed data."""
    entries, at = list(entries), rng.randrange(len(entries))
    entry = entries[at]
    changed = (
        entry,
        replace(entry, crc=rng.getrandbits(32)),
        replace(entry, name=rng.choice(("../evil", "/evil", "archive/../../evil", "a\\b", "archive/data/0\0", ""))),
        replace(entry, local_name="archive/other"),
        replace(entry, header=rng.choice((0, 64, rng.getrandbits(32)))),
        replace(entry, nbytes=rng.choice((0, 1, len(entry.data) + 64, 0xFFFFFFFF, rng.getrandbits(32)))),
        replace(entry, method=8),
        replace(entry, flags=rng.choice((1, 8, 0x800))),
    )
    entries[at : at + rng.randrange(2)] = [rng.choice(changed)]
    return entries


def zipped(entries: list[Entry], rng: Random) -> bytes:
    """Return a valid zip with one damaged entry and a correct CRC, a zip with one trick, or a damaged zip."""
    kind = rng.randrange(3)
    if kind == 0:
        at = rng.randrange(len(entries)) if rng.random() < 0.3 else 0
        entries[at] = replace(entries[at], data=mutate(entries[at].data, rng))
    if kind == 1:
        return zip_bytes(tricked(entries, rng))
    return zip_bytes(entries) if kind == 0 else mutate(zip_bytes(entries), rng)


def hostile_state_dict(rng: Random) -> Ordered:
    """Return a state dict with an additional view, some of whose numbers may be invalid."""

    def number(value: int) -> int:
        return value if rng.random() < 0.6 else rng.choice((*HUGE, 0, 1, 2, 23, 24, 25))

    view = rng.choice(list(VIEWS.values()))
    shape, strides = (tuple(map(number, numbers)) for numbers in (view.shape, view.strides))
    view = replace(view, numel=number(view.numel), offset=number(view.offset), shape=shape, strides=strides)
    return state_dict(hostile=view)


def damaged_torch(form: str, rng: Random) -> bytes:
    if rng.random() < 0.2:
        return container(form, pickle(hostile_state_dict(rng), form == "legacy"))
    if form == "legacy":
        return mutate(LEGACY, rng)
    return zipped(torch_entries(pickle(state_dict()), raw_storages()), rng)


def npy(array: np.ndarray) -> bytes:
    np.save(out := BytesIO(), array)
    return out.getvalue()


ARRAYS: dict[str, np.ndarray] = {"a.weight": np.arange(24, dtype=np.float32).reshape(4, 6), "b": np.ones(5, np.float16)}
LEGACY = container("legacy", pickle(state_dict(), legacy=True))
GGUF = gguf_example()
SAFETENSORS = save(ARRAYS, {"format": "np"})


def read_gguf_and_config(path: Path) -> Checkpoint:
    gguf_config(path)
    return read_gguf(path)


def any_ctranslate2(rng: Random) -> bytes:
    """Return a model.bin with damaged bytes, or with wrong variables, or both."""
    data = damaged_ctranslate2(rng)
    return mutate(data, rng) if rng.random() < 0.5 else data


@dataclass(frozen=True)
class Format:
    """A format: `read` reads a file and returns whether all tensors were readable; `write` writes a damaged file."""

    read: Callable[[Path], bool]
    write: Callable[[Path, Random], None]


def of_bytes(read: Callable[[Path], Checkpoint], damaged: Callable[[Random], bytes]) -> Format:
    def write(path: Path, rng: Random) -> None:
        path.write_bytes(damaged(rng))

    return Format(lambda path: read_everything(read, path), write)


def read_everything(read: Callable[[Path], Checkpoint], path: Path) -> bool:
    checkpoint = read(path)
    all_read = True
    for tensor in checkpoint:
        try:
            info = checkpoint.info(tensor)
            array = checkpoint[tensor]
            mx.eval(array)
            assert array.shape == info.shape
        except InputError:
            all_read = False
    return all_read


SPIECE = (GOLDENS / "tokenizers/t5/spiece.model").read_bytes()


def damaged_spiece(rng: Random) -> bytes:
    """Return a SentencePiece model with damaged bytes, or with a few damaged values."""
    if rng.random() < 0.3:
        return mutate(SPIECE, rng)
    model = ModelProto.FromString(SPIECE)
    for _ in range(rng.choice((1, 1, 3))):
        piece = rng.choice(model.pieces)
        piece.piece = rng.choice((piece.piece, "", rng.choice(model.pieces).piece, "x" * rng.choice((9, 300_000))))
        piece.score = rng.choice((piece.score, 0.0, -1e38, float("inf"), float("nan")))
        piece.type = rng.choice((piece.type, rng.randint(1, 6)))
        model.trainer_spec.model_type = rng.choice((model.trainer_spec.model_type, rng.randint(1, 4)))
        model.trainer_spec.unk_id = rng.choice((model.trainer_spec.unk_id, *(-1, 0, 1, 1 << 30)))
        rules = model.normalizer_spec.precompiled_charsmap
        model.normalizer_spec.precompiled_charsmap = rng.choice((rules, b"", flip_bits(rules, rng), mutate(rules, rng)))
    if rng.random() < 0.1:
        del model.pieces[rng.randrange(len(model.pieces)) :]
    return bytes(model.SerializeToString())


def write_damaged_spiece(folder: Path, rng: Random) -> None:
    folder.mkdir()
    (folder / "spiece.model").write_bytes(damaged_spiece(rng))


def unpack_package(path: Path) -> bool:
    """Unpack an archive. Nothing may remain of an archive that is rejected, and nothing may appear beside the cache."""
    from speculative_decoding.checkpoints.argos_metadata import package_fields
    from speculative_decoding.loading.argos import unpacked

    cache = Path("packages").resolve()
    os.environ["XDG_CACHE_HOME"] = str(cache)
    before = {*os.listdir()} | {cache.name}
    try:
        folder = unpacked(path)
        package_fields(folder, ["<unk>"])
    finally:
        assert {*os.listdir()} <= before and not any(".partial-" in str(each) for each in cache.rglob("*"))
        shutil.rmtree(cache, ignore_errors=True)
    return True


def write_damaged_archive(path: Path, rng: Random) -> None:
    """Write a damaged archive, whose files are compressed, or one with a trick in its headers or its metadata."""
    from tests.support.argos import ROOT, package_files, write_archive

    if rng.random() < 0.4:
        path.write_bytes(mutate(write_archive(path).read_bytes(), rng))
    else:
        path.write_bytes(zipped([Entry(f"{ROOT}/{name}", content) for name, content in package_files().items()], rng))


def read_merges(folder: Path) -> bool:
    from speculative_decoding.loading.argos_bpe import BpeTokenizer
    from speculative_decoding.loading.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(folder)
    assert isinstance(tokenizer, BpeTokenizer)
    ids = tokenizer.encode('The "quick" brown fox, he said.')
    tokenizer.decode([*ids, *tokenizer.encode_output("foxes"), 7, 99999])
    return True


def write_damaged_merges(folder: Path, rng: Random) -> None:
    """Write a converted package with bpe.model. One of its files is damaged."""
    from tests.support.argos import package_config

    golden = GOLDENS / "argos_bpe"
    files = {name: (golden / name).read_bytes() for name in ("bpe.model", "shared_vocabulary.txt")}
    files["config.json"] = json.dumps(package_config("en_de")).encode()
    name = rng.choice(("bpe.model", *files))
    folder.mkdir()
    for each, content in files.items():
        (folder / each).write_bytes(mutate(content, rng) if each == name else content)


FORMATS = {
    "zip": of_bytes(read_torch, lambda rng: damaged_torch("zip", rng)),
    "legacy": of_bytes(read_torch, lambda rng: damaged_torch("legacy", rng)),
    "gguf": of_bytes(read_gguf_and_config, lambda rng: mutate(GGUF, rng)),
    "ctranslate2": of_bytes(read_ctranslate2, any_ctranslate2),
    "safetensors": of_bytes(read_safetensors, lambda rng: mutate(SAFETENSORS, rng)),
    "npz": of_bytes(
        read_npz, lambda rng: zipped([Entry(f"{name}.npy", npy(array)) for name, array in ARRAYS.items()], rng)
    ),
    "argos": Format(unpack_package, write_damaged_archive),
    "config": Format(load_and_use, write_damaged_folder),
    "tokenizer": Format(use_tokenizer, write_damaged_tokenizer),
    "spiece": Format(use_tokenizer, write_damaged_spiece),
    "side": Format(use_tokenizer, write_damaged_side_file),
    "vocabulary": Format(open_ctranslate2, write_damaged_vocabulary),
    "head": Format(use_head, write_damaged_head),
}


if find_spec("sacremoses") and find_spec("subword_nmt"):
    FORMATS["bpe"] = Format(read_merges, write_damaged_merges)


@cache
def recordings() -> list[bytes]:
    """Return a recording for each combination of format, sample rate and number of channels."""
    from tests.support.audio import CODECS, sound, write_audio

    files = []
    with tempfile.TemporaryDirectory() as folder:
        for suffix in CODECS:
            for rate, channels in ((16000, 1), (48000, 2), (16000, 8)):
                if suffix != "mp3" or channels <= 2:
                    path = Path(folder, f"{rate}-{channels}.{suffix}")
                    files.append(write_audio(path, sound(1.5, rate, channels), rate).read_bytes())
    return files


def read_recording(path: Path) -> bool:
    """Read a recording with PyAV and as plain WAV. Raises `InputError` if both fail."""
    from speculative_decoding.speech import audio_file
    from speculative_decoding.speech.recording import open_audio

    refusals = []
    for finder in (find_spec, lambda name: None):
        audio_file.find_spec = finder  # type: ignore[attr-defined, assignment]
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # such as warnings of overflow in NumPy
            warnings.simplefilter("ignore", UserWarning)  # notes about the recording
            try:
                mel = open_audio(path, [80])
                mel.frames(0, mel.num_frames)
            except InputError as error:
                refusals.append(error)
    if len(refusals) == 2:
        raise refusals[0]
    return True


def write_damaged_recording(path: Path, rng: Random) -> None:
    path.write_bytes(mutate(rng.choice(recordings()), rng))


if find_spec("av") and has_subpackage("speech"):
    FORMATS["audio"] = Format(read_recording, write_damaged_recording)


def read_document(format: str, path: Path) -> bool:
    """Decode a document with the identity function. Unless it is bilingual, the output must equal the document."""
    from speculative_decoding.documents.options import DocumentOptions
    from speculative_decoding.documents.pieces import parts_of
    from speculative_decoding.documents.reading import DocumentFile
    from tests.documents.decoders import written_with
    from tests.documents.samples import COLUMNS

    options = DocumentOptions(format=format, columns=COLUMNS.get(format, ()))
    with DocumentFile(path, options) as file:
        for target in ("de", None):  # the language of the output may be written into the document
            output = file.encode(written_with(parts_of(file.lines, options, "en", target), str))
        assert DOCUMENT_FORMATS[format].is_bilingual or file.preamble + output == path.read_bytes()
    return True


def damaged_document(format: str, path: Path, rng: Random) -> None:
    from tests.documents.samples import SAMPLES

    path.write_bytes(mutate(rng.choice(SAMPLES[format]), rng))


if has_subpackage("documents"):
    from speculative_decoding.documents.formats import FORMATS as DOCUMENT_FORMATS

    for each in DOCUMENT_FORMATS:
        FORMATS[each] = Format(partial(read_document, each), partial(damaged_document, each))


def write_damaged(name: str, seed: int, index: int, path: Path) -> None:
    FORMATS[name].write(path, Random(f"{name} {seed} {index}"))


class TooSlow(BaseException):
    """A `BaseException`, so that readers do not treat it as a damaged file."""


def alarm(signum: int, frame: FrameType | None) -> None:
    raise TooSlow


def failure(act: Callable[[], object], seconds: float = SECONDS) -> str | None:
    """Run an action. Returns a description of the problem, or None if it succeeded or raised a one-line `InputError`.

    Using more CPU time than `seconds`, or more wall-clock time than thirty times `seconds`, is also a problem.
    """
    signal.signal(signal.SIGALRM, alarm)
    started = time.process_time()
    signal.setitimer(signal.ITIMER_REAL, 30 * seconds)
    try:
        act()
    except InputError as error:
        if not str(error).isprintable():
            return f"an error that is not one line: {str(error)!r}"
    except (Exception, TooSlow) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    elapsed = time.process_time() - started
    return f"TooSlow: {elapsed:.1f} s" if elapsed > seconds else None


def fuzz(name: str, count: int, seed: int) -> tuple[str, bool]:
    """Return a summary, and whether there were no problems. Limits this process's memory."""
    limit = MEMORY_BYTES.get(name, 1 << 30)
    os.fsync = lambda fd: None  # for speed, conversions do not sync
    mx.disable_compile()  # so that MLX does not run a C++ compiler
    for index in range(20):  # triggers the readers' late imports
        warm = Path(f"{name}-{index}.warm")
        write_damaged(name, -1, index, warm)
        failure(partial(FORMATS[name].read, warm), seconds=60)
    if sys.platform == "linux":
        max_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + limit
        resource.setrlimit(resource.RLIMIT_AS, (max_bytes, resource.getrlimit(resource.RLIMIT_AS)[1]))
    unit = 1 if sys.platform == "darwin" else 1024
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    slowest = 0.0
    read: list[bool] = []
    failures: list[str] = []
    started = time.perf_counter()

    def note(path: Path) -> None:
        read.append(FORMATS[name].read(path))

    for index in range(count):
        path = Path(f"{index}.file")
        write_damaged(name, seed, index, path)
        faulthandler.dump_traceback_later(40 * SECONDS, exit=True)  # for hangs that signals cannot interrupt
        file_started = time.process_time()
        if problem := failure(partial(note, path)):
            failures.append(f"  file {index}: {problem}")
        slowest = max(slowest, time.process_time() - file_started)
        faulthandler.cancel_dump_traceback_later()
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit - before
    executed = Path("canary").exists()
    line = (
        f"{name}: {count} files, seed {seed}: {sum(read)} read, {count - sum(read) - len(failures)} refused, "
        f"{len(failures)} with other errors or slow, {'EXECUTED' if executed else 'nothing executed'}, "
        f"slowest {slowest:.3f} s, peak memory +{grown / 2**20:.0f} MiB, {time.perf_counter() - started:.1f} s"
    )
    return "\n".join([line, *failures[:20]]), not failures and not executed and grown < limit


def fuzz_in_subprocess(*names: str, count: int, seed: int = 0) -> tuple[str, bool]:
    """Run `fuzz` for each format, in a separate process and folder, because a reader may crash."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        environment |= {"PYTHONWARNINGS": "ignore", "RUST_BACKTRACE": "0", "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1"}
        command = [sys.executable, "-m", "tools.fuzz_files", "--format", *names, "--inside"]
        command += ["--count", str(count), "--seed", str(seed)]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        return f"{done.stdout}{names}: the process ended with {done.returncode}\n{done.stderr[-2000:]}", False
    if done.stderr:  # for example, the message of a panic in Rust code
        return f"{done.stdout.strip()}\n{names}: a reader wrote to standard error:\n{done.stderr[-2000:]}", False
    return done.stdout.strip(), done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5000, help="damaged files per format")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--format", choices=FORMATS, nargs="+", help="test only these formats")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    run = fuzz if options.inside else fuzz_in_subprocess
    all_good = True
    for name in options.format or FORMATS:
        line, good = run(name, count=options.count, seed=options.seed)
        print(line, flush=True)
        all_good &= good
    return 0 if all_good else 1


if __name__ == "__main__":
    sys.exit(main())
