"""Bare SentencePiece models, with the tokens and languages of their families."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding import InputError
from speculative_decoding.loading import language_codes
from speculative_decoding.loading.sentencepiece_tokenizer import SentencePieceTokenizer
from speculative_decoding.loading.tokenizer import Tokenizer, load_tokenizer
from tests.support.tokenizers import FOLDERS, require_equal

T5_FAMILY = ("t5", "mt5", "umt5")


@pytest.mark.parametrize("model_type", [*T5_FAMILY, None])
@pytest.mark.parametrize("settings", [None, {"tokenizer_class": "T5Tokenizer"}], ids=["bare", "with its class"])
def test_a_spiece_model_is_enough_for_every_t5(
    model_type: str | None, settings: dict[str, str] | None, tmp_path: Path
) -> None:
    shutil.copyfile(FOLDERS["t5"] / "spiece.model", tmp_path / "spiece.model")
    for name, content in (
        ("config.json", model_type and {"model_type": model_type}),
        ("tokenizer_config.json", settings),
    ):
        if content is not None:
            (tmp_path / name).write_text(json.dumps(content))
    tokenizer = load_tokenizer(tmp_path)
    assert isinstance(tokenizer, SentencePieceTokenizer)
    require_equal(tokenizer, FOLDERS["t5"])


def test_older_added_tokens_leave_the_languages_of_m2m_100_alone(tmp_path: Path) -> None:
    """Its languages follow vocab.json, whatever ids other tokens have (`M2M100Tokenizer.get_lang_id`)."""
    folder = shutil.copytree(FOLDERS["m2m_100"], tmp_path / "folder")
    before = load_tokenizer(folder)
    size = max(before.vocabulary.pieces) + 1
    (folder / "added_tokens.json").write_text(json.dumps({"<new>": size}))
    tokens = {"additional_special_tokens": [f"__{code}__" for code in before.languages]}
    (folder / "special_tokens_map.json").write_text(json.dumps(tokens))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "M2M100Tokenizer"}')
    assert load_tokenizer(folder).languages == before.languages


def changed(name: str, folder: Path, **settings: Any) -> Tokenizer:
    """Load a tokenizer with some fields of tokenizer_config.json changed."""
    shutil.copytree(FOLDERS[name], folder)
    path = folder / "tokenizer_config.json"
    found = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    path.write_text(json.dumps(found | settings))
    return load_tokenizer(folder)


@pytest.mark.parametrize("name", ["mbart", "mbart50_added", "bartpho"])
def test_a_mask_absorbs_the_space_on_its_left(name: str, tmp_path: Path) -> None:
    tokenizer = changed(name, tmp_path / "folder", mask_token="<mask>")
    assert tokenizer.encode("the <mask> house") == tokenizer.encode("the<mask> house")


def test_a_word_is_a_token_only_between_spaces(tmp_path: Path) -> None:
    word = {"8100": {"content": "WORD", "single_word": True}}
    tokenizer = changed("t5", tmp_path / "folder", added_tokens_decoder=word, tokenizer_class="T5Tokenizer")
    found = [8100 in tokenizer.encode(text) for text in ("a WORD b", "WORD", "aWORD b", "a WORDb", "aWORDb")]
    assert found == [True, True, False, False, False]


def test_tokens_may_have_names(tmp_path: Path) -> None:
    """transformers 5 writes them so."""
    named = changed("t5", tmp_path / "named", extra_special_tokens={"a": "<x>", "b": "<y>"})
    listed = changed("t5", tmp_path / "listed", extra_special_tokens=["<x>", "<y>"])
    assert named.vocabulary.fingerprint == listed.vocabulary.fingerprint
    assert {"<x>", "<y>"} <= {*named.vocabulary.pieces.values()}


@pytest.mark.parametrize("given", [[], ["<x>"], ["<mask_1>", "<x>"]], ids=str)
def test_given_tokens_of_pegasus_have_ids_below_its_pieces(given: list[str], tmp_path: Path) -> None:
    usual = {piece: token for token, piece in changed("pegasus", tmp_path / "usual").vocabulary.pieces.items()}
    tokenizer = changed("pegasus", tmp_path / "given", additional_special_tokens=given)
    ids = {piece: token for token, piece in tokenizer.vocabulary.pieces.items()}
    pieces = [piece for piece in usual if piece.startswith("▁")]
    assert pieces and [ids[piece] for piece in pieces] == [usual[piece] for piece in pieces]


@pytest.mark.parametrize("adds_space", [True, False])
def test_a_text_is_kept_with_and_without_a_space_before_it(adds_space: bool, tmp_path: Path) -> None:
    tokenizer = changed("t5", tmp_path / "folder", legacy=False, add_prefix_space=adds_space)
    text = "The house is wonderful"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.vocabulary.pieces[tokenizer.encode(text)[0]].startswith("▁") == adds_space


def test_a_bare_nllb_has_its_languages(tmp_path: Path) -> None:
    """Its `model_type` is that of M2M-100, which has a vocab.json."""
    shutil.copy(FOLDERS["nllb_bare"] / "sentencepiece.bpe.model", tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "m2m_100"}')
    tokenizer = load_tokenizer(tmp_path)
    assert [*tokenizer.languages] == language_codes.NLLB
    assert tokenizer.encode("a", "deu_Latn")[0] == tokenizer.languages["deu_Latn"]


@pytest.mark.parametrize(
    ("name", "settings", "problem"),
    [
        ("marian", {"separate_vocabs": True}, "'separate_vocabs' of its tokenizer_config.json is not supported"),
        (
            "t5",
            {"extra_ids": 5, "additional_special_tokens": ["<extra_id_0>"]},
            "'extra_ids' is 5, but 1 of the",
        ),
    ],
)
def test_settings_that_cannot_be_followed_are_refused(
    name: str, settings: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=problem):
        changed(name, tmp_path / "folder", **settings)
