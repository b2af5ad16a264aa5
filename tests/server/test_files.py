"""Tests the names, the lifetime and the memory of translated files."""

from __future__ import annotations

from contextlib import ExitStack
from email.message import Message

import pytest
from hypothesis import given, settings, strategies

from speculative_decoding.server.errors import ServerError
from speculative_decoding.server.files import KeptFiles, base_name, content_disposition, file_names
from tests.support.waiting import ManualLoop, run_manually


def property_test(test):  # type: ignore[no-untyped-def]
    """Run a test in an event loop with its own clock."""
    return lambda: run_manually(test)


@property_test
async def test_a_file_is_deleted_when_its_time_is_over(loop: ManualLoop) -> None:
    files = KeptFiles(60.0, 100)
    first = files.keep("me", "a", ".txt", b"one")
    await loop.advance(30.0)
    second = files.keep("me", "a", ".txt", b"two")
    await loop.advance(29.9)
    assert files.get(first).content == b"one" and files.get(second)[:2] == ("a.txt", b"two")
    await loop.advance(0.2)
    assert files.get(second).content == b"two"
    with pytest.raises(ServerError, match="no such file") as error:
        files.get(first)
    assert error.value.status == 404


@property_test
async def test_names_are_long_and_random(loop: ManualLoop) -> None:
    files = KeptFiles(60.0, 1000)
    names = [files.keep("me", "a", ".srt", b"one") for _ in range(50)]
    assert len({*names}) == 50 and all(len(name) == 32 + 4 and name.endswith(".srt") for name in names)


def admitted(files: KeptFiles, client: str, size: int) -> int:
    """Return how many files of this size a client can translate, one after another."""
    count = 0
    with ExitStack() as reserved:
        while True:
            try:
                reserved.enter_context(files.reserve(client, size))
            except ServerError as error:
                assert error.status == 429 and (error.headers or {})["Retry-After"] == "60"
                return count
            count += 1
            reserved.close()
            files.keep(client, "a", "", b"x" * size)


# The sizes of files that clients send in turn, and how many of each are admitted. The limit is 1200 bytes: a client may
# use as many bytes as then remain free, and a file needs twice its size during its translation.
SHARES = [
    ([("a", 100)], [5]),
    ([("a", 100), ("a", 100)], [5, 0]),
    ([("a", 100), ("b", 100)], [5, 2]),
    ([("a", 100), ("b", 100), ("c", 50)], [5, 2, 4]),
    ([("a", 100), ("b", 10)], [5, 34]),
    ([("a", 301)], [0]),
    ([("a", 300)], [1]),
    ([("a", 10), ("b", 10), ("c", 10), ("d", 10), ("e", 1)], [59, 29, 15, 7, 49]),
]


@pytest.mark.parametrize(("sent", "expected"), SHARES)
def test_each_client_has_a_share(sent: list[tuple[str, int]], expected: list[int]) -> None:
    @property_test
    async def test(loop: ManualLoop) -> None:
        files = KeptFiles(60.0, 1200)
        assert [admitted(files, client, size) for client, size in sent] == expected
        await loop.advance(60.1)
        assert admitted(files, "new", 100) == 5

    test()


@property_test
async def test_memory_is_reserved_while_a_file_is_translated(loop: ManualLoop) -> None:
    """A translation that is larger than the reserved memory is also kept."""
    files = KeptFiles(60.0, 1200)
    with files.reserve("a", 200), files.reserve("b", 100):
        with pytest.raises(ServerError), files.reserve("c", 200):
            pass
        with pytest.raises(ServerError), files.reserve("b", 150):
            pass
        key = files.keep("a", "a", "", b"x" * 500)
    assert len(files.get(key).content) == 500
    with files.reserve("c", 100):
        pass


@property_test
async def test_no_timer_is_left_at_the_end(loop: ManualLoop) -> None:
    files = KeptFiles(60.0, 100)
    key = files.keep("me", "a", "", b"x")
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
