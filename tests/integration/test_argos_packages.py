"""A package of Argos Translate, from its files to texts. The reference is CTranslate2's translation of the package.

tools/goldens/make_ctranslate2_goldens.py records the translations, with `replace_unknowns`.
"""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding import InputError, load
from speculative_decoding.loading.conversion import convert
from speculative_decoding.loading.load import Storage, open_model
from speculative_decoding.loading.pair import fingerprint
from tests.support.argos import FIELDS
from tests.support.ctranslate2_cases import CASES, write
from tests.support.ctranslate2_files import first_pieces
from tests.support.paths import GOLDENS
from tests.support.subpackages import needs_subpackage

NAME = "translate-en_de-1_9"
SPECIAL = re.compile("<s>|<blank>")  # shown by Argos Translate, but not by this program
TEXTS: Mapping[str, str] = {source: SPECIAL.sub("", text).strip() for source, text in CASES["package"]["texts"]}
OPTIONS: dict[str, Any] = {"max_tokens": 16, "drafter": "none"}
PIECES = 60  # of the SentencePiece model


def write_package(folder: Path, **fields: Any) -> Path:
    """Write an installed package. fields: of metadata.json."""
    write("package", folder / "model")
    (folder / "sentencepiece.model").write_bytes(first_pieces(GOLDENS / "tokenizers/t5/spiece.model", PIECES))
    (folder / "metadata.json").write_text(json.dumps(FIELDS | fields))
    return folder


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_package(tmp_path_factory.mktemp("packages") / NAME)


def archive_of(package: Path, path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(filter(Path.is_file, package.rglob("*"))):
            archive.write(file, file.relative_to(package.parent))
    return path


def translations(model: str | Path, **options: Any) -> dict[str, str]:
    session = load(model, dtype="float32")
    return {text: session.generate(text, **OPTIONS | options).text for text in TEXTS}


def test_texts_equal_those_of_ctranslate2(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown characters of sources appear in outputs."""
    assert "\U0001f600" in TEXTS["an emoji \U0001f600 and a cat"]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("ARGOS_PACKAGES_DIR", str(package.parent))
    for name in (package, archive_of(package, tmp_path / "x.argosmodel"), "argos:en_de"):
        assert translations(name) == TEXTS


def test_drafts_do_not_change_the_texts(package: Path) -> None:
    assert translations(package, drafter="ngram", num_draft_tokens=4) == TEXTS


def test_a_converted_package_translates_the_same(package: Path, tmp_path: Path) -> None:
    converted = convert(str(package), tmp_path / "out", Storage("float32"))
    assert translations(converted) == TEXTS
    again = convert(str(converted), tmp_path / "again", Storage("float32"))
    assert translations(again) == TEXTS
    with pytest.raises(InputError, match="only translates en to de, not en to fr"):
        load(converted).generate("x", src_lang="en", tgt_lang="fr", **OPTIONS)


def test_the_target_prefix_begins_each_output_and_has_no_text(tmp_path: Path) -> None:
    tokens = CASES["package"]["tokens"]
    first = tokens.index("\u2581the")
    session = load(write_package(tmp_path / NAME, target_prefix=tokens[first]), dtype="float32")
    assert session.tokenizer.decode([first]) == "" and load(tmp_path / NAME).tokenizer.decode([first]) == ""
    for source in TEXTS:
        result = session.generate(source, **OPTIONS)
        assert result.tokens[0] == first and not result.text.startswith("the")


def test_another_tokenizer_cannot_show_unknown_tokens(package: Path, tmp_path: Path) -> None:
    tokenizer = shutil.copytree(GOLDENS / "tokenizers/t5", tmp_path / "t5")
    with pytest.raises(InputError, match="tokenizer"):
        load(package, tokenizer=tokenizer)


def test_changed_weights_change_the_fingerprint(tmp_path: Path) -> None:
    package = write_package(tmp_path / NAME)
    before = fingerprint(open_model(package))
    assert fingerprint(open_model(package)) == before
    model = package / "model/model.bin"
    changed = bytearray(model.read_bytes())
    changed[-100] ^= 1
    model.write_bytes(changed + b"\0")
    assert fingerprint(open_model(package)) != before


@needs_subpackage("documents")
def test_a_document_is_translated_into_the_language_of_the_package(package: Path) -> None:
    session = load(package, dtype="float32")
    catalog = 'msgid ""\nmsgstr ""\n"Language: \\n"\n\nmsgid "its tests"\nmsgstr ""\n'
    assert '"Language: de' in session.document(catalog, format="po", max_tokens=16).text
