"""Models and what lives across requests, as Python code meets them."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import pytest

from speculative_decoding import GenerationOptions, InputError, Round, Session, generate, load
from speculative_decoding.draft_length import AdaptiveLength, FixedLength
from speculative_decoding.draft_length.costs import RoundCosts
from speculative_decoding.drafters import DraftModel, NgramDrafter, NoDrafter, TextStore
from speculative_decoding.drafters.draft_model import DraftVocabulary
from speculative_decoding.loading.load import BUNDLED
from tests.support.tiny import tiny_model

TARGET, DRAFT = BUNDLED / "t5-web-docs", BUNDLED / "t5-web-docs-draft"
PROMPT = "grammar: It were a cod business, for I had neither coat nor waistcoat."


@pytest.fixture(scope="module")
def session() -> Session:
    return load(TARGET, draft=DRAFT)


@pytest.fixture(scope="module")
def regular(session: Session) -> list[int]:
    return generate(session.model, session.tokenizer, PROMPT, drafter="none").tokens


def test_load_unpacks_to_model_and_tokenizer_unless_a_draft_would_be_lost(session: Session) -> None:
    assert [type(each) for each in load(DRAFT)] == [type(session.model), type(session.tokenizer)]
    alone = Session(session.model, session.tokenizer)
    model, tokenizer = alone
    assert model is session.model and tokenizer is session.tokenizer
    with pytest.raises(InputError, match=r"would drop the draft; write session = load\(\.\.\.\)"):
        model, tokenizer = session


def test_source_tokens_are_a_prompt(session: Session, regular: list[int]) -> None:
    tokens = session.tokenizer.encode(PROMPT)
    assert session.generate(tokens).tokens == regular
    assert [each.token for each in session.stream(tokens)] == regular
    with pytest.raises(InputError, match="tokens of the prompt must be between 0 and"):
        session.generate([10**6])


def test_batch_keeps_the_order_of_prompts_and_batch_as_completed_does_not(session: Session) -> None:
    prompts = [{"prompt": PROMPT, "max_tokens": tokens} for tokens in (20, 2, 30, 1)]
    ordered = list(session.batch(prompts, slots=4))
    assert [each.index for each in ordered] == [0, 1, 2, 3]
    completed = list(session.batch_as_completed(prompts, slots=4))
    assert completed[-1].index == 2 and sorted(each.index for each in completed) == [0, 1, 2, 3]
    by_index = {each.index: each.result for each in completed}
    for each in ordered:
        assert each.result is not None and each.result.tokens == by_index[each.index].tokens  # type: ignore[union-attr]


def test_options_without_effect_are_warnings(session: Session, regular: list[int]) -> None:
    with pytest.warns(UserWarning, match="^top_k has no effect at temperature 0; leave one of them out$"):
        assert session.generate(PROMPT, top_k=5).tokens == regular
    with pytest.warns(UserWarning, match="^top_p has no effect at temperature 0; leave one of them out$"):
        list(session.batch([{"prompt": PROMPT, "top_p": 0.5, "max_tokens": 2}]))


def test_a_session_decodes_with_its_models(session: Session, regular: list[int]) -> None:
    result = session.generate(PROMPT)
    assert result.tokens == regular and result.stats.accepted_tokens > 0
    responses = list(session.stream(PROMPT))
    assert [response.token for response in responses] == regular
    assert "".join(response.text for response in responses) == result.text


def test_a_call_may_choose_otherwise(session: Session, regular: list[int]) -> None:
    assert session.generate(PROMPT, drafter="none").stats.drafted_tokens == 0
    assert session.generate(PROMPT, num_draft_tokens=0).stats.drafted_tokens == 0
    assert session.generate(PROMPT, num_draft_tokens=0, drafter=None).stats.drafted_tokens == 0
    assert session.generate(PROMPT, drafter="ngram", num_draft_tokens=9).tokens == regular
    assert session.generate(PROMPT, drafter=NoDrafter()).tokens == regular
    assert session.generate(PROMPT, max_tokens=4).tokens == regular[:4]
    assert session.generate(PROMPT).stats.drafted_tokens > 0  # and the session is as it was


def test_the_default_is_the_drafter_that_fits_and_a_length_that_adapts(session: Session, regular: list[int]) -> None:
    alone = load(TARGET)
    for ours, drafter, kinds in ((alone, "ngram", {"copy"}), (session, "auto", {"copy", "model"})):
        chosen = ours.options_with({})
        assert (chosen.drafter, chosen.num_draft_tokens) == (drafter, "auto")
        assert isinstance(ours.planner.draft_length(chosen), AdaptiveLength)
        rounds: list[Round] = []
        result = ours.generate(PROMPT, on_round=rounds.append)
        assert result.tokens == regular and result.stats.accepted_tokens > 0
        assert {event.kind for event in rounds if event.drafted} <= kinds
    assert isinstance(alone.planner.draft_length(alone.options_with({"num_draft_tokens": 5})), FixedLength)


def test_regular_decoding_asks_no_drafter_and_learns_no_length(session: Session) -> None:
    regular = session.planner.draft_length(session.options_with({"drafter": "none"}))
    assert isinstance(regular, FixedLength) and not regular.begin_round()
    assert session.generate(PROMPT, drafter="none").stats.drafted_tokens == 0


def test_the_target_in_8_bits_drafts_for_itself(regular: list[int]) -> None:
    session = load(TARGET, draft="self-8bit")
    draft = session.draft_model
    assert isinstance(draft, nn.Module)
    layers = {type(module) for _, module in draft.named_modules()}
    assert nn.QuantizedLinear in layers
    assert nn.QuantizedLinear not in {type(module) for _, module in session.model.named_modules()}
    result = session.generate(PROMPT)
    assert result.tokens == regular and result.stats.acceptance_rate > 0.8


def test_a_quantised_target_is_not_its_own_draft() -> None:
    with pytest.raises(InputError, match="'self-8bit' needs a target that is not quantized; leave out quantize=4"):
        load(TARGET, draft="self-8bit", quantize=4)


def test_a_length_that_learns_is_one_for_the_session(session: Session) -> None:
    length = AdaptiveLength(lambda rows: RoundCosts({1: 1.0, 4: 1.1, 8: 1.2}))
    ours = Session(session.model, session.tokenizer, session.draft_model, GenerationOptions(num_draft_tokens=length))
    before = length.describe()
    ours.generate(PROMPT)
    assert ours.planner.draft_length(ours.options) is length and length.describe() != before


def test_num_draft_is_a_number_a_schedule_or_an_object(session: Session) -> None:
    def lengths(num_draft_tokens: object) -> list[object]:
        options = GenerationOptions(num_draft_tokens=num_draft_tokens)
        return [
            session.planner.draft_length(options),
            session.planner.draft_length(options),
            session.planner.draft_length(options, slots=4),
        ]

    assert all(isinstance(length, FixedLength) for length in lengths(3))
    one, again, other = lengths("auto")  # learns from request to request, apart for each number of rows
    assert one is again and one is not other
    with pytest.raises(InputError, match="num_draft_tokens must be .*, not 'many'"):
        lengths("many")


def test_a_store_of_the_session_learns_from_request_to_request(session: Session, regular: list[int]) -> None:
    model, tokenizer = session.model, session.tokenizer
    ngram = NgramDrafter(pieces=tokenizer.vocabulary.pieces, store=TextStore())
    ours = Session(model, tokenizer, options=GenerationOptions(drafter="ngram"), ngram=ngram)
    first, second = ours.generate(PROMPT), ours.generate(PROMPT)
    assert first.tokens == second.tokens == regular
    assert second.stats.target_calls < first.stats.target_calls


def test_sizes_of_a_call_are_its_own_whatever_was_looked_up_before(session: Session) -> None:
    def calls(ours: Session, **sizes: int) -> int:
        return ours.generate(PROMPT, drafter="ngram", **sizes).stats.drafted_tokens

    model, tokenizer = session.model, session.tokenizer
    fresh, used = Session(model, tokenizer), Session(model, tokenizer)
    expected = calls(fresh, max_ngram_size=1)
    assert calls(used) != expected
    assert calls(used, max_ngram_size=1) == expected
    with pytest.raises(InputError, match="no effect with an ngram"):
        calls(Session(model, tokenizer, ngram=NgramDrafter()), max_ngram_size=1)


@pytest.mark.parametrize(
    ("drafter", "named"),
    [
        ("model", "drafter 'model' needs a draft model"),
        ("copy", "drafter must be one of model, ngram, auto, none"),
        (7, "an object with begin and propose, not 7"),
    ],
)
def test_a_drafter_that_does_not_fit_is_refused_at_once(session: Session, drafter: object, named: str) -> None:
    with pytest.raises(InputError, match=named):
        Session(session.model, session.tokenizer, options=GenerationOptions(drafter=drafter))


def test_a_draft_with_other_ids_is_refused_at_once(session: Session) -> None:
    stranger = tiny_model(eos_token_id=2)
    with pytest.raises(InputError, match="draft model: its eos_token_ids"):
        Session(session.model, session.tokenizer, stranger)


def test_a_trimmed_draft_vocabulary_changes_nothing_but_the_drafts(session: Session, regular: list[int]) -> None:
    model, tokenizer = session.model, session.tokenizer
    draft = session.draft_model
    assert not isinstance(draft, DraftModel) and draft is not None
    vocabulary = DraftVocabulary.from_lines(200, [PROMPT, "It was a good business."], tokenizer, [1])
    trimmed = Session(model, tokenizer, DraftModel(draft, vocabulary))
    result = trimmed.generate(PROMPT)
    assert result.tokens == regular and result.stats.accepted_tokens > 0
    assert mx.array(vocabulary.ids).size < model.config.vocab_size
