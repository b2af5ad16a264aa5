"""A draft model may have any vocabulary: its text is the draft. The bundled draft, with other ids and pieces."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding import InputError, Session, batch_generate, load, stream_generate
from speculative_decoding.cli.compare import decoding_modes
from speculative_decoding.cli.main import main
from speculative_decoding.decoding.draft_writer import TextWriter
from speculative_decoding.draft_length.probe import Probe
from speculative_decoding.drafters.draft_model import DraftVocabulary
from speculative_decoding.errors import Note
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.loading.pair import DraftPrompt, open_pair
from speculative_decoding.models.base import EncoderDecoder
from tests.support.families import save_family
from tests.support.other_vocabulary import save_with_other_vocabulary, with_other_vocabulary
from tests.support.paths import ROOT

TARGET, DRAFT = BUNDLED / "t5-web-docs", BUNDLED / "t5-web-docs-draft"
TASKS = ("translation", "grammar", "describe")


def prompts_of(task: str, count: int) -> list[str]:
    return (ROOT / "data" / f"{task}.txt").read_text(encoding="utf-8").splitlines()[:count]


MIXED = [prompt for task in TASKS for prompt in prompts_of(task, 2)]


@pytest.fixture(scope="module")
def session(pair: Session) -> Session:
    assert isinstance(pair.draft_model, EncoderDecoder)
    draft, tokenizer = with_other_vocabulary(pair.draft_model, DRAFT)
    return Session(pair.model, pair.tokenizer, draft, draft_tokenizer=tokenizer)


@pytest.fixture(scope="module")
def folder(pair: Session, tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert isinstance(pair.draft_model, EncoderDecoder)
    return save_with_other_vocabulary(pair.draft_model, DRAFT, tmp_path_factory.mktemp("models") / "other")


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("count", [4, pytest.param(60, marks=pytest.mark.slow)])
def test_the_model_drafts_as_many_accepted_tokens_as_its_text_given(task: str, count: int, session: Session) -> None:
    assert session.drafts_text and isinstance(session.draft_model, EncoderDecoder) and session.draft_tokenizer
    alone = Session(session.draft_model, session.draft_tokenizer)
    accepted = {"text": 0, "model": 0}
    for prompt in prompts_of(task, count):
        text = alone.generate(prompt, drafter="none").text
        tokens = session.generate(prompt, drafter="none").tokens
        for drafter, given in (("text", {"draft_text": text}), ("model", {})):
            found = session.generate(prompt, drafter=drafter, num_draft_tokens=15, **given)  # type: ignore[arg-type]
            assert found.tokens == tokens
            accepted[drafter] += found.stats.accepted_tokens
    assert accepted["model"] >= accepted["text"] > 0


@pytest.mark.parametrize(
    ("drafter", "options"),
    [("auto", {}), ("model", {"temperature": 0.8, "seed": 3, "num_return_sequences": 2})],
    ids=str,
)
def test_batches_and_samples_equal_single_baselines(drafter: str, options: dict[str, Any], session: Session) -> None:
    """Rows start and end at different times, and each has its own text."""
    expected = [session.generate(prompt, drafter="none", max_tokens=24, **options) for prompt in MIXED]
    found = list(session.batch(MIXED, drafter=drafter, slots=3, num_draft_tokens=6, max_tokens=24, **options))
    assert [each.result and each.result.text for each in found] == [each.text for each in expected]
    for each, own in zip(found, expected, strict=True):
        assert each.result is not None and each.result.stats.drafted_tokens > 0
        assert [one.tokens for one in each.result.sequences] == [one.tokens for one in own.sequences]


def test_an_adaptive_length_and_all_other_functions_give_the_same_tokens(session: Session) -> None:
    draft: dict[str, Any] = {"draft_model": session.draft_model, "draft_tokenizer": session.draft_tokenizer}
    expected = [session.generate(prompt, drafter="none", max_tokens=16).tokens for prompt in MIXED[:2]]
    assert [session.generate(prompt, max_tokens=16).tokens for prompt in MIXED[:2]] == expected
    streamed = stream_generate(session.model, session.tokenizer, MIXED[0], max_tokens=16, **draft)
    assert [each.token for each in streamed] == expected[0]
    batch = batch_generate(session.model, session.tokenizer, MIXED[:2], max_tokens=16, **draft)
    assert [each.result and each.result.tokens for each in batch] == expected


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[TextWriter]]:
    made: list[TextWriter] = []
    before = TextWriter.__init__

    def init(self: TextWriter, *arguments: Any) -> None:
        before(self, *arguments)
        made.append(self)

    monkeypatch.setattr(TextWriter, "__init__", init)
    yield made


def test_nothing_is_written_for_requests_that_have_ended(session: Session, writers: list[TextWriter]) -> None:
    options = session.options_with({"drafter": "model", "num_draft_tokens": 2, "max_tokens": 30})
    engine = session.engine(options, slots=3)
    length = session.planner.draft_length(options, 3)
    requests = [engine.submit(prompt, options, length) for prompt in MIXED[:5]]
    expected = [session.generate(prompt, drafter="none", max_tokens=30).tokens for prompt in MIXED[:5]]
    for _ in range(3):
        engine.step()
    engine.cancel(requests[1])
    while not engine.is_idle:
        engine.step()
        own: Any = writers[0].engine
        assert own.decoding + own.waiting <= engine.decoding + 1  # finished in this round, at most
    assert writers[0].engine.is_idle  # type: ignore[attr-defined]
    for request, tokens in zip(requests, expected, strict=True):
        assert request.finish_reason == "cancelled" or request.tokens == tokens


def test_the_draft_model_alone_is_not_compared(session: Session, pair: Session) -> None:
    """Its tokens are not the target's."""
    assert decoding_modes(session) == ["speculative", "baseline"]
    assert decoding_modes(pair) == ["speculative", "baseline", "draft"]


