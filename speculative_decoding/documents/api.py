"""Documents in Python: `Session.document` and `Session.document_pieces`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from io import StringIO
from typing import Any, Unpack

from ..decoding.prompt import fits, require_characters
from ..sampling import GenerationOptions
from ..sampling.options import validate
from ..sampling.values import ListOf, Text
from ..session import Session
from .decoding import Rules
from .findings import Finding
from .keywords import DocumentKeywords
from .lengths import LengthRatios
from .options import DocumentOptions
from .pieces import Piece, parts_of
from .rendering import Renderer
from .results import DecodedDocument, DocumentPart
from .scheduler import PieceScheduler, decode_parts
from .splitting import effective_unit, source_language
from .tokens import Literal

OWN = ("prefix", "keep", "slots")
READING = ("format", "unit", "unwrap", "fields")


def rules_for(session: Session, options: GenerationOptions, prefix: str = "", keep: Collection[str] = ()) -> Rules:
    """Return how a session decodes pieces. keep: terms that must survive."""
    return Rules(lambda text: fits(session.model, session.tokenizer, prefix + text, options), frozenset(keep))


def document(session: Session, text: str, **options: Unpack[DocumentKeywords]) -> DecodedDocument:
    """Decode a document: its sentences, many together, each as it decodes alone.

    Args:
        text: The document.
        options: `prefix` is put before every prompt. `keep` are terms that must appear unchanged in the output.
            `slots` are the prompts that are decoded together (default: the session's). `format`, `unit`, `unwrap` and
            `fields` are those of `DocumentOptions`, all others those of `GenerationOptions`.

    Raises:
        InputError: The document cannot be read, or an option cannot be used.
    """
    scheduler, parts = prepared(session, text, **options)
    written: list[str] = []
    findings: list[Finding] = []
    ratios = LengthRatios()
    for part in decoded_parts(scheduler, parts, ratios):
        written.append(part.written)
        findings += part.findings
    found = sorted([*findings, *ratios.outliers()])
    return DecodedDocument("".join(written), found, scheduler.pieces, scheduler.stats)


def document_parts(session: Session, text: str, **options: Unpack[DocumentKeywords]) -> Iterator[DocumentPart]:
    """Like `document`, but yield each part as soon as it and all parts before it are decoded.

    Arguments are checked in this call. Findings about unusual lengths, which need the whole document, are left out.
    """
    return decoded_parts(*prepared(session, text, **options))


def prepared(
    session: Session, text: str, **options: Unpack[DocumentKeywords]
) -> tuple[PieceScheduler, Iterator[Literal | Piece]]:
    """Return a scheduler for a document, and its parts. Raises `InputError`."""
    text = validate("text", Text(may_be_empty=True), text)
    require_characters(text, "text")
    decoding: dict[str, Any] = {**options}
    own = {name: decoding.pop(name) for name in (*OWN, *READING) if name in decoding}
    given = {name: own[name] for name in READING if own.get(name) is not None}
    reading = DocumentOptions(**{"format": "text"} | given)
    prefix = validate("prefix", Text(may_be_empty=True), own.get("prefix", ""))
    keep = validate("keep", ListOf(Text()), own.get("keep", ()))
    chosen = session.options_with(decoding)
    reading = replace(reading, unit=effective_unit(reading))
    language = source_language(chosen.src_lang, prefix)
    rules = rules_for(session, chosen, prefix, keep)
    scheduler = PieceScheduler(session, rules, prefix=prefix, slots=own.get("slots"), **decoding)
    return scheduler, parts_of(StringIO(text, newline=""), reading, language)


def decoded_parts(
    scheduler: PieceScheduler, parts: Iterator[Literal | Piece], ratios: LengthRatios | None = None
) -> Iterator[DocumentPart]:
    """Decode the parts of a document. ratios: collects the lengths of its pieces."""
    renderer = Renderer()
    for part, decoded in decode_parts(scheduler, parts):
        written = renderer.add(part, decoded)
        if not isinstance(part, Piece) or decoded is None:
            yield DocumentPart(written)
            continue
        if ratios is not None:
            ratios.add(part.line, decoded.source, decoded.text)
        yield DocumentPart(written, decoded.source, decoded.text, tuple(decoded.findings))
