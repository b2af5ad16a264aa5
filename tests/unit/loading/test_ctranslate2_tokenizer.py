"""SentencePiece models beside CTranslate2 vocabularies, compared with the same tokenizers as Hugging Face folders."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2
from tokenizers import Tokenizer as Tokenizers
from tokenizers import models

from speculative_decoding import InputError
from speculative_decoding.checkpoints import ctranslate2_vocabulary
from speculative_decoding.loading import ctranslate2_tokenizer, manifest, tokenizer_base
from speculative_decoding.loading.canonical_tokenizer import (
    HARD_TEXTS,
    added_tokens,
    canonical_tokenizer,
    copy_tokenizer,
    texts_with,
    write_tokenizer,
)
from speculative_decoding.loading.load import check_tokenizer
from speculative_decoding.loading.tokenizer import Tokenizer, load_tokenizer
from speculative_decoding.loading.tokenizer_base import FolderTokenizer
from speculative_decoding.loading.unknown_tokens import ReplacingTokenizer, UnknownToken
from tests.support.ctranslate2_folders import (
    FAMILIES,
    config_for,
    family_tokens,
    vocabulary_of,
    write_folder,
    write_vocabulary,
)
from tests.support.tokenizers import FOLDERS, loaded

SPIECE = FOLDERS["t5"] / "spiece.model"
OPENNMT = ["<unk>", "<blank>", "<s>", "</s>"]


@cache
def reference(family: str, folder: Path) -> Tokenizer:
    """The tokenizer of the Hugging Face folder, read with SentencePiece."""
    shutil.copytree(FOLDERS[family], folder, ignore=shutil.ignore_patterns("tokenizer.json"))
    return load_tokenizer(folder)


def require_equal(tokenizer: Tokenizer, expected: Tokenizer) -> None:
    assert isinstance(expected, FolderTokenizer)
    assert tokenizer.vocabulary.pieces == expected.vocabulary.pieces
    assert tokenizer.languages == expected.languages
    languages = [*expected.languages][:3] or [None]
    for text in [*HARD_TEXTS, *texts_with(added_tokens(expected)[:150])]:
        for language in languages:
            assert tokenizer.encode(text, language) == expected.encode(text, language), text
        ids = expected.encode_output(text)
        assert tokenizer.encode_output(text) == ids, text
        assert tokenizer.decode(ids) == expected.decode(ids), text
    pieces = [*expected.vocabulary.pieces]
    for start in range(0, len(pieces), 16):
        ids = pieces[start : start + 16]
        assert tokenizer.decode(ids) == expected.decode(ids), ids


@pytest.mark.parametrize("suffix", ["json", "txt"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_vocabulary_and_a_model_give_the_tokenizer_of_the_hugging_face_folder(
    family: str, suffix: str, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(write_folder(tmp_path / "folder", family, suffix))
    require_equal(tokenizer, reference(family, tmp_path / "hugging_face"))


@pytest.mark.parametrize("name", ["t5_added", "t5_flags", "t5_once", "mbart50_added", "nllb_bare", "m2m_100", "mbart"])
def test_settings_beside_the_model_are_used(name: str, tmp_path: Path) -> None:
    """Users may also copy tokenizer_config.json and similar files."""
    tokens = vocabulary_of(loaded(FOLDERS[name]))
    files = [path for path in FOLDERS[name].iterdir() if path.name not in ("config.json", "golden.json", "vocab.json")]
    fields = {"model_type": "t5", "bos_token": "<pad>"} if name.startswith("t5") else {}
    require_equal(load_tokenizer(folder_with(tmp_path / "folder", tokens, *files, **fields)), loaded(FOLDERS[name]))


@pytest.mark.parametrize("family", ["nllb", "m2m_100", "mbart50"])
def test_the_default_language_is_english(family: str, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_folder(tmp_path / "folder", family))
    assert tokenizer.encode("house") == loaded(FOLDERS[family]).encode("house")


def test_the_vocabulary_determines_the_order_of_added_tokens(tmp_path: Path) -> None:
    """In NLLB-200, <mask> follows the language tokens, and users add languages after it."""
    folder = write_folder(tmp_path / "folder", "nllb")
    tokens = [token for token in family_tokens("nllb") if token != "<mask>" and "madeup" not in token]
    tokens += ["<mask>", "myv_Cyrl", "madeupword0"]
    write_vocabulary(folder, tokens)
    tokenizer, expected = load_tokenizer(folder), reference("nllb", tmp_path / "hugging_face")
    assert tokenizer.languages == {code: tokens.index(code) for code in [*expected.languages, "myv_Cyrl"]}
    for text in HARD_TEXTS:
        pieces = [expected.vocabulary.pieces[token] for token in expected.encode(text, "deu_Latn")]
        assert [tokens[token] for token in tokenizer.encode(text, "deu_Latn")] == pieces
    assert tokens.index("myv_Cyrl") == tokenizer.encode("house", "myv_Cyrl")[0]
    assert tokenizer.vocabulary.pieces == dict(enumerate(tokens[:-1]))


def test_a_piece_that_looks_like_a_language_is_no_language(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder", "nllb")
    path = folder / "sentencepiece.bpe.model"
    model = sentencepiece_model_pb2.ModelProto.FromString(path.read_bytes())  # type: ignore[attr-defined]
    replaced = next(each for each in model.pieces[3:] if len(each.piece) > 3)
    tokens = ["ab_CD" if token == replaced.piece else token for token in family_tokens("nllb")]
    replaced.piece = "ab_CD"
    path.write_bytes(model.SerializeToString())
    write_vocabulary(folder, tokens)
    assert load_tokenizer(folder).languages == loaded(FOLDERS["nllb"]).languages


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("fillers", [0, 2])
def test_fillers_of_t5_are_told_from_its_extra_ids(count: int, fillers: int, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder", "t5")
    pieces = [token for token in family_tokens("t5") if "<extra_id_" not in token]
    tokens = pieces + [f"<extra_id_{index}>" for index in reversed(range(count))]
    write_vocabulary(folder, tokens + [f"<extra_id_{index}>" for index in range(fillers)])
    assert load_tokenizer(folder).vocabulary.pieces == dict(enumerate(tokens))


# Models of OpenNMT and Argos Translate


def opennmt_folder(
    folder: Path, *, argos: bool = False, first: Sequence[str] = OPENNMT, last: Sequence[str] = (), **fields: Any
) -> tuple[Path, list[str]]:
    """Write a model of OpenNMT, whose tokens are in another order than SentencePiece's. Returns also the tokens."""
    processor = SentencePieceProcessor(str(SPIECE))
    pieces = sorted(processor.id_to_piece(list(range(len(processor)))))
    tokens = [*first, *(piece for piece in pieces if piece not in [*first, "<pad>"]), *last]
    place = folder / "model" if argos else folder
    place.mkdir(parents=True)
    shutil.copyfile(SPIECE, folder / "sentencepiece.model")
    write_vocabulary(place, tokens)
    # `read_config` of an Argos package derives its result from the files in model/
    fields = {"replace_unknowns": True, **fields} if argos else fields
    (folder / "config.json").write_text(json.dumps(config_for(tokens, **fields)))
    if argos:
        (folder / "metadata.json").write_text(json.dumps({"from_code": "en", "to_code": "de"}))
    return folder, tokens


