"""Tokenizers whose files are easily misread, against recorded outputs of Hugging Face."""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import re
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from speculative_decoding import InputError
from speculative_decoding.checkpoints import CheckpointError
from speculative_decoding.decoding.text_streamer import TextStreamer
from speculative_decoding.errors import Note
from speculative_decoding.loading import canonical_tokenizer as conversion
from speculative_decoding.loading import manifest
from speculative_decoding.loading.clean_up import StreamedCleanUp, clean_up
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.loading.tokenizer import (
    FastTokenizer,
    StreamingDetokenizer,
    Tokenizer,
    load_tokenizer,
)
from speculative_decoding.loading.tokenizer_base import TOKENIZER_FILES, FolderTokenizer
from tests.support.paths import GOLDENS
from tests.support.tiny import TOKENIZER

FOLDERS = sorted((GOLDENS / "hard_tokenizers").iterdir())
ALL = [*FOLDERS, *sorted((GOLDENS / "tokenizers").iterdir())]
PROVEN = {"codet5", "nllb_bare", "t5_flags", "bert", "bart_added", "t5_fast", "mbart50_fast"}
name_of = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)


def named(name: str) -> Path:
    return next(folder for folder in ALL if folder.name == name)


def require_equal(tokenizer: Tokenizer, folder: Path) -> None:
    """Compare with golden.json, which make_hard_tokenizers.py writes."""
    golden = json.loads((folder / "golden.json").read_text(encoding="utf-8"))
    for text, ids, output_ids, text_of_ids in golden["texts"]:
        assert tokenizer.encode(text) == ids
        assert output_ids is None or tokenizer.encode_output(text) == output_ids
        assert tokenizer.decode(ids) == text_of_ids
    for ids, text in golden["decoded"]:
        assert tokenizer.decode(ids) == text
    if golden["language"] is not None:
        language, ids = golden["language"]
        assert tokenizer.encode(golden["texts"][3][0], language) == ids


def converted(folder: Path, output: Path) -> tuple[Path, list[str]]:
    """Write a folder's tokenizer as conversion does. Returns its folder and the notes."""
    output.mkdir()
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        proven = conversion.canonical_tokenizer(folder)
    record = conversion.write_tokenizer(folder, proven, output)
    shutil.copyfile(folder / "config.json", output / "config.json")
    manifest.write(output, tokenizer=record)
    return output, [str(each.message) for each in notes if each.category is Note]


@name_of
def test_ids_and_texts_are_those_of_hugging_face(folder: Path) -> None:
    require_equal(load_tokenizer(folder), folder)


