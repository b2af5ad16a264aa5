"""Decodes a piece and places its markup. If the output lacks a required part, the text around that part is decoded.

No function here runs a model. `decode_piece` is a generator that yields prompts and receives their outputs, so a
session, a server or a test can drive it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, replace

from ..rows.parts import Output
from .findings import CUT, FAILED, LOOP, LOST, MARKUP, MATCH, PARTS, SHOWN, SPLIT, Finding
from .matches import LINE_ENDS, FindMatch, lacking, matched_piece, unplaced_markup, whole_part
from .output_checks import loop_in
from .pieces import Piece, around_tokens, divide
from .places import enclosed_texts, find_places
from .required_parts import lost_characters, lost_parts, required_parts, spans_around
from .results import DecodedPiece, DecodedText
from .splitting import Span, fitting_spans
from .survival import lost_dots, lost_numbers, lost_signs


@dataclass(frozen=True)
class Rules:
    """How pieces are decoded.

    Args:
        fits: Returns whether the model accepts a text as a prompt.
        terms: Terms that must appear unchanged in the output, in addition to what `survival` finds.
        match: Returns a target that is used instead of decoding the text of a piece, or None.
    """

    fits: Callable[[str], bool] = lambda text: True
    terms: Collection[str] = ()
    match: FindMatch = lambda text: None

    def has_match(self, piece: Piece) -> bool:
        """Return whether a piece has a complete match, without decoding the text that its markup encloses."""
        target = self.match(piece.text)
        return target is not None and not lacking(piece, matched_piece(piece, target, {}), self.terms)


Steps = Generator[list[str], list[Output], DecodedPiece]


def decode_piece(piece: Piece, rules: Rules) -> Steps:
    """Decode a piece. Yields lists of prompts, receives their outputs in the same order, and returns a `DecodedPiece`.

    If the output lacks a required part, that part is copied and only the text around it is decoded. If another required
    part is lost this time, all required parts are copied and only the text around them is decoded, so nothing is lost.

    A piece with a complete match (see `matches.py`) is not decoded. Only the text that its markup encloses is decoded,
    if the markup cannot be placed otherwise.
    """
    findings = []
    if (target := rules.match(piece.text)) is not None:
        matched = matched_piece(piece, target, {})
        if unplaced_markup(piece, matched):
            matched = matched_piece(piece, target, (yield from _enclosed_outputs([whole_part(piece)], rules)))
        missing = lacking(piece, matched, rules.terms)
        if not missing:
            return matched
        findings.append(Finding(piece.line, MATCH, ", ".join(missing)))
    spans = fitting_spans(piece.text, rules.fits)
    decoded = yield from _decode_parts(piece, spans, rules)
    if len(spans) > 1:
        what = f"divided into {len(spans)} prompts, because the model does not accept it as one"
        findings.append(Finding(piece.line, SPLIT, what))
    required = required_parts(piece, rules.terms)
    if lost := lost_parts(piece, required, decoded):
        decoded = yield from _decode_parts(piece, spans_around(piece, lost, required, rules.fits), rules)
        if lost_parts(piece, required, decoded):
            decoded = yield from _decode_parts(piece, spans_around(piece, required, required, rules.fits), rules)
        if decoded.spans:
            findings.append(Finding(piece.line, PARTS, piece.text[:SHOWN]))
    numbers = [*lost_numbers(piece.text, decoded.text), *lost_signs(piece.text, decoded.text)]
    if missing := [*numbers, *lost_characters(piece, decoded.text), *lost_dots(piece.text, decoded.text)]:
        findings.append(Finding(piece.line, LOST, ", ".join(dict.fromkeys(missing))))
    return replace(decoded, findings=[*findings, *decoded.findings])


def _decode_parts(piece: Piece, spans: Sequence[Span], rules: Rules) -> Steps:
    """Decode the parts of a piece that these spans cover, and find the places for their markup."""
    spans = around_tokens(piece, spans)
    if not spans:  # nothing is left to decode
        return DecodedPiece(piece.text, [], [])
    parts = [part for part in divide(piece, spans) if isinstance(part, Piece)]
    outputs = yield [part.text for part in parts]
    texts = [
        without_added_stop(LINE_ENDS.sub(" ", output.text).strip(), part.text)
        for part, output in zip(parts, outputs, strict=True)
    ]
    known = yield from _enclosed_outputs(parts, rules)
    decoded, findings = [], []
    for part, output, text in zip(parts, outputs, texts, strict=True):
        if output.error is not None or not text:
            why = output.error or "an empty output"
            findings.append(Finding(part.line, FAILED, f"{why}, so the source was copied: {part.text[:SHOWN]}"))
            decoded.append(DecodedText(part.text, [(mark.start, mark.end) for mark in part.marks]))
            continue
        decoded.append(DecodedText(text, find_places(part, text, known)))
        findings += check(part, output, decoded[-1])
    return DecodedPiece(piece.text, spans, decoded, findings)


def _enclosed_outputs(parts: Sequence[Piece], rules: Rules) -> Generator[list[str], list[Output], dict[str, str]]:
    """Return the output for each text that markup encloses. Yields all of these texts as one list of prompts."""
    wanted = sorted({text for part in parts for text in enclosed_texts(part) if rules.fits(text)})
    return dict(zip(wanted, (output.text for output in (yield wanted)), strict=True)) if wanted else {}


def without_added_stop(output: str, source: str) -> str:
    """Remove a final full stop that the source lacks. Models add one to headings, cells and parts of sentences."""
    is_added = source[-1:].isalnum() and output.endswith(".") and not output.endswith("..")
    return output.removesuffix(".").rstrip() if is_added else output


def check(part: Piece, output: Output, decoded: DecodedText) -> list[Finding]:
    """Return the findings about the output for a part of a piece."""
    found = []
    if output.finish_reason == "length":
        found.append(Finding(part.line, CUT, "the output reached the token limit"))
    if repeated := loop_in(decoded.text, part.text):
        found.append(Finding(part.line, LOOP, repeated))
    for mark, place in zip(part.marks, decoded.places, strict=True):
        if place is None and not mark.is_kept:
            indices = [index for index in (mark.opening, mark.closing) if index is not None]
            found.append(Finding(part.line, MARKUP, " ... ".join(part.tokens[index].raw for index in indices)))
    return found
