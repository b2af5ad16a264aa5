"""The encodings of documents, and the names by which users and documents select them.

The names follow the WHATWG Encoding standard, simplified: as in browsers, iso-8859-1 selects windows-1252.
"""

from __future__ import annotations

import codecs
import re

from ..checkpoints.text import ENCODINGS
from ..errors import InputError

BYTE_ORDER_MARKS = {codecs.BOM_UTF8: "utf-8", **ENCODINGS}
UNICODE = frozenset(BYTE_ORDER_MARKS.values())
COMPLETE = UNICODE | {"gb18030"}  # encodings that can write every character
# Only stateless encodings, so that the parts of a document can be encoded independently
SUPPORTED = UNICODE | {
    "cp866", "cp874", "cp932", "cp949", "cp950", "euc_jp", "gb18030", "koi8-r", "koi8-u", "mac-cyrillic", "mac-roman",
    *(f"cp{number}" for number in range(1250, 1259)),
    *(f"iso8859-{number}" for number in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)),
}  # fmt: skip
# Python's names for what users and documents name -> the supersets that browsers use
SUPERSETS = {
    "ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874", "tis-620": "cp874",
    "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932", "euc_kr": "cp949", "big5": "cp950",
    "utf-16": "utf-16-le",
}  # fmt: skip
LABELS = {"cp866": "ibm866", "cp932": "shift_jis", "cp949": "euc-kr", "cp950": "big5", "euc_jp": "euc-jp"}
LABELS |= {"mac-cyrillic": "x-mac-cyrillic", "mac-roman": "macintosh"}
NAMES = (
    "utf-8, utf-16-le, utf-16-be, windows-874, windows-1250 to windows-1258, iso-8859-1 to iso-8859-16, ibm866, "
    "koi8-r, koi8-u, macintosh, x-mac-cyrillic, big5, euc-jp, euc-kr, gb18030, shift_jis"
)


def encoding_named(label: str) -> str | None:
    """Return Python's name for a supported encoding, or None for other labels."""
    name = codec_named(label)
    name = SUPERSETS.get(name, name)
    return name if name in SUPPORTED else None


def codec_named(label: str) -> str:
    """Return Python's name for an encoding, or "" if Python has none."""
    plain = re.sub(r"^windows-(?=\d)", "cp", label.strip().lower().removeprefix("x-"))
    try:
        return codecs.lookup(plain).name
    except (LookupError, ValueError):  # ValueError: a NUL character
        return ""


def require_encoding(label: str, option: str) -> str:
    """Return Python's name for an encoding. Raises `InputError` if it is not supported. option: names the encoding."""
    name = encoding_named(label)
    if name is None:
        raise InputError(f"{label} is not supported", option, f"name one of {NAMES}")
    return name


def label_of(name: str) -> str:
    """Return the usual name of an encoding for messages. name: Python's name."""
    if name in UNICODE:
        return name.upper()
    return LABELS.get(name, re.sub("^cp", "windows-", name).replace("iso8859", "iso-8859"))
