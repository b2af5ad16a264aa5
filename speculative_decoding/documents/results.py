"""The results of decoding: the outputs for a piece, as stored in a journal, and the results of `Session.document`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..decoding.results import GenerationStats
from .findings import Finding
from .places import Places
from .splitting import Span, gaps


class DecodedText(NamedTuple):
    """The output for a part of a piece.

    places: For each of the part's `marks`, its place in the output, or None if the place was not found.
    """

    text: str
    places: Places


@dataclass(frozen=True)
class DecodedPiece:
    """The output for a piece.

    Args:
        source: The text of the piece.
        spans: The decoded parts of the text. The text between them is copied.
        outputs: The output for each part.
        findings: The findings for the outputs.
        from_memory: Whether the output is the target of an exact match, which was not decoded.
    """

    source: str
    spans: Sequence[Span]
    outputs: Sequence[DecodedText]
    findings: list[Finding] = field(default_factory=list)
    from_memory: bool = False

    @property
    def text(self) -> str:
        """The output, without markup."""
        first, *others = (self.source[start:end] for start, end in gaps(self.spans, len(self.source)))
        return first + "".join(output.text + copied for output, copied in zip(self.outputs, others, strict=True))

    def as_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "spans": [[*span] for span in self.spans],
            "outputs": [[output.text, output.places] for output in self.outputs],
            "findings": [[*finding] for finding in self.findings],
            "from_memory": self.from_memory,
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> DecodedPiece:
        """Create the object from a result of `as_json`. Raises KeyError, TypeError or ValueError for other values."""
        outputs = [
            DecodedText(str(text), [None if place is None else (int(place[0]), int(place[1])) for place in places])
            for text, places in fields["outputs"]
        ]
        spans = [(int(start), int(end)) for start, end in fields["spans"]]
        if len(spans) != len(outputs):
            raise ValueError("a span without an output")
        findings = [Finding(*each) for each in fields["findings"]]
        return cls(str(fields["source"]), spans, outputs, findings, bool(fields["from_memory"]))


class DocumentPart(NamedTuple):
    """A part of a decoded document.

    Args:
        written: The text to write. Joining the `written` text of all parts in order yields the decoded document.
        source: The text of a decoded piece, or None for copied text.
        text: The output for the piece, or None for copied text.
        findings: The findings for the part.
        from_memory: Whether the output is the target of an exact match in the memory, which was not decoded.
    """

    written: str
    source: str | None = None
    text: str | None = None
    findings: tuple[Finding, ...] = ()
    from_memory: bool = False


@dataclass(frozen=True)
class DecodedDocument:
    """A decoded document.

    Args:
        text: The decoded text.
        findings: The findings, sorted by line.
        pieces: The number of pieces.
        stats: The statistics, summed over all prompts. `lossless` is False if some pieces are from the memory.
        matches: How many of the pieces are targets of exact matches in the memory, which were not decoded.
    """

    text: str
    findings: list[Finding]
    pieces: int
    stats: GenerationStats
    matches: int = 0
