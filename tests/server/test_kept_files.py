"""Translated files: their names, their time, and their room in memory."""

from __future__ import annotations

from email.message import Message

import pytest
from hypothesis import given, settings, strategies

from speculative_decoding.server.errors import ServerError
from speculative_decoding.server.files import base_name, file_names
from speculative_decoding.server.kept_files import KeptFiles, content_disposition
from tests.support.waiting import ManualLoop, run_manually


def law(test):  # type: ignore[no-untyped-def]
    """Run a test in an event loop with its own clock."""
    return lambda: run_manually(test)


@law
async def test_a_file_is_deleted_when_its_time_is_over(loop: ManualLoop) -> None:
    files = KeptFiles(60.0, 100)
    first = files.keep("a", ".txt", b"one")
    await loop.advance(30.0)
    second = files.keep("a", ".txt", b"two")
    await loop.advance(29.9)
    assert files.get(first).content == b"one" and files.get(second)[:2] == ("a.txt", b"two")
    await loop.advance(0.2)
    assert files.get(second).content == b"two"
    with pytest.raises(ServerError, match="no such file") as error:
        files.get(first)
    assert error.value.status == 404


@law
async def test_names_are_long_and_random(loop: ManualLoop) -> None:
    files = KeptFiles(60.0, 1000)
    names = [files.keep("a", ".srt", b"one") for _ in range(50)]
    assert len({*names}) == 50 and all(len(name) == 32 + 4 and name.endswith(".srt") for name in names)


@law
async def test_the_room_is_limited_and_expired_files_make_room(loop: ManualLoop) -> None:
    files = KeptFiles(60.0, 100)
    files.keep("a", "", b"x" * 60)
    with pytest.raises(ServerError) as error:
        files.keep("b", "", b"x" * 41)
    assert error.value.status == 429 and (error.value.headers or {})["Retry-After"] == "60"
    files.keep("c", "", b"x" * 40)
    await loop.advance(60.1)
    files.keep("d", "", b"x" * 100)


@law
async def test_no_timer_is_left_at_the_end(loop: ManualLoop) -> None:
    files = KeptFiles(60.0, 100)
    key = files.keep("a", "", b"x")
    timer = files.get(key).timer
    files.clear()
    assert timer.cancelled()
    with pytest.raises(ServerError):
        files.get(key)


@given(strategies.text())
@settings(max_examples=200, deadline=None, derandomize=True)
def test_no_file_name_leaves_its_header(name: str) -> None:
    stem, suffix = file_names(base_name(name), "de")
    header = content_disposition(stem + suffix)
    assert header.isascii() and header.isprintable()
    parsed = Message()
    parsed["Content-Disposition"] = header
    assert parsed.get_content_disposition() == "attachment"
    found = parsed.get_filename() or ""
    assert found and not {*found} & {*'/\\:*?"<>|\r\n\0'}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("talk.srt", ("talk_de", ".srt")),
        ("../../etc/passwd", ("passwd_de", "")),
        ("C:\\texts\\a.b.HTML", ("a.b_de", ".HTML")),
        ("", ("file_de", "")),
        ("a.\r\nSet-Cookie: b", ("a.\r\nSet-Cookie: b_de", "")),
        (".txt", (".txt_de", "")),
    ],
)
def test_a_translated_file_is_called_after_its_source(name: str, expected: tuple[str, str]) -> None:
    assert file_names(base_name(name), "de") == expected
