"""The tokenizer of packages with bpe.model. The reference is the tokenizer of Argos Translate (tools/goldens)."""

from __future__ import annotations

import json
import random
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding.decoding.text_streamer import TextStreamer
from speculative_decoding.errors import CheckpointError, InputError
from speculative_decoding.loading import argos_bpe
from speculative_decoding.loading.argos_bpe import BpeTokenizer, read_bpe
from speculative_decoding.loading.ctranslate2_tokenizer import ModelVocabulary
from speculative_decoding.loading.unknown_tokens import ReplacingTokenizer, UnknownToken
from speculative_decoding.loading.whole_text import WholeTextDetokenizer
from tests.support.argos import package_config
from tests.support.paths import GOLDENS

FOLDER = GOLDENS / "argos_bpe"
GOLDEN: dict[str, Any] = json.loads((FOLDER / "golden.json").read_text(encoding="utf-8"))
VOCABULARY = (FOLDER / "shared_vocabulary.txt").read_text(encoding="utf-8").splitlines()
UNKNOWN, END = 1, 3


def package(folder: Path, pair: str = "en_de", merges: str | None = None, **config: Any) -> Path:
    """Write the folder of a converted package with bpe.model. config: further fields of config.json."""
    shutil.copyfile(FOLDER / "shared_vocabulary.txt", folder / "shared_vocabulary.txt")
    (folder / "bpe.model").write_text((FOLDER / "bpe.model").read_text() if merges is None else merges)
    (folder / "config.json").write_text(json.dumps(package_config(pair) | config))
    return folder


def read(folder: Path) -> BpeTokenizer | None:
    vocabulary = ModelVocabulary.find(folder)
    assert vocabulary is not None
    return read_bpe(folder, vocabulary)


def tokenizer_of(folder: Path, *arguments: str, **config: Any) -> BpeTokenizer:
    found = read(package(folder, *arguments, **config))
    assert found is not None
    return found


def ids_of(pieces: list[str]) -> list[int]:
    return [VOCABULARY.index(piece) if piece in VOCABULARY else UNKNOWN for piece in pieces]


@pytest.mark.parametrize("pair", GOLDEN)
def test_pieces_and_texts_are_those_of_argos_translate(pair: str, tmp_path: Path) -> None:
    tokenizer, golden = tokenizer_of(tmp_path, pair), GOLDEN[pair]
    unknown = 0
    for text, pieces, decoded in golden["texts"]:
        ids = tokenizer.encode(text)
        assert ids == ids_of(pieces)
        unknown += UNKNOWN in ids
        assert UNKNOWN in ids or tokenizer.decode(ids) == decoded
    assert 0 < unknown < 5
    for pieces, decoded in golden["decoded"]:
        assert tokenizer.decode(ids_of(pieces)) == decoded


def test_outputs_are_split_by_the_rules_of_their_language_and_end_with_the_end_token(tmp_path: Path) -> None:
    german = tokenizer_of(tmp_path, "de_en")
    for text, pieces, _ in GOLDEN["en_de"]["texts"]:
        assert german.encode_output(text) == [*ids_of(pieces), END]


def test_special_tokens_are_added_as_config_json_says_and_have_no_text(tmp_path: Path) -> None:
    plain = tokenizer_of(tmp_path).encode("The fox.")
    around = tokenizer_of(tmp_path, add_source_bos=True, add_source_eos=True)
    assert around.encode("The fox.") == [2, *plain, END] and around.decode([2, UNKNOWN, *plain, END]) == "The fox."
    prefixed = tokenizer_of(tmp_path, forced_bos_token_id=plain[0])
    assert prefixed.decode(plain) == prefixed.decode(plain[1:])


def test_unknown_tokens_are_replaced_by_pieces_of_the_source(tmp_path: Path) -> None:
    """The reference is Argos Translate's text of the same pieces."""
    tokenizer = tokenizer_of(tmp_path, add_source_bos=True)
    assert isinstance(tokenizer, ReplacingTokenizer)
    for text, pieces, decoded in GOLDEN["en_de"]["texts"]:
        found = tokenizer.source_pieces(text)
        assert [*found] == [*range(1, len(pieces) + 1)] and [*found.values()] == pieces
        ids = [UnknownToken(UNKNOWN, piece) if piece not in VOCABULARY else token for piece, token in
               zip(pieces, ids_of(pieces), strict=True)]  # fmt: skip
        stream = WholeTextDetokenizer(tokenizer)
        assert tokenizer.decode(ids) == "".join(map(stream.add, ids)) + stream.finish() == decoded


