"""Text files in UTF-8 and UTF-16, whole and in pieces of any size."""

from __future__ import annotations

import codecs
import io

import pytest

from speculative_decoding.checkpoints.text import decode_text
from speculative_decoding.checkpoints.text_stream import as_utf8
from speculative_decoding.errors import InputError

TEXTS = ["", "a", "\n", "eins\nzwei\r\n\n", "Ünïcödé 😀\n\u2028", "\u0a0a\u0d0d\ufffe", "x" * 9000 + "😀" * 300]
MARKS = {"utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE, "utf-8": codecs.BOM_UTF8}


class Pieces(io.BytesIO):
    """A pipe, from which at most `size` bytes can be read at once."""

    size = 1

    def read1(self, size: int | None = -1) -> bytes:
        return super().read(self.size)


@pytest.mark.parametrize("encoding", MARKS)
@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_a_file_with_a_byte_order_mark_is_the_text(text: str, encoding: str) -> None:
    content = MARKS[encoding] + text.encode(encoding)
    assert decode_text(content) == decode_text(text.encode()) == text
    for size in (1, 3, 1 << 20):
        pipe = Pieces(content)
        pipe.size = size
        assert as_utf8(pipe).read().decode("utf-8-sig") == text, size


@pytest.mark.parametrize("size", [1, 3])
def test_other_bytes_are_passed_on(size: int) -> None:
    for content in (b"\xff", b"\xfe", b"\xffx\n", b"\xfe\xfe", bytes(range(256)) * 50, b"a\0\n\0"):
        pipe = Pieces(content)
        pipe.size = size
        assert as_utf8(pipe).read() == content


@pytest.mark.parametrize("content", [b"\xff\xfea\0b", b"\xff\xfe\x00\xd8a\0", b"\xfe\xff\xdc\x00\0a"])
def test_text_that_is_not_valid_utf_16_is_refused_whole_and_in_lines(content: bytes) -> None:
    with pytest.raises(InputError, match="not readable as UTF-16 text .*; convert it to UTF-8"):
        decode_text(content)
    with pytest.raises(UnicodeDecodeError):
        as_utf8(io.BytesIO(content)).read().decode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff", "not readable as UTF-8 text (invalid start byte, byte 1)"),
        (b"ab\0c", "contains a NUL character (character 3)"),
        (codecs.BOM_UTF16_LE + "a\0".encode("utf-16-le"), "contains a NUL character (character 2)"),
    ],
)
def test_binary_files_are_refused_with_a_way_out(content: bytes, message: str) -> None:
    with pytest.raises(InputError) as error:
        decode_text(content)
    assert message in str(error.value) and str(error.value).endswith("; convert it to UTF-8")


def test_a_line_is_read_before_the_next_one_is_written() -> None:
    pipe = Pieces(b"eins\nzwei\n")
    assert as_utf8(pipe).readline() == b"eins\n" and pipe.tell() == 5
