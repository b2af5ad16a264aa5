"""A tokenizer that the user names replaces the target's own, in Python and on the command line."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from speculative_decoding import InputError, load
from speculative_decoding.cli.main import prompt_parser
from speculative_decoding.cli.parser import flags_from
from speculative_decoding.cli.run_config import DraftFlags, ModelFlags, make_run_config
from speculative_decoding.loading.conversion import convert
from speculative_decoding.loading.load import BUNDLED, ModelHandle, Storage, open_model
from speculative_decoding.loading.pair import ModelPair, fingerprint, open_pair
from tests.support.ctranslate2_folders import family_tokens, write_vocabulary
from tests.support.tokenizers import FOLDERS, loaded

TARGET = BUNDLED / "t5-web-docs-draft"
OTHER = FOLDERS["t5"]
TEXT = "The house is wonderful."


def open_by_flags(*arguments: str) -> ModelPair:
    flags = flags_from(ModelFlags, prompt_parser().parse_args(list(arguments)))
    return make_run_config(flags.find(), {}, DraftFlags()).open()


def test_the_named_tokenizer_is_used() -> None:
    expected, own = loaded(OTHER), load(TARGET)
    assert own.tokenizer.encode(TEXT) != expected.encode(TEXT)
    session = load(TARGET, tokenizer=OTHER)
    ids = session.generate(expected.encode(TEXT), max_tokens=8).tokens
    result = session.generate(TEXT, max_tokens=8)
    assert result.tokens == ids and result.text == expected.decode(ids)
    pair = open_by_flags("--model", str(TARGET), "--tokenizer", str(OTHER), "x")
    assert pair.target.tokenizer.encode(TEXT) == expected.encode(TEXT)
    assert pair.folders["tokenizer"] == str(OTHER) and "tokenizer" not in open_pair(TARGET).folders


def test_the_description_names_the_tokenizer() -> None:
    described = make_run_config(ModelFlags(TARGET, tokenizer="org/name"), {}, DraftFlags()).describe()
    assert described.startswith("target ") and " with tokenizer org/name, " in described


def test_resumed_runs_need_the_same_tokenizer(tmp_path: Path) -> None:
    """The same pieces do not suffice, because other settings also change ids."""
    changed = shutil.copytree(OTHER, tmp_path / "changed")
    (changed / "tokenizer_config.json").write_text('{"clean_up_tokenization_spaces": true}')
    copied = shutil.copytree(OTHER, tmp_path / "copied")
    typed = shutil.copytree(OTHER, tmp_path / "typed")
    (typed / "config.json").write_text('{"model_type": "t5"}')
    tokenizers = (None, OTHER, changed, typed, FOLDERS["marian"])
    found = [fingerprint(open_model(TARGET, tokenizer=each)) for each in tokenizers]
    assert len({*found}) == len(found)
    assert fingerprint(open_model(TARGET, tokenizer=copied)) == found[1]


def test_a_tokenizer_needs_its_model() -> None:
    with pytest.raises(InputError, match=r"^tokenizer: a needs the model to use it for; name it with model$"):
        ModelFlags(tokenizer="a").find()


def test_a_missing_tokenizer_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load(TARGET, tokenizer=tmp_path / "nowhere")
    assert caught.value.field == "tokenizer"


def without_tokenizer(folder: Path, tokens: Sequence[str]) -> Path:
    """Write a converted model with a vocabulary only, as most CTranslate2 folders have."""
    shutil.copytree(TARGET, folder)
    for path in [path for path in folder.iterdir() if path.name not in ("config.json", "weights.npz")]:
        path.unlink()
    config = folder / "config.json"
    config.write_text(config.read_text("utf-8").replace("{", '{"unk_token": "<unk>",', 1))
    write_vocabulary(folder, tokens)
    return folder


def test_a_draft_model_without_a_tokenizer_uses_the_targets_if_the_vocabularies_are_equal(tmp_path: Path) -> None:
    pieces = load(TARGET).tokenizer.vocabulary.pieces
    pair = open_pair(TARGET, without_tokenizer(tmp_path / "draft", [pieces[token] for token in range(len(pieces))]))
    assert isinstance(pair.draft, ModelHandle) and pair.draft.tokenizer.vocabulary.pieces == pieces


def test_a_draft_model_without_a_tokenizer_does_not_propose_the_option_for_the_target(tmp_path: Path) -> None:
    folder = without_tokenizer(tmp_path / "draft", family_tokens("t5"))
    with pytest.raises(InputError, match=r"^draft: .*: found shared_vocabulary.json, but no tokenizer .*; copy the"):
        open_pair(TARGET, folder)


def test_a_tokenizer_that_contradicts_the_vocabulary_of_the_model_is_rejected(tmp_path: Path) -> None:
    folder = shutil.copytree(TARGET, tmp_path / "folder")
    for name in ("tokenizer.json", "manifest.json"):
        (folder / name).unlink()
    config = folder / "config.json"
    config.write_text(config.read_text("utf-8").replace("{", '{"unk_token": "<unk>",', 1))
    write_vocabulary(folder, family_tokens("t5"))
    assert load(folder, tokenizer=OTHER).tokenizer.encode(TEXT) == loaded(OTHER).encode(TEXT)
    with pytest.raises(
        InputError,
        match=r"shared_vocabulary.json: token 0 is '<pad>', but .*: tokenizer FOLDER, or its name on the Hub$",
    ):
        load(folder, tokenizer=FOLDERS["marian"])
    with pytest.raises(InputError, match=r"shared_vocabulary.json: token 0 is '<pad>'"):
        convert(str(folder), tmp_path / "output", tokenizer=str(FOLDERS["marian"]))
    assert not (tmp_path / "output").exists()
    output = convert(str(folder), tmp_path / "output", Storage("float32"), tokenizer=str(OTHER))
    assert load(output).tokenizer.encode(TEXT) == loaded(OTHER).encode(TEXT)
