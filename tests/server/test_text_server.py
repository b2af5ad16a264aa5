"""Tests the server with the clients of OpenAI and LibreTranslate, and with curl. Each text equals that of a session."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from speculative_decoding import GenerationOptions, NgramDrafter, Session, TextStore
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.sampling.random import sample_seed
from speculative_decoding.server.limits import Limits
from tests.support.serving import GERMAN, GRAMMAR, MODEL, Serving, bundled, events, serving
from tests.support.tiny import tiny_model
from tests.support.together import Letters

if TYPE_CHECKING:  # the import takes a second
    import openai

LIMITS = Limits(slots=4, max_prompts=6, max_output_tokens=100, max_prompt_tokens=200, max_body=20_000, max_stops=3)
SAMPLED = {"temperature": 2.0, "max_tokens": 8}


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(limits=LIMITS) as made:
        yield made


@pytest.fixture(scope="module")
def client(server: Serving) -> Iterator[openai.OpenAI]:
    import openai

    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def session() -> Session:
    """Return a second session, because the session of the server is used by its thread."""
    return bundled.__wrapped__()


def create(client: openai.OpenAI, prompt: Any = GERMAN, **options: Any) -> Any:
    return client.completions.create(model=MODEL, prompt=prompt, **options)


def test_completion_equals_the_sessions_text(client: openai.OpenAI, session: Session) -> None:
    found = create(client, extra_body={"num_draft_tokens": 3})  # "auto" depends on measured times
    alone = session.generate(GERMAN)
    (choice,) = found.choices
    assert (choice.text, choice.finish_reason, choice.index, choice.logprobs) == (alone.text, "stop", 0, None)
    assert found.object == "text_completion" and found.model == MODEL and found.id.startswith("cmpl-")
    usage = found.usage
    stats = alone.stats
    assert (usage.prompt_tokens, usage.completion_tokens) == (stats.prompt_tokens, stats.generated_tokens)
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 < usage.accepted_tokens <= usage.drafted_tokens and usage.target_calls < len(alone.tokens)
    details = usage.completion_tokens_details
    assert details.accepted_prediction_tokens == details.rejected_prediction_tokens == 0  # there was no prediction
    assert create(client, max_tokens=3).choices[0].finish_reason == "length"


def test_prompts_and_choices_keep_their_order(client: openai.OpenAI, session: Session) -> None:
    prompts = [GERMAN, GRAMMAR]
    assert [each.text for each in create(client, prompts).choices] == [session.generate(each).text for each in prompts]
    found = create(client, prompts, n=2, seed=5, **SAMPLED)
    seeds = [5, sample_seed(5, 1)]
    expected = [session.generate(prompt, seed=seed, **SAMPLED) for prompt in prompts for seed in seeds]
    assert [(each.index, each.text) for each in found.choices] == [(i, each.text) for i, each in enumerate(expected)]
    assert [each.seed for each in found.choices] == seeds * 2
    assert len({each.text for each in found.choices}) == 4  # each seed gives a different text


def test_stream_chunks_add_up_to_the_text(client: openai.OpenAI, session: Session) -> None:
    chunks = list(create(client, [GERMAN, GRAMMAR], stream=True, stream_options={"include_usage": True}))
    texts = ["", ""]
    for chunk in chunks[:-1]:
        (choice,) = chunk.choices
        assert chunk.usage is None and chunk.id == chunks[0].id
        texts[choice.index] += choice.text
    assert texts == [session.generate(GERMAN).text, session.generate(GRAMMAR).text]
    assert sum(chunk.choices[0].finish_reason == "stop" for chunk in chunks[:-1]) == 2 and len(chunks) > 2
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 12


@pytest.mark.parametrize(("obfuscation", "is_padded"), [({}, False), (False, False), (True, True)])
def test_chunks_are_padded_on_request(server: Serving, session: Session, obfuscation: Any, is_padded: bool) -> None:
    """Padding hides the length of the text from the network. OpenAI pads chunks by default."""
    options = {} if obfuscation == {} else {"include_obfuscation": obfuscation}
    fields = {"prompt": GERMAN, "stream": True, "stream_options": {"include_usage": True, **options}}
    with server.client() as client, client.stream("POST", "/v1/completions", json=fields) as response:
        lines = [line for line in response.iter_lines() if line.startswith("data: {")]
    *chunks, usage = [json.loads(line[6:]) for line in lines]
    assert "".join(each["choices"][0]["text"] for each in chunks) == session.generate(GERMAN).text
    assert [("obfuscation" in each) for each in (*chunks, usage)] == [is_padded] * len(chunks) + [False]
    sizes = {len(f"{line}\n\n".encode()) for line in lines[:-1]}
    assert all(size % 64 == 0 for size in sizes) == is_padded


def test_rounds_field_describes_accepted_and_rejected_tokens(server: Serving, session: Session) -> None:
    prompt = "translate English to German: This function removes the last element of an array."
    rounds: list[Any] = []
    alone = session.generate(prompt, num_draft_tokens=5, on_round=rounds.append)
    fields = {"prompt": prompt, "stream": True, "rounds": True, "num_draft_tokens": 5}
    with server.client() as client, client.stream("POST", "/v1/completions", json=fields) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        choices = [each["choices"][0] for each in events(response)]
    assert "".join(text for each in choices for text in each["round"]["texts"]) == alone.text
    assert sum(each["round"]["accepted"] for each in choices) > 3 and any(each["round"]["rejected"] for each in choices)
    assert all(len(each["round"]["texts"]) >= each["round"]["accepted"] for each in choices)


SECRET = "grammar: My secret pass phrase is violet umbrella Rotterdam nineteen."
FOLLOWER = {
    "prompt": "grammar: My secret pass phrase is a thing.",
    "stream": True,
    "rounds": True,
    "num_draft_tokens": 8,
}


@pytest.mark.parametrize("shares_texts", [False, True])
def test_drafts_never_show_the_text_of_another_client(shares_texts: bool) -> None:
    """Without a store, another client does not affect any draft. Rejected drafts from a store are not sent."""
    counts = []
    for sends_secret in (False, True):
        store = TextStore() if shares_texts else None
        own = bundled()
        ngram = NgramDrafter(search_input=False, store=store)
        session = Session(own.model, own.tokenizer, options=GenerationOptions(drafter="ngram"), ngram=ngram)
        with serving(session, LIMITS) as server:
            if sends_secret:
                server.post(prompt=SECRET, draft_text=[SECRET, SECRET.partition(" ")[2]], max_tokens=30)
            fields = {**FOLLOWER, "stream_options": {"include_usage": True}}
            with server.client() as client, client.stream("POST", "/v1/completions", json=fields) as response:
                *chunks, last = events(response)
        rejected = "".join(chunk["choices"][0]["round"]["rejected"] for chunk in chunks)
        assert "violet" not in rejected
        counts.append(last["usage"]["drafted_tokens"] - last["usage"]["accepted_tokens"])
    assert (counts[0] != counts[1]) == shares_texts


def content(text: Any) -> dict[str, Any]:
    return {"type": "content", "content": text}


USELESS = "violet umbrella Rotterdam nineteen " * 9


def test_a_prediction_changes_no_text_and_its_tokens_are_counted(session: Session) -> None:
    import openai

    text = session.generate(GERMAN).text
    calls = []
    only_texts = Session(session.model, session.tokenizer, options=GenerationOptions(drafter="text"))
    with (
        serving(only_texts, LIMITS) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        for predicted in (text, [{"type": "text", "text": each} for each in (text[:9], text[9:])], USELESS):
            extra = {"prediction": content(predicted), "num_draft_tokens": 8}
            found = create(client, extra_body=extra)
            *_, streamed = create(client, extra_body=extra, stream=True, stream_options={"include_usage": True})
            assert found.choices[0].text == text
            for usage in (found.usage, streamed.usage):
                details = usage.completion_tokens_details
                accepted, rejected = details.accepted_prediction_tokens, details.rejected_prediction_tokens
                assert (accepted, accepted + rejected) == (usage.accepted_tokens, usage.drafted_tokens)
                assert accepted > 3 if predicted != USELESS else accepted == 0 < rejected
                calls.append(usage.target_calls)
    assert max(calls[:4]) < min(calls[4:])


def streamed_rejected(server: Serving, **fields: Any) -> tuple[str, dict[str, Any]]:
    """Return the rejected text of all rounds of a stream, and the usage."""
    given = {"stream": True, "rounds": True, "num_draft_tokens": 8, "stream_options": {"include_usage": True}}
    with server.client() as client, client.stream("POST", "/v1/completions", json=given | fields) as response:
        *chunks, last = events(response)
    return "".join(chunk["choices"][0]["round"]["rejected"] for chunk in chunks), last["usage"]


@pytest.mark.parametrize("language", ["de", "deu_Latn", "German"])
def test_a_request_names_its_languages_or_writes_the_prefix(language: str, server: Serving) -> None:
    text = GERMAN.removeprefix("translate English to German: ")
    requests: list[dict[str, Any]] = [{"prompt": text, "tgt_lang": language}, {"prompt": GERMAN}]
    named, written = (server.post(**fields).json() for fields in requests)
    assert text != GERMAN and named["choices"][0]["text"] == written["choices"][0]["text"]
    assert named["usage"]["prompt_tokens"] == written["usage"]["prompt_tokens"]
    wrong = server.post(prompt=text, tgt_lang="fr")
    assert wrong.status_code == 400 and "this model has prefixes for en to de, not for fr" in wrong.text


def test_a_language_of_the_server_is_no_default_of_translations() -> None:
    own = bundled()
    session = replace(own, options=own.options.with_values(tgt_lang="de"))
    text = "The method returns the value."
    prefixes = {("en", "de"): "translate English to German: ", ("en", "x"): "grammar: "}
    with serving(session, LIMITS, prefixes=prefixes) as server:
        for target, prompt in (("de", f"translate English to German: {text}"), ("x", f"grammar: {text}")):
            answer = server.post("/translate", q=text, source="en", target=target).json()
            assert answer["translatedText"] == own.generate(prompt).text
        assert server.post(prompt=text).json()["choices"][0]["text"] == own.generate(GERMAN).text


@pytest.mark.parametrize("shares_texts", [False, True])
def test_a_prediction_reaches_no_other_client_and_no_log(shares_texts: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A shared store contains the prompts and outputs of clients, but not their predictions."""
    caplog.set_level(logging.DEBUG)
    own = bundled()
    store = TextStore() if shares_texts else None
    options = GenerationOptions(drafter="ngram")
    session = Session(own.model, own.tokenizer, options=options, ngram=NgramDrafter(store=store))
    with serving(session, LIMITS, log_prompts=True) as server:
        first, usage = streamed_rejected(server, prompt=GRAMMAR, prediction=content(USELESS))
        assert "umbrella" in first and usage["completion_tokens_details"]["rejected_prediction_tokens"] > 0
        with server.client() as client:
            wrong = client.post("/v1/completions", json={"prompt": "a", "prediction": content([USELESS])})
        second, usage = streamed_rejected(server, prompt=GRAMMAR)
    assert wrong.status_code == 400 and "umbrella" not in second + caplog.text and GRAMMAR in caplog.text
    assert usage["completion_tokens_details"] == {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}
    if store is not None:
        output = session.generate(GRAMMAR).tokens
        known = {*session.tokenizer.encode(GRAMMAR, None), *output, session.model.config.decoder_start_token_id}
        assert {*store._index.tokens} - {-1} == known


