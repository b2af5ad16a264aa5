"""The encoding that a gettext catalog declares. Unlike browsers, gettext maps no encoding to a superset."""

from __future__ import annotations

import re

from .encodings import SUPPORTED, codec_named

HEAD = 1 << 16  # bytes within which a catalog must declare its encoding; long comments may precede the header
# White space is matched only once, because blank lines or a string may be as long as the catalog
HEADER = re.compile(r"""(?<![^\n\r])[^\S\n\r]*+msgid\s++""\s++msgstr\s++(?:"[^\n\r]*+\s*+)++""")
CHARSET = re.compile(r"""(\bContent-Type:[^"\\]{,200}?\bcharset=)([^\s"\\;]++)""", re.IGNORECASE)
PLACEHOLDER = "CHARSET"  # in a template
OTHERS = {
    "ascii", "iso8859-1", "iso8859-9", "iso8859-11", "cp850", "gb2312", "gbk", "euc_kr", "johab", "shift_jis", "big5",
    "big5hkscs", "tis-620",
}  # fmt: skip


def charset_in(content: bytes) -> str | None:
    """Return the charset in the header of a catalog, which may be `PLACEHOLDER`. content: its first bytes."""
    header = HEADER.search(content[:HEAD].decode("latin-1"))
    found = header and CHARSET.search(header[0])
    return found[2] if found else None


def encoding_of(charset: str) -> str | None:
    """Return Python's name for the encoding, or None if it is not supported."""
    name = codec_named(charset)
    return name if name in SUPPORTED | OTHERS and not name.startswith("utf-16") else None


def with_charset(text: str, encoding: str) -> str:
    """Return a part of a catalog with another charset if it contains the header. encoding: Python's name."""
    charset = encoding.upper().replace("ISO8859", "ISO-8859").replace("_", "-")
    return HEADER.sub(lambda header: CHARSET.sub(rf"\g<1>{charset}", header[0], count=1), text, count=1)