def test_a_stream_may_be_abandoned(session: Session) -> None:
    first = session.stream(MIXED[0], drafter="model", num_draft_tokens=3)
    tokens = [each.token for each in islice(first, 4)]
    assert session.generate(MIXED[1], drafter="model").tokens == session.generate(MIXED[1], drafter="none").tokens
    assert [*tokens, *(each.token for each in first)] == session.generate(MIXED[0], drafter="none").tokens


def test_the_first_token_does_not_wait_for_the_whole_text(session: Session, writers: list[TextWriter]) -> None:
    events = session.rounds(prompts_of("translation", 1)[0], drafter="model", num_draft_tokens=2)
    next(events)
    written: Any = writers[0].engine
    (request,) = (each for each in written._requests if each is not None)
    assert len(request.tokens) <= 8


def test_a_forced_prefix_is_continued(session: Session) -> None:
    prompt = prompts_of("translation", 1)[0]
    text = session.generate(prompt, drafter="none").text
    prefix = text[: text.index(" ", 12)]
    options: dict[str, Any] = {"decoder_prefix": prefix, "max_tokens": 24}
    found = session.generate(prompt, drafter="model", num_draft_tokens=8, **options)
    assert found.tokens == session.generate(prompt, drafter="none", **options).tokens
    assert found.stats.accepted_tokens > 0


def test_the_prefix_of_the_draft_replaces_that_of_the_target(session: Session, writers: list[TextWriter]) -> None:
    """Without its own prefix, this draft model writes something else; with it, it drafts."""
    prefix, text = "translate English to German: ", "The method returns the value of the attribute."
    own: dict[str, Any] = {"model": session.model, "tokenizer": session.tokenizer, "draft_model": session.draft_model}
    own["draft_tokenizer"] = session.draft_tokenizer
    accepted = [
        Session(**own, **settings).generate(prefix + text, drafter="model", num_draft_tokens=8).stats.accepted_tokens
        for settings in (
            {},
            {"draft_prompt": DraftPrompt(""), "prompt_prefixes": [prefix]},
            {"draft_prompt": DraftPrompt(prefix), "prompt_prefixes": [prefix]},
        )
    ]
    assert accepted[0] == accepted[2] > accepted[1]


def test_the_cost_of_a_draft_token_is_that_of_a_token_written(session: Session, writers: list[TextWriter]) -> None:
    step, start, prefill = Probe(session.model, session.planner.probe()._make_drafter).draft_seconds(2)
    assert step > 0 and start >= 0 and prefill >= 0  # a prefill may be too short for the clock
    engine: Any = writers[0].engine
    assert engine.decoding == 2 and all(len(request.tokens) < 64 for request in engine._requests)


