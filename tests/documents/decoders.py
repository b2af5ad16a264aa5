"""Decodes documents with a function instead of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from io import StringIO

from speculative_decoding.documents.decoding import Rules, decode_piece
from speculative_decoding.documents.options import DocumentOptions
from speculative_decoding.documents.pieces import Piece, parts_of
from speculative_decoding.documents.rendering import Renderer
from speculative_decoding.documents.results import DecodedPiece
from speculative_decoding.documents.tokens import Literal
from speculative_decoding.rows.parts import Output

Model = Callable[[str], str]
RULES = Rules()


def decode_with(piece: Piece, model: Model, rules: Rules = RULES) -> DecodedPiece:
    """Decode a piece with a function that maps prompts to outputs."""
    steps = decode_piece(piece, rules)
    outputs: list[Output] | None = None
    while True:
        try:
            outputs = [Output(model(prompt)) for prompt in steps.send(outputs)]
        except StopIteration as end:
            decoded = end.value
            return DecodedPiece.from_json(decoded.as_json())  # as a journal stores it


def written_with(parts: Iterable[Literal | Piece], model: Model, rules: Rules = RULES) -> str:
    """Return the document that results from decoding these parts with a function."""
    renderer = Renderer()
    return "".join(
        renderer.add(part, decode_with(part, model, rules) if isinstance(part, Piece) else None) for part in parts
    )


def document_with(text: str, model: Model, format: str = "text", rules: Rules = RULES, **options: object) -> str:
    """Decode a whole document in English."""
    reading = DocumentOptions(format=format, **options)  # type: ignore[arg-type]
    return written_with(parts_of(StringIO(text, newline=""), reading, "en"), model, rules)
