"""Properties of every format, with functions instead of models. See `speculative_decoding.documents.tokens`."""

from __future__ import annotations

from io import StringIO

from hypothesis import settings
from hypothesis import strategies as st

from speculative_decoding.documents.options import DocumentOptions
from speculative_decoding.documents.pieces import Piece, parts_of
from speculative_decoding.documents.survival import must_survive
from speculative_decoding.documents.tokens import Literal, Text
from tests.documents.decoders import document_with

SMALL = settings(max_examples=60, derandomize=True, deadline=None, database=None)
CHARACTERS = st.one_of(
    st.sampled_from(
        [*" \t.,!?;:\"'()[]{}<>&%#*_-|\\/aAbBéß1", "\n", "\r", "\r\n", "\n\n", "\u2028", "\u0301", "。", "你", "😀"]
    ),
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
)
TEXTS = st.lists(CHARACTERS, max_size=40).map("".join)


def parts_in(text: str, format: str = "text", **options: object) -> list[Literal | Piece]:
    reading = DocumentOptions(format=format, **options)  # type: ignore[arg-type]
    return list(parts_of(StringIO(text, newline=""), reading, "en"))


def swapped(text: str) -> str:
    """Swap the case of letters, unless the other case has another length or the letter must survive.

    Letters that become a mark of code only when they are swapped, as in "[!NOTE]" or "Ab.Cd", keep their case, too.
    """
    kept = surviving(text)
    while True:
        output = "".join(
            each if index in kept or len(each.swapcase()) != 1 else each.swapcase() for index, each in enumerate(text)
        )
        if surviving(output) <= kept:
            return output
        kept |= surviving(output)


def surviving(text: str) -> set[int]:
    return {index for span in must_survive(text, ()) for index in range(span.start, span.end)}


def require_properties(text: str, format: str = "text", *, filled: str | None = None, **options: object) -> None:
    """Check that the joined parts are the document, and that a model changes only the letters of pieces.

    filled: The document of a bilingual format in which each missing target is a copy of its source.
    """
    parts = parts_in(text, format, **options)
    same = text if filled is None else filled
    assert "".join(part.raw for part in parts) == same
    assert document_with(text, str, format, **options) == same
    assert document_with(text, swapped, format, **options) == "".join(map(swapped_part, parts))


def swapped_part(part: Literal | Piece) -> str:
    """Return the expected text for a part if the model swaps cases: only letters of its text change."""
    if isinstance(part, Literal):
        return part.raw
    written, position, output = [], 0, swapped(part.text)
    for token in part.tokens:
        text = output[position : position + len(token.text)]
        if not isinstance(token, Text) or text == token.text:
            text = token.raw
        elif token.raw != token.text:
            text = part.write(text)
        written.append(text)
        position += len(token.text)
    return "".join(written)
