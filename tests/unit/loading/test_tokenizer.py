"""Tokenizers: the text of ids that arrive one at a time is the text of all ids."""

from __future__ import annotations

import copy
import random

import pytest

from speculative_decoding import InputError
from speculative_decoding.decoding.prompt import encode_output, output_ids
from speculative_decoding.loading.canonical_tokenizer import HARD_TEXTS
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.loading.reference_tokenizer import read_reference
from speculative_decoding.loading.tokenizer import StreamingDetokenizer
from speculative_decoding.loading.tokenizer_base import MAX_IDS, FolderTokenizer
from tests.support.tiny import EOS, OneLanguage, tiny_model
from tests.support.tokenizers import FOLDERS, loaded

DATA = BUNDLED.parent / "data"
LINES = [line for path in sorted(DATA.glob("*.txt")) for line in path.read_text(encoding="utf-8").split("\n")[:40]]


def test_the_bundled_tokenizer_equals_its_reference() -> None:
    fast, reference = loaded(BUNDLED / "t5-web-docs"), read_reference(BUNDLED / "t5-web-docs")
    for text in [*LINES, *HARD_TEXTS]:
        ids = fast.encode(text)
        assert ids == reference.encode(text)
        assert fast.decode(ids) == reference.decode(ids)
    assert fast.vocabulary.pieces == reference.vocabulary.pieces


@pytest.mark.parametrize("name", FOLDERS)
def test_streamed_text_is_the_text_of_all_ids(name: str) -> None:
    """For any ids, also invalid bytes, spaces and the tokens that the clean-up concerns."""
    tokenizer = copy.copy(loaded(FOLDERS[name]))
    assert isinstance(tokenizer, FolderTokenizer)
    tokenizer.cleans_up = True
    pieces = tokenizer.vocabulary.pieces
    tricky = [token for token, piece in pieces.items() if len(piece) < 3 or piece.startswith(("<0x", "</", "zahl"))]
    rng = random.Random(name)
    for size in (1, 2, 3, 10, 30, 100):
        for choices in (list(pieces), tricky, list(pieces) + tricky * 3, rng.choices(tricky, k=2)):
            for _ in range(4):
                ids = rng.choices(choices, k=size)
                stream = StreamingDetokenizer(tokenizer)
                assert "".join(map(stream.add, ids)) + stream.finish() == tokenizer.decode(ids)


def test_an_output_has_no_start_token_and_has_an_end() -> None:
    """T5Gemma's tokenizer adds the start token, which the decoder prompt has, and no end token."""
    model = tiny_model(vocab_size=600, decoder_start_token_id=2)
    tokenizer = loaded(FOLDERS["t5gemma"])
    start, *ids = tokenizer.encode_output("the method")
    assert start == 2 and tokenizer.decode(ids) == "the method"
    assert encode_output(model, tokenizer, "the method", "target") == [*ids, EOS]
    assert output_ids(model, tokenizer, "the method", "prefix") == ids and output_ids(model, tokenizer, "", "") == []


class Bytes(OneLanguage):
    """A tokenizer like ByT5's: id = byte + 3. A character may have several ids."""

    def encode(self, text: str, language: str | None = None) -> list[int]:
        return [byte + 3 for byte in text.encode()] + [1]

    def decode(self, tokens) -> str:  # type: ignore[no-untyped-def]
        return bytes(token - 3 for token in tokens if token >= 3).decode("utf-8", errors="replace")


class Pairs(OneLanguage):
    """A tokenizer whose ids are two bytes each, so that an id may end within a character."""

    def encode(self, text: str, language: str | None = None) -> list[int]:
        return [int.from_bytes(pair) for pair in zip(*[iter(text.encode())] * 2, strict=False)]

    def decode(self, tokens) -> str:  # type: ignore[no-untyped-def]
        return b"".join(token.to_bytes(2) for token in tokens).decode("utf-8", errors="replace")


@pytest.mark.parametrize("text", ["Größe 🎉👩‍👩‍👧 漢字", " Größe 🎉👩‍👩‍👧 漢字."])
@pytest.mark.parametrize("tokenizer", [Bytes(), Pairs()], ids=["bytes", "pairs of bytes"])
def test_a_stream_never_shows_an_incomplete_character(tokenizer: OneLanguage, text: str) -> None:
    stream = StreamingDetokenizer(tokenizer)
    pieces = [stream.add(token) for token in tokenizer.encode(text + " " * (len(text.encode()) % 2))]
    assert "".join([*pieces, stream.finish()]).rstrip() == text.rstrip()
    assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("ids", [[0], [68, 0], [0xF3], [68, *[0xE7] * 5]], ids=str)
def test_ids_without_text_take_linear_time(ids: list[int]) -> None:
    """Special tokens, and bytes that no later id makes a character."""

    class Counting(Bytes):
        decoded = 0

        def decode(self, tokens) -> str:  # type: ignore[no-untyped-def]
            self.decoded += len(tokens)
            return super().decode(tokens)

    tokenizer = Counting()
    stream = StreamingDetokenizer(tokenizer)
    many = [*ids, *ids[1:] * 50, *ids[-1:] * 2000]
    assert "".join(map(stream.add, many)) + stream.finish() == Bytes().decode(many)
    assert tokenizer.decoded < 100 * len(many)


def test_an_incomplete_last_character_is_returned_by_finish() -> None:
    stream = StreamingDetokenizer(Bytes())
    tokens = Bytes().encode("ab🎉")[:-2]
    assert "".join(map(stream.add, tokens)) == "ab"
    assert stream.finish() == "\ufffd"


def test_an_id_that_is_too_large_is_refused() -> None:
    """`tokenizers` allocates memory for each id below it."""
    with pytest.raises(InputError, match=f"tokenizer: the id {MAX_IDS} is too large"):
        PlainTokenizer({"a": 0, "b": MAX_IDS}, None, False)


class PlainTokenizer(FolderTokenizer):
    def _encode(self, text: str, *, add_special_tokens: bool, as_output: bool = False) -> list[int]:
        return []

    def _decode(self, tokens: list[int]) -> str:
        raise KeyboardInterrupt


def test_ctrl_c_is_not_an_error_of_a_tokenizer() -> None:
    with pytest.raises(KeyboardInterrupt):
        PlainTokenizer({"a": 0}, None, False).decode([0])


@pytest.mark.parametrize("token", [-1, 1 << 40])
def test_ids_that_the_library_refuses_give_one_line(token: int) -> None:
    with pytest.raises(InputError, match="tokenizer: cannot decode these tokens"):
        loaded(BUNDLED / "t5-web-docs").decode([3, token])