@pytest.mark.parametrize("argos", [False, True])
@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("eos", [False, True])
def test_opennmt_adds_only_the_tokens_that_ctranslate2_adds(argos: bool, bos: bool, eos: bool, tmp_path: Path) -> None:
    folder, tokens = opennmt_folder(tmp_path / "folder", argos=argos, add_source_bos=bos, add_source_eos=eos)
    tokenizer, processor = load_tokenizer(folder), SentencePieceProcessor(str(SPIECE))
    for text in HARD_TEXTS:
        pieces = processor.encode(text, out_type=str)
        ids = [tokens.index(piece) if piece in tokens else tokens.index("<unk>") for piece in pieces]
        assert tokenizer.encode(text) == [2] * bos + ids + [3] * eos
        assert tokenizer.encode_output(text) == [*ids, 3]
        known = [piece for piece in pieces if piece in tokens]
        assert tokenizer.decode([2, *ids, 3, 1]) == processor.decode_pieces(known).replace("▁", " ").strip()
    assert tokenizer.languages == {} and 0 in tokenizer.encode("漢")
    with pytest.raises(InputError, match="no language tokens"):
        tokenizer.encode("house", "de")


def test_a_target_prefix_is_no_text(tmp_path: Path) -> None:
    folder, tokens = opennmt_folder(tmp_path / "folder", last=["__de__"])
    house = load_tokenizer(folder).encode("house")
    prefix = len(tokens) - 1
    assert "__de__" in load_tokenizer(folder).decode([prefix, *house])
    fields = config_for(tokens, forced_bos_token_id=prefix)
    (folder / "config.json").write_text(json.dumps(fields))
    tokenizer = load_tokenizer(folder)
    assert tokenizer.decode([prefix, *house]) == "house" and prefix not in tokenizer.encode("__de__ house")


