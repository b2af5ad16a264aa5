"""Reads the compiled kernels in a metallib, Metal's library format: each function has a name and LLVM bitcode.

The format is not documented. This reader uses only the following fields: the offsets of the function list (at 0x18) and
of the bitcode section (at 0x48) in the header, and the tags NAME, HASH, OFFT and MDSZ of each function.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HEADER_BYTES = 0x58
END = b"ENDT"


class MetallibError(Exception):
    """A file is not a metallib, or is damaged."""


class Entry(NamedTuple):
    """The position of a function's bitcode in the file, and the SHA-256 of the bitcode."""

    offset: int
    size: int
    digest: bytes


class Metallib:
    """A metallib's functions, keyed by name. The file is mapped into memory, and bitcode is copied when it is read."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            if path.stat().st_size < HEADER_BYTES or file.read(4) != b"MTLB":
                raise MetallibError(f"{path}: not a metallib")
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            self.entries = dict(functions(self.data))
        except (struct.error, KeyError, UnicodeDecodeError) as error:
            raise MetallibError(f"{path}: damaged list of functions ({error})") from None

    def bitcode(self, name: str) -> bytes:
        """Return a function's bitcode. Raises KeyError if there is no function with this name."""
        entry = self.entries[name]
        return self.data[entry.offset : entry.offset + entry.size]


def functions(data: mmap.mmap | bytes) -> Iterator[tuple[str, Entry]]:
    """Yield each function's name and entry. Raises KeyError or struct.error if a tag is missing or truncated."""
    (position,) = struct.unpack_from("<Q", data, 0x18)
    (section,) = struct.unpack_from("<Q", data, 0x48)
    (count,) = struct.unpack_from("<I", data, position)
    position += 4
    for _ in range(count):
        (size,) = struct.unpack_from("<I", data, position)  # includes these four bytes
        tags = dict(tags_at(data, position + 4, position + size))
        offset = section + struct.unpack("<3Q", tags[b"OFFT"])[2]  # offsets in three sections, the last for bitcode
        (length,) = struct.unpack("<Q", tags[b"MDSZ"])
        if offset + length > len(data):
            raise struct.error("bitcode behind the end of the file")
        yield tags[b"NAME"].rstrip(b"\0").decode(), Entry(offset, length, tags[b"HASH"])
        position += size


def tags_at(data: mmap.mmap | bytes, position: int, end: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield a function's tags. A tag consists of four letters, two bytes for the length, and a value."""
    while position < end and (name := bytes(data[position : position + 4])) != END:
        (length,) = struct.unpack_from("<H", data, position + 4)
        yield name, bytes(data[position + 6 : position + 6 + length])
        position += 6 + length
