"""Finds the encoding that an HTML document declares (WHATWG Encoding and HTML standards, simplified)."""

from __future__ import annotations

import codecs
import re

from ..checkpoints.text import WAY_OUT
from ..errors import InputError

HEAD = 1024  # bytes within which a document must declare its encoding
COMMENT = re.compile(rb"<!--.*?(?:-->|\Z)", re.DOTALL)
DECLARED = re.compile(
    rb"""<meta\s[^>]*?\bcharset\s*=\s*["']?\s*([^\s"'/>;]+)|\A\s*<\?xml\s[^>]*?\bencoding\s*=\s*["']([^"']+)""", re.I
)
# Browsers map these labels to supersets. A declaration that is readable as ASCII cannot be in UTF-16.
BROWSER_ENCODINGS = {
    "ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874", "tis-620": "cp874",
    "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932", "euc_kr": "cp949", "big5": "cp950",
    "utf-16": "utf-8", "utf-16-le": "utf-8", "utf-16-be": "utf-8",
}  # fmt: skip
# Stateless encodings, so the parts of a document can be encoded independently
SUPPORTED = {
    "utf-8", "cp866", "cp874", "cp932", "cp949", "cp950", "euc_jp", "gb18030", "koi8-r", "koi8-u", "mac-cyrillic",
    "mac-roman", *(f"cp{number}" for number in range(1250, 1259)), *(f"iso8859-{number}" for number in range(2, 17)),
}  # fmt: skip


def declared_encoding(content: bytes) -> str:
    """Return Python's name for the encoding that the first bytes of a document declare, or "utf-8" by default.

    Raises `InputError` for an unsupported encoding.
    """
    match = DECLARED.search(COMMENT.sub(b"", content[:HEAD]))
    if match is None:
        return "utf-8"
    label = (match[1] or match[2]).decode("latin-1")
    try:
        name = codecs.lookup(re.sub("^windows-", "cp", label.lower().removeprefix("x-"))).name
    except LookupError:
        name = label
    if (name := BROWSER_ENCODINGS.get(name, name)) not in SUPPORTED:
        raise InputError(f"declares the encoding {label}, which is not supported", way_out=WAY_OUT)
    return name
