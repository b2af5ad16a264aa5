"""Languages of a T5 are told by a prefix, in each way in. The reference is the prompt that begins with that prefix."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from speculative_decoding import GenerationOptions, InputError, Session, TextStore, load
from speculative_decoding.cli import programs
from speculative_decoding.decoding import prompt as prompt_module
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.loading.pair import ModelPair
from speculative_decoding.loading.tokenizer import Vocabulary
from tests.support.subpackages import needs_subpackage

TEXT = "Open the page."
GERMAN = "translate English to German: "
TOLD = f"each prompt begins with {GERMAN!r}, for these languages"
MODEL = ("--model", "t5-web-docs", "--dtype", "float32", "--baseline", "-m", "12")
Command = Callable[..., tuple[int, str, str]]
Api = Callable[[Session], str]


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run a command beside in.txt, which has one sentence. Returns (exit status, standard output and error)."""
    (tmp_path / "in.txt").write_text(TEXT)
    (tmp_path / "in.jsonl").write_text(json.dumps({"prompt": TEXT, "tgt_lang": "de"}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{TEXT}\n"))
    prompt_module.note_prefixes.cache_clear()

    def call(name: str, *arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        try:
            status = programs.main([name, *arguments])
        except SystemExit as ended:  # raised by argparse
            status = int(ended.code or 0)
        return status, *capfd.readouterr()

    return call


@pytest.fixture(scope="module")
def session() -> Session:
    return load(BUNDLED / "t5-web-docs", dtype="float32", drafter="none")


@pytest.fixture(scope="module")
def german(session: Session) -> str:
    output = session.generate(GERMAN + TEXT, max_tokens=12).text
    assert output != session.generate(TEXT, max_tokens=12).text
    return output


DOCUMENT = pytest.param("document", ["in.txt"], marks=needs_subpackage("documents"))
BATCH = pytest.param("batch", ["in.txt"], marks=needs_subpackage("jobs"))
COMMANDS = [pytest.param("generate", [TEXT]), pytest.param("console", []), DOCUMENT, BATCH]


@pytest.mark.parametrize("languages", [["--target-language", "de"], ["--source-language", "eng_Latn"]])
@pytest.mark.parametrize(("name", "arguments"), COMMANDS)
def test_a_command_puts_the_prefix_of_its_languages_before_each_prompt(
    name: str, arguments: list[str], languages: list[str], command: Command, german: str
) -> None:
    status, out, err = command(name, *arguments, *MODEL, *languages)
    assert status == 0 and german.strip() in out
    assert err.count(TOLD) == 1 and "have prefixes" not in err


@needs_subpackage("jobs")
def test_a_line_of_a_job_names_its_own_language(command: Command, german: str) -> None:
    status, out, _ = command("batch", "in.jsonl", *MODEL)
    record = json.loads(out)
    assert status == 0 and (record["prompt"], record["text"]) == (TEXT, german)


API: dict[str, Any] = {
    "generate": lambda session: session.generate(TEXT, tgt_lang="de", max_tokens=12).text,
    "stream": lambda session: "".join(each.text for each in session.stream(TEXT, tgt_lang="de", max_tokens=12)),
    "batch": lambda session: session.generate([TEXT], src_lang="English", max_tokens=12)[0].text,
    "row": lambda session: next(session.batch([{"prompt": TEXT, "tgt_lang": "de"}], max_tokens=12)).result.text,
    "twice": lambda session: session.generate(GERMAN + TEXT, tgt_lang="de", max_tokens=12).text,
    "document": lambda session: session.document(TEXT, tgt_lang="de", max_tokens=12).text,
    "parts": lambda session: "".join(
        each.written for each in session.document_parts(TEXT, tgt_lang="de", max_tokens=12)
    ),
}
SUBPACKAGES = {"document": "documents", "parts": "documents"}


@pytest.mark.parametrize(
    "way",
    [pytest.param(each, marks=needs_subpackage(SUBPACKAGES[each])) if each in SUBPACKAGES else each for each in API],
)
def test_python_does_so_too(way: str, session: Session, german: str) -> None:
    assert API[way](session) == german


def test_scores_and_encodings_read_the_same_prompt(session: Session) -> None:
    own = replace(session, options=session.options.with_values(tgt_lang="de"))
    assert own.score(TEXT, "Seite").logprob == session.score(GERMAN + TEXT, "Seite").logprob
    assert own.encode(TEXT).shape == session.encode(GERMAN + TEXT).shape


@needs_subpackage("memory")
def test_the_prefix_is_no_part_of_a_source_in_a_memory(session: Session) -> None:
    memory = TextStore.from_pairs([(TEXT, "Etwas ganz anderes.")])
    own = Session(session.model, session.tokenizer, options=GenerationOptions(drafter="text"), memory=memory)
    for prompt, languages in ((TEXT, {"tgt_lang": "de"}), (GERMAN + TEXT, {})):
        assert own.generate(prompt, max_tokens=4, **languages).stats.drafted_by_kind["memory"]


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelPair, "load_weights", None)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--target-language", "fr"],
            "--target-language: this model has prefixes for en to de, not for fr; choose one",
        ),
        (
            ["--source-language", "de"],
            "--source-language: this model has prefixes for en to de, not for de; choose one",
        ),
        (["--target-language", "de", "--prefix", "a: "], "--target-language: has no effect with --prefix 'a: '; leave"),
    ],
)
@pytest.mark.parametrize(("name", "arguments"), COMMANDS)
@pytest.mark.usefixtures("no_weights")
def test_a_language_without_effect_is_refused_before_weights_load(
    name: str, arguments: list[str], flags: list[str], message: str, command: Command
) -> None:
    arguments = [*arguments, "--unit", "line"] if name == "document" else arguments  # sentences depend on a language
    status, _, err = command(name, *arguments, *MODEL, *flags)
    assert status == 2 and f"error: {message}" in err


