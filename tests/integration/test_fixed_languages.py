"""A model whose config.json names one pair of languages and an empty prefix knows these languages without options.

The reference is the same model without languages: prompts and outputs are equal.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding import InputError, Session, load
from speculative_decoding.cli import programs
from speculative_decoding.loading.conversion import convert
from speculative_decoding.loading.load import BUNDLED, open_model
from speculative_decoding.loading.pair import ModelPair
from tests.support.subpackages import needs_subpackage

SOURCE = BUNDLED / "t5-web-docs-draft"  # a model without languages
TEXT = "Open the page. Close the file."
CATALOG = r"""msgid ""
msgstr ""
"Language: \n"
"Plural-Forms: nplurals=INTEGER; plural=EXPRESSION;\n"

msgid "a page"
msgid_plural "pages"
msgstr[0] ""
msgstr[1] ""
"""
TMX = """<tmx version="1.4"><header srclang="*all*"/><body><tu>
<tuv xml:lang="en"><seg>Open the page.</seg></tuv><tuv xml:lang="fr"><seg>Ouvrez la page.</seg></tuv>
<tuv xml:lang="de"><seg>Die Seite aufmachen.</seg></tuv></tu></body></tmx>"""
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def english_german(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model's folder whose config.json is like the one of an Argos Translate package."""
    folder = tmp_path_factory.mktemp("models") / "english-german"
    folder.mkdir()
    for path in SOURCE.iterdir():
        if path.name not in ("config.json", "manifest.json"):
            (folder / path.name).symlink_to(path)
    config = json.loads((SOURCE / "config.json").read_text())
    config["task_specific_params"] = {"translation_en_to_de": {"prefix": ""}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def command(
    english_german: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Command:
    """Run a command with the model, beside a few documents. Returns (exit status, standard output and error)."""
    for name, text in (("in.txt", TEXT), ("in.po", CATALOG), ("memory.tmx", TMX)):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)

    def call(name: str, *arguments: str, model: Path = english_german) -> tuple[int, str, str]:
        capfd.readouterr()
        monkeypatch.setattr(sys, "stdin", io.StringIO(f"{TEXT}\n"))
        options = ["--model", str(model), "--dtype", "float32", "--baseline", "-m", "12"]
        try:
            status = programs.main([name, *arguments, *(options if name != "serve" else options[:2])])
        except SystemExit as ended:  # raised by argparse
            status = int(ended.code or 0)
        return status, *capfd.readouterr()

    return call


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelPair, "load_weights", None)


@pytest.fixture(scope="module")
def session(english_german: Path) -> Session:
    return load(english_german, dtype="float32", drafter="none")


COMMANDS = [
    pytest.param("generate", [TEXT]),
    pytest.param("console", []),
    pytest.param("document", ["in.txt"], marks=needs_subpackage("documents")),
    pytest.param("batch", ["in.txt"], marks=needs_subpackage("jobs")),
]


@pytest.mark.parametrize("languages", [[], ["--target-language", "German"], ["--source-language", "eng_Latn"]])
@pytest.mark.parametrize(("name", "arguments"), COMMANDS)
def test_a_command_decodes_the_prompt_as_it_is(
    name: str, arguments: list[str], languages: list[str], command: Command
) -> None:
    status, out, err = command(name, *arguments, *languages)
    expected = command(name, *arguments, model=SOURCE)
    assert (status, out) == expected[:2] == (0, expected[1])
    assert "begins with" not in err and "have prefixes" not in err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--target-language", "fr"], "--target-language: this model only translates en to de, not fr; choose one"),
        (["--source-language", "de"], "--source-language: this model only translates en to de, not de; choose one"),
        (
            ["--source-language", "de", "--target-language", "en"],
            "--target-language: this model only translates en to de, not de to en; choose one",
        ),
    ],
)
@pytest.mark.parametrize(
    ("name", "arguments"), [*COMMANDS, pytest.param("serve", ["--port", "0"], marks=needs_subpackage("server"))]
)
@pytest.mark.usefixtures("no_weights")
def test_other_languages_are_refused_before_weights_load(
    name: str, arguments: list[str], flags: list[str], message: str, command: Command
) -> None:
    status, _, err = command(name, *arguments, *flags)
    assert status == 2 and f"error: {message}" in err


