"""RunConfig: default drafting options, refusal of options without effect before weights load, and n-gram stores."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

from speculative_decoding import InputError
from speculative_decoding.cli import run_config as run_config_module
from speculative_decoding.cli.main import prompt_parser
from speculative_decoding.cli.parser import flag, flags_from, given_options
from speculative_decoding.cli.run_config import (
    DRAFTERS_OF_FLAGS,
    DraftFlags,
    ModelFlags,
    RunConfig,
    make_run_config,
)
from speculative_decoding.drafters import TextStore
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.loading.pair import ModelPair
from speculative_decoding.sampling.values import specs_of
from speculative_decoding.subpackages import has_subpackage
from tests.support.subpackages import needs_subpackage
from tests.support.waiting import eventually

DRAFT = BUNDLED / "t5-web-docs-draft"


@pytest.fixture
def folders(tmp_path: Path) -> ModelFlags:
    (tmp_path / "target").mkdir()
    return ModelFlags(tmp_path / "target", tmp_path / "draft")


def run_config(folders: ModelFlags, *arguments: str) -> RunConfig:
    chosen = prompt_parser().parse_args(list(arguments))
    return make_run_config(folders, given_options(chosen), flags_from(DraftFlags, chosen))


def drafting_of(folders: ModelFlags, *arguments: str) -> tuple[str, int | str]:
    made = run_config(folders, *arguments)
    return str(made.options.drafter), made.options.num_draft_tokens


def alone(folders: ModelFlags) -> ModelFlags:
    return ModelFlags(folders.model)


@pytest.mark.parametrize(
    ("arguments", "has_draft", "named"),
    [
        (
            ["--baseline", "--drafter", "ngram"],
            True,
            "--drafter: cannot be combined with --baseline; leave",
        ),
        (["--num-draft", "0", "--drafter", "auto"], True, "--drafter: has no effect with --num-draft 0; leave one"),
        (["--draft-vocab", "100"], True, "--draft-vocab: has no effect without --draft-vocab-text; give both"),
        (["--draft-vocab-text", "f"], True, "--draft-vocab-text: has no effect without --draft-vocab; give both"),
        (["--draft-vocab", "9", "--draft-vocab-text", "f"], False, "--draft-vocab: has no effect without a"),
        (["--draft-prefix", "x"], False, "--draft-prefix: has no effect without a draft model; name one with"),
    ],
)
def test_options_without_effect_are_refused_in_one_line(
    arguments: list[str], has_draft: bool, named: str, folders: ModelFlags
) -> None:
    with pytest.raises(InputError) as error:
        drafting_of(folders if has_draft else alone(folders), *arguments)
    assert named in error.value.message(flag) and "\n" not in str(error.value)


def flag_of(name: str) -> str:
    return flag(name, specs_of(DraftFlags).get(name))


OF_DRAFTERS = {
    **DRAFTERS_OF_FLAGS,
    "max_ngram_size": ("ngram", "auto"),
    "draft_text": DRAFTERS_OF_FLAGS["draft_text_file"],
}


def test_every_option_is_refused_with_every_drafter_that_would_ignore_it(folders: ModelFlags) -> None:
    vocabulary = ["--draft-vocab", "9", "--draft-vocab-text", "f"]
    values = {"ngram_store": "s", "draft_text": "t", "draft_text_file": __file__}
    for option, drafters in OF_DRAFTERS.items():
        if option == "memory" and not has_subpackage("memory"):
            continue
        own = vocabulary if option.startswith("draft_vocab") else [flag_of(option), values.get(option, "4")]
        for drafter in ("model", "text", "ngram", "auto", "none"):
            if drafter in drafters:
                assert drafting_of(folders, "--drafter", drafter, *own)[0] == drafter
            else:
                with pytest.raises(InputError, match="(only applies to|has no effect with)") as error:
                    drafting_of(folders, "--drafter", drafter, *own)
                assert error.value.message(flag_of).startswith(f"{own[0]}: ")


def file_of(folder: Path, content: bytes) -> str:
    path = folder / "draft.txt"
    path.write_bytes(content)
    return str(path)


def test_a_file_is_one_draft_text_in_any_encoding_of_text_files(folders: ModelFlags, tmp_path: Path) -> None:
    text = "Grüße\n\nvom Land\n"
    expected = run_config(folders, "--draft-text", "a", "--draft-text", text).options
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        name = file_of(tmp_path, text.replace("\n", "\r\n").encode(encoding))
        made = run_config(folders, "--draft-text-file", name, "--draft-text", "a")
        assert made.options == expected and expected.draft_text == ("a", text)
    twice = run_config(folders, "--draft-text-file", name, "--draft-text-file", name)
    assert twice.options.draft_text == (text, text)
    given = {"draft_text": twice.options.draft_text}
    assert make_run_config(folders, given, twice.flags).options.draft_text == (text, text)  # not added again


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "not readable"),
        (b"\xff", "not readable as UTF-8 text"),
        (b"PK\0\1", "contains a NUL character"),
    ],
)
def test_an_unreadable_draft_text_is_refused_before_a_model_is_opened(
    content: bytes | None, problem: str, folders: ModelFlags, tmp_path: Path
) -> None:
    name = str(tmp_path / "nosuch") if content is None else file_of(tmp_path, content)
    with pytest.raises(InputError) as error:
        run_config(folders, "--draft-text-file", name)
    message = error.value.message(flag)
    assert message.startswith(f"--draft-text-file: {name}: {problem}") and "\n" not in message


@pytest.mark.parametrize("option", ["--draft-text", "--draft-text-file"])
@pytest.mark.parametrize(
    "other",
    [["--baseline"], ["--num-draft", "0"], pytest.param(["--num-beams", "2"], marks=needs_subpackage("beam_search"))],
)
def test_a_draft_text_is_refused_without_drafts(
    option: str, other: list[str], folders: ModelFlags, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="(has no effect with|only applies to|cannot be combined with)") as error:
        run_config(alone(folders), option, file_of(tmp_path, b"a b"), *other)
    assert error.value.message(flag).startswith(f"{option}: ")


def test_the_settings_have_a_hash_of_the_draft_texts(folders: ModelFlags, tmp_path: Path) -> None:
    def hash_of(*arguments: str) -> str | None:
        settings = run_config(folders, *arguments).settings()
        assert "draft_text" not in settings and len(json.dumps(settings)) < 2000
        found: str | None = settings["draft_text_sha256"]
        return found

    text = "word " * 10_000
    assert hash_of("--draft-text", text) == hash_of("--draft-text-file", file_of(tmp_path, text.encode()))
    hashes = [hash_of(*arguments) for arguments in ([], ["--draft-text", "a"], ["--draft-text", "b"])]
    assert hashes[0] is None and len({*hashes}) == 3


def test_the_description_names_the_draft_in_use(folders: ModelFlags) -> None:
    def description(folders: ModelFlags, *arguments: str) -> str:
        return run_config(folders, *arguments).describe()

    copies, bits = ", drafts copied from the text", ModelFlags(folders.model, "self-8bit")
    written = f", draft {folders.draft_model}, which has another vocabulary: its text is the draft"
    pair: Any = SimpleNamespace(drafts_text=True)
    assert run_config(folders, "--drafter", "model").describe(pair).endswith(written)
    assert run_config(folders).describe(pair).endswith(f"{written}; also copies of the text")
    assert description(folders, "--drafter", "model").endswith(f", draft {folders.draft_model}")
    assert description(folders).endswith(f", draft {folders.draft_model} and copies of the text")
    assert description(bits).endswith(f", draft {folders.model} in 8 bits and copies of the text")
    assert description(folders, "--drafter", "ngram").endswith(copies)
    assert description(alone(folders)).endswith(copies) and description(alone(folders), "--drafter", "auto").endswith(
        copies
    )
    assert description(folders, "--baseline").endswith("no draft: baseline decoding")
    assert description(alone(folders), "--draft-text", "a").endswith(f"{copies}, 1 draft text")
    texts = ["--draft-text", "a", "--draft-text", "b"]
    assert description(folders, "--drafter", "text", *texts).endswith("drafter text, 2 draft texts")


def open_pair(*arguments: str) -> tuple[RunConfig, ModelPair]:
    made = run_config(ModelFlags(str(DRAFT), str(DRAFT)).find(), *arguments)
    return made, made.open()


def test_draft_vocabulary_and_length_reach_the_session(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Die Methode gibt den Wert.\n\nDie Methode.\n", encoding="utf-8")
    arguments = ["--draft-vocab", "4", "--draft-vocab-text", str(text)]
    made, pair = open_pair(*arguments, "--num-draft", "3")
    with made.session(pair) as session:
        vocabulary = session.draft_vocabulary
        assert vocabulary is not None and len(vocabulary.ids) == 4
        frequent = pair.target.tokenizer.encode("Die Methode")[:2]
        assert set(frequent) < set(vocabulary.ids)
        assert session.options.num_draft_tokens == 3


@pytest.mark.parametrize("text", [None, b"\xff", b"die\0Methode"])
def test_an_unreadable_vocabulary_text_is_a_one_line_error(text: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    if text is not None:
        path.write_bytes(text)
    made, pair = open_pair("--draft-vocab", "4", "--draft-vocab-text", str(path))
    with (
        pytest.raises(InputError, match=f"^draft_vocab_text: {path}: (not readable|contains a NUL character)"),
        made.session(pair),
    ):
        pass


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_store_is_saved_after_a_run_and_loaded_by_the_next(is_interrupted: bool, tmp_path: Path) -> None:
    prompt, path = "translate English to German: The method returns the value.", tmp_path / "store"
    calls = []
    for _ in range(2):
        made, pair = open_pair("--drafter", "ngram", "--num-draft", "5", "--ngram-store", str(path))
        with suppress(KeyboardInterrupt), made.session(pair) as session:
            calls.append(session.generate(prompt).stats.target_calls)
            if is_interrupted:
                raise KeyboardInterrupt
    assert calls[1] < calls[0]


def test_a_store_that_cannot_be_saved_does_not_hide_another_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "folder" / "store"
    path.parent.mkdir()
    for error in (ZeroDivisionError, KeyboardInterrupt, None):
        made, pair = open_pair("--drafter", "ngram", "--ngram-store", str(path))
        with pytest.raises(error or InputError) as raised, made.session(pair):
            path.parent.rmdir()
            if error is not None:
                raise error
        said = capsys.readouterr().err if error else str(raised.value)
        assert f"n-gram store {path}: cannot be written" in said
        path.parent.mkdir()


def test_a_killed_process_keeps_its_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are saved while the session is open, each time that there are new ones."""
    monkeypatch.setattr(run_config_module, "SAVE_SECONDS", 0.01)
    path = tmp_path / "store"
    made, pair = open_pair("--drafter", "ngram", "--ngram-store", str(path))
    with made.session(pair) as session:
        assert session.ngram is not None
        store = session.ngram.store
        assert isinstance(store, TextStore)
        for count in (1, 2):
            session.generate(f"grammar: It were a cod business {count}.", max_tokens=4)
            eventually(lambda: path.exists() and len(TextStore.load(path)) == len(store))


def test_an_unwritable_store_is_refused_before_weights_load(tmp_path: Path) -> None:
    made, pair = open_pair("--drafter", "ngram", "--ngram-store", str(tmp_path / "nowhere" / "store"))
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    with pytest.raises(InputError, match="^ngram_store: .* cannot be written"), made.session(pair):
        pass
    assert mx.get_peak_memory() - before < 1e6


def test_only_the_bundled_target_is_a_demonstration(folders: ModelFlags) -> None:
    assert run_config(folders).demonstration_note() is None
    note = run_config(ModelFlags(BUNDLED / "t5-web-docs")).demonstration_note()
    assert note is not None and note.startswith("note: t5-web-docs is a demonstration, trained on web documentation")
    assert note.endswith("use --model google/flan-t5-large --draft-model google/flan-t5-small")