@pytest.mark.parametrize("eos", [False, True])
def test_packages_of_marian_are_read_like_others(eos: bool, tmp_path: Path) -> None:
    """Argos Translate passes only pieces of a source. One SentencePiece model reads sources and outputs."""
    fields = {"replace_unknowns": True, "add_source_eos": eos}
    folder, tokens = opennmt_folder(tmp_path / "folder", argos=True, first=["</s>", "<unk>"], last=[">>deu<<"])
    fields = config_for(tokens, forced_bos_token_id=len(tokens) - 1, **fields)
    assert fields["pad_token_id"] == len(tokens)
    (folder / "config.json").write_text(json.dumps(fields))
    tokenizer = load_tokenizer(folder)
    assert isinstance(tokenizer, ReplacingTokenizer)
    pieces = SentencePieceProcessor(str(SPIECE)).encode("the house 漢", out_type=str)
    house = [tokens.index(piece) for piece in pieces[:-1]]
    assert tokenizer.encode("the house 漢") == [*house, 1, *[0] * eos]
    assert tokenizer.encode_output("the house 漢") == [*house, 1, 0]
    assert tokenizer.decode([len(tokens) - 1, *house, 0, len(tokens)]) == "the house"
    assert tokenizer.source_pieces("the house 漢") == dict(enumerate(pieces))
    assert tokenizer.decode([*house, UnknownToken(1, pieces[-1])]) == "the house 漢"


def test_sources_and_outputs_may_have_models_of_their_own(tmp_path: Path) -> None:
    folder, tokens = opennmt_folder(tmp_path / "folder")
    (folder / "sentencepiece.model").rename(folder / "source.spm")
    shutil.copyfile(FOLDERS["marian"] / "target.spm", folder / "target.spm")
    tokenizer = load_tokenizer(folder)
    models = [SentencePieceProcessor(str(folder / name)) for name in ("source.spm", "target.spm")]
    text = "The house is wonderful."
    expected = [[token if token in tokens else "<unk>" for token in each.encode(text, out_type=str)] for each in models]
    assert expected[0] != expected[1]
    assert [tokens[token] for token in tokenizer.encode(text)] == expected[0]
    assert [tokens[token] for token in tokenizer.encode_output(text)] == [*expected[1], "</s>"]


def test_a_missing_unknown_token_is_the_last_one(tmp_path: Path) -> None:
    folder, tokens = opennmt_folder(tmp_path / "folder", first=["<blank>", "<s>", "</s>"])
    tokens.remove("<unk>")
    write_vocabulary(folder, tokens)
    tokenizer = load_tokenizer(folder)
    assert len(tokens) in tokenizer.encode("漢") and tokenizer.vocabulary.pieces[len(tokens)] == "<unk>"


@pytest.mark.parametrize("every", [True, False])
def test_carriage_returns_belong_to_tokens_unless_every_line_has_one(every: bool, tmp_path: Path) -> None:
    folder, tokens = opennmt_folder(tmp_path / "folder", last=["a\r"])
    (folder / "shared_vocabulary.json").unlink()
    lines = [f"{token}\r\n" for token in tokens] if every else [f"{token}\n" for token in tokens]
    (folder / "shared_vocabulary.txt").write_bytes("".join(lines).encode())
    assert load_tokenizer(folder).vocabulary.pieces == dict(enumerate(tokens))


