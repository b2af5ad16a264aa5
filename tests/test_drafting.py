"""What the options say about drafts: what is taken where nothing is said, and what is refused before anything loads."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from speculative_decoding import InputError
from speculative_decoding.cli import common, drafting
from speculative_decoding.cli.common import Folders
from speculative_decoding.cli.main_options import main_parser
from speculative_decoding.cli.tuned import Tuned, write_tuned
from speculative_decoding.drafters import DraftModel, NgramStore, TextStore
from speculative_decoding.loading.load import BUNDLED, Opened

DRAFT = BUNDLED / "t5-web-docs-draft"


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    (tmp_path / "target").mkdir()
    return Folders(tmp_path / "target", tmp_path / "draft")


def parsed(*arguments: str) -> argparse.Namespace:
    return main_parser().parse_args(list(arguments))


def settled(folders: Folders, *arguments: str) -> tuple[str, int | str]:
    chosen = parsed(*arguments)
    drafting.settle(chosen, folders)
    return chosen.drafter, chosen.num_draft


def alone(folders: Folders) -> Folders:
    return Folders(folders.target, None)


def test_what_is_taken_where_nothing_is_said(folders: Folders) -> None:
    assert settled(folders) == ("model", 5)
    assert settled(alone(folders)) == ("none", 5)
    assert settled(folders, "--num-draft", "7") == ("model", 7)
    assert settled(folders, "--drafter", "ngram") == ("ngram", 5)
    assert settled(alone(folders), "--drafter", "auto") == ("auto", 5)
    assert settled(folders, "--num-draft", "auto") == ("model", "auto")
    for plain in (["--regular-decode"], ["--num-draft", "0"], ["--drafter", "none"]):
        assert settled(folders, *plain)[0] == "none"


def test_what_was_tuned_is_taken_only_where_nothing_is_said(
    folders: Folders, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tuned(folders.target, drafting.tuned_key(parsed(), folders), Tuned("ngram", 12), {})
    assert settled(folders) == ("ngram", 12)
    assert capsys.readouterr().err == "as tuned for this machine: --drafter ngram --num-draft 12\n"
    assert settled(folders, "--drafter", "model") == ("model", 5)
    assert settled(folders, "--num-draft", "3") == ("model", 3)
    assert settled(folders, "--regular-decode")[0] == "none"
    others = [alone(folders), Folders(folders.target, folders.target), Folders(folders.target, folders.draft, 8)]
    assert [settled(other) for other in others] == [("none", 5), ("model", 5), ("model", 5)]
    assert settled(folders, "--dtype", "bfloat16") == ("model", 5)
    assert settled(folders, "--confidence-threshold", "0.2") == ("model", 5)
    assert "tuned" not in capsys.readouterr().err


def test_what_was_tuned_with_an_option_is_taken_with_it_alone(folders: Folders) -> None:
    hesitant = ("--confidence-threshold", "0.2")
    write_tuned(folders.target, drafting.tuned_key(parsed(*hesitant), folders), Tuned("auto", 3), {})
    assert settled(folders, *hesitant) == ("auto", 3)
    assert settled(folders, "--confidence-threshold", "0.3") == settled(folders) == ("model", 5)
    write_tuned(folders.target, drafting.tuned_key(parsed(*hesitant), folders), Tuned("ngram", 3), {})
    assert settled(folders, *hesitant) == ("model", 5)  # n-grams could not be hesitant


def test_a_damaged_setting_is_refused_only_where_it_would_be_taken(folders: Folders) -> None:
    (folders.target / "tuned.json").write_text("{")
    with pytest.raises(InputError, match=r"tuned\.json: not what tune wrote"):
        settled(folders)
    assert settled(folders, "--drafter", "model") == ("model", 5)


STORE = ["--ngram-store", "s.json"]
REFUSED = [
    (["--regular-decode", "--drafter", "ngram"], "--drafter ngram: --regular-decode and --num-draft 0 use none"),
    (["--num-draft", "0", "--drafter", "auto"], "--drafter auto: --regular-decode and --num-draft 0 use none"),
    (
        ["--drafter", "ngram", "--draft-vocab", "9", "--draft-vocab-text", "f"],
        "--draft-vocab belongs to --drafter model",
    ),
    (
        ["--drafter", "none", "--draft-vocab-text", "f"],
        "--draft-vocab-text belongs to --drafter model or auto, not none",
    ),
    (
        ["--regular-decode", "--confidence-threshold", "0.5"],
        "--confidence-threshold belongs to --drafter model or auto",
    ),
    (["--max-ngram-size", "4"], "--max-ngram-size belongs to --drafter ngram or auto, not model"),
    (["--min-ngram-size", "4", "--drafter", "none"], "--min-ngram-size belongs to --drafter ngram or auto, not none"),
    (STORE, "--ngram-store belongs to --drafter ngram or auto, not model"),
    (["--draft-vocab", "100"], "--draft-vocab N and --draft-vocab-text FILE belong together"),
    (["--draft-vocab-text", "f"], "--draft-vocab N and --draft-vocab-text FILE belong together"),
    (["--drafter", "ngram", "--ngram-storage", "onelevel"], "--ngram-storage describes a store; name one"),
    (["--drafter", "auto", "--filler-top-k", "3"], "--filler-top-k describes a store; name one with --ngram-store"),
    (["--guess-unknown"], "--guess-unknown describes a store; name one with --ngram-store"),
    (["--drafter", "auto", *STORE, "--guess-unknown"], "--guess-unknown need --ngram-storage multilevel or onelevel"),
    (["--drafter", "ngram", *STORE, "--filler-top-k", "3", "--ngram-storage", "texts"], "--filler-top-k and"),
]
REFUSED_ALONE = [
    (["--drafter", "model"], "--drafter model: there is no draft model; name one with --draft-model"),
    (["--drafter", "auto", "--confidence-threshold", "0.5"], "--confidence-threshold shapes a draft model's drafts"),
    (["--drafter", "auto", "--draft-vocab", "9", "--draft-vocab-text", "f"], "--draft-vocab shapes a draft model's"),
    (["--confidence-threshold", "0.5"], "--confidence-threshold belongs to --drafter model or auto, not none"),
]


@pytest.mark.parametrize(
    ("arguments", "named", "is_alone"),
    [(*each, False) for each in REFUSED] + [(*each, True) for each in REFUSED_ALONE],
)
def test_options_that_would_be_ignored_are_one_line(
    arguments: list[str], named: str, is_alone: bool, folders: Folders
) -> None:
    with pytest.raises(InputError) as error:
        settled(alone(folders) if is_alone else folders, *arguments)
    assert named in str(error.value) and "\n" not in str(error.value)


def test_every_option_is_refused_by_every_drafter_that_ignores_it(folders: Folders) -> None:
    values = {"draft_vocab": "9", "draft_vocab_text": "f", "confidence_threshold": "0.5", "ngram_store": "s"}
    for option, drafters in drafting.NEEDS.items():
        for drafter in ("model", "ngram", "auto", "none"):
            arguments = ["--drafter", drafter, drafting.flag(option), values.get(option, "4")]
            if drafter not in drafters:
                with pytest.raises(InputError, match=f"{drafting.flag(option)} belongs to"):
                    settled(folders, *arguments)
            elif option.startswith("draft_vocab"):
                other = "draft_vocab_text" if option == "draft_vocab" else "draft_vocab"
                settled(folders, *arguments, drafting.flag(other), values[other])
            else:
                settled(folders, *arguments)


def test_each_of_several_drafters_gets_the_options_that_it_can_use(folders: Folders) -> None:
    chosen = parsed("--confidence-threshold", "0.5", "--max-ngram-size", "4")
    each = drafting.each_drafter(chosen, ["model", "ngram", "auto"], folders)
    assert [one.drafter for one in each] == ["model", "ngram", "auto"]
    assert [hasattr(one, "confidence_threshold") for one in each] == [True, False, True]
    assert [hasattr(one, "max_ngram_size") for one in each] == [False, True, True]
    with pytest.raises(InputError, match="--confidence-threshold belongs to"):
        drafting.each_drafter(chosen, ["ngram"], folders)


def test_what_is_said_names_what_is_used(folders: Folders) -> None:
    def said(folders: Folders, *arguments: str) -> str:
        chosen = parsed(*arguments)
        drafting.settle(chosen, folders)
        return drafting.describe(chosen, folders)

    assert said(folders).endswith(f", draft {folders.draft}")
    assert said(folders, "--drafter", "auto").endswith(f", draft {folders.draft} and n-grams")
    assert said(Folders(folders.target, folders.target, 8)).endswith(f", draft {folders.target} in 8 bits")
    assert said(folders, "--drafter", "ngram").endswith(", n-grams as a draft")
    assert said(alone(folders), "--drafter", "auto").endswith(", n-grams as a draft")
    assert said(folders, "--regular-decode").endswith("no draft: regular decoding")


def opened(*arguments: str) -> tuple[argparse.Namespace, common.Pair]:
    chosen = parsed("--model", str(DRAFT), "--draft-model", str(DRAFT), *arguments)
    folders = common.choose(chosen)
    drafting.settle(chosen, folders)
    return chosen, common.open_pair(folders, chosen, use_draft=drafting.needs_draft(chosen))


def test_options_reach_the_draft_model(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Die Methode gibt den Wert.\n\nDie Methode.\n", encoding="utf-8")
    arguments = ["--draft-vocab", "4", "--draft-vocab-text", str(text), "--confidence-threshold", "0.3"]
    chosen, pair = opened(*arguments, "--num-draft", "3")
    with drafting.session(chosen, pair) as session:
        assert isinstance(session.draft_model, DraftModel)
        assert session.draft_model.confidence_threshold == 0.3 and session.ngram is None
        vocabulary = session.draft_model.vocabulary
        assert vocabulary is not None and len(vocabulary.ids) == 4
        frequent = pair.tokenizer.encode("Die Methode")[:2]
        assert set(frequent) < set(vocabulary.ids)
        assert session.length.most == 3


@pytest.mark.parametrize("text", [None, b"\xff\xfe"])
def test_a_vocabulary_text_that_cannot_be_read_is_one_line(text: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    if text is not None:
        path.write_bytes(text)
    chosen, pair = opened("--draft-vocab", "4", "--draft-vocab-text", str(path))
    with (
        pytest.raises(InputError, match=f"--draft-vocab-text {path}: not readable as UTF-8 text"),
        drafting.session(chosen, pair),
    ):
        pass


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ([], TextStore),
        (["--ngram-storage", "onelevel", "--max-ngram-size", "3"], NgramStore),
        (["--ngram-storage", "multilevel", "--filler-top-k", "4", "--guess-unknown"], NgramStore),
    ],
)
def test_a_store_is_written_behind_and_read_again(
    arguments: list[str], kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, path = "grammar: It were a cod business.", tmp_path / "store"
    calls = []
    for more in (arguments, []):
        sizes = [] if more else [each for each in arguments if each in ("--max-ngram-size", "3")]
        chosen, pair = opened("--drafter", "ngram", "--ngram-store", str(path), *more, *sizes)
        with drafting.session(chosen, pair) as session:
            assert session.ngram is not None and isinstance(session.ngram._store, kind)
            calls.append(session.generate(prompt).stats.target_calls)
        assert path.exists()
    assert calls[1] < calls[0]
    for option in (["--ngram-storage", "texts"], ["--ngram-storage", "onelevel", "--filler-top-k", "9"]):
        chosen, pair = opened("--drafter", "ngram", "--ngram-store", str(path), *option)
        with pytest.raises(InputError, match=f"--ngram-storage: {path} exists"), drafting.session(chosen, pair):
            pass


def test_a_store_is_kept_when_a_run_is_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "store"
    chosen, pair = opened("--drafter", "ngram", "--ngram-store", str(path))
    with pytest.raises(KeyboardInterrupt), drafting.session(chosen, pair) as session:
        session.generate("grammar: It were a cod business.")
        raise KeyboardInterrupt
    assert path.exists()


def test_a_store_that_could_not_be_written_is_refused_before_weights_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Opened, "load_weights", lambda _: pytest.fail("loaded weights first"))
    chosen, pair = opened("--drafter", "ngram", "--ngram-store", str(tmp_path / "nowhere" / "store"))
    with pytest.raises(InputError, match="--ngram-store .*: cannot be written"), drafting.session(chosen, pair):
        pass


def test_sizes_that_contradict_each_other_are_one_line() -> None:
    chosen, pair = opened("--drafter", "ngram", "--max-ngram-size", "3", "--min-ngram-size", "5")
    with pytest.raises(InputError, match="min_ngram_size .5., not 3"), drafting.session(chosen, pair):
        pass
