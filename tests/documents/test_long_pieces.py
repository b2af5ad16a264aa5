"""Each step of a long piece takes less than seconds, because other clients of a server wait meanwhile."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest

from speculative_decoding.documents import places
from speculative_decoding.documents.decoding import Rules, decode_piece
from speculative_decoding.documents.options import DocumentOptions
from speculative_decoding.documents.pieces import Piece, parts_of
from speculative_decoding.documents.splitting import LONGEST
from speculative_decoding.rows.parts import Output

CUE = "WEBVTT\n\n00:00:00.000 --> 00:00:01.000\n"
LONG = {
    "words": ("text", "Open the page now " * 10_000 + "\n"),
    "no spaces": ("text", "\u5f00\u6253" * 100_000 + "\n"),
    "placeholders": ("text", "Open %1$s " * 20_000 + "\n"),
    "voices": ("vtt", CUE + "<v Mary>Open " * 10_000 + "\n"),
    "open tags": ("srt", CUE.replace("WEBVTT", "1") + "<i>Open the\n" * 10_000),
    "emphasis": ("markdown", "Open *the* page " * 5_000 + "\n"),
}


@pytest.mark.parametrize(("format", "text"), LONG.values(), ids=LONG)
def test_a_long_piece_is_divided(format: str, text: str) -> None:
    parts = [*parts_of(StringIO(text, newline=""), DocumentOptions(format=format), "en")]
    assert "".join(part.raw for part in parts) == text
    sizes = [len(part.text) for part in parts if isinstance(part, Piece)]
    assert len(sizes) > 2 and LONGEST // 2 < max(sizes) <= LONGEST


def test_few_enclosed_texts_are_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each open tag encloses the rest of its piece. This once took half a minute."""
    calls: list[str] = []

    def counted(text: str) -> bool:
        calls.append(text)
        return False

    monkeypatch.setattr(places, "needs_decoding", counted)
    format, text = LONG["open tags"]
    pieces: Any = (part for part in parts_of(StringIO(text, newline=""), DocumentOptions(format=format), "en"))
    piece = next(part for part in pieces if isinstance(part, Piece))
    steps = decode_piece(piece, Rules(lambda part: len(part) <= 2000))
    prompts = next(steps)
    with pytest.raises(StopIteration):
        steps.send([Output(each, "stop") for each in prompts])
    assert len(piece.marks) > 1000 and len(calls) <= places.MAX_TRIED * len(prompts)