def test_the_servers_own_draft_text_is_a_default_that_clients_cannot_read() -> None:
    own = bundled()
    text = own.generate(GERMAN).text.replace("Wert", "Violet")
    options = GenerationOptions(drafter="text", draft_text=[text])
    session = Session(own.model, own.tokenizer, options=options)
    with serving(session, LIMITS) as server:
        rejected, usage = streamed_rejected(server, prompt=GERMAN)
        assert rejected == "" and usage["drafted_tokens"] > usage["accepted_tokens"] > 3
        assert not any(usage["completion_tokens_details"].values())
        assert server.post("/translate", q="The method returns the value.", source="en", target="de").is_success
        rejected, usage = streamed_rejected(server, prompt=GERMAN, draft_text=[text + " Ende"])
        assert " Viol" in rejected and usage["completion_tokens_details"]["accepted_prediction_tokens"] > 3
        assert streamed_rejected(server, prompt=GERMAN, draft_text=[])[1]["drafted_tokens"] == 0


def test_a_prediction_counts_in_the_size_of_the_body(server: Serving) -> None:
    answer = server.post(prompt=GERMAN, prediction=content("a" * LIMITS.max_body))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
    limits = Limits(max_draft_text=8)
    with serving(bundled(), limits) as small:
        for length, status in ((8, 200), (9, 400)):
            assert small.post(prompt=GERMAN, max_tokens=2, prediction=content("a" * length)).status_code == status


