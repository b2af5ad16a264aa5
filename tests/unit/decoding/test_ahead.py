"""A pass that starts before the tokens of the one before it are read changes no output and is rarely wasted."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from speculative_decoding import GenerationResult, Session, engine, generate
from speculative_decoding.draft_length.planner import PassPlanner
from speculative_decoding.drafters import NgramDrafter
from speculative_decoding.models.base import EncoderDecoder
from tests.support.tiny import EXACT, tiny_model
from tests.support.together import Letters

MODEL = tiny_model()
ENDLESS = tiny_model(eos_token_id=[])
PROMPTS = ["abc", "b", "hgfedcba", "aa", "cabbage", "fed"]
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "logprobs": {"logprobs": True},
    "stop strings": {"stop": ["e", "hg"]},
    "one token": {"max_tokens": 1},
    "two tokens": {"max_tokens": 2},
    "an end token later": {"eos_token_ids": [9]},
    "padded passes": {"strict": True},
    "a minimum length": {"min_tokens": 5},
    "samples": {"temperature": 1.0},
    "a penalty": {"repetition_penalty": 1.3},
}


def turn_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "on_gpu", lambda: True)


def outputs(model: EncoderDecoder, slots: int, options: dict[str, Any]) -> list[tuple[Any, ...]]:
    session = Session(model, Letters(), slots=slots)
    given = {"drafter": "none", "max_tokens": 12} | options
    results: list[GenerationResult | None] = [each.result for each in session.batch(PROMPTS, **given)]
    assert all(results)
    return [(each.tokens, each.text, each.finish_reason, each.logprobs) for each in results if each is not None]


def count_passes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that records each pass and each host sync."""
    done: list[str] = []
    states = EncoderDecoder.states
    evaluate = mx.eval
    monkeypatch.setattr(EncoderDecoder, "states", lambda *given: done.append("pass") or states(*given))  # type: ignore
    monkeypatch.setattr(mx, "eval", lambda *given: done.append("sync") or evaluate(*given))  # type: ignore
    return done


@pytest.mark.parametrize("slots", [1, 3, 8])
@pytest.mark.parametrize("name", OPTIONS)
def test_outputs_do_not_change(name: str, slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "padded passes":
        monkeypatch.setattr(PassPlanner, "widths", lambda *_: EXACT)
    expected = outputs(MODEL, slots, OPTIONS[name])
    turn_on(monkeypatch)
    assert outputs(MODEL, slots, OPTIONS[name]) == expected


def test_each_pass_starts_before_the_host_waits_for_the_one_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    turn_on(monkeypatch)
    generate(ENDLESS, Letters(), "abc", drafter="none", max_tokens=2)  # evaluates tables
    done = count_passes(monkeypatch)
    generate(ENDLESS, Letters(), "abc", drafter="none", max_tokens=4)
    assert done[done.index("pass") :] == ["pass", "pass", "sync", "pass", "sync", "pass", "sync", "sync"]


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.0},
        {"repetition_penalty": 1.3},
        {"no_repeat_ngram_size": 2},
        {"timed": True},
        {"drafter": NgramDrafter(min_chance=0.0), "num_draft_tokens": 3},
    ],
)
def test_a_pass_that_needs_the_tokens_waits_for_them(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    turn_on(monkeypatch)
    done = count_passes(monkeypatch)
    generate(ENDLESS, Letters(), "abc", **{"drafter": "none", "max_tokens": 6} | options)
    assert "pass pass" not in " ".join(done)


def test_an_end_token_wastes_one_pass_and_a_full_output_none(monkeypatch: pytest.MonkeyPatch) -> None:
    turn_on(monkeypatch)
    done = count_passes(monkeypatch)
    tokens = generate(ENDLESS, Letters(), "abc", drafter="none", max_tokens=8).tokens
    assert done.count("pass") == len(tokens) == 8
    done.clear()
    at = next(i for i in range(2, 8) if tokens[i] not in tokens[:i])
    assert generate(ENDLESS, Letters(), "abc", drafter="none", eos_token_ids=[tokens[at]]).tokens == tokens[: at + 1]
    assert done.count("pass") == at + 2


@pytest.mark.parametrize("cancelled", [0, 1])
def test_cancelled_and_new_requests_change_no_other(cancelled: int, monkeypatch: pytest.MonkeyPatch) -> None:
    turn_on(monkeypatch)
    session = Session(ENDLESS, Letters())
    options = session.options_with({"drafter": "none", "max_tokens": 9})
    own = session.engine(options, 3)
    length = session.planner.draft_length(options)
    requests = [own.submit(prompt, options, length) for prompt in PROMPTS[:3]]
    for _ in range(3):
        own.step()
    own.cancel(requests.pop(cancelled))
    own.step()
    requests += [own.submit(prompt, options, length) for prompt in PROMPTS[3:]]
    while not own.is_idle:
        own.step()
    prompts = PROMPTS[:cancelled] + PROMPTS[cancelled + 1 :]
    expected = [generate(ENDLESS, Letters(), each, drafter="none", max_tokens=9).tokens for each in prompts]
    assert [request.tokens for request in requests] == expected


def broken_at(token: int) -> EncoderDecoder:
    """Return ENDLESS with an embedding of this token that is not finite."""
    model = tiny_model(eos_token_id=[])
    weight = model.embedding.weight
    model.embedding.weight = mx.where(mx.arange(len(weight))[:, None] == token, mx.nan, weight)
    return model


def test_logits_that_are_not_finite_end_only_their_own_output(monkeypatch: pytest.MonkeyPatch) -> None:
    baseline = generate(ENDLESS, Letters(), "abc", drafter="none", max_tokens=8).tokens
    at = next(i for i in range(2, 8) if baseline[i] not in [*baseline[:i], *Letters().encode("abc")])
    session = Session(broken_at(baseline[at]), Letters(), slots=2)

    def errors_and_tokens() -> list[Any]:
        results = session.batch(["abc", "b"], drafter="none", max_tokens=12)
        return [each.error if each.result is None else each.result.tokens for each in results]

    expected = errors_and_tokens()
    turn_on(monkeypatch)
    assert errors_and_tokens() == expected and f"output token {at + 2} are not finite" in str(expected[0])


def test_a_wasted_pass_that_is_not_finite_does_not_harm_the_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wasted pass reads the end token, and leaves its keys and values in the slot."""
    turn_on(monkeypatch)
    baseline = generate(ENDLESS, Letters(), "abc", drafter="none", max_tokens=8).tokens
    at = next(i for i in range(2, 8) if baseline[i] not in [*baseline[:i], *Letters().encode("abc")])
    session = Session(broken_at(baseline[at]), Letters())
    options = session.options_with({"drafter": "none", "max_tokens": 8, "eos_token_ids": [baseline[at]]})
    own = session.engine(options, 1)
    for _ in range(2):
        request = own.submit("abc", options, session.planner.draft_length(options))
        while not own.is_idle:
            own.step()
        assert (request.tokens, request.finish_reason) == (baseline[: at + 1], "stop")