def test_a_repeated_token_has_its_first_id(tmp_path: Path) -> None:
    folder, tokens = opennmt_folder(tmp_path / "folder", last=["▁house", "</s>", "x"])
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode_output("▁")[-1] == 3
    assert all(tokens.index(tokens[token]) == token for text in HARD_TEXTS for token in tokenizer.encode(text))


# Errors


def spoiled(tmp_path: Path, family: str, tokens: Sequence[str]) -> Path:
    folder = write_folder(tmp_path / "folder", family)
    write_vocabulary(folder, tokens)
    return folder


def require_error(folder: Path, *parts: str) -> None:
    with pytest.raises(InputError) as caught:
        load_tokenizer(folder)
    message = caught.value.message(lambda name: f"--{name}")
    assert "\n" not in message and all(part in message for part in parts), message


def swapped(family: str) -> list[str]:
    """Return the tokens of a family, with two of them in each other's place."""
    tokens = family_tokens(family)
    tokens[200], tokens[210] = tokens[210], tokens[200]
    return tokens


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ("m2m_100", "marian")])
def test_a_model_of_another_vocabulary_is_rejected(family: str, tmp_path: Path) -> None:
    require_error(spoiled(tmp_path, family, swapped(family)), "token 200 is ", "--tokenizer FOLDER")


@pytest.mark.parametrize("family", ["m2m_100", "marian"])
def test_the_vocabulary_alone_determines_ids_that_the_model_file_lacks(family: str, tmp_path: Path) -> None:
    tokens = swapped(family)
    pieces = load_tokenizer(spoiled(tmp_path, family, tokens)).vocabulary.pieces
    assert (pieces[200], pieces[210]) == (tokens[200], tokens[210])


@pytest.mark.parametrize("family", ["nllb", "t5", "pegasus", "mbart50"])
def test_an_added_token_of_unknown_kind_is_rejected(family: str, tmp_path: Path) -> None:
    folder = spoiled(tmp_path, family, [*vocabulary_of(loaded(FOLDERS[family])), "<new>"])
    require_error(folder, "'<new>'", "--tokenizer FOLDER")


def test_a_source_of_unknown_form_is_rejected(tmp_path: Path) -> None:
    folder, _ = opennmt_folder(tmp_path / "folder", first=["<s>", "<pad>", "</s>", "<unk>"])
    require_error(folder, "special tokens", "--tokenizer FOLDER")


def test_a_vocabulary_of_languages_is_rejected(tmp_path: Path) -> None:
    languages = [f"{a}{b}{c}_Xx" for a in "abcdefghijklm" for b in "abcdefghijklm" for c in "abcdefghijklm"]
    folder = spoiled(tmp_path, "nllb", family_tokens("nllb") + languages)
    require_error(folder, "shared_vocabulary.json: has 2399 language tokens (expected <= 2048)")


def test_a_small_overlap_is_rejected(tmp_path: Path) -> None:
    folder, _ = opennmt_folder(tmp_path / "folder")
    write_vocabulary(folder, [*OPENNMT, *map(str, range(500))])
    require_error(folder, "few of the pieces", "sentencepiece.model", "--tokenizer FOLDER")


def test_a_folder_without_a_model_names_its_files_and_the_option(tmp_path: Path) -> None:
    folder, _ = opennmt_folder(tmp_path / "folder")
    (folder / "sentencepiece.model").unlink()
    require_error(folder, "found shared_vocabulary.json", "tokenizer.json", "sentencepiece.model", "--tokenizer FOLDER")
    shutil.copyfile(SPIECE, folder / "source.spm")
    require_error(folder, "found source.spm", "target.spm is missing", "--tokenizer FOLDER")