def test_logprobs_equal_the_sessions(client: openai.OpenAI, session: Session) -> None:
    alone = session.generate(GERMAN, logprobs=True)
    (choice,) = create(client, logprobs=0).choices
    found = choice.logprobs
    assert "".join(found.tokens) == choice.text == alone.text and found.top_logprobs is None
    assert found.token_logprobs == pytest.approx(alone.logprobs, abs=1e-4)
    for token, offset in zip(found.tokens, found.text_offset, strict=True):
        assert choice.text[offset:].startswith(token)
    streamed = [chunk.choices[0].logprobs for chunk in create(client, logprobs=0, stream=True)]
    for name in ("tokens", "text_offset"):
        assert [value for each in streamed for value in getattr(each, name)] == getattr(found, name)


REFUSED: list[tuple[dict[str, Any], str, str]] = [  # values that only the model's tokenizer can check
    ({"prompt": "ab cd " * 150}, "prompt", "at most 200 on this server"),
    ({"decoder_prefix": "ab cd " * 150}, "decoder_prefix", "at most 200 on this server"),
    ({"eos_token_ids": [99_999]}, "eos_token_ids", "between 0 and"),
]


@pytest.mark.parametrize(("fields", "param", "words"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_the_tokenizer_refuses_is_named_in_one_line(
    server: Serving, fields: dict[str, Any], param: str, words: str
) -> None:
    response = server.post(**{"prompt": GRAMMAR} | fields)
    error = response.json()["error"]
    message = error["message"]
    assert response.status_code == 400 and words in message and "\n" not in message and str(BUNDLED) not in message
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert server.service.admitted == 0


def test_every_name_of_the_model_is_served() -> None:
    session = Session(tiny_model(), Letters(), options=GenerationOptions(drafter="none"))
    listed = ["org/tiny", "gpt"]
    with (
        serving(session, model="org/tiny", aliases=["gpt", "tiny"], listed=listed) as server,
        server.client() as client,
    ):
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == listed
        ids = {"gpt": "gpt", "tiny": "org/tiny"}
        for name, status in (("org/tiny", 200), ("gpt", 200), ("tiny", 200), ("org", 404), ("a" * 40, 404)):
            model = client.get(f"/v1/models/{name}")
            assert model.status_code == status and model.json().get("id", name) == ids.get(name, name)
            response = client.post("/v1/completions", json={"model": name, "prompt": "abc", "max_tokens": 1})
            assert response.status_code == status
            assert response.json().get("model", "org/tiny") == "org/tiny"


def test_openai_client_raises_its_own_errors(client: openai.OpenAI) -> None:
    import openai

    with pytest.raises(openai.BadRequestError, match="max_tokens: must be a whole number, 1 to 100") as wrong:
        create(client, max_tokens=1000, stream=True)
    assert wrong.value.param == "max_tokens" and wrong.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError, match="no such path; send a prompt to POST /v1/completions"):
        client.chat.completions.create(model=MODEL, messages=[])


def test_sixteen_concurrent_clients_get_the_same_texts_as_one(server: Serving, session: Session) -> None:
    prompts = [*(BUNDLED.parent / "data" / "grammar.txt").read_text().split("\n")[:8], *([GERMAN] * 8)]
    options = [SAMPLED | {"seed": i} if i % 2 else {"max_tokens": 3 + i % 4} for i in range(16)]
    pairs = list(zip(prompts, options, strict=True))
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda pair: server.post(prompt=pair[0], **pair[1]).json(), pairs))
    for answer, (prompt, own) in zip(found, pairs, strict=True):
        alone = session.generate(prompt, **own)
        choice = answer["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == (alone.text, alone.finish_reason)


def test_a_blank_text_in_a_list_gives_a_blank_choice(client: openai.OpenAI, session: Session) -> None:
    prompts, texts = [" ", GERMAN, ""], ["", session.generate(GERMAN).text, ""]
    answer = create(client, prompts, logprobs=0)
    assert [(each.text, each.finish_reason) for each in answer.choices] == [(text, "stop") for text in texts]
    assert [each.logprobs.tokens == [] for each in answer.choices] == [True, False, True]
    choices = [chunk.choices[0] for chunk in create(client, prompts, stream=True)]
    assert ["".join(each.text for each in choices if each.index == index) for index in range(3)] == texts
    assert sorted(each.index for each in choices if each.finish_reason) == [0, 1, 2]


def test_metrics_count_tokens_and_passes(server: Serving) -> None:
    before = {name: server.metric(f"{name}_total") for name in ("prompt_tokens", "generated_tokens", "target_calls")}
    usage = server.post(prompt=[GERMAN, GRAMMAR]).json()["usage"]
    gained = {name: server.metric(f"{name}_total") - before[name] for name in before}
    assert gained == {
        "prompt_tokens": usage["prompt_tokens"],
        "generated_tokens": usage["completion_tokens"],
        "target_calls": usage["target_calls"],
    }
    with server.client() as client:
        names = {family.name for family in text_string_to_metric_families(client.get("/metrics").text)}
    assert {f"speculative_decoding_{name}" for name in (*before, "responses", "queue_length")} <= names
    assert server.metric("slots_busy") == server.metric("queue_length") == 0 and server.metric("slots") == 4
    assert server.metric("tokens_per_target_call") > 1 and 0 < server.metric("acceptance_rate") <= 1
