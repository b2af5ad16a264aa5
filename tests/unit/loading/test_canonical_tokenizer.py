"""Conversion writes a tokenizer as one tokenizer.json only if it is proven to be equal."""

from __future__ import annotations

import copy
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from speculative_decoding import InputError
from speculative_decoding.checkpoints import CheckpointError
from speculative_decoding.errors import Note
from speculative_decoding.loading import manifest
from speculative_decoding.loading.canonical_tokenizer import canonical_tokenizer, differences, write_tokenizer
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.loading.tokenizer import FastTokenizer, load_tokenizer, proven_record
from speculative_decoding.loading.tokenizer_base import TOKENIZER_FILES, FolderTokenizer, Vocabulary
from tests.support.tokenizers import FOLDERS, loaded, require_equal

COPIED = {"bartpho", "byt5", "mbart50_added", "mt5", "pile_t5", "t5_added", "t5_once", "m2m_100", "marian"}


def converted(folder: Path, output: Path) -> tuple[Path, list[str]]:
    """Write a folder's tokenizer as conversion does. Returns its folder and the notes."""
    output.mkdir()
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        proven = canonical_tokenizer(folder)
    record = write_tokenizer(folder, proven, output)
    shutil.copyfile(folder / "config.json", output / "config.json")
    manifest.write(output, tokenizer=record)
    return output, [str(each.message) for each in notes if each.category is Note]


@pytest.mark.parametrize("name", FOLDERS)
def test_a_converted_tokenizer_equals_its_source(name: str, tmp_path: Path) -> None:
    """Also its pieces, so that a draft and a target with different files of one tokenizer fit together."""
    output, notes = converted(FOLDERS[name], tmp_path / "converted")
    files = {path.name for path in output.iterdir()} & set(TOKENIZER_FILES)
    assert (files == {"tokenizer.json"} and proven_record(output) is not None) == (name not in COPIED)
    assert any("files are copied" in note for note in notes) == (name in COPIED)
    tokenizer, source = load_tokenizer(output), loaded(FOLDERS[name])
    require_equal(tokenizer, FOLDERS[name])
    assert isinstance(tokenizer, FastTokenizer) or name in COPIED
    assert tokenizer.vocabulary.fingerprint == source.vocabulary.fingerprint


def test_only_proven_folders_are_read_without_the_reference(tmp_path: Path) -> None:
    """A folder that an earlier version converted, or whose tokenizer.json was changed, is read by transformers."""
    folder = converted(FOLDERS["t5_fast"], tmp_path / "converted")[0]
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    text = "He does n't ."
    assert load_tokenizer(folder).decode(load_tokenizer(folder).encode(text)) == "He doesn't."
    record = content.pop("tokenizer")
    path.write_text(json.dumps(content))
    assert load_tokenizer(folder).decode(load_tokenizer(folder).encode(text)) == text  # no file asks for the clean-up
    path.write_text(json.dumps(content | {"tokenizer": record}))
    (folder / "tokenizer.json").write_text((folder / "tokenizer.json").read_text() + " ")
    assert load_tokenizer(folder).decode(load_tokenizer(folder).encode(text)) == text


@pytest.mark.parametrize(
    "record", [{}, {"cleans_up": 1, "strips": False, "ends_once": None}, {"languages": {"form": "(.*)"}}], ids=str
)
def test_a_damaged_record_is_reported(record: dict[str, Any], tmp_path: Path) -> None:
    folder = converted(FOLDERS["bert"], tmp_path / "converted")[0]
    content = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(content | {"tokenizer": record}))
    with pytest.raises(CheckpointError, match="tokenizer"):
        load_tokenizer(folder)


@pytest.mark.parametrize("name", ["t5-web-docs", "t5-web-docs-draft"])
def test_the_tokenizers_of_bundled_models_are_proven(name: str) -> None:
    assert proven_record(BUNDLED / name) is not None


def test_conversion_says_where_two_tokenizers_of_a_folder_differ(tmp_path: Path) -> None:
    _, (note,) = converted(FOLDERS["t5_fast"], tmp_path / "converted")
    assert "tokenizer.json and spiece.model differ, for example in " in note and "tokenizer.json is used" in note


@pytest.mark.parametrize(
    ("name", "changes", "found"),
    [
        ("bert", {}, None),
        ("byt5", {}, None),
        ("bert", {"cleans_up": False}, 'the text "He does'),
        ("nllb", {"languages": {}}, "the languages"),
        ("bert", {"vocabulary": Vocabulary({"[PAD]": 0, "x": 1})}, "token 1: "),
        ("byt5", {"_decode": lambda tokens: str(len(tokens) == 3)}, "the text"),
        ("t5", {"_encode": lambda *_, **__: refuse()}, "the text"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value) if isinstance(value, dict) else "none",
)
def test_a_planted_difference_fails_the_proof(name: str, changes: dict[str, Any], found: str | None) -> None:
    tokenizer = loaded(FOLDERS[name])
    other = copy.copy(tokenizer)
    assert isinstance(tokenizer, FolderTokenizer) and isinstance(other, FolderTokenizer)
    vars(other).update(changes)
    assert (next(differences(tokenizer, other), None) or "").startswith(found or "\n") == (found is not None)


def refuse() -> list[int]:
    raise InputError("planted")


@pytest.mark.parametrize(
    "change", [{"trainer_spec": {"model_type": "CHAR"}}, {"pieces": [{"piece": "<x>", "type": 4}]}]
)
def test_models_that_only_sentencepiece_reads_are_copied(change: dict[str, Any], tmp_path: Path) -> None:
    """Models of characters, and pieces that the user defined."""
    folder = tmp_path / "folder"
    folder.mkdir()
    data = (FOLDERS["t5"] / "spiece.model").read_bytes()
    (folder / "spiece.model").write_bytes(data + ModelProto(**change).SerializeToString())
    shutil.copy(FOLDERS["t5"] / "config.json", folder)
    output, (note,) = converted(folder, tmp_path / "converted")
    assert "the tokenizers package cannot express it" in note
    assert (output / "spiece.model").read_bytes() == (folder / "spiece.model").read_bytes()


def test_a_sentencepiece_model_that_cannot_be_read_does_not_stop_a_conversion(tmp_path: Path) -> None:
    """tokenizer.json is used; the other file is only compared."""
    folder = shutil.copytree(FOLDERS["t5_fast"], tmp_path / "folder")
    (folder / "tokenizer_config.json").write_text('{"sp_model_kwargs": {"enable_sampling": true}}')
    expected = load_tokenizer(folder).encode("The house")
    output, (note,) = converted(folder, tmp_path / "converted")
    assert "'sp_model_kwargs'" in note and "tokenizer.json is used" in note
    assert load_tokenizer(output).encode("The house") == expected