@needs_subpackage("documents")
@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("flags", [["--target-language", "de"], ["--source-language", "en", "--unit", "paragraph"]])
def test_a_document_refuses_a_language_of_a_model_without_languages(flags: list[str], command: Command) -> None:
    status, _, err = command("document", "in.txt", "--model", "t5-web-docs-draft", *flags)
    assert status == 2 and "has no effect: this model has no languages; leave it out" in err


@needs_subpackage("server")
@pytest.mark.usefixtures("no_weights")
def test_the_server_refuses_a_language_before_weights_load(command: Command) -> None:
    status, _, err = command("serve", "--model", "t5-web-docs", "--port", "0", "--target-language", "fr")
    assert status == 2 and "--target-language: this model has prefixes for en to de, not for fr" in err


@needs_subpackage("documents")
def test_the_source_language_still_chooses_the_rules_of_sentences(command: Command, tmp_path: Path) -> None:
    """A guard: a document may name the language of its sentences to any model."""
    (tmp_path / "in.txt").write_text("Am 3. Mai.")
    for language, pieces in (("de", "1 pieces"), ("en", "2 pieces")):
        flags = ("--model", "t5-web-docs-draft", *MODEL[2:], "--source-language", language)
        status, _, err = command("document", "in.txt", *flags)
        assert status == 0 and pieces in err


@pytest.mark.parametrize(
    ("prompt", "has_note"),
    [
        ("Open the page.", True),
        # The others are guards
        ("Open the page: it is here.", False),  # may be the prefix of any task
        (GERMAN + TEXT, False),
        ("grammar: It were good.", False),
        ("cola sentence: It were good.", False),
        ("stsb sentence1: a. sentence2: b.", False),
    ],
)
def test_a_prompt_without_any_prefix_gets_a_note(prompt: str, has_note: bool, command: Command) -> None:
    status, _, err = command("generate", prompt, *MODEL)
    note = (
        f"note: the tasks of this model have prefixes ({GERMAN!r}), and a prompt begins with none; put one before each "
        "prompt, for example with --prefix or --target-language"
    )
    assert status == 0 and err.count(note) == has_note


def test_many_prompts_get_one_note(
    session: Session, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:  # `command` forgets earlier notes
    with pytest.warns(UserWarning, match="a prompt begins with none") as noted:
        session.generate(["Open.", "Close.", "Save."], max_tokens=2)
    assert len([each for each in noted if "begins with none" in str(each.message)]) == 1


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (
            "summarize: Open.",
            "^tgt_lang: the prompt begins with 'summarize: ', not 'translate English to German: '; lea",
        ),
        ([5, 6, 1], "^tgt_lang: has no effect on a prompt of token ids; give the text, or leave it out"),
    ],
)
def test_a_prompt_that_cannot_take_the_prefix_is_refused(
    prompt: Any, message: str, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = {"translation_en_to_de": GERMAN, "summarization": "summarize: "}
    monkeypatch.setattr(session.model, "task_prefixes", MappingProxyType(tasks))
    with pytest.raises(InputError, match=message):
        session.generate(prompt, tgt_lang="de")


@pytest.mark.parametrize(
    ("piece", "language", "way_out"),
    [
        ("▁<2de>", "German", "put <2de> before the prompt"),  # MADLAD
        (">>deu<<", "de", "put >>deu<< before the prompt"),  # Marian for several languages
        ("<2de>", "fr", "leave it out"),
        ("de", "de", "leave it out"),
    ],
)
def test_a_tag_of_the_vocabulary_is_named_for_a_language(piece: str, language: str, way_out: str) -> None:
    tokenizer: Any = SimpleNamespace(languages={}, vocabulary=Vocabulary({piece: 0, "a": 1}))
    with pytest.raises(
        InputError, match=f"^tgt_lang: '{language}' has no effect: this model has no languages; {way_out}"
    ):
        prompt_module.language_token(tokenizer, "tgt_lang", language)
