"""Unknown tokens of an output that are shown as pieces of the source. See `decoding/unknowns.py`."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


class UnknownToken(int):
    """The id of `<unk>`, with the piece of the source that it translates."""

    def __new__(cls, token: int, piece: str) -> UnknownToken:
        created = super().__new__(cls, token)
        created.piece = piece
        return created

    piece: str


@runtime_checkable
class ReplacingTokenizer(Protocol):
    """A tokenizer whose `decode` returns the text of an `UnknownToken`'s piece."""

    unknown_id: int

    def source_pieces(self, text: str) -> dict[int, str]:
        """Return the pieces of a text by their positions in the result of `encode`. Unknown ones are included."""
