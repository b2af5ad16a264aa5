"""Decodes text files: UTF-8 with or without a byte-order mark, or UTF-16 with one."""

from __future__ import annotations

import codecs

from ..errors import InputError

ENCODINGS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
WAY_OUT = "convert it to UTF-8"


def decode_text(content: bytes) -> str:
    """Decode a whole file. Raises `InputError` for other encodings, and for binary files."""
    encoding = ENCODINGS.get(content[:2])
    try:
        text = content[2:].decode(encoding) if encoding else content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = f"{error.reason}, byte {error.start + 1}"
        raise InputError(
            f"not readable as {'UTF-16' if encoding else 'UTF-8'} text ({place})", way_out=WAY_OUT
        ) from error
    require_no_nul(text)
    return text


def require_no_nul(text: str) -> None:
    """Raise `InputError` for a NUL character, which indicates binary data or UTF-16 without a byte-order mark."""
    if (position := text.find("\0")) >= 0:
        raise InputError(
            f"contains a NUL character (character {position + 1}), so it is binary, or UTF-16 without a byte-order "
            "mark",
            way_out=WAY_OUT,
        )
