"""Tests that a run continues a log and does only the missing work, or is refused and changes nothing."""

from __future__ import annotations

import errno
import itertools
import json
import os
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding import InputError
from speculative_decoding.cli.parser import flag
from speculative_decoding.runs import log as log_module
from speculative_decoding.runs.log import Log, LogFormat, changed_setting, parse_line
from tests.support.kill_states import KillStates

LOG_FORMAT = LogFormat("output", version=3)
SETTINGS = {"seed": 0, "names": ("a", "ö")}
WORK = [["one", 1], ["zwei ö", 2], {"three": "\n\0"}, []]


def run(path: Path, *, settings: dict[str, Any] | None = SETTINGS, force: bool = False) -> int:
    """Do the work that is missing in a log. Returns how many records are written."""
    log_format = replace(LOG_FORMAT, start=b"") if settings is None else LOG_FORMAT
    with Log.open(path, log_format, settings, force=force) as log:
        done = [*log.records(parse_line)]
        assert done == WORK[: len(done)]
        for each in WORK[len(done) :]:
            log.append(each, sync=True)
    return len(WORK) - len(done)


@pytest.fixture(params=[SETTINGS, None], ids=["with settings", "without"])
def settings(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def whole(path: Path, settings: Any) -> bytes:
    """Return the content of a complete log."""
    run(path, settings=settings)
    content = path.read_bytes()
    path.unlink()
    return content


def refusal(path: Path, **changed: Any) -> str:
    """Return the error for a run that is refused. The log must not change."""
    before = path.read_bytes()
    with pytest.raises(InputError) as error:
        run(path, **changed)
    assert path.read_bytes() == before
    message = error.value.message(flag)
    assert message.startswith("--output: ") and "; " in message and "\n" not in message
    return message


# Kills, power failures, full disks


@pytest.mark.parametrize("lost", [b"", bytes(300), b"\xff\xfe\n[]\n", b"[" * 100_000 + b"\n"])
def test_a_log_that_was_cut_at_any_byte_is_continued_with_the_same_bytes(
    lost: bytes, path: Path, whole: bytes, settings: Any
) -> None:
    """Only work without a complete record is done again."""
    for size in range(len(whole) + 1):
        kept = whole[:size].count(b"\n") - (settings is not None)
        if lost.endswith(b"\n") and kept < 0:
            continue  # the header is on disk before the first record
        path.write_bytes(whole[:size] + lost)
        assert run(path, settings=settings) == len(WORK) - max(kept, 0), size
        assert path.read_bytes() == whole or (kept == len(WORK) and path.read_bytes() == whole + lost)


def test_zeros_in_the_place_of_records_cut_off_what_follows(path: Path, whole: bytes, settings: Any) -> None:
    """After a power failure, a part of the file can be missing even though later parts are on disk."""
    first = whole.find(b"\n") + 1 if settings else 0
    for start, end in itertools.combinations(range(first, len(whole), 3), 2):
        path.write_bytes(whole[:start] + bytes(end - start) + whole[end:])
        run(path, settings=settings)
        assert path.read_bytes() == whole, (start, end)


def test_every_state_of_a_killed_run_is_continued_with_the_same_bytes(
    path: Path, whole: bytes, settings: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    states = KillStates(folder, tmp_path / "states")
    with pytest.MonkeyPatch.context() as patch:
        for place, name in ((os, "fsync"), (log_module, "write_all"), (log_module, "open_locked")):
            states.around(patch, place, name)
        run(folder / "log", settings=settings)
    assert len(states.paths) > 12
    missing = [run(state / "log", settings=settings) for state in states.paths]
    assert missing == sorted(missing, reverse=True) and {*missing} == {*range(len(WORK) + 1)}
    assert {(state / "log").read_bytes() for state in states.paths} == {whole}


def test_settings_are_on_disk_before_the_first_record_and_all_records_at_the_end(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: sizes.append(os.fstat(descriptor).st_size))
    with Log.open(path, LOG_FORMAT, SETTINGS) as log:
        log.append("a")
        header = path.read_bytes().index(b"\n") + 1
        assert sizes == [0, header]
        log.append("b", sync=True)
        log.append("c")
        assert sizes[2:] == [header + 8]
    assert sizes[3:] == [path.stat().st_size] == [header + 12]
    with pytest.raises(KeyboardInterrupt), Log.open(path, LOG_FORMAT, SETTINGS) as log:
        assert [*log.records(parse_line)] == ["a", "b", "c"]
        log.append("d")
        raise KeyboardInterrupt
    assert sizes[4:] == [header + 12, path.stat().st_size]


def test_a_full_disk_is_one_line_and_leaves_no_part_of_a_record(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(path)
    size = path.stat().st_size - 1
    path.unlink()

    def write(file: FileIO, content: bytes) -> None:
        """Write to a disk that is full before the last byte."""
        room = size - os.fstat(file.fileno()).st_size
        file.write(content[:room])
        if room < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(log_module, "write_all", write)
        with pytest.raises(InputError) as error:
            run(path)
    assert error.value.message(flag) == (
        f"--output: {path} cannot be written (No space left on device); what is finished is kept; run the same command "
        "again to continue"
    )
    assert path.read_bytes().endswith(b"\n")
    assert run(path) == 1


# Settings, other files and other processes


def test_other_settings_and_versions_are_refused_and_replaced_by_force(path: Path) -> None:
    run(path)
    before = path.read_bytes()
    assert refusal(path, settings={**SETTINGS, "seed": 1}) == (
        f"--output: {path} was written with other settings (seed was 0, is 1); give the same settings, or start over "
        "with --force"
    )
    assert run(path, force=True) == 0  # with the same settings, the log is continued
    path.write_bytes(before.replace(b'"version": 3', b'"version": 2'))
    assert "was written by another version; finish the run with that version, or start over" in refusal(path)
    assert run(path, force=True) == len(WORK) and path.read_bytes() == before
    path.write_bytes(before.replace(b'"seed": 0', b'"exact": 3'))
    assert "cannot be read; restore it, or start over with --force" in refusal(path)
    assert run(path, settings={**SETTINGS, "seed": 1}, force=True) == len(WORK)
    assert "seed was 1, is 0" in refusal(path)


def test_exactness_of_the_first_run_is_recorded_and_may_be_left_open(path: Path) -> None:
    with Log.open(path, LOG_FORMAT, SETTINGS) as log:
        assert log.is_new
        log.settings |= {"exact": True, "comparison": 1}
        log.begin()
    with Log.open(path, LOG_FORMAT, SETTINGS) as log:
        assert not log.is_new and log.settings["exact"] is True
    assert changed_setting(log.settings, SETTINGS | {"names": ["a", "ö"], "exact": False}) == "exact was true, is false"


def test_another_file_is_never_touched(path: Path) -> None:
    for force in (False, True):
        for content in (b"years of work", b'{"version": 3}\n', b'{"settings": {}}\n', b"\n"):
            path.write_bytes(content)
            assert refusal(path, force=force) == (
                f"--output: {path} is needed to record what is finished, but is another file; name another --output, "
                "or move that file"
            )
    path.unlink()
    os.mkfifo(path)  # reading a pipe would block
    with pytest.raises(InputError, match="is another file"):
        run(path)


def test_a_second_run_is_refused_and_a_run_without_records_leaves_nothing(path: Path) -> None:
    with Log.open(path, LOG_FORMAT, SETTINGS):
        with pytest.raises(InputError, match="another run is writing it; wait, or name another output"):
            run(path)
        assert path.exists()
    assert not path.exists()
    with pytest.raises(InputError, match=r"cannot be written \(No such file or directory\); name another output"):
        run(path / "log")
    run(path)
    with Log.open(path, LOG_FORMAT, SETTINGS):
        pass
    assert run(path) == 0
    with Log.open(path, LOG_FORMAT, SETTINGS) as log:
        log.remove()
    assert not path.exists()


def test_a_header_may_have_any_settings(path: Path) -> None:
    for settings in ({}, {"a": {"b": [None, 1.5, "\n"]}}, {"x" * 10_000: True}):
        with Log.open(path, LOG_FORMAT, settings, force=True) as log:
            log.begin()
        assert json.loads(path.read_bytes()) == {"version": 3, "settings": settings}
        with Log.open(path, LOG_FORMAT, settings) as log:
            assert not log.is_new
