"""Tests requests for completions: each field is accepted, or refused with an error that names it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from speculative_decoding import Event, GenerationOptions
from speculative_decoding.decoding.results import GenerationStats, Round
from speculative_decoding.drafters.base import COPY, MEMORY, MODEL, TEXT
from speculative_decoding.sampling.options import option_specs
from speculative_decoding.sampling.random import sample_seed
from speculative_decoding.server.client_request import ClientRequest
from speculative_decoding.server.completions import (
    FIELDS,
    Completion,
    parse_completion,
    rejected_text,
)
from speculative_decoding.server.errors import ServerError
from speculative_decoding.server.limits import MAX_STOP_CHARACTERS, Limits
from speculative_decoding.server.model_names import ModelNames
from speculative_decoding.server.prompts import client_prompts
from tests.support.subpackages import needs_subpackage
from tests.support.together import Letters

LIMITS = Limits(slots=4, max_prompts=6, max_output_tokens=100, max_prompt_tokens=200, max_stops=3, max_draft_text=1000)
NAMES = ModelNames("org/tiny", ["tiny"])


def service_with(**options: Any) -> Any:
    """Return a service whose session has only options, which suffice for responses without `rounds`."""
    own = GenerationOptions(**options)
    return SimpleNamespace(limits=LIMITS, options=own, session=SimpleNamespace(options=own))


SERVICE = service_with(max_tokens=90, repetition_penalty=1.5, drafter="ngram")


def content(text: Any) -> dict[str, Any]:
    return {"type": "content", "content": text}


def part(text: Any, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


def parse(service: Any = SERVICE, **fields: Any) -> Completion:
    completion = parse_completion({"prompt": "abc"} | fields, service, NAMES)
    for item in completion.prompts:
        item.check(LIMITS)
    return completion


def options(**fields: Any) -> GenerationOptions:
    return parse(**fields).prompts[0].options


REFUSED: list[tuple[dict[str, Any], str, int, str | None, str]] = [
    ({"prompt": " \n"}, "prompt", 400, "invalid_value", "prompt: is empty"),
    ({"prompt": []}, "prompt", 400, None, "1 to 6 texts, not 0"),
    ({"prompt": ["a"] * 7}, "prompt", 400, None, "1 to 6 texts, not 7"),
    ({"prompt": ["a"] * 2, "n": 4, "temperature": 1}, "prompt", 400, None, "not 8"),
    ({"prompt": [1, 2]}, "prompt", 400, "invalid_value", "prompt: must be text"),
    ({"prompt": "a" * 13_000}, "prompt", 400, None, "13000 characters, too many for 200 tokens"),
    ({"decoder_prefix": "a" * 13_000}, "decoder_prefix", 400, None, "13000 characters"),
    ({"model": "gpt-4"}, "model", 404, "model_not_found", "'gpt-4' does not exist (expected 'org/tiny')"),
    ({"n": 2}, "n", 400, None, "n: must be 1 at temperature 0"),
    ({"n": 0}, "n", 400, "invalid_value", "n: must be a whole number"),
    ({"num_return_sequences": 2, "temperature": 1}, "num_return_sequences", 400, "unsupported_value", "use n"),
    ({"drafter": "none"}, "drafter", 400, "unsupported_value", "is set when the server starts"),
    ({"max_tokens": 101}, "max_tokens", 400, "invalid_value", "1 to 100, not 101"),
    ({"top_p": 0.5}, "top_p", 400, "invalid_value", "no effect at temperature 0"),
    ({"stop": ["a"] * 4}, "stop", 400, None, "at most 3"),
    ({"stop": "a" * (MAX_STOP_CHARACTERS + 1)}, "stop", 400, None, "256 characters"),
    ({"stop": 3}, "stop", 400, "invalid_value", "stop: must be"),
    ({"eos_token_ids": [1, 2, 3, 4]}, "eos_token_ids", 400, None, "at most 3"),
    ({"logprobs": 1}, "logprobs", 400, "unsupported_value", "logprobs: must be 0"),
    ({"logprobs": "yes"}, "logprobs", 400, "invalid_value", "logprobs: must be"),
    ({"stream": 1}, "stream", 400, "invalid_value", "stream: must be true or false"),
    ({"rounds": True}, "rounds", 400, None, "without stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options", 400, None, "without stream"),
    ({"stream_options": {"include_obfuscation": False}}, "stream_options", 400, None, "without stream"),
    (
        {"stream_options": {"include_obfuscation": "yes"}, "stream": True},
        "stream_options.include_obfuscation",
        400,
        "invalid_value",
        "true or false",
    ),
    ({"stream_options": {"x": 1}, "stream": True}, "stream_options.x", 400, "unknown_field", "include_usage"),
    (
        {"stream_options": {"include_usage": 1}, "stream": True},
        "stream_options.include_usage",
        400,
        "invalid_value",
        "must be true or false, not 1",
    ),
    (
        {"stream_options": 3, "stream": True},
        "stream_options",
        400,
        "invalid_value",
        "must be an object with include_usage, include_obfuscation, not 3",
    ),
    ({"draft_text": 5}, "draft_text", 400, "invalid_value", "draft_text: must be text, or a list of such, not 5"),
    (
        {"draft_text": ["a" * 500, "b" * 501]},
        "draft_text",
        400,
        None,
        "has 1001 characters (at most 1000 on this server)",
    ),
    ({"draft_text": ["a"] * 5}, "draft_text", 400, None, "at most 4 texts on this server"),
    ({"draft_text": "a", "num_draft_tokens": 0}, "draft_text", 400, "invalid_value", "with num_draft_tokens 0"),
    ({"prediction": content("a" * 1001)}, "prediction", 400, None, "prediction: has 1001 characters"),
    ({"prediction": content("a"), "num_draft_tokens": 0}, "prediction", 400, "invalid_value", "prediction: has no"),
    ({"prediction": content("a"), "draft_text": "a"}, "prediction", 400, None, "cannot be combined with draft_text"),
    *(
        ({"prediction": wrong}, "prediction", 400, "invalid_value", 'prediction: must be {"type": "content", ')
        for wrong in ("a", 5, [], {}, {"content": "a"}, {"type": "text", "content": "a"}, content("a") | {"x": 1})
    ),
    *(
        ({"prediction": content(wrong)}, "prediction", 400, "invalid_value", "with a text, or a list of {")
        for wrong in (None, 5, {}, ["a"], [part(5)], [part("a", x=1)], [{"type": "image_url", "text": "a"}], [part([])])
    ),
    ({"promt": "a"}, "promt", 400, "unknown_field", "promt: unknown field; did you mean prompt?"),
    ({"max_new_tokens": 4}, "max_new_tokens", 400, "unknown_field", "did you mean max_tokens"),
    ({"users": "me"}, "users", 400, "unknown_field", "users: unknown field; there are prompt, model"),
    ({"x" * 99: 1}, "x" * 80, 400, "unknown_field", "unknown field"),
]


@pytest.mark.parametrize(
    ("fields", "param", "status", "code", "words"), REFUSED, ids=lambda value: str(value)[:40].replace("\n", " ")
)
def test_refused_fields_are_named(
    fields: dict[str, Any], param: str, status: int, code: str | None, words: str
) -> None:
    with pytest.raises(ServerError) as error:
        parse(**fields)
    found = error.value
    assert (found.status, found.param, found.code) == (status, param, code) and words in found.message


@pytest.mark.parametrize(("name", "value"), [("echo", True), ("echo", 0), ("best_of", True), ("logit_bias", {"1": 1})])
def test_fields_that_an_encoder_decoder_lacks_are_refused_with_a_reason(name: str, value: Any) -> None:
    """True equals 1 in Python, but is not the number without effect."""
    with pytest.raises(ServerError) as error:
        options(**{name: value})
    assert (error.value.param, error.value.code) == (name, "unsupported_value")
    assert error.value.message.endswith(f"; {FIELDS[name].refused}")


def test_each_option_is_a_field_or_is_refused_with_a_reason() -> None:
    for name, spec in option_specs().items():
        field = FIELDS[name]
        assert not field.ignored and field.only is None
        assert bool(field.refused) == (not spec.per_row or name == "num_return_sequences")


def test_ignored_neutral_and_empty_fields_have_no_effect() -> None:
    neutral = {name: field.only for name, field in FIELDS.items() if field.only is not None}
    ignored = dict.fromkeys((name for name, field in FIELDS.items() if field.ignored), "x")
    empty = dict.fromkeys(("model", "stop", "src_lang", "tgt_lang"), "")
    assert {"echo", "suffix"} < neutral.keys() and {"user", "store"} < ignored.keys()
    with_all, without = parse(**ignored, **neutral, **empty, seed=0), parse(seed=0)
    assert replace(with_all, prompts=()) == replace(without, prompts=())
    assert [(item.prompt, item.options) for item in with_all.prompts] == [("abc", without.prompts[0].options)]


def test_limits_hold_at_their_value() -> None:
    found = parse(
        prompt=["a"] * 3,
        n=2,
        temperature=1,
        max_tokens=100,
        stop=["a" * MAX_STOP_CHARACTERS] * 3,
        eos_token_ids=[1] * 3,
        decoder_prefix=[5, 8],
    )
    assert len(found.prompts) == LIMITS.max_prompts
    assert parse(model="tiny") and parse(model="org/tiny", prompt=[""])  # a blank text in a list is accepted


def test_a_request_overrides_the_servers_options() -> None:
    found = options(max_tokens=5, stop="x", logprobs=0, seed=3)
    assert (found.max_tokens, found.stop, found.logprobs, found.seed) == (5, ("x",), True, 3)
    assert found.repetition_penalty == 1.5 and options().max_tokens == 90
    assert options().seed != options().seed  # random by default
    assert [options(logprobs=value).logprobs for value in (True, False)] == [True, False]


def test_a_prediction_is_one_draft_text_of_each_prompt() -> None:
    for value in ("", "ab", [part("a"), part(""), part("b")], []):
        text = value if isinstance(value, str) else "".join(each["text"] for each in value)
        assert options(prediction=content(value), seed=0) == options(draft_text=text, seed=0)
    found = parse(prompt=["a", "b"], prediction=content("c" * 1000))
    assert [item.options.draft_text for item in found.prompts] == [("c" * 1000,)] * 2
    assert options(draft_text=["a", "b"]).draft_text == ("a", "b") and options(draft_text=[]).draft_text == ()


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"drafter": "none"}, "prediction: has no effect with drafter none"),
        ({"drafter": "model"}, "prediction: has no effect with drafter model, only with text, ngram, auto"),
        pytest.param({"num_beams": 4}, "cannot be combined with num_beams 4", marks=needs_subpackage("beam_search")),
    ],
)
def test_a_server_that_would_ignore_a_prediction_refuses_it(own: dict[str, Any], words: str) -> None:
    with pytest.raises(ServerError) as error:
        parse(service_with(**own), prediction=content("abc"))
    assert (error.value.status, error.value.param) == (400, "prediction") and words in error.value.message


def test_n_samples_have_the_seeds_of_num_return_sequences() -> None:
    items = parse(prompt=["a", "b"], n=3, temperature=1, seed=5).prompts
    assert [item.prompt for item in items] == ["a"] * 3 + ["b"] * 3
    assert [item.options.seed for item in items] == [sample_seed(5, number) for number in range(3)] * 2


def test_a_round_without_text_is_no_chunk() -> None:
    completion = parse(stream=True)
    event = Event(None, Round([2], [], 0, 0.0), [""])  # type: ignore[arg-type]
    assert completion.chunk(completion.prompts[0], event) is None


def test_usage_counts_a_prompt_once_and_each_of_its_choices() -> None:
    completion = parse(prompt=["a", "b", "b"], n=2, temperature=1)
    for number, item in enumerate(ClientRequest(completion.prompts).items[:4]):
        item.finish_reason = "stop"
        item.stats = GenerationStats(
            prompt_tokens=10, generated_tokens=number, drafted_tokens=9, accepted_tokens=4, target_calls=5
        )
    assert completion.response()["usage"] == {
        "prompt_tokens": 20,
        "completion_tokens": 6,
        "total_tokens": 26,
        "completion_tokens_details": {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0},
        "drafted_tokens": 36,
        "accepted_tokens": 16,
        "target_calls": 20,
    }


@pytest.mark.parametrize(("default", "counts"), [((), (8, 6)), (("ab",), (0, 0))])
def test_prediction_tokens_are_those_of_the_requests_own_texts(
    default: tuple[str, ...], counts: tuple[int, int]
) -> None:
    """Drafts of other kinds, and drafts from the server's default draft text, do not count."""
    completion = parse(service_with(draft_text=default, drafter="ngram"), prompt=["a", "b"], prediction=content("ab"))
    for item in ClientRequest(completion.prompts).items:
        item.finish_reason = "stop"
        item.stats = GenerationStats(drafted_tokens=19, accepted_tokens=9)
        item.stats.drafted_by_kind.update(text=7, copy=12)
        item.stats.accepted_by_kind.update(text=4, copy=5)
    usage = completion.response()["usage"]
    details = usage["completion_tokens_details"]
    assert (details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]) == counts
    assert (usage["drafted_tokens"], usage["accepted_tokens"]) == (38, 18)


@pytest.mark.parametrize("has_store", [False, True])
@pytest.mark.parametrize("is_own", [False, True])
def test_rejected_text_is_shown_only_if_it_is_the_clients(is_own: bool, has_store: bool) -> None:
    store = object() if has_store else None
    default = GenerationOptions(draft_text="abc")
    session: Any = SimpleNamespace(options=default, ngram=SimpleNamespace(store=store), tokenizer=Letters())
    (item,) = client_prompts([("a", default.override({"draft_text": "abcd"}) if is_own else default)])
    shown = {}
    for kind in (MODEL, COPY, TEXT, MEMORY):
        item.tokens = [5, 6]
        shown[kind] = bool(rejected_text(session, item, Round([5, 6], [5, 7], 1, kind=kind)))
    assert shown == {MODEL: True, COPY: not has_store, TEXT: is_own, MEMORY: False}
