"""HTML: the document comes back, only its text changes, and its tags are those that a browser's parser finds."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculative_decoding.documents.html import parse
from speculative_decoding.documents.options import DocumentOptions
from speculative_decoding.documents.tokens import Block, Literal, Part, Text

HTML = DocumentOptions(format="html")


def parts_of(source: str) -> list[Part]:
    return list(parse(source.splitlines(keepends=True), HTML))


def texts_of(source: str) -> list[str]:
    return [part.text for part in parts_of(source) if isinstance(part, Block)]


def swapped(source: str) -> str:
    """Return the document with the letters of its texts swapped: "a" for "A"."""
    return "".join(
        part.raw
        if isinstance(part, Literal)
        else "".join(part.write(t.text.swapcase()) if isinstance(t, Text) else t.raw for t in part.tokens)
        for part in parts_of(source)
    )
