"""Bare SentencePiece models, with the tokens and languages of their families."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from speculative_decoding.loading.sentencepiece_tokenizer import SentencePieceTokenizer
from speculative_decoding.loading.tokenizer import load_tokenizer
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
