"""Writes text pairs as a TMX 1.4b file, which `tmx.py` and translation programs can read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from ..runs.places import new_file
from ..version import __version__
from .tmx import MAX_TEXT

# XML 1.0 cannot represent control characters, lone surrogates, U+FFFE and U+FFFF.
NOT_XML = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
HEADER = """<?xml version="1.0" encoding="UTF-8"?>
<tmx version="1.4">
<header creationtool="speculative-decoding" creationtoolversion={version} segtype={segment} o-tmf="text"
  adminlang="en" srclang={source} datatype="plaintext"/>
<body>
"""
UNIT = """<tu>
<tuv xml:lang={source}><seg>{}</seg></tuv>
<tuv xml:lang={target}><seg>{}</seg></tuv>
</tu>
"""
END = "</body>\n</tmx>\n"


@contextmanager
def writing_tmx(
    path: Path, source_language: str, target_language: str, segment: str = "sentence", *, replaces: bool = True
) -> Iterator[Callable[[str, str], None]]:
    """Yield a function that adds a pair of texts. The file is created when the block ends without an error.

    A pair is left out if one of its texts is blank or too long for `tmx.py` to read. White space is collapsed, as in
    `tmx.py`.

    Args:
        path: The file.
        source_language: The source language as a value of xml:lang; see `language_tag`.
        target_language: The target language, in the same notation.
        segment: The type of segment: "sentence", "paragraph" or "block".
        replaces: Whether to replace an existing file with different content.

    Raises:
        InputError: The file cannot be written.
    """
    languages = {"source": quoteattr(source_language), "target": quoteattr(target_language)}
    header = HEADER.format(version=quoteattr(__version__), segment=quoteattr(segment), source=languages["source"])
    with new_file(path, "write_memory", "name another file", replaces=replaces) as write:
        write(header.encode())

        def add(source: str, target: str) -> None:
            texts = [segment_of(text) for text in (source, target)]
            if all(0 < len(text) <= MAX_TEXT for text in texts):
                write(UNIT.format(*texts, **languages).encode())

        yield add
        write(END.encode())


def segment_of(text: str) -> str:
    """Return a text as the content of a segment element."""
    return escape(" ".join(NOT_XML.sub(" ", text).split()))
