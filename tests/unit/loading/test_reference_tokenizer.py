"""Tokenizers read by the library that defines their files, against recorded outputs of Hugging Face."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from speculative_decoding import InputError
from speculative_decoding.checkpoints import CheckpointError
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.loading.tokenizer import load_tokenizer
from tests.support.tiny import TOKENIZER
from tests.support.tokenizers import FOLDERS, loaded, require_equal


@pytest.mark.parametrize("name", FOLDERS)
def test_ids_and_texts_are_those_of_hugging_face(name: str) -> None:
    require_equal(loaded(FOLDERS[name]), FOLDERS[name])


def test_code_in_a_folder_is_not_executed(tmp_path: Path) -> None:
    """`auto_map` names a class in a Python file of the folder."""
    for name in ("bart_added", "mt5", "byt5"):
        folder = shutil.copytree(FOLDERS[name], tmp_path / name)
        (folder / "evil.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\nclass Evil: ...\n")
        for file in ("config.json", "tokenizer_config.json"):
            content = json.loads((folder / file).read_text())
            content["auto_map"] = {"AutoTokenizer": [None, "evil.Evil"], "AutoConfig": "evil.Evil"}
            (folder / file).write_text(json.dumps(content))
        require_equal(load_tokenizer(folder), folder)
    assert not (tmp_path / "executed").exists()


def test_a_full_disk_for_temporary_files_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"cannot be copied .*\); free space, or let TMPDIR name another folder$"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("model_type", ["t5", "mbart", "bart"])
def test_a_class_of_another_type_of_model_gives_way_to_the_general_one(model_type: str, tmp_path: Path) -> None:
    """A WordLevel model, which the family's class refuses, or reads as BPE without merges."""
    (tmp_path / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    alone = tokenizers.Tokenizer.from_str(json.dumps(TOKENIZER))
    for text in ("a", "b"):
        assert load_tokenizer(tmp_path).encode(text) == alone.encode(text).ids != []


def test_a_multilingual_class_without_languages_is_refused(tmp_path: Path) -> None:
    """It would translate silently, without a language."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(FOLDERS["t5gemma"] / name, tmp_path / name)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "NllbTokenizer", "extra_special_tokens": []}')
    with pytest.raises(CheckpointError, match="its tokenizer has no language tokens"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("name", "file", "content"),
    [
        ("t5_flags", "added_tokens.json", '{"a": "b"}'),
        ("nllb_bare", "special_tokens_map.json", '{"eos_token": 3}'),
        ("pegasus", "tokenizer_config.json", '{"offset": 1000000000}'),
        ("byt5", "tokenizer_config.json", '{"tokenizer_class": "ByT5Tokenizer", "extra_ids": 9000}'),
        ("t5_added", "tokenizer_config.json", '{"added_tokens_decoder": {"x": {}}}'),
        ("t5_added", "tokenizer_config.json", '{"sp_model_kwargs": {"enable_sampling": true}}'),
        ("bartpho", "dict.txt", "\n\n"),
        ("m2m_100", "vocab.json", "[]"),
        ("marian", "vocab.json", '{"<unk>": "a"}'),
        ("codet5", "vocab.json", '{"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 4, "a": 1000000000}'),
        ("bert", "vocab.txt", "\x80"),
    ],
)
def test_damaged_files_are_refused_in_one_line(name: str, file: str, content: str, tmp_path: Path) -> None:
    folder = shutil.copytree(FOLDERS[name], tmp_path / name)
    (folder / file).write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError, match=re.escape(str(folder))) as error:
        load_tokenizer(folder)
    assert "\n" not in str(error.value)


def test_a_list_of_objects_gives_way_to_the_list_of_tokenizer_config(tmp_path: Path) -> None:
    """As in transformers 5.24, which ignores special_tokens_map.json's list if there is another."""
    folder = shutil.copytree(FOLDERS["bert"], tmp_path / "folder")
    settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    settings.pop("added_tokens_decoder", None)
    (folder / "special_tokens_map.json").write_text('{"additional_special_tokens": [{"content": "<x>"}]}')

    def pieces(**fields: Any) -> set[str]:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings | fields))
        return set(load_tokenizer(folder).vocabulary.pieces.values())

    assert "<x>" in pieces()
    assert "<y>" in (found := pieces(additional_special_tokens=["<y>"])) and "<x>" not in found
    assert "<x>" not in pieces(additional_special_tokens=[])


@pytest.mark.parametrize("extra", [2049, -1])
def test_the_number_of_extra_ids_is_limited(tmp_path: Path, extra: Any) -> None:
    shutil.copyfile(BUNDLED / "t5-web-docs" / "spiece.model", tmp_path / "spiece.model")
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
