"""Documents in Python: `Session.document` and `Session.document_pieces`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Unpack

from ..decoding.prompt import fits
from ..decoding.results import GenerationStats
from ..sampling import GenerationOptions
from ..sampling.keywords import OptionKeywords
from ..sampling.options import validate
from ..sampling.values import Text
from ..session import Session
from .decoding import Rules
from .findings import Finding
from .options import DocumentOptions
from .pieces import Piece, parts_of
from .reading import lines_of
from .rendering import Renderer
from .scheduler import PieceScheduler, decode_parts
from .splitting import source_language
from .survival import LengthRatios


class DocumentPart(NamedTuple):
    """A part of a decoded document.

    Args:
        written: What the document has in its place. All of them, joined in order, are the document.
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


def rules_for(session: Session, options: GenerationOptions, prefix: str = "", keep: Collection[str] = ()) -> Rules:
    """Return how a session decodes pieces. keep: terms that must survive."""
    return Rules(lambda text: fits(session.model, session.tokenizer, prefix + text, options), keep)


def document(
    session: Session,
    text: str,
    *,
    prefix: str = "",
    keep: Collection[str] = (),
    slots: int | None = None,
    reading: DocumentOptions = DocumentOptions(),  # noqa: B008
    **options: Unpack[OptionKeywords],
) -> DecodedDocument:
    """Decode a document: its sentences, many together, each as it decodes alone.

    Args:
        text: The document.
        prefix: Text to put before every prompt, such as "translate English to German: ".
        keep: Terms that must appear unchanged in the output.
        slots: How many prompts are decoded together (default: the session's).
        reading: The document's format, and how it is divided.
        options: See `GenerationOptions`.

    Raises:
        InputError: The document cannot be read, or an option cannot be used.
    """
    scheduler, parts = prepared(session, text, prefix, keep, slots, reading, options)
    written, findings, ratios = [], [], LengthRatios()
    for part in decoded_parts(scheduler, parts, ratios):
        written.append(part.written)
        findings += part.findings
    findings = sorted([*findings, *ratios.outliers()])
    return DecodedDocument("".join(written), findings, scheduler.pieces, scheduler.stats)