def test_a_folder_is_loaded_and_the_first_line_says_how_it_drafts(
    folder: Path, session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = open_pair(TARGET, folder)
    assert opened.drafts_text and not open_pair(TARGET, DRAFT).drafts_text
    prompt = MIXED[0]
    assert main(["--model", str(TARGET), "--draft-model", str(folder), "-m", "20", "--prompt", prompt]) == 0
    captured = capsys.readouterr()
    assert f"draft {folder}, which has another vocabulary: its text is the draft; also copies of" in captured.err
    assert captured.out.strip() == session.generate(prompt, drafter="none", max_tokens=20).text
    loaded = load(TARGET, draft=folder, drafter="model")
    found = loaded.generate(prompt, num_draft_tokens=8)
    assert found.tokens == session.generate(prompt, drafter="none").tokens and found.stats.accepted_tokens > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--draft-target-language", "de"], "--draft-target-language: de has no effect: the draft model has no such"),
        (["--draft-source-language", "de"], "--draft-source-language: de has no effect: the draft model has no such"),
        (["--draft-vocab", "9", "--draft-vocab-text", "{text}"], "--draft-vocab: has no effect with a draft model of"),
    ],
)
def test_flags_without_effect_are_refused_before_weights_load(
    arguments: list[str],
    message: str,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(EncoderDecoder, "load_checkpoint", lambda *_: pytest.fail("weights were read"))
    (text := tmp_path / "text.txt").write_text("Ein Satz\n")
    own = [each.format(text=text) for each in arguments]
    assert main(["--model", str(TARGET), "--draft-model", str(folder), *own, "--prompt", "x"]) == 2
    assert message in capsys.readouterr().err
    if "--draft-vocab" not in own:
        assert main(["--model", str(TARGET), "--draft-model", str(DRAFT), *own, "--prompt", "x"]) == 2
        assert "has no effect without a draft model of another vocabulary" in capsys.readouterr().err


def test_a_draft_vocabulary_has_no_effect_on_a_text(session: Session) -> None:
    with pytest.raises(InputError, match="draft_vocabulary: has no effect with a draft model of another vocabulary"):
        Session(
            session.model,
            session.tokenizer,
            session.draft_model,
            draft_tokenizer=session.draft_tokenizer,
            draft_vocabulary=DraftVocabulary((1, 2)),
        )


def test_text_and_speech_are_no_drafts_for_each_other(tmp_path: Path) -> None:
    speech = save_family(tmp_path / "whisper", "whisper")
    with pytest.raises(InputError, match="^draft model: reads speech, and the target reads text; choose a draft that"):
        open_pair(TARGET, speech)
    with pytest.raises(InputError, match="^draft model: reads text, and the target reads speech; choose a draft that"):
        open_pair(speech, DRAFT)


def test_a_prompt_that_the_draft_model_cannot_read_is_decoded_without_a_draft(
    tmp_path: Path, session: Session, make_short: Callable[[], tuple[EncoderDecoder, Any]]
) -> None:
    draft, tokenizer = make_short()
    own = Session(session.model, session.tokenizer, draft, draft_tokenizer=tokenizer)
    prompt = " ".join(["The method returns the value."] * 30)
    with pytest.warns(Note, match="no draft for this prompt: .* tokens, but the model has positions for at most"):
        found = own.generate(prompt, drafter="model", num_draft_tokens=4, max_tokens=12)
    assert found.tokens == session.generate(prompt, drafter="none", max_tokens=12).tokens
    assert found.stats.drafted_tokens == 0


@pytest.fixture
def make_short(tmp_path: Path) -> Callable[[], tuple[EncoderDecoder, Any]]:
    """A function that returns a tiny BART with few positions, and a tokenizer that has no words of English."""

    def make() -> tuple[EncoderDecoder, Any]:
        opened = load(save_family(tmp_path / "bart", "bart"))
        shutil.rmtree(tmp_path / "bart")
        return opened.model, opened.tokenizer

    return make
