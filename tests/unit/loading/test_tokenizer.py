"""Tokenizers: ids, text, and streamed text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding import InputError
from speculative_decoding.checkpoints import CheckpointError
from speculative_decoding.decoding.prompt import encode_output, output_ids
from speculative_decoding.loading import manifest
from speculative_decoding.loading.canonical_tokenizer import canonical_tokenizer, write_tokenizer
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.loading.pair import require_same_tokens
from speculative_decoding.loading.reference_tokenizer import read_reference
from speculative_decoding.loading.sentencepiece_tokenizer import SentencePieceTokenizer
from speculative_decoding.loading.tokenizer import (
    FastTokenizer,
    StreamingDetokenizer,
    Tokenizer,
    Vocabulary,
    load_tokenizer,
)
from speculative_decoding.loading.tokenizer_base import TOKENIZER_FILES
from tests.support.paths import GOLDENS as GOLDENS_FOLDER
from tests.support.tiny import EOS, OneLanguage, tiny_model

GOLDENS = sorted((GOLDENS_FOLDER / "tokenizers").iterdir())
T5_FAMILY = ("t5", "mt5", "umt5")
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
    fast, reference = load_tokenizer(bundled), read_reference(bundled)
    for text in LINES + ODD:
        ids = fast.encode(text)
        assert ids == reference.encode(text)
        assert fast.decode(ids) == reference.decode(ids)
    assert fast.vocabulary.pieces == reference.vocabulary.pieces


def test_a_bare_sentencepiece_model_gives_the_same_ids(bundled: Path, tmp_path: Path) -> None:
    for name in ("spiece.model", "tokenizer_config.json", "special_tokens_map.json", "config.json"):
        (tmp_path / name).write_bytes((bundled / name).read_bytes())
    bare, fast = load_tokenizer(tmp_path), load_tokenizer(bundled)
    assert isinstance(bare, SentencePieceTokenizer)
    for text in LINES:
        assert bare.encode(text) == fast.encode(text)


def golden_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "golden.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("folder", GOLDENS, ids=lambda folder: folder.name)
def test_each_family_has_the_ids_and_texts_of_hugging_face(folder: Path) -> None:
    """The streamed text must be the same as well. make_tokenizer_goldens.py writes the expected results."""
    tokenizer, golden = load_tokenizer(folder), golden_of(folder)
    assert tokenizer.languages == golden["languages"]
    for each in golden["texts"]:
        assert tokenizer.encode(each["text"], each["language"]) == each["ids"]
        assert tokenizer.encode_output(each["text"]) == each["output_ids"]
        assert tokenizer.decode(each["ids"]) == each["text_of_ids"]
        stream = StreamingDetokenizer(tokenizer)
        assert "".join(map(stream.add, each["ids"])) + stream.finish() == each["text_of_ids"]
    assert {*tokenizer.languages.values()} <= tokenizer.vocabulary.pieces.keys()


@pytest.mark.parametrize("folder", GOLDENS, ids=lambda folder: folder.name)
def test_conversion_copies_the_whole_tokenizer(folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", *TOKENIZER_FILES):
        if (folder / name).is_file():
            shutil.copyfile(folder / name, tmp_path / name)
    copied, original = load_tokenizer(tmp_path), load_tokenizer(folder)
    assert copied.vocabulary.pieces == original.vocabulary.pieces and copied.languages == original.languages
    assert [copied.encode(text) for text in LINES[:5]] == [original.encode(text) for text in LINES[:5]]


@pytest.mark.parametrize("name", ["bart", "mbart", "mbart50", "pegasus", "t5"])
def test_a_draft_with_other_files_of_the_same_tokenizer_has_the_same_pieces(name: str, tmp_path: Path) -> None:
    """For example, distilbart has no tokenizer.json, but bart-large-cnn has one."""
    folder = next(each for each in GOLDENS if each.name == name)
    original = load_tokenizer(folder)
    proven = canonical_tokenizer(folder)
    manifest.write(tmp_path, tokenizer=write_tokenizer(folder, proven, tmp_path))
    fast = load_tokenizer(tmp_path)
    assert isinstance(fast, FastTokenizer) and fast.vocabulary.fingerprint == original.vocabulary.fingerprint
    for each in golden_of(folder)["texts"]:
        assert fast.encode(each["text"], each["language"]) == each["ids"]


@pytest.mark.parametrize("model_type", [*T5_FAMILY, None])
@pytest.mark.parametrize("settings", [None, {"tokenizer_class": "T5Tokenizer"}], ids=["bare", "with its class"])
def test_a_spiece_model_is_enough_for_every_t5(
    model_type: str | None, settings: dict[str, str] | None, tmp_path: Path
) -> None:
    folder = next(each for each in GOLDENS if each.name == "t5")
    shutil.copyfile(folder / "spiece.model", tmp_path / "spiece.model")
    for name, content in (
        ("config.json", model_type and {"model_type": model_type}),
        ("tokenizer_config.json", settings),
    ):
        if content is not None:
            (tmp_path / name).write_text(json.dumps(content))
    tokenizer = load_tokenizer(tmp_path)
    for each in golden_of(folder)["texts"]:
        assert tokenizer.encode(each["text"]) == each["ids"] and tokenizer.decode(each["ids"]) == each["text_of_ids"]


def nllb_with(folder: Path, **settings: Any) -> Tokenizer:
    golden = next(each for each in GOLDENS if each.name == "nllb")
    shutil.copyfile(golden / "tokenizer.json", folder / "tokenizer.json")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "NllbTokenizer", **settings}))
    return load_tokenizer(folder)


def test_settings_define_the_default_language_and_its_place(tmp_path: Path) -> None:
    german = nllb_with(tmp_path).languages["deu_Latn"]
    assert nllb_with(tmp_path, src_lang="deu_Latn").encode("a word")[0] == german
    assert nllb_with(tmp_path, src_lang="deu_Latn", legacy_behaviour=True).encode("a word")[-1] == german
    for src_lang in ("German", ["deu_Latn"]):
        with pytest.raises(CheckpointError, match="unknown src_lang"):
            nllb_with(tmp_path, src_lang=src_lang)


def test_an_unknown_language_is_reported(bundled: Path) -> None:
    nllb = load_tokenizer(next(each for each in GOLDENS if each.name == "nllb"))
    with pytest.raises(InputError, match="language 'de': unknown to this model; choose one of ace_Arab, "):
        nllb.encode("a word", "de")
    with pytest.raises(InputError, match="language 'de': this model has no language tokens"):
        load_tokenizer(bundled).encode("a word", "de")


def test_an_output_has_no_start_token_and_has_an_end() -> None:
    """T5Gemma's tokenizer adds the start token, which the decoder prompt has, and no end token."""
    model = tiny_model(vocab_size=600, decoder_start_token_id=2)
    tokenizer = load_tokenizer(next(each for each in GOLDENS if each.name == "t5gemma"))
    start, *ids = tokenizer.encode_output("the method")
    assert start == 2 and tokenizer.decode(ids) == "the method"
    assert encode_output(model, tokenizer, "the method", "target") == [*ids, EOS]
    assert output_ids(model, tokenizer, "the method", "prefix") == ids and output_ids(model, tokenizer, "", "") == []