def test_the_model_in_a_package_names_the_package(tmp_path: Path) -> None:
    model, _ = opennmt_folder(tmp_path / "model")
    (model / "sentencepiece.model").rename(tmp_path / "sentencepiece.model")
    require_error(model, "found shared_vocabulary.json", "--tokenizer FOLDER")
    (tmp_path / "metadata.json").write_text("{}")
    require_error(model, "found shared_vocabulary.json", f"name its package, {tmp_path}")


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[1]", b"[", b'["a"', b"\xff\xfe", b'["' + b"a" * 5000 + b'"]', b'["\\ud800"]']
)
def test_a_damaged_vocabulary_is_rejected(content: bytes, tmp_path: Path) -> None:
    folder, _ = opennmt_folder(tmp_path / "folder")
    (folder / "shared_vocabulary.json").write_bytes(content)
    require_error(folder, "shared_vocabulary.json", "not a readable vocabulary")


def test_a_vocabulary_without_an_end_token_is_rejected(tmp_path: Path) -> None:
    folder, tokens = opennmt_folder(tmp_path / "folder")
    write_vocabulary(folder, [token for token in tokens if token != "</s>"])
    require_error(folder, "no end token '</s>'")


@pytest.mark.parametrize("name", ["sentencepiece.model", "source.spm", "tokenizer.model"])
@pytest.mark.parametrize("content", [b"", b"\x0a\xff", b"garbage"])
def test_a_damaged_model_is_rejected(name: str, content: bytes, tmp_path: Path) -> None:
    folder, _ = opennmt_folder(tmp_path / "folder")
    (folder / "sentencepiece.model").unlink()
    (folder / name).write_bytes(content)
    require_error(folder, name, "not a readable SentencePiece model")


# Conversion