def test_streamed_text_equals_decoded_text(tmp_path: Path) -> None:
    """The spaces around the first quotation mark of `a " b` depend on whether there is another."""
    tokenizer, rng = tokenizer_of(tmp_path), random.Random(0)
    runs = [ids_of(pieces) for golden in GOLDEN.values() for pieces, _ in golden["decoded"]]
    runs += [rng.choices(range(len(VOCABULARY)), k=rng.randint(1, 40)) for _ in range(50)]
    for ids in runs:
        stream = WholeTextDetokenizer(tokenizer)
        assert "".join([stream.add(token) for token in ids]) + stream.finish() == tokenizer.decode(ids)
        streamer = TextStreamer(tokenizer, [END], stop=["zzz"])
        assert streamer.text_of(ids) == tokenizer.decode([token for token in ids if token != END])


def test_the_text_after_a_prefix_is_the_rest_of_the_whole_text(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path)
    ids = tokenizer.encode("The quick brown fox.")
    for length in range(len(ids)):
        stream = WholeTextDetokenizer(tokenizer, ids[:length])
        rest = "".join([stream.add(token) for token in ids[length:]]) + stream.finish()
        begun = tokenizer.decode(ids[:length]).removesuffix("@@")  # a word may be incomplete
        assert begun + rest == "The quick brown fox."


def test_a_stop_string_cuts_the_text_at_the_end(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path)
    streamer = TextStreamer(tokenizer, [END], stop=[" brown"])
    assert streamer.text_of(tokenizer.encode("The quick brown fox.")) == "The quick"


def test_the_parts_of_a_very_long_word_are_split_separately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """subword-nmt's time grows with the square of a word's length. A text without spaces is one word."""
    tokenizer, lengths = tokenizer_of(tmp_path), list[int]()
    split = tokenizer._bpe.segment_tokens
    monkeypatch.setattr(tokenizer._bpe, "segment_tokens", lambda words: lengths.extend(map(len, words)) or split(words))
    word = "thehouse" * 2600
    pieces = tokenizer._pieces([word])
    assert sum(lengths) == len(word) and max(lengths) == argos_bpe.MAX_WORD
    assert "".join(piece.removesuffix("@@") for piece in pieces) == word
    assert all(piece.endswith("@@") for piece in pieces[:-1]) and not pieces[-1].endswith("@@")


def test_the_memory_for_known_words_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(argos_bpe, "MAX_CACHED", 10)
    tokenizer = tokenizer_of(tmp_path)
    for number in range(50):
        tokenizer.encode(f"word{number}")
    assert len(tokenizer._bpe.cache) <= 11


@pytest.mark.parametrize(
    ("merges", "message"),
    [
        ("", "a line does not consist of two pieces"),
        ("#version: 0.2\n", "a line does not consist of two pieces"),
        ("#version: 0.2\na b c\n", "a line does not consist of two pieces"),
        ("#version: 0.2\na b\rc\n", "a line does not consist of two pieces"),
        ("#version: 0.3\na b\n", "version 0.3 is not supported"),
        ("#version: x\na b\n", "not a readable list of merges"),
        ("#version: " + "9" * 5000 + "\na b\n", "not a readable list of merges"),
    ],
)
def test_a_damaged_list_of_merges_is_refused(merges: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message) as refused:
        read(package(tmp_path, merges=merges))
    assert str(refused.value).startswith(str(tmp_path / "bpe.model"))


def test_other_encodings_and_missing_files_are_refused(tmp_path: Path) -> None:
    (package(tmp_path) / "bpe.model").write_bytes(b"a \xff")
    with pytest.raises(CheckpointError, match="not a readable list of merges"):
        read(tmp_path)
    package(tmp_path, task_specific_params=None)
    with pytest.raises(InputError, match="the languages of its package are unknown; name the package's folder"):
        read(tmp_path)
    (package(tmp_path) / "bpe.model").unlink()
    assert read(tmp_path) is None


def test_missing_packages_are_named_with_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (("sacremoses", "sacremoses"), ("subword_nmt", "subword-nmt")):
        with monkeypatch.context() as patch:
            patch.setattr(argos_bpe, "find_spec", lambda each, gone=module: None if each == gone else find_spec(each))
            with pytest.raises(InputError, match=rf'needs the package {name}; run pip install ".*\[argos\]"'):
                read(package(tmp_path))
