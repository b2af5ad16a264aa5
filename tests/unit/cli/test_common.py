"""How every command ends: exit statuses, errors in one line, and standard streams that fail."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from speculative_decoding import InputError
from speculative_decoding.cli.common import printing, run, write_stats
from tests.support.paths import ROOT

COMMAND = """
import sys
from pathlib import Path
from speculative_decoding.cli.common import printing, run, write_stats

def command():
    if len(sys.argv) > 1:
        write_stats(Path(sys.argv[1]), {"lossless": True})
    with printing():
        for number in range(1 if len(sys.argv) > 1 else 10**9):
            print("zurück", flush=True)
    return 0

sys.exit(run("main.py", command))
"""


class FullDisk(io.FileIO):
    """A file on a full disk."""

    def write(self, data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def raising(error: BaseException) -> Callable[[], int]:
    def command() -> int:
        raise error

    return command


@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        (lambda: 0, 0, ""),
        (lambda: 1, 1, ""),
        (raising(InputError("is\nodd", "top_k", "leave it")), 2, r"p: error: --top-k: is\nodd; leave it"),
        (lambda: signal.raise_signal(signal.SIGINT) or 0, 130, "\np: interrupted; try again\n"),  # type: ignore[func-returns-value]
    ],
)
def test_a_command_ends_with_its_status_and_at_most_one_line(
    command: Callable[[], int], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGINT)
    assert run("p", command, "; try again") == status
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(said) and len(err.strip().splitlines()) == bool(said)
    assert signal.getsignal(signal.SIGINT) is (signal.SIG_DFL if status == 130 else before)  # one more ends the process
    signal.signal(signal.SIGINT, before)


def test_a_full_disk_is_a_one_line_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def command() -> int:
        with printing():
            print("text")
        return 0

    with io.TextIOWrapper(FullDisk(tmp_path / "full", "w"), write_through=True) as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert run("main.py", command) == 2
    line = "main.py: error: standard output: No space left on device; redirect it to another disk\n"
    assert capfd.readouterr().err == line


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_statistics_that_cannot_be_written_name_their_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("main.py", lambda: write_stats(Path("/dev/full"), {}) or 0) == 2  # type: ignore[func-returns-value]
    line = "main.py: error: --stats-json: /dev/full cannot be written (No space left on device)"
    assert capsys.readouterr().err.startswith(line)


def test_characters_that_standard_output_cannot_encode_are_escaped_with_one_note(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with io.TextIOWrapper(io.BytesIO(), "ascii", write_through=True) as ascii_only:
        monkeypatch.setattr(sys, "stdout", ascii_only)
        assert run("main.py", lambda: print("zurück\nü, ß") or 0) == 0  # type: ignore[func-returns-value]
        assert ascii_only.buffer.getvalue() == rb"zur\xfcck" + b"\n" + rb"\xfc, \xdf" + b"\n"  # type: ignore[attr-defined]
    note = "note: standard output is ascii; characters outside this encoding are written as escapes"
    assert capsys.readouterr().err.count(note) == 1


def test_a_closed_pipe_ends_the_command_without_a_traceback() -> None:
    command = [sys.executable, "-c", COMMAND]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(5)
        process.stdout.close()
        assert process.stderr.read() == b"" and process.wait() == 1


def test_a_closed_standard_stream_is_never_written_to(tmp_path: Path) -> None:
    """A file opened later gets the descriptor of a closed stream, so output must not go there."""
    (tmp_path / "command.py").write_text(COMMAND)
    command = f'{sys.executable} "$1/command.py" "$1/stats"'
    script = f'{command} >&- 2>"$1/err"; echo $?; {command} <&- 2>&-; echo $?'
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command_line = ["sh", "-c", script, "sh", str(tmp_path)]
    shell = subprocess.run(command_line, env=environment, capture_output=True, text=True, check=True)
    assert shell.stdout.split("\n") == ["2", "zurück", "0", ""]
    line = "main.py: error: standard output is closed; redirect it to a file or to /dev/null\n"
    assert (tmp_path / "err").read_text() == line
    assert (tmp_path / "stats").read_text() == '{\n  "lossless": true\n}\n'
