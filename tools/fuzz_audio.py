"""Damages audio files at random and reads them: `python -m tools.fuzz_audio --count 1000`.

Each file is decoded to its log-mel frames, or refused in one line. PyAV decodes untrusted bytes in C, so a worker
process reads the files; a file that ends it, or takes too long or too much memory, is a failure. Prints one line, and
one per failure. File i depends only on the seed and i. Needs PyAV.
"""

from __future__ import annotations

import argparse
import random
import resource
import select
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

from speculative_decoding import InputError
from speculative_decoding.speech import audio_file
from speculative_decoding.speech.recording import open_audio
from tests.support.audio import CODECS, sound, write_audio

SHAPES = [(16000, 1), (48000, 2), (16000, 8)]  # rate, channels
SECONDS = 20.0  # until a file counts as a hang
MAX_MEGABYTES = 600.0  # of the worker


def originals(folder: Path) -> list[bytes]:
    files = []
    for suffix in CODECS:
        for rate, channels in SHAPES:
            if suffix != "mp3" or channels <= 2:
                path = folder / f"{rate}-{channels}.{suffix}"
                files.append(write_audio(path, sound(1.5, rate, channels), rate).read_bytes())
    return files


def damaged(content: bytes, other: bytes, rng: random.Random) -> bytes:
    """Apply one to three changes: bits, runs of bytes, extreme 32-bit numbers, cuts, and parts of another file."""
    for _ in range(rng.choice([1, 1, 2, 3])):
        start = rng.randrange(min(len(content), rng.choice([64, 400, len(content)])) or 1)
        length = rng.choice([1, 4, 40, 400])
        number = rng.choice([0, 1, 2**31 - 1, 2**32 - 1, rng.randrange(2**32)])
        before, piece, after = content[:start], content[start : start + length], content[start + length :]
        bit = bytes([content[start] ^ 1 << rng.randrange(8)]) if start < len(content) else b""
        content = rng.choice(
            [
                before + bit + content[start + 1 :],
                before + rng.randbytes(length) + after,
                before + bytes([rng.choice([0, 255])]) * length + after,
                before + number.to_bytes(4, rng.choice(["big", "little"])) + content[start + 4 :],
                before,
                before + after,
                before + piece * 3 + content[start:],
                before + other[rng.randrange(len(other)) :],
            ]
        )
    return content


def read(path: Path) -> str:
    """Read a recording twice, as a transcription does, and describe the result in one line."""
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        try:
            mel = open_audio(path, [80])
            mel.frames(0, mel.num_frames)
        except InputError as error:
            return "refused" if str(error).count("\n") == 0 else f"FAILED: several lines: {error!r}"
        except Exception as error:
            return f"FAILED: {error!r}".replace("\n", " ")
    unexpected = [str(note.message) for note in notes if not issubclass(note.category, UserWarning)]
    return f"FAILED: {unexpected}" if unexpected else "decoded with a note" if notes else "decoded"


def work() -> None:
    """Read the files named on standard input, each with PyAV and as plain WAV."""
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    finders = find_spec, lambda name: None
    for line in sys.stdin:
        results = []
        for audio_file.find_spec in finders:  # type: ignore[attr-defined, assignment]
            results.append(read(Path(line.strip())))
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(*results, memory, sep="\t", flush=True)


def start_worker() -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tools.fuzz_audio", "--work"]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="damaged files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="existing folder for the files that failed")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work()
        return 0
    results: Counter[str] = Counter()
    slowest = memory = 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = originals(folder)
        worker = start_worker()
        for number in range(options.count):
            rng = random.Random(f"{options.seed} {number}")
            path = folder / "damaged"
            path.write_bytes(damaged(rng.choice(files), rng.choice(files), rng))
            assert worker.stdin is not None and worker.stdout is not None
            worker.stdin.write(f"{path}\n")
            worker.stdin.flush()
            start = time.monotonic()
            is_ready = select.select([worker.stdout], [], [], SECONDS)[0]
            *found, used = (worker.stdout.readline() if is_ready else "").rstrip().split("\t")
            if not found:
                worker.kill()
                found = [f"FAILED: {'ended with status' if is_ready else 'hang, killed with'} {worker.wait()}"]
                worker = start_worker()
            slowest, memory = max(slowest, time.monotonic() - start), max(memory, float(used or 0))
            if float(used or 0) > MAX_MEGABYTES:
                found = [f"FAILED: {used} MB"]
                worker.kill()
                worker.wait()
                worker = start_worker()
            for reader, result in zip(("PyAV", "plain WAV"), found, strict=False):
                results[f"{reader}: {result.partition(':')[0]}"] += 1
                if result.startswith("FAILED"):
                    print(f"file {number}, {reader}: {result}", flush=True)
                    if options.keep:
                        (options.keep / f"{options.seed}-{number}").write_bytes(path.read_bytes())
        worker.kill()
    counts = ", ".join(f"{count} {result}" for result, count in sorted(results.items()))
    print(f"{options.count} damaged audio files: {counts}; slowest {slowest:.1f} s, peak memory {memory:.0f} MB")
    return int(any("FAILED" in result for result in results))


if __name__ == "__main__":
    sys.exit(main())
