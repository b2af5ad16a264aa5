"""Tests that a resumed output equals an uninterrupted one, or is refused with a one-line error."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding import InputError
from speculative_decoding.cli.parser import flag
from speculative_decoding.jobs import ResumableOutput
from speculative_decoding.jobs.output import VERSION, settings_path
from tests.support.job_engine import SETTINGS, FakeScheduler, Pipe, run_job, sample_input
from tests.support.kill_states import KillStates

INPUT = sample_input(40)
LINES = ["wört eins", "", "too long", '"zwei" \\ drei']
SHORT = "\n".join(LINES).encode()


@pytest.fixture(autouse=True)
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[os.stat_result]:
    """Replace fsync, which is slow, and record the files for which it is called."""
    found: list[os.stat_result] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: found.append(os.fstat(descriptor)))
    return found


def finished(path: Path, content: bytes = INPUT) -> bytes:
    """Write an output without interruption. Returns its content."""
    run_job(path, content)
    return path.read_bytes()


def interrupted(path: Path, after: int = 15) -> bytes:
    """Write an output up to an interruption. Returns its content."""

    def stop(output: ResumableOutput) -> None:
        if output.lines >= after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_job(path, INPUT, after_row=stop)
    return path.read_bytes()


def refusal(path: Path, content: bytes = INPUT, **more: Any) -> str:
    """Return the error for an output that cannot be resumed. The output must not change."""
    before = path.read_bytes()
    with pytest.raises(InputError) as error:
        run_job(path, content, resume=True, **more)
    assert path.read_bytes() == before
    message = error.value.message(flag)
    assert "--force" in message and "\n" not in message and len(message) < 700
    return message


# Kills and power failures


@pytest.mark.parametrize(("lost", "step"), [(b"", 1), (bytes(5000), 5), (b"\xff\xfe\n{}\n", 5)])
def test_resuming_after_a_cut_at_any_byte_gives_the_same_bytes(tmp_path: Path, lost: bytes, step: int) -> None:
    """Only lines without a complete record are decoded again. The input is a pipe, which can be read only once."""
    path, whole = tmp_path / "out", finished(tmp_path / "out", SHORT)
    for size in range(0, len(whole) + 1, step):
        path.write_bytes(whole[:size] + lost)
        kept = whole[:size].count(b"\n")
        totals = run_job(path, SHORT, resume=True, source=Pipe)
        assert path.read_bytes() == whole, size
        assert (totals.lines, totals.errors, totals.rows) == (4, 1, [2, 1, 1, 1, 0][kept]), size


def test_resuming_gives_the_same_bytes_although_zeros_precede_later_records(tmp_path: Path) -> None:
    """After a power failure, a part of the file can be missing even though later parts are on disk."""
    path, whole = tmp_path / "out", finished(tmp_path / "out", SHORT)
    for start in range(0, len(whole), 17):
        for end in range(start + 1, len(whole), 61):
            path.write_bytes(whole[:start] + bytes(end - start) + whole[end:])
            run_job(path, SHORT, resume=True)
            assert path.read_bytes() == whole, (start, end)


@pytest.mark.parametrize("before", ["nothing", "two records", "an output with other settings"])
def test_resuming_after_a_kill_around_any_system_call_gives_the_same_bytes(
    before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tmp_path / "job"
    job.mkdir()
    whole, other = finished(tmp_path / "whole", SHORT), b""
    if before == "two records":
        run_job(job / "out", b"\n".join(SHORT.split(b"\n")[:2]))
    elif before == "an output with other settings":
        run_job(job / "out", SHORT, settings=SETTINGS | {"temperature": 1.0})
        other = whole.replace(b"snie", b"other")
        (job / "out").write_bytes(other)
    states = KillStates(job, tmp_path / "states")
    with monkeypatch.context() as patch:
        for place, name in ((os, "fsync"), (tempfile, "mkstemp"), (Path, "chmod"), (Path, "replace")):
            states.around(patch, place, name)
        run_job(job / "out", SHORT, resume=not other, force=bool(other), after_row=states.moment)
    assert len(states.paths) > 5
    for state in states.paths:
        if other and (state / "out").read_bytes() == other:
            assert re.search("temperature was 1.0, is 0.0|out.job is missing or", refusal(state / "out", SHORT))
            continue
        run_job(state / "out", SHORT, resume=True)
        assert (state / "out").read_bytes() == whole, state
        assert {*os.listdir(state)} == {"out", "out.job"}  # temporary files are removed


@pytest.mark.parametrize("how", ["new", "resumed", "replaced"])
def test_settings_are_on_disk_before_the_first_record_and_records_at_the_end(
    how: str, tmp_path: Path, syncs: list[os.stat_result]
) -> None:
    """Earlier records are removed from the disk before new settings replace their settings."""
    path = tmp_path / "out"
    if how != "new":
        run_job(path, SHORT)
        os.truncate(path, path.stat().st_size - 3)
    kept = path.read_bytes().rfind(b"\n") + 1 if how == "resumed" else 0
    syncs.clear()
    before: list[int] = []  # for each record, how many calls preceded it
    run_job(
        path, SHORT, resume=how == "resumed", force=how == "replaced", after_row=lambda _: before.append(len(syncs))
    )
    assert {*before} == {len(syncs) - 1}
    if how == "replaced":  # first come settings that prevent resuming earlier records
        assert syncs[0].st_size < 40 and os.path.samestat(syncs[1], tmp_path.stat())
        del syncs[:2]
    settings = [] if how == "resumed" else [settings_path(path), tmp_path]
    for found, expected in zip(syncs, [path, *settings, path], strict=True):
        assert os.path.samestat(found, expected.stat())
    assert syncs[0].st_size == kept and syncs[-1].st_size == path.stat().st_size


def test_a_full_disk_is_reported_in_one_line_and_the_job_can_be_resumed(tmp_path: Path) -> None:
    whole = finished(tmp_path / "whole")

    class Full(FileIO):
        """A file on a disk with five free bytes."""

        room = 5

        def write(self, data: Any) -> int:
            if not self.room:
                raise OSError(28, "No space left on device")
            size, self.room = self.room, 0
            return super().write(data[:size])

    def fill(output: Any) -> None:
        if output.lines == 10:
            output.log._file = Full(os.dup(output.log._file.fileno()), "r+b")

    with pytest.raises(InputError, match=r"\(No space left on device\); what is finished is kept; continue"):
        run_job(tmp_path / "out", INPUT, after_row=fill)
    left = (tmp_path / "out").read_bytes()
    assert whole.startswith(left) and left.endswith(b"\n") and left.count(b"\n") == 10
    run_job(tmp_path / "out", INPUT, resume=True)
    assert (tmp_path / "out").read_bytes() == whole


# The files of version 0.3.0 before the logs of all commands became one.
EARLIER = """{"line": 1, "prompt": "wört eins", "text": "snie tröw", "finish_reason": "stop", "prompt_tokens": 3, \
"generated_tokens": 3, "target_calls": 2, "drafted_tokens": 6, "accepted_tokens": 1, "input_sha256": "11f2809673934872"}
{"line": 2, "text": "", "finish_reason": "blank", "prompt_tokens": 0, "generated_tokens": 0, "input_sha256": \
"e3b0c44298fc1c14"}
{"line": 3, "error": "too long", "input_sha256": "24f3ac3b491840af"}
{"line": 4, "prompt": "\\"zwei\\" \\\\ drei", "text": "ierd \\\\ \\"iewz\\"", "finish_reason": "stop", \
"prompt_tokens": 4, "generated_tokens": 4, "target_calls": 2, "drafted_tokens": 6, "accepted_tokens": 2, \
"input_sha256": "6f30fa7ed8e1659c"}
""".encode()
EARLIER_SETTINGS = b'{"version": 4, "settings": {"temperature": 0.0, "stop": ["x"]}}\n'


def test_an_output_of_an_earlier_version_is_resumed_with_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "out"
    for size in range(1, len(EARLIER) + 1):
        path.write_bytes(EARLIER[:size])
        settings_path(path).write_bytes(EARLIER_SETTINGS)
        assert run_job(path, SHORT, resume=True).rows == [2, 1, 1, 1, 0][EARLIER[:size].count(b"\n")]
        assert path.read_bytes() == EARLIER and settings_path(path).read_bytes() == EARLIER_SETTINGS


# Changed files and settings


def changed_outputs() -> dict[str, Any]:
    one = b'{"line": 1, "text": "", "input_sha256": "0000000000000000"}\n'
    return {
        "order": lambda first, second, *rest: [second, first, *rest],
        "order of equal lines": lambda *lines: [*lines[:3], lines[14], *lines[4:14], lines[3]],
        "removed": lambda first, second, *rest: [first, *rest],
        "no object": lambda first, *rest: [b"1\n", *rest],
        "no JSON": lambda first, *rest: [first, b"x" + rest[0], *rest[1:]],
        "too deep": lambda first, *rest: [b"[" * 100_000 + b"\n", *rest],
        "no hash": lambda first, *rest: [b'{"line": 1, "text": ""}\n', *rest],
        "another hash": lambda first, *rest: [one, *rest],
        "text at the end": lambda *lines: [*lines, b"notes\n"],
        "text without a line end": lambda *lines: [*lines, b"notes"],
        "spaces and no line end": lambda *lines: [*lines[:-1], b" " + lines[-1].rstrip()],
        "another file": lambda *lines: [b"precious"],
    }


@pytest.mark.parametrize("change", changed_outputs())
def test_an_output_that_someone_changed_is_refused(change: str, tmp_path: Path) -> None:
    lines = interrupted(tmp_path / "out").splitlines(keepends=True)
    found = changed_outputs()[change](*lines)
    number = next(i for i, line in enumerate([*lines, b""]) if found[i : i + 1] != [line]) + 1
    (tmp_path / "out").write_bytes(b"".join(found))
    message = refusal(tmp_path / "out")
    assert f"line {number} of input has changed" in message or f"line {number} is not the record of that" in message


def test_a_finished_line_that_changed_is_refused_with_its_number(tmp_path: Path) -> None:
    path, lines = tmp_path / "out", INPUT.split(b"\n")
    interrupted(path)
    for number in range(1, 16):
        for new in ([b"other"], [], [b"inserted", lines[number - 1]]):
            content = b"\n".join([*lines[: number - 1], *new, *lines[number:]])
            assert f"line {number} of input has changed since its record was written" in refusal(path, content)
        shortened = b"".join(line + b"\n" for line in lines[: number - 1])
        assert f"out has a record of line {number}, but input has {number - 1} lines" in refusal(path, shortened)


def test_unfinished_lines_may_change_before_resuming(tmp_path: Path) -> None:
    interrupted(tmp_path / "out")
    changed = b"\n".join([*INPUT.split(b"\n")[:15], b"new", b"lines\n"])
    run_job(tmp_path / "out", changed, resume=True)
    assert (tmp_path / "out").read_bytes() == finished(tmp_path / "whole", changed)
    run_job(tmp_path / "out", changed + b"more", resume=True)
    assert json.loads((tmp_path / "out").read_bytes().splitlines()[-1])["text"] == "erom"


def test_a_job_decodes_its_input_as_it_is_when_it_is_read(tmp_path: Path) -> None:
    """Lines that are appended during a job are decoded. After a truncation, the restored input can be resumed."""
    path, content = tmp_path / "in", b"".join(b"%031d\n" % i for i in range(300))  # larger than a buffer

    def job(name: str, change: Any, **options: Any) -> bytes:
        source: Any = lambda _: path.open("rb")  # noqa: E731
        run_job(tmp_path / name, b"", source=source, after_row=lambda _: change(), **options)
        return (tmp_path / name).read_bytes()

    path.write_bytes(content)
    whole = job("whole", lambda: None)
    cut = job("cut", lambda: os.truncate(path, 320))
    assert len(cut) < len(whole) and whole.startswith(cut)
    path.write_bytes(content)
    assert job("cut", lambda: None, resume=True) == whole
    path.write_bytes(content[:320])
    assert job("grown", lambda: path.write_bytes(content)) == whole


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"temperature": 1.0}, "temperature was 0.0, is 1.0"),
        ({"exact": True}, "exact was false, is true"),
        ({}, ""),
    ],
)
def test_other_settings_are_refused_by_name(changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    """The recorded decision about exact passes is kept unless a flag sets a different one."""
    whole = finished(tmp_path / "whole")
    with ResumableOutput.open(tmp_path / "out", SETTINGS) as output:
        output.log.settings["exact"] = False
        output.begin()
        output.write(whole.splitlines(keepends=True)[0])
    if named:
        assert named in refusal(tmp_path / "out", settings=SETTINGS | changes)
    with ResumableOutput.open(tmp_path / "out", SETTINGS, resume=True) as output:
        assert output.log.settings == SETTINGS | {"exact": False}


def damaged_settings() -> Iterator[tuple[bytes | None, str]]:
    former = {"version": 2, "lines": 15, "size": 3000, "input_sha256": "0" * 64, "settings": SETTINGS}
    yield None, "out.job is missing or cannot be read; restore it, or start over with --force"
    yield json.dumps(former).encode(), "out.job was written by another version; finish the run with that version"
    for content in ("", "[]", "[" * 100_000, f'{{"version": {VERSION}}}', f'{{"version": {VERSION}, "settings": 3}}'):
        yield content.encode(), "out.job is missing or cannot be read"


@pytest.mark.parametrize(("content", "named"), [*damaged_settings()])
def test_settings_that_cannot_be_read_are_named(content: bytes | None, named: str, tmp_path: Path) -> None:
    interrupted(tmp_path / "out")
    settings_path(tmp_path / "out").unlink()
    if content is not None:
        settings_path(tmp_path / "out").write_bytes(content)
    assert named in refusal(tmp_path / "out")
    run_job(tmp_path / "out", INPUT, force=True)
    assert (tmp_path / "out").read_bytes() == finished(tmp_path / "whole")


# Other files and processes


def test_settings_that_are_a_pipe_or_a_link_are_neither_read_nor_followed(tmp_path: Path) -> None:
    """Another user of the folder could have created a symbolic link. Reading a pipe would block."""
    (tmp_path / "precious").write_text("precious")
    settings_path(tmp_path / "out").symlink_to(tmp_path / "precious")
    for resume in (False, True):
        with pytest.raises(InputError, match="out.job is needed to record what is finished, but is another file; name"):
            run_job(tmp_path / "out", INPUT, resume=resume)
    run_job(tmp_path / "out", INPUT, force=True)
    assert (tmp_path / "precious").read_text() == "precious"
    settings_path(tmp_path / "out").unlink()
    os.mkfifo(settings_path(tmp_path / "out"))
    assert "out.job is missing or cannot be read" in refusal(tmp_path / "out")


def test_a_replaced_output_is_kept_if_the_settings_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = finished(tmp_path / "out")

    def fail(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "mkstemp", fail)
    with pytest.raises(InputError) as error:
        run_job(tmp_path / "out", INPUT, force=True)
    assert "Permission denied" in str(error.value) and "is kept" not in str(error.value)
    assert (tmp_path / "out").read_bytes() == whole


def test_an_existing_output_is_kept_without_resume_or_force(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("precious")
    with pytest.raises(InputError, match="already exists; continue it with resume, or replace it with force"):
        run_job(tmp_path / "out", INPUT)
    with pytest.raises(InputError, match="not a regular file"):
        run_job(tmp_path, INPUT)
    with pytest.raises(InputError, match=r"cannot be written \(No such file or directory\); name another output"):
        run_job(tmp_path / "nowhere" / "out", INPUT)
    assert (tmp_path / "out").read_text() == "precious"


def test_an_output_is_locked_against_a_second_job(tmp_path: Path) -> None:
    def another(_: object) -> None:
        with pytest.raises(InputError, match="another run is writing it"):
            run_job(tmp_path / "out", INPUT, resume=True)

    run_job(tmp_path / "out", b"one\ntwo", FakeScheduler(), after_row=another)
    assert (tmp_path / "out").read_bytes() == finished(tmp_path / "whole", b"one\ntwo")