@name_of
def test_conversion_keeps_ids_and_texts(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, notes = converted(folder, tmp_path / "converted")
    is_proven = folder.name in PROVEN
    if is_proven:
        assert not {path.name for path in output.iterdir()} & set(TOKENIZER_FILES) - {"tokenizer.json"}
        monkeypatch.setitem(sys.modules, "transformers", None)  # cannot be imported
        monkeypatch.setitem(sys.modules, "sentencepiece", None)
    tokenizer = load_tokenizer(output)
    require_equal(tokenizer, folder)
    assert isinstance(tokenizer, FastTokenizer) == is_proven
    assert any("files are copied" in note for note in notes) != is_proven


@pytest.mark.parametrize("folder", ALL, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_streamed_text_is_the_text_of_all_ids(folder: Path) -> None:
    """For any ids, also invalid bytes, spaces and the tokens that the clean-up concerns."""
    tokenizer = load_tokenizer(folder)
    assert isinstance(tokenizer, FolderTokenizer)
    tokenizer.cleans_up = True
    pieces = tokenizer.vocabulary.pieces
    tricky = [token for token, piece in pieces.items() if len(piece) < 3 or piece.startswith(("<0x", "</", "zahl"))]
    rng = random.Random(folder.name)
    for size in (1, 2, 3, 10, 30, 100):
        for choices in (list(pieces), tricky, list(pieces) + tricky * 3, rng.choices(tricky, k=2)):
            for _ in range(8):
                ids = rng.choices(choices, k=size)
                stream = StreamingDetokenizer(tokenizer)
                assert "".join(map(stream.add, ids)) + stream.finish() == tokenizer.decode(ids)


def test_streamed_clean_up_equals_that_of_the_whole_text() -> None:
    parts = [" ", "'", "n", "t", "'s", "v", "e", ".", "x", " n't", "  "]
    for size in range(1, 5):
        for chosen in itertools.product(parts, repeat=size):
            stream = StreamedCleanUp()
            assert "".join(map(stream.add, chosen)) + stream.finish() == clean_up("".join(chosen))


def test_stop_strings_see_the_final_text() -> None:
    """The clean-up makes "it's" of the ids of "it 's"; a stop string with the space is never found."""
    tokenizer = load_tokenizer(named("t5_added"))
    ids = tokenizer.encode("see it 's the . end")[:-1]
    assert tokenizer.decode(ids) == "see it's the. end"
    for stop, text in (("it's", "see "), (" 's", "see it's the. end"), ("the.", "see it's ")):
        streamer = TextStreamer(tokenizer, {1}, [stop])
        assert "".join(map(streamer.add, ids)) + streamer.finish() == text


def test_the_text_of_a_prefix_is_not_part_of_the_output() -> None:
    tokenizer = load_tokenizer(named("t5_added"))
    prefix, ids = tokenizer.encode("see it ")[:-1], tokenizer.encode(". end")[:-1]
    streamer = TextStreamer(tokenizer, {1}, prefix=prefix)
    assert "".join(map(streamer.add, ids)) + streamer.finish() == ". end"
    assert tokenizer.decode([*prefix, *ids]) == "see it. end"


def test_code_in_a_folder_is_not_executed(tmp_path: Path) -> None:
    """`auto_map` names a class in a Python file of the folder."""
    for name in ("bart_added", "mt5", "byt5"):
        folder = shutil.copytree(named(name), tmp_path / name)
        (folder / "evil.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\nclass Evil: ...\n")
        for file in ("config.json", "tokenizer_config.json"):
            content = json.loads((folder / file).read_text())
            content["auto_map"] = {"AutoTokenizer": [None, "evil.Evil"], "AutoConfig": "evil.Evil"}
            (folder / file).write_text(json.dumps(content))
        require_equal(load_tokenizer(folder), folder)
    assert not (tmp_path / "executed").exists()


def test_a_full_disk_for_temporary_files_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5"}))
    load_tokenizer(tmp_path)
    for name in ("mkdir", "symlink"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, full)
            with pytest.raises(
                InputError, match=r"No space left on device\); free space, or let TMPDIR name another folder$"
            ):
                load_tokenizer(tmp_path)


def test_only_proven_folders_are_read_without_the_reference(tmp_path: Path) -> None:
    """A folder that an earlier version converted, or whose tokenizer.json was changed, is read by transformers."""
    folder = converted(named("t5_fast"), tmp_path / "converted")[0]
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
    folder = converted(named("bert"), tmp_path / "converted")[0]
    content = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(content | {"tokenizer": record}))
    with pytest.raises(CheckpointError, match="tokenizer"):
        load_tokenizer(folder)


def test_the_bundled_models_need_only_tokenizers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    for name in ("t5-web-docs", "t5-web-docs-draft"):
        assert isinstance(load_tokenizer(BUNDLED / name), FastTokenizer)


def test_conversion_says_where_two_tokenizers_of_a_folder_differ(tmp_path: Path) -> None:
    _, (note,) = converted(named("t5_fast"), tmp_path / "converted")
    assert "tokenizer.json and spiece.model differ, for example in " in note and "tokenizer.json is used" in note


def test_a_planted_difference_fails_the_proof() -> None:
    tokenizer = load_tokenizer(named("bert"))
    assert isinstance(tokenizer, FastTokenizer)
    other = FastTokenizer(tokenizer.backend, tokenizer.language_rules, cleans_up=False)
    assert list(conversion.differences(tokenizer, tokenizer)) == []
    assert next(conversion.differences(tokenizer, other)).startswith("the text ")


@pytest.mark.parametrize("model_type", ["t5", "mbart", "bart"])
def test_a_class_of_another_kind_of_model_gives_way_to_the_general_one(model_type: str, tmp_path: Path) -> None:
    """A WordLevel model, which the family's class refuses, or reads as BPE without merges."""
    (tmp_path / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    alone = tokenizers.Tokenizer.from_str(json.dumps(TOKENIZER))
    for text in ("a", "b"):
        assert load_tokenizer(tmp_path).encode(text) == alone.encode(text).ids != []


def test_a_multilingual_class_without_languages_is_refused(tmp_path: Path) -> None:
    """It would translate silently, without a language."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(named("t5gemma") / name, tmp_path / name)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "NllbTokenizer", "extra_special_tokens": []}')
    with pytest.raises(CheckpointError, match="its tokenizer has no language tokens"):
        load_tokenizer(tmp_path)


LONG = "x" * 5000
HOSTILE: list[tuple[str, str, object]] = [
    ("t5_added", "added_tokens.json", {LONG: 320}),
    ("t5_added", "special_tokens_map.json", {"eos_token": LONG}),
    ("t5_added", "special_tokens_map.json", {"eos_token": {"content": LONG}}),
    ("t5_added", "special_tokens_map.json", {"additional_special_tokens": [LONG]}),
    ("t5_fast", "tokenizer_config.json", {"added_tokens_decoder": {"400": {"content": LONG}}}),
    ("t5_fast", "tokenizer_config.json", {"extra_special_tokens": {"a_token": LONG}}),
    ("bert", "vocab.txt", f"[PAD]\n[UNK]\n{LONG}\n"),
    ("bartpho", "dict.txt", f"{LONG} 1\n"),
    ("m2m_100", "vocab.json", {LONG: 1}),
]


@pytest.mark.parametrize(("name", "file", "content"), HOSTILE, ids=lambda value: str(value)[:30])
def test_long_tokens_are_refused_in_every_file(name: str, file: str, content: object, tmp_path: Path) -> None:
    folder = shutil.copytree(named(name), tmp_path / name)
    (folder / file).write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(InputError, match=rf"{file}: not .*longer than 4096"):
        load_tokenizer(folder)


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
    folder = shutil.copytree(named(name), tmp_path / name)
    (folder / file).write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError, match=re.escape(str(folder))) as error:
        load_tokenizer(folder)
    assert "\n" not in str(error.value)


def test_vocabulary_files_are_kept(tmp_path: Path) -> None:
    """vocab.txt and dict.txt belong to a tokenizer, so that the Hub's files and copies include them."""
    assert {"vocab.txt", "dict.txt", "added_tokens.json"} <= set(TOKENIZER_FILES)
    conversion.copy_tokenizer(named("bartpho"), tmp_path)
    assert (tmp_path / "dict.txt").read_bytes() == (named("bartpho") / "dict.txt").read_bytes()


def test_a_sentencepiece_model_that_cannot_be_read_does_not_stop_a_conversion(tmp_path: Path) -> None:
    """tokenizer.json is used; the other file is only compared."""
    folder = shutil.copytree(named("t5_fast"), tmp_path / "folder")
    (folder / "tokenizer_config.json").write_text('{"sp_model_kwargs": {"enable_sampling": true}}')
    expected = load_tokenizer(folder).encode("The house")
    output, (note,) = converted(folder, tmp_path / "converted")
    assert "'sp_model_kwargs'" in note and "tokenizer.json is used" in note
    assert load_tokenizer(output).encode("The house") == expected


def test_a_list_of_objects_gives_way_to_the_list_of_tokenizer_config(tmp_path: Path) -> None:
    """As in transformers 5.24, which ignores special_tokens_map.json's list if there is another."""
    folder = shutil.copytree(named("bert"), tmp_path / "folder")
    settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    settings.pop("added_tokens_decoder", None)
    (folder / "special_tokens_map.json").write_text('{"additional_special_tokens": [{"content": "<x>"}]}')

    def pieces(**fields: Any) -> set[str]:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings | fields))
        return set(load_tokenizer(folder).vocabulary.pieces.values())

    assert "<x>" in pieces()
    assert "<y>" in (found := pieces(additional_special_tokens=["<y>"])) and "<x>" not in found
    assert "<x>" not in pieces(additional_special_tokens=[])


def test_older_added_tokens_leave_the_languages_of_m2m_100_alone(tmp_path: Path) -> None:
    """Its languages follow vocab.json, whatever ids other tokens have (`M2M100Tokenizer.get_lang_id`)."""
    folder = shutil.copytree(named("m2m_100"), tmp_path / "folder")
    before = load_tokenizer(folder)
    size = max(before.vocabulary.pieces) + 1
    (folder / "added_tokens.json").write_text(json.dumps({"<new>": size}))
    tokens = {"additional_special_tokens": [f"__{code}__" for code in before.languages]}
    (folder / "special_tokens_map.json").write_text(json.dumps(tokens))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "M2M100Tokenizer"}')
    assert load_tokenizer(folder).languages == before.languages
