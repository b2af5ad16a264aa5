"""Sessions: defaults, overrides of single calls, and state that lasts across requests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from speculative_decoding import GenerationOptions, InputError, Round, Session, generate, load
from speculative_decoding.decoding.prompt import draft_text_of
from speculative_decoding.draft_length import AdaptiveLength, FixedLength
from speculative_decoding.draft_length.passes import RoundCosts
from speculative_decoding.drafters import NgramDrafter, NoDrafter, TextStore
from speculative_decoding.drafters.draft_model import DraftVocabulary
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.session import KEPT_DRAFT_TEXTS
from tests.support.tiny import tiny_model

TARGET, DRAFT = BUNDLED / "t5-web-docs", BUNDLED / "t5-web-docs-draft"
PROMPT = "grammar: It were a cod business, for I had neither coat nor waistcoat."


@pytest.fixture(scope="module")
def session(pair: Session) -> Session:
    """A session of the bundled pair for the tests of this file, which assert what it drafts."""
    return Session(pair.model, pair.tokenizer, pair.draft_model)


@pytest.fixture(scope="module")
def baseline(pair: Session) -> list[int]:
    return generate(pair.model, pair.tokenizer, PROMPT, drafter="none").tokens


def test_a_session_unpacks_to_model_and_tokenizer_unless_it_has_a_draft(session: Session) -> None:
    alone = Session(session.model, session.tokenizer)
    model, tokenizer = alone
    assert model is session.model and tokenizer is session.tokenizer
    with pytest.raises(InputError, match=r"would drop the draft; write session = load\(\.\.\.\)"):
        model, tokenizer = session


def test_a_prompt_may_be_a_list_of_source_tokens(session: Session, baseline: list[int]) -> None:
    tokens = session.tokenizer.encode(PROMPT)
    assert session.generate(tokens).tokens == baseline
    assert [each.token for each in session.stream(tokens)] == baseline
    with pytest.raises(InputError, match="prompt: its tokens must be between 0 and"):
        session.generate([10**6])


def test_sessions_report_the_peak_memory_of_the_process_and_leave_it_to_others(session: Session) -> None:
    mx.eval(large := mx.zeros(1 << 22))
    del large
    peak = mx.get_peak_memory()
    for _ in range(2):
        other = Session(session.model, session.tokenizer)
        result = other.generate(PROMPT, max_tokens=2, drafter="none", strict=False)
        assert result.stats.peak_memory_bytes >= peak and mx.get_peak_memory() >= peak


def test_options_of_a_call_override_the_session(session: Session, baseline: list[int]) -> None:
    assert session.generate(PROMPT, drafter="none").stats.drafted_tokens == 0
    assert session.generate(PROMPT, num_draft_tokens=0).stats.drafted_tokens == 0
    assert session.generate(PROMPT, drafter="ngram", num_draft_tokens=9).tokens == baseline
    assert session.generate(PROMPT, drafter=NoDrafter()).tokens == baseline
    assert session.generate(PROMPT, max_tokens=4).tokens == baseline[:4]
    assert session.options_with({}).num_draft_tokens == "auto"  # the session is unchanged
    assert session.generate(PROMPT, num_draft_tokens=3).stats.drafted_tokens > 0


def test_defaults_are_a_drafter_that_fits_the_models_and_an_adaptive_length(
    session: Session, baseline: list[int]
) -> None:
    alone = Session(session.model, session.tokenizer)
    for ours, drafter, kinds in ((alone, "ngram", {"copy"}), (session, "auto", {"copy", "model"})):
        chosen = ours.options_with({})
        assert (chosen.drafter, chosen.num_draft_tokens) == (drafter, "auto")
        assert isinstance(ours.planner.draft_length(chosen), AdaptiveLength)
        rounds: list[Round] = []
        assert ours.generate(PROMPT).tokens == baseline
        result = ours.generate(PROMPT, num_draft_tokens=5, on_round=rounds.append)  # "auto" may draft nothing
        assert result.tokens == baseline and result.stats.accepted_tokens > 0
        assert {event.kind for event in rounds if event.drafted} <= kinds
    assert isinstance(alone.planner.draft_length(alone.options_with({"num_draft_tokens": 5})), FixedLength)


def test_an_adaptive_length_is_shared_by_the_requests_of_a_session(session: Session) -> None:
    length = AdaptiveLength(lambda rows: RoundCosts({1: 1.0, 4: 1.1, 8: 1.2}))
    ours = Session(session.model, session.tokenizer, session.draft_model, GenerationOptions(num_draft_tokens=length))
    before = length.describe()
    ours.generate(PROMPT)
    assert ours.planner.draft_length(ours.options) is length and length.describe() != before


def test_the_ngram_store_of_a_session_learns_from_each_request(session: Session, baseline: list[int]) -> None:
    model, tokenizer = session.model, session.tokenizer
    ngram = NgramDrafter(pieces=tokenizer.vocabulary.pieces, store=TextStore())
    ours = Session(model, tokenizer, options=GenerationOptions(drafter="ngram", num_draft_tokens=5), ngram=ngram)
    first, second = ours.generate(PROMPT), ours.generate(PROMPT)
    assert first.tokens == second.tokens == baseline
    assert second.stats.target_calls < first.stats.target_calls


def test_max_ngram_size_of_a_call_does_not_depend_on_earlier_calls(session: Session) -> None:
    prompt = "grammar: It were like a pantomime, to come sudenly out of beggardom into this orderly comfort."

    def calls(ours: Session, **sizes: int) -> int:
        return ours.generate(prompt, drafter="ngram", num_draft_tokens=8, **sizes).stats.drafted_tokens

    model, tokenizer = session.model, session.tokenizer
    fresh, used = Session(model, tokenizer), Session(model, tokenizer)
    expected = calls(fresh, max_ngram_size=1)
    assert calls(used) != expected
    assert calls(used, max_ngram_size=1) == expected
    with pytest.raises(InputError, match="no effect with an ngram"):
        calls(Session(model, tokenizer, ngram=NgramDrafter()), max_ngram_size=1)


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "num_return_sequences": 3}])
def test_draft_tokens_are_counted_by_kind(options: dict[str, Any], session: Session) -> None:
    prompt = "translate English to German: The method returns the value of the `index` property."
    texts = ["x", session.generate(prompt, drafter="none").text]
    rounds: list[Round] = []
    options = options | {"draft_text": texts, "drafter": "ngram"}
    stats = session.generate(prompt, on_round=rounds.append, **options).stats
    for found, counts in (
        (stats.drafted_by_kind, [each.drafted for each in rounds]),
        (stats.accepted_by_kind, [each.accepted for each in rounds]),
    ):
        pairs = [(each.kind, count) for each, count in zip(rounds, counts, strict=True) if each.drafted]
        assert found == {kind: sum(n for other, n in pairs if other == kind) for kind, _ in pairs}
    assert sum(stats.drafted_by_kind.values()) == stats.drafted_tokens
    assert sum(stats.accepted_by_kind.values()) == stats.accepted_tokens
    assert "text" in stats.drafted_by_kind and stats.as_dict()["accepted_by_kind"] == stats.accepted_by_kind


def test_a_draft_text_is_prepared_once_and_never_displaces_the_sessions_own(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[str] = []

    def noted(model: Any, tokenizer: Any, text: str, first: int | None = None) -> Any:
        prepared.append(text)
        return draft_text_of(model, tokenizer, text, first)

    monkeypatch.setattr("speculative_decoding.session.draft_text_of", noted)
    session = load("t5-web-docs-draft", num_draft_tokens=3)
    session.options = replace(session.options, draft_text=("own",), max_tokens=3)
    given = [f"given {number}" for number in range(KEPT_DRAFT_TEXTS)]
    list(session.batch([{"prompt": prompt, "draft_text": given} for prompt in (PROMPT, "a", "b")]))
    assert prepared == given
    for text in ("own", *map(str, range(9)), "own"):
        session.generate("a", draft_text=text)
    session.generate("a")
    assert prepared.count("own") == 1


@pytest.mark.parametrize(
    ("drafter", "named"),
    [
        ("model", "drafter: model needs a draft model"),
        (7, "must be one of model, text, ngram, auto, none, not 7"),
    ],
)
def test_a_drafter_that_does_not_fit_the_session_is_refused_at_creation(
    session: Session, drafter: object, named: str
) -> None:
    with pytest.raises(InputError, match=named):
        Session(session.model, session.tokenizer, options=GenerationOptions(drafter=drafter))


def test_a_draft_model_with_other_end_tokens_is_refused_at_creation(session: Session) -> None:
    stranger = tiny_model(eos_token_id=2)
    with pytest.raises(InputError, match="draft model: its eos_token_ids"):
        Session(session.model, session.tokenizer, stranger)


def test_a_trimmed_draft_vocabulary_does_not_change_the_output(session: Session, baseline: list[int]) -> None:
    model, tokenizer = session.model, session.tokenizer
    vocabulary = DraftVocabulary.from_lines(200, [PROMPT, "It was a good business."], tokenizer, [1])
    trimmed = Session(model, tokenizer, session.draft_model, draft_vocabulary=vocabulary)
    result = trimmed.generate(PROMPT, num_draft_tokens=3)
    assert result.tokens == baseline and result.stats.accepted_tokens > 0
    assert mx.array(vocabulary.ids).size < model.config.vocab_size


def test_load_opens_a_store_and_trims_the_draft_as_the_command_line_does(tmp_path: Path, session: Session) -> None:
    path, vocabulary = tmp_path / "store", DraftVocabulary.from_lines(200, [PROMPT], session.tokenizer, [1])
    calls = []
    for _ in range(2):
        ours = load(TARGET, draft=DRAFT, drafter="ngram", num_draft_tokens=5, store=path, draft_vocabulary=vocabulary)
        assert ours.draft_vocabulary is vocabulary and ours.ngram is not None
        store = ours.ngram.store
        assert isinstance(store, TextStore) and bool(len(store)) == bool(calls)
        calls.append(ours.generate(PROMPT).stats.target_calls)
        store.save(path)
    assert calls[1] < calls[0]


def test_a_draft_vocabulary_without_a_draft_is_refused(session: Session) -> None:
    with pytest.raises(InputError, match="^draft_vocabulary: has no effect without a draft model"):
        Session(session.model, session.tokenizer, draft_vocabulary=DraftVocabulary((1, 2)))
