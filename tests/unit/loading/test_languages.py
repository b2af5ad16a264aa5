"""The language tokens of NLLB-200, M2M-100 and mBART."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding import InputError
from speculative_decoding.checkpoints import CheckpointError
from speculative_decoding.loading.tokenizer import Tokenizer, load_tokenizer
from tests.support.tokenizers import FOLDERS, loaded


def nllb_with(folder: Path, **settings: Any) -> Tokenizer:
    shutil.copyfile(FOLDERS["nllb"] / "tokenizer.json", folder / "tokenizer.json")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "NllbTokenizer", **settings}))
    return load_tokenizer(folder)


def test_settings_define_the_default_language_and_its_place(tmp_path: Path) -> None:
    german = nllb_with(tmp_path).languages["deu_Latn"]
    assert nllb_with(tmp_path, src_lang="deu_Latn").encode("a word")[0] == german
    assert nllb_with(tmp_path, src_lang="deu_Latn", legacy_behaviour=True).encode("a word")[-1] == german
    for src_lang in ("German", ["deu_Latn"]):
        with pytest.raises(CheckpointError, match="unknown src_lang"):
            nllb_with(tmp_path, src_lang=src_lang)


@pytest.mark.parametrize(
    ("name", "message"),
    [("nllb", "unknown to this model; choose one of ace_Arab, "), ("t5", "this model has no language tokens")],
)
def test_an_unknown_language_is_reported(name: str, message: str) -> None:
    with pytest.raises(InputError, match=f"language 'de': {message}"):
        loaded(FOLDERS[name]).encode("a word", "de")