API: dict[str, Callable[[Session, Any], str]] = {
    "generate": lambda session, options: session.generate(TEXT, max_tokens=12, **options).text,
    "stream": lambda session, options: "".join(each.text for each in session.stream(TEXT, max_tokens=12, **options)),
    "batch": lambda session, options: session.generate([TEXT], max_tokens=12, **options)[0].text,
    "tokens": lambda session, options: session.generate(session.tokenizer.encode(TEXT), max_tokens=12, **options).text,
    "document": lambda session, options: session.document(TEXT, unit="line", max_tokens=12, **options).text,
}


@pytest.mark.parametrize(
    "way", [pytest.param(each, marks=needs_subpackage("documents")) if each == "document" else each for each in API]
)
def test_python_does_so_too(way: str, session: Session) -> None:
    expected = load(SOURCE, dtype="float32", drafter="none").generate(TEXT, max_tokens=12).text
    for options in ({}, {"tgt_lang": "de"}, {"src_lang": "en", "tgt_lang": "deu_Latn"}):
        assert API[way](session, options) == expected
    with pytest.raises(InputError, match="tgt_lang: this model only translates en to de, not fr;"):
        API[way](session, {"tgt_lang": "fr"})


def test_a_converted_model_knows_its_languages(english_german: Path, tmp_path: Path) -> None:
    folder = convert(str(english_german), tmp_path / "out")
    assert dict(open_model(folder).model.task_prefixes) == {"translation_en_to_de": ""}


@needs_subpackage("documents")
def test_a_catalog_gets_the_plural_forms_of_the_output_language(command: Command, session: Session) -> None:
    expected = command("document", "in.po", "--target-language", "de")[1]
    status, out, err = command("document", "in.po")
    assert (status, out) == (0, expected), err
    assert '"Language: de\\n"' in out and "nplurals=2" in out
    assert '"Language: de\\n"' in session.document(CATALOG, format="po", max_tokens=12).text


@needs_subpackage("documents")
@pytest.mark.usefixtures("no_weights")
def test_a_document_for_another_language_is_refused_before_weights_load(command: Command) -> None:
    """In a folder, the other documents are decoded nonetheless."""
    Path("fr.po").write_text(CATALOG.replace("Language: ", "Language: fr"))
    status, _, err = command("document", "fr.po")
    assert status == 2 and "fr.po: " in err and "the document is for translations into fr, not into de" in err


@needs_subpackage("documents")
def test_a_document_for_another_language_is_no_obstacle_for_others(command: Command) -> None:
    Path("folder").mkdir()
    Path("folder/fr.po").write_text(CATALOG.replace("Language: ", "Language: fr"))
    Path("folder/a.txt").write_text(TEXT)
    status, _, err = command("document", "folder", "-o", "out")
    assert status == 2 and "1 of 2 documents were not written" in err and "not into de" in err
    assert [path.name for path in Path("out").iterdir()] == ["a.txt"]


@needs_subpackage("documents")
@needs_subpackage("memory")
def test_memories_have_the_languages_of_the_model(command: Command, session: Session, english_german: Path) -> None:
    status, _, err = command("document", "in.txt", "--write-memory", "new.tmx")
    assert status == 0, err
    written = Path("new.tmx").read_text()
    assert 'srclang="en"' in written and 'xml:lang="de"' in written
    status, out, err = command("document", "in.txt", "--memory", "memory.tmx", "--use-matches")
    assert status == 0 and "Die Seite aufmachen." in out and "Ouvrez" not in out, err
    memory = load(english_german, dtype="float32", memory="memory.tmx").memory
    assert memory is not None and memory.languages == ("en", "de")
    status, _, err = command("document", "in.txt", "--memory", "memory.tmx", "--use-matches", "--target-language", "fr")
    assert status == 2 and "this model only translates en to de, not fr" in err


@needs_subpackage("documents")
def test_the_source_language_determines_where_sentences_end(english_german: Path, tmp_path: Path) -> None:
    """With German's rules, "3." does not end a sentence."""
    config = json.loads((english_german / "config.json").read_text())
    folder = tmp_path / "german-english"
    folder.mkdir()
    for path in english_german.iterdir():
        (folder / path.name).symlink_to(path)
    (folder / "config.json").unlink()
    config["task_specific_params"] = {"translation_de_to_en": {"prefix": ""}}
    (folder / "config.json").write_text(json.dumps(config))
    for model, pieces in ((folder, 1), (english_german, 2)):
        decoded = load(model, dtype="float32", drafter="none").document("Am 3. Mai.", max_tokens=4)
        assert decoded.pieces == pieces
    decoded = load(folder, dtype="float32", drafter="none").document("Am 3. Mai.", prefix="English: ", max_tokens=4)
    assert decoded.pieces == 2  # the prefix names another language