@pytest.mark.parametrize("family", FAMILIES)
def test_a_converted_folder_has_an_equal_tokenizer(family: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder", family)
    require_equal(load_tokenizer(converted(folder, tmp_path / "output")), load_tokenizer(folder))


@pytest.mark.parametrize("argos", [False, True])
def test_a_converted_opennmt_model_has_an_equal_tokenizer(argos: bool, tmp_path: Path) -> None:
    first = ["<unk>", "<s>", "</s>"] if argos else OPENNMT
    folder, _ = opennmt_folder(tmp_path / "folder", argos=argos, first=first)
    require_equal(load_tokenizer(converted(folder, tmp_path / "output")), load_tokenizer(folder))


def converted(folder: Path, output: Path) -> Path:
    """Write a folder's tokenizer, configuration and manifest as conversion does, without weights."""
    output.mkdir()
    shutil.copyfile(folder / "config.json", output / "config.json")
    record = write_tokenizer(folder, canonical_tokenizer(folder), output)
    manifest.write(output, tokenizer=record)
    return output


def test_downloads_include_the_vocabulary() -> None:
    assert tokenizer_base.CTRANSLATE2 == ctranslate2_vocabulary.SHARED


# Other tokenizer files, and other tokenizers


def folder_with(folder: Path, tokens: Sequence[str], *files: Path, **fields: Any) -> Path:
    folder.mkdir()
    write_vocabulary(folder, tokens)
    (folder / "config.json").write_text(json.dumps(config_for(tokens, **fields)))
    for path in files:
        shutil.copyfile(path, folder / path.name)
    return folder


JSON = {"nllb": ["madeupword0"], "mbart50_fast": [], "bart_added": ["madeupword0"]}


@pytest.mark.parametrize("family", JSON)
def test_tokenizer_json_is_read_without_a_model_type(family: str, tmp_path: Path) -> None:
    """The families in `JSON` have a tokenizer.json that states all special tokens. Fillers may follow them."""
    expected = loaded(FOLDERS[family])
    tokens = vocabulary_of(expected) + JSON[family]
    tokenizer = load_tokenizer(folder_with(tmp_path / "folder", tokens, FOLDERS[family] / "tokenizer.json"))
    assert tokenizer.languages == expected.languages
    assert tokenizer.vocabulary.pieces == expected.vocabulary.pieces
    text = "The house is wonderful."
    assert tokenizer.encode(text) == expected.encode(text)
    ids = expected.encode_output(text)
    assert tokenizer.encode_output(text) == ids and tokenizer.decode(ids) == expected.decode(ids)


def test_the_other_files_of_bart_are_read(tmp_path: Path) -> None:
    tokens = vocabulary_of(loaded(FOLDERS["bart"]))
    folder = folder_with(
        tmp_path / "folder", tokens, *(FOLDERS["bart"] / name for name in ("vocab.json", "merges.txt"))
    )
    require_equal(load_tokenizer(folder), loaded(FOLDERS["bart"]))


def test_ids_of_tokenizer_json_must_agree_with_the_vocabulary(tmp_path: Path) -> None:
    tokens = vocabulary_of(loaded(FOLDERS["nllb"]))
    tokens[100], tokens[101] = tokens[101], tokens[100]
    folder = folder_with(tmp_path / "folder", tokens, FOLDERS["nllb"] / "tokenizer.json")
    require_error(folder, "shared_vocabulary.json", f"token 100 is {tokens[100]!r}", "--tokenizer FOLDER")


@pytest.mark.parametrize(("token", "agrees"), [("<|nospeech|>", True), ("<|startoflm|>", False)])
def test_the_vocabulary_of_a_whisper_is_checked(
    token: str, agrees: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its special token for silence has been renamed."""
    words = {"a": 0, "b": 1, "<|nocaptions|>": 2}
    backend = Tokenizers(models.BPE(words, []))
    folder = folder_with(tmp_path / "folder", ["</s>"])
    (folder / "shared_vocabulary.json").unlink()
    backend.save(str(folder / "tokenizer.json"))
    (folder / "vocabulary.json").write_text(json.dumps(["a", "b", token, "<|endoftext|>"]))
    (folder / "model.bin").touch()
    monkeypatch.setattr(ctranslate2_tokenizer, "read_config", lambda folder: {"model_type": "whisper"})
    if agrees:
        assert load_tokenizer(folder).encode("ab") == [0, 1]
    else:
        require_error(folder, "vocabulary.json: token 2 is", "--tokenizer FOLDER")


def test_files_that_determine_no_tokenizer_are_named(tmp_path: Path) -> None:
    tokens = family_tokens("marian")
    folder = folder_with(tmp_path / "folder", tokens, FOLDERS["marian"] / "vocab.json")
    require_error(folder, "found shared_vocabulary.json, vocab.json, but no tokenizer", "--tokenizer FOLDER")


def test_a_tokenizer_from_elsewhere_must_agree_with_the_vocabulary(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "folder", family_tokens("marian"))
    check_tokenizer(loaded(FOLDERS["marian"]), folder)
    with pytest.raises(InputError, match="shared_vocabulary.json: token 0 is '</s>', but in the tokenizer it is"):
        check_tokenizer(loaded(FOLDERS["t5"]), folder)
    check_tokenizer(loaded(FOLDERS["t5"]), FOLDERS["marian"])  # a folder of Hugging Face has no such vocabulary


@pytest.mark.parametrize(
    "name",
    [
        "shared_vocabulary.json", "vocabulary.json", "source_vocabulary.txt", "model/shared_vocabulary.json",
        "model/source_vocabulary.json",
    ],
)  # fmt: skip
def test_vocabularies_beside_models_in_other_formats_are_ignored(name: str, tmp_path: Path) -> None:
    """Some models on the Hub are stored in both formats, and any program may write such a vocabulary.json."""
    folder = shutil.copytree(FOLDERS["marian"], tmp_path / "folder")
    (folder / "config.json").write_text('{"model_type": "marian"}')
    for other in ("model.safetensors", "model.bin", name):
        (folder / other).parent.mkdir(exist_ok=True)
        (folder / other).write_text("not a vocabulary")
    expected = loaded(FOLDERS["marian"])
    require_equal(load_tokenizer(folder), expected)
    check_tokenizer(loaded(FOLDERS["t5"]), folder)
    (tmp_path / "copied").mkdir()
    copy_tokenizer(folder, tmp_path / "copied")
    (tmp_path / "copied" / "config.json").write_text('{"model_type": "marian"}')
    require_equal(load_tokenizer(tmp_path / "copied"), expected)
