"""Decodes a piece and finds the places of its markup. If something that must survive is lost, decodes parts of it.

Nothing here runs a model. `decode_piece` yields prompts and is sent their outputs, so a session, a server or a test can
drive it.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

from . import survival
from .findings import CUT, FAILED, LOOP, MARKUP, SPLIT, Finding
from .loops import loop_in
from .pieces import Piece, around_tokens
from .places import Places, enclosed_texts, find_places
from .splitting import Span, fitting_spans, gaps, needs_decoding

LINE_ENDS = re.compile(r"[\r\n]+")
WORDS = re.compile(r"\w(?:.*\w)?", re.DOTALL)  # from the first to the last letter or digit


class Output(NamedTuple):
    """The output for a prompt. error: the reason if there is no output."""

    text: str
    finish_reason: str = "stop"
    error: str | None = None


@dataclass(frozen=True)
class Rules:
    """How pieces are decoded.

    Args:
        fits: Returns whether the model accepts a text.
        terms: Texts that must survive, in addition to those that `survival` knows.
    """

    fits: Callable[[str], bool] = lambda text: True
    terms: Collection[str] = ()


class DecodedText(NamedTuple):
    """The output for a part of a piece.

    places: The place in the output of each of the part's `marks`, or None for a mark that was not found.
    """

    text: str
    places: Places


@dataclass(frozen=True)
class DecodedPiece:
    """The output for a piece.

    Args:
        source: The text of the piece.
        spans: The parts of the text that were decoded. The text between them is copied.
        outputs: The output for each part.
        findings: What a reader should check.
    """

    source: str
    spans: Sequence[Span]
    outputs: Sequence[DecodedText]
    findings: list[Finding] = field(default_factory=list)

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
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> DecodedPiece:
        """Return the piece that `as_json` described. Raises KeyError, TypeError or ValueError for anything else."""
        outputs = [
            DecodedText(str(text), [None if place is None else (int(place[0]), int(place[1])) for place in places])
            for text, places in fields["outputs"]
        ]
        spans = [(int(start), int(end)) for start, end in fields["spans"]]
        if len(spans) != len(outputs):
            raise ValueError("a span without an output")
        return cls(str(fields["source"]), spans, outputs, [Finding(*each) for each in fields["findings"]])


Steps = Generator[list[str], list[Output], DecodedPiece]


def decode_piece(piece: Piece, rules: Rules) -> Steps:
    """Decode a piece. Yields prompts, is sent their outputs in the same order, and returns the `DecodedPiece`.

    If something that must survive is lost, the parts of the piece around it are decoded, and it is copied between them.
    If they lose something else, the parts around everything that must survive are decoded, so nothing is lost.
    """
    spans = fitting_spans(piece.text, rules.fits)
    decoded = yield from _decode_parts(piece, spans, rules)
    must = must_survive(piece, rules.terms)
    if lost := lost_in(piece, must, decoded):
        decoded = yield from _decode_parts(piece, spans_around(piece, lost, must, rules.fits), rules)
        if lost_in(piece, must, decoded):
            decoded = yield from _decode_parts(piece, spans_around(piece, must, must, rules.fits), rules)
    if len(spans) > 1:
        what = f"divided into {len(spans)} prompts, because the model does not accept it as one"
        decoded = replace(decoded, findings=[Finding(piece.line, SPLIT, what), *decoded.findings])
    return decoded


def _decode_parts(piece: Piece, spans: Sequence[Span], rules: Rules) -> Steps:
    """Decode the parts of a piece at these spans, and find the places of their markup."""
    spans = around_tokens(piece, spans)
    if not spans:  # nothing is left to decode
        return DecodedPiece(piece.text, [], [])
    parts = [part for part in piece.divide(spans) if isinstance(part, Piece)]
    outputs = yield [part.text for part in parts]
    texts = [
        without_added_stop(LINE_ENDS.sub(" ", output.text).strip(), part.text)
        for part, output in zip(parts, outputs, strict=True)
    ]
    wanted = {text for part in parts for text in enclosed_texts(part) if rules.fits(text)}
    known: dict[str, str] = {}
    if wanted:
        ordered = sorted(wanted)
        known = dict(zip(ordered, (output.text for output in (yield ordered)), strict=True))
    decoded, findings = [], []
    for part, output, text in zip(parts, outputs, texts, strict=True):
        if output.error is not None or not text:
            findings.append(Finding(part.line, FAILED, output.error or "the output is empty, so the source was copied"))
            decoded.append(DecodedText(part.text, [(mark.start, mark.end) for mark in part.marks]))
            continue
        decoded.append(DecodedText(text, find_places(part, text, known)))
        findings += check(part, output, decoded[-1])
    return DecodedPiece(piece.text, spans, decoded, findings)


def without_added_stop(output: str, source: str) -> str:
    """Remove the full stop that models add to headings, to cells, and to parts of sentences."""
    is_added = source[-1:].isalnum() and output.endswith(".") and not output.endswith("..")
    return output.removesuffix(".").rstrip() if is_added else output


def check(part: Piece, output: Output, decoded: DecodedText) -> list[Finding]:
    """Return what a reader should check in the output for a part of a piece."""
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


class Fragile(NamedTuple):
    """A part of a piece that must survive: a span of `survival`, a kept text, or a link, whose text may change."""

    start: int
    end: int
    span: survival.Span | None = None
    is_link: bool = False


def must_survive(piece: Piece, terms: Collection[str]) -> list[Fragile]:
    """Return the parts of a piece that must survive, in order. Spans within kept texts are left out."""
    found = [
        Fragile(mark.start, mark.end, is_link=mark.is_link) for mark in piece.marks if mark.is_link or mark.is_kept
    ]
    kept = [(each.start, each.end) for each in found if not each.is_link]
    for span in survival.must_survive(piece.text, terms):
        before = bisect_left(kept, (span.end,)) - 1  # the last one that begins before the end
        if before < 0 or kept[before][1] <= span.start:
            found.append(Fragile(span.start, span.end, span))
    return sorted(found, key=lambda each: each.start)


def lost_in(piece: Piece, must: Sequence[Fragile], decoded: DecodedPiece) -> list[Fragile]:
    """Return the parts that the outputs lack: missing spans, and kept texts and links whose place was not found.

    What was divided between two parts is missing, too.
    """
    found: list[Fragile] = []
    starts = [each.start for each in must]
    parts = (part for part in piece.divide(decoded.spans) if isinstance(part, Piece))
    for part, (start, end), output in zip(parts, decoded.spans, decoded.outputs, strict=True):
        begun = must[bisect_left(starts, start) : bisect_left(starts, end)]
        inside = [each for each in begun if each.end <= end]
        lost = {span for span in survival.lost([each.span for each in inside if each.span], output.text)}
        unplaced = {
            (start + mark.start, start + mark.end)
            for mark, place in zip(part.marks, output.places, strict=True)
            if place is None
        }
        found += [each for each in inside if (each.span in lost if each.span else each[:2] in unplaced)]
        found += [each for each in begun if each.end > end and not each.is_link]
    return found


def spans_around(
    piece: Piece, lost: Sequence[Fragile], must: Sequence[Fragile], fits: Callable[[str], bool]
) -> list[Span]:
    """Return the parts to decode around those that were lost. The text of a link is a part of its own.

    Nothing else that must survive is divided, such as "{name}" or a link to "[1]" at the end of a part. Markup around
    what was lost stays, so its text is divided from the rest.
    """
    text, letters, removed = piece.text, [*piece.text], frozenset(lost)
    for each in must:
        if each not in removed:
            letters[each.start : each.end] = "_" * (each.end - each.start)
    masked = "".join(letters)
    copied = sorted((each.start, each.end) for each in lost if not each.is_link)
    places = sorted(each[:2] for each in lost)
    after = ((mark, bisect_left(places, (mark.start, mark.start))) for mark in piece.marks)
    around = [(mark.start, mark.end) for mark, i in after if i < len(places) and places[i][1] <= mark.end]
    borders = sorted({0, len(text), *(border for span in [*places, *around] for border in span)})
    found: list[Span] = []
    for start, end in pairwise(borders):
        words = WORDS.search(masked, start, end)
        before = bisect_right(copied, (start, len(text))) - 1
        if words is None or (before >= 0 and end <= copied[before][1]):
            continue
        first, last = words.span()
        if needs_decoding(text[first:last]):
            found += [(first + each[0], first + each[1]) for each in fitting_spans(text[first:last], fits)]
    return found
