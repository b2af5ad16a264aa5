"""The results of `Session.document` and `Session.document_parts`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..decoding.results import GenerationStats
from .findings import Finding


class DocumentPart(NamedTuple):
    """A part of a decoded document.

    Args:
        written: The text for the decoded document. Joining those of all parts in order gives the document.
        source: The text of a piece that was decoded; None for what was copied.
        text: Its output.
        findings: What a reader should check.
    """

    written: str
    source: str | None = None
    text: str | None = None
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class DecodedDocument:
    """A decoded document.

    Args:
        text: The document.
        findings: What a reader should check, by line.
        pieces: The number of pieces that were decoded.
        stats: The sum over all prompts.
    """

    text: str
    findings: list[Finding]
    pieces: int
    stats: GenerationStats
