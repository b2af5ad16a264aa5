"""Reads the compiled kernels of a metallib, Metal's format for libraries: a name and LLVM bitcode for each function.

The format is not documented. This reader uses only these fields: the header's offsets of the function list
(0x18) and of the bitcode section (0x48), and the tags NAME, HASH, OFFT and MDSZ of each function.
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
    """A file that is not a metallib, or is damaged."""


class Entry(NamedTuple):
    """The position of a function's bitcode in the file, and the SHA-256 of the bitcode."""

    offset: int
    size: int
    digest: bytes


class Metallib:
    """The functions of a metallib, by name. The file is mapped into memory; bitcode is copied when it is read."""

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
        """Return the bitcode of a function. Raises KeyError if there is no function of this name."""
        entry = self.entries[name]
        return self.data[entry.offset : entry.offset + entry.size]


def functions(data: mmap.mmap | bytes) -> Iterator[tuple[str, Entry]]:
    """Yield the name and the entry of each function. Raises KeyError or struct.error if a tag is missing or cut."""
    (position,) = struct.unpack_from("<Q", data, 0x18)
    (section,) = struct.unpack_from("<Q", data, 0x48)
    (count,) = struct.unpack_from("<I", data, position)
    position += 4
    for _ in range(count):
        (size,) = struct.unpack_from("<I", data, position)  # includes these four bytes
        tags = dict(tags_at(data, position + 4, position + size))
        offset = section + struct.unpack("<3Q", tags[b"OFFT"])[2]  # offsets in three sections; the last has the bitcode
        (length,) = struct.unpack("<Q", tags[b"MDSZ"])
        if offset + length > len(data):
            raise struct.error("bitcode behind the end of the file")
        yield tags[b"NAME"].rstrip(b"\0").decode(), Entry(offset, length, tags[b"HASH"])
        position += size


def tags_at(data: mmap.mmap | bytes, position: int, end: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the tags of a function: four letters, two bytes of length, a value."""
    while position < end and (name := bytes(data[position : position + 4])) != END:
        (length,) = struct.unpack_from("<H", data, position + 4)
        yield name, bytes(data[position + 6 : position + 6 + length])
        position += 6 + length
