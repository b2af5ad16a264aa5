"""The results of `Session.document` and `Session.document_parts`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..decoding.results import GenerationStats
from .findings import Finding


class DocumentPart(NamedTuple):
    """A part of a decoded document.

    Args:
        written: The text to write. Joined in order, the `written` texts of all parts are the decoded document.
        source: The text of a decoded piece, or None for copied text.
        text: The output for the piece, or None for copied text.
        findings: The findings about the part.
    """

    written: str
    source: str | None = None
    text: str | None = None
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class DecodedDocument:
    """A decoded document.

    Args:
        text: The decoded text.
        findings: The findings, sorted by line.
        pieces: The number of pieces that were decoded.
        stats: The statistics, summed over all prompts.
    """

    text: str
    findings: list[Finding]
    pieces: int
    stats: GenerationStats
