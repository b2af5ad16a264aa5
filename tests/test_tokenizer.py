"""Ids, text, and text that streams."""

from __future__ import annotations

from pathlib import Path

import pytest

from speculative_decoding import InputError
from speculative_decoding.drafters.draft_model import require_same_tokens
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.loading.tokenizer import (
    StreamingDetokenizer,
    TransformersTokenizer,
    Vocabulary,
    load_tokenizer,
)
from tests.tiny import tiny_model

DATA = BUNDLED.parent / "data"
LINES = [line for path in sorted(DATA.glob("*.txt")) for line in path.read_text(encoding="utf-8").split("\n")[:40]]
ODD = [
    "",
    " ",
    "  two  spaces ",
    "naïve café — Ärger über Größe",
    "emoji 🎉 and 漢字",
    "<extra_id_0> end </s>",
    "a\tb\nc",
]


@pytest.fixture(scope="module")
def bundled() -> Path:
    return BUNDLED / "t5-web-docs"


def test_ids_are_those_of_transformers(bundled: Path) -> None:
    fast, reference = load_tokenizer(bundled), TransformersTokenizer(bundled)
    for text in LINES + ODD:
        ids = fast.encode(text)
        assert ids == reference.encode(text)
        assert fast.decode(ids) == reference.decode(ids)
    assert fast.vocabulary.first_difference(reference.vocabulary) is None


def test_a_bare_sentencepiece_model_gives_the_same_ids(bundled: Path, tmp_path: Path) -> None:
    for name in ("spiece.model", "tokenizer_config.json", "special_tokens_map.json", "config.json"):
        (tmp_path / name).write_bytes((bundled / name).read_bytes())
    bare, fast = load_tokenizer(tmp_path), load_tokenizer(bundled)
    assert isinstance(bare, TransformersTokenizer)
    for text in LINES:
        assert bare.encode(text) == fast.encode(text)


def test_streamed_text_is_the_whole_text(bundled: Path) -> None:
    tokenizer = load_tokenizer(bundled)
    for text in LINES + ODD:
        ids = tokenizer.encode(text)
        stream = StreamingDetokenizer(tokenizer)
        assert "".join(stream.add(token) for token in ids) + stream.finish() == tokenizer.decode(ids)


class Bytes:
    """ByT5's way: id = byte + 3. Characters of several bytes arrive in pieces."""

    vocabulary = Vocabulary({})

    def encode(self, text: str) -> list[int]:
        return [byte + 3 for byte in text.encode()] + [1]

    def decode(self, tokens) -> str:  # type: ignore[no-untyped-def]
        return bytes(token - 3 for token in tokens if token >= 3).decode("utf-8", errors="replace")


def test_a_stream_never_shows_half_a_character() -> None:
    text = "Größe 🎉👩‍👩‍👧 漢字"
    stream = StreamingDetokenizer(Bytes())
    pieces = [stream.add(token) for token in Bytes().encode(text)] + [stream.finish()]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_character_cut_off_at_the_end_is_given_at_the_end() -> None:
    stream = StreamingDetokenizer(Bytes())
    tokens = Bytes().encode("ab🎉")[:-2]
    assert "".join(map(stream.add, tokens)) == "ab"
    assert stream.finish() == "\ufffd"


def test_vocabularies_are_compared_piece_by_piece() -> None:
    one, same = Vocabulary({"a": 0, "b": 1, "c": 2}), Vocabulary({"c": 2, "b": 1, "a": 0})
    assert one.first_difference(same) is None
    assert one.first_difference(Vocabulary({"a": 0, "c": 1, "b": 2})) == (1, "b", "c")
    assert one.first_difference(Vocabulary({"a": 0, "b": 1})) == (2, "c", None)


def test_a_draft_with_other_tokens_is_refused_with_the_first_that_differs() -> None:
    target, draft = tiny_model(), tiny_model()
    target.pieces, draft.pieces = Bytes().vocabulary.pieces, Bytes().vocabulary.pieces
    require_same_tokens(target, draft)
    draft.pieces = Vocabulary({"x": 5}).pieces
    with pytest.raises(InputError, match="token 5 is 'x'"):
        require_same_tokens(target, draft)
    with pytest.raises(InputError, match="decoder_start_token_id is 3"):
        require_same_tokens(target, tiny_model(decoder_start_token_id=3))


def test_a_folder_without_a_usable_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no tokenizer found"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match="tokenizer.json: not a readable tokenizer"):
        load_tokenizer(tmp_path)