def test_streamed_text_is_the_whole_text(bundled: Path) -> None:
    tokenizer = load_tokenizer(bundled)
    for text in LINES + ODD:
        ids = tokenizer.encode(text)
        stream = StreamingDetokenizer(tokenizer)
        assert "".join(stream.add(token) for token in ids) + stream.finish() == tokenizer.decode(ids)


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


@pytest.mark.parametrize("ids", [[0], [68, 0], [0xF3], [0xE7, 0xC0], [68, *[0xE7] * 5]], ids=str)
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


def test_fingerprints_are_equal_if_all_pieces_are() -> None:
    one, same = Vocabulary({"a": 0, "b": 1, "c": 2}), Vocabulary({"c": 2, "b": 1, "a": 0})
    assert one.fingerprint == same.fingerprint and one.pieces == same.pieces
    for other in ({"a": 0, "c": 1, "b": 2}, {"a": 0, "b": 1}, {"a": 0, "b": 1, "c": 3}):
        assert Vocabulary(other).fingerprint != one.fingerprint


def test_a_draft_with_other_tokens_is_refused_with_the_first_difference() -> None:
    target, draft = tiny_model(), tiny_model()
    target.pieces, draft.pieces = Bytes().vocabulary.pieces, Bytes().vocabulary.pieces
    require_same_tokens(target, draft)
    draft.pieces = Vocabulary({"x": 5}).pieces
    with pytest.raises(InputError, match="token 5 is 'x'"):
        require_same_tokens(target, draft)
    with pytest.raises(InputError, match="decoder_start_token_id is 3"):
        require_same_tokens(target, tiny_model(decoder_start_token_id=3))


@pytest.mark.parametrize("extra", [1 << 31, -1, {"a": 1}])
def test_the_number_of_extra_ids_is_limited(bundled: Path, tmp_path: Path, extra: Any) -> None:
    shutil.copyfile(bundled / "spiece.model", tmp_path / "spiece.model")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"extra_ids": extra}))
    with pytest.raises(InputError, match="'extra_ids' must be a whole number, 0 to 2048, not "):
        load_tokenizer(tmp_path)


def test_a_folder_without_a_usable_tokenizer_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no tokenizer found"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match="tokenizer.json: not a readable tokenizer"):
        load_tokenizer(tmp_path)


def test_byt5_needs_no_tokenizer_files(tmp_path: Path) -> None:
    """Its ids are bytes: a fine-tune that was saved without its tokenizer is complete, as for `AutoTokenizer`."""
    (tmp_path / "config.json").write_text('{"model_type": "t5", "tokenizer_class": "ByT5Tokenizer"}')
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("aé") == [97 + 3, 0xC3 + 3, 0xA9 + 3, 1]
    assert tokenizer.decode([97 + 3, 0xC3 + 3, 0xA9 + 3, 1]) == "aé"


@pytest.mark.parametrize("token", [-1, 1 << 40])
def test_ids_that_the_library_refuses_give_one_line(token: int) -> None:
    with pytest.raises(InputError, match="tokenizer: cannot decode these tokens"):
        load_tokenizer(BUNDLED / "t5-web-docs").decode([3, token])
