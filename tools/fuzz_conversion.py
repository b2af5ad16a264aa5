"""Kills conversions at random moments, and runs conversions on a full disk.

    python -m tools.fuzz_conversion [--kills 20] [--seed 0] [--tmpfs DIR]

--tmpfs names an empty folder on which to mount a small tmpfs, which requires root. After each kill, the output folder
must be complete (according to its manifest) or, if there was none before, absent.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from speculative_decoding.loading import manifest
from speculative_decoding.loading.load import BUNDLED

ROOT = BUNDLED.parent
SOURCE = BUNDLED / "t5-web-docs"


def command(output: Path, *more: str) -> list[str]:
    return [sys.executable, str(ROOT / "convert.py"), "--model", str(SOURCE), "--output", str(output), *more]


def kills(count: int, seed: int) -> None:
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch, "model")
        started = time.perf_counter()
        subprocess.run(command(Path(scratch, "first"), "--dtype", "float32"), check=True, capture_output=True)
        full_run = time.perf_counter() - started
        absent = killed = 0
        for i in range(count):
            # the first half of the kills hits new conversions, the other half conversions that replace a folder
            if i == count // 2:
                subprocess.run(command(output, "--force"), check=True, capture_output=True)
            process = subprocess.Popen(
                command(output, "--dtype", "float32", "--force"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            time.sleep(rng.uniform(0.2, 1.0) * full_run)
            process.kill()
            killed += process.wait() < 0
            if output.exists():
                manifest.verify(output)
            else:
                absent += 1
                assert i < count // 2, "the previous folder is gone"
        subprocess.run(command(output, "--force"), check=True, capture_output=True)
        assert sorted(os.listdir(scratch)) == ["first", "model"], os.listdir(scratch)
    print(
        f"{killed} of {count} conversions killed: output absent {absent} times, complete otherwise; no files left over"
    )


def full_disk(mount: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100m", "tmpfs", str(mount)], check=True)
    try:
        subprocess.run(command(mount / "model"), check=True, capture_output=True)
        (mount / "filler").write_bytes(bytes(free(mount) - (80 << 20) if free(mount) > (80 << 20) else 0))
        done = subprocess.run(command(mount / "model", "--dtype", "float32", "--force"), capture_output=True, text=True)
        assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
        print("refused before writing:", done.stderr.strip().splitlines()[-1].split("/model: ")[-1])
        # disable the check, as if another file took the free space after it
        code = (
            "import sys; from pathlib import Path; import speculative_decoding.loading.conversion as c;"
            "c.check_space = lambda *_: None; from speculative_decoding.cli.convert import main; "
            "sys.exit(main(sys.argv[1:]))"
        )
        (mount / "filler").write_bytes(bytes(free(mount) - (5 << 20)))
        options = command(mount / "model", "--dtype", "float32", "--force")[2:]
        done = subprocess.run([sys.executable, "-c", code, *options], capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
        print("ran out of space:", done.stderr.strip().splitlines()[-1].split("/model: ")[-1])
        manifest.verify(mount / "model")
        assert sorted(os.listdir(mount)) == ["filler", "model"]
        print("the previous folder is complete, no files left over")
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def free(path: Path) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tmpfs", type=Path)
    options = parser.parse_args()
    kills(options.kills, options.seed)
    if options.tmpfs is not None:
        full_disk(options.tmpfs)
