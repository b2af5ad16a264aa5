"""The server with the clients of OpenAI and LibreTranslate, and with curl. Each text equals the session's."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from libretranslatepy import LibreTranslateAPI
from prometheus_client.parser import text_string_to_metric_families

from speculative_decoding import GenerationOptions, InputError, NgramDrafter, Session, TextStore
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.sampling.random import sample_seed
from speculative_decoding.server.bodies import FORM
from speculative_decoding.server.limits import Limits
from speculative_decoding.server.translation import translation_languages, translation_prefixes, translation_prompt
from tests.support.serving import GERMAN, GRAMMAR, MODEL, PAIRS, Serving, bundled, events, serving
from tests.support.waiting import PATIENCE

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
    """Return a second session, because the server's session belongs to its thread."""
    return bundled.__wrapped__()


def create(client: openai.OpenAI, prompt: Any = GERMAN, **options: Any) -> Any:
    own = {
        name: options.pop(name)
        for name in list(options)
        if name in ("acceptance", "num_draft_tokens", "decoder_prefix", "rounds")
    }
    return client.completions.create(model=MODEL, prompt=prompt, **options, extra_body=own)


def test_completion_equals_the_sessions_text(client: openai.OpenAI, session: Session) -> None:
    found = create(client, num_draft_tokens=3)  # a fixed number: "auto" depends on measured times
    alone = session.generate(GERMAN)
    (choice,) = found.choices
    assert (choice.text, choice.finish_reason, choice.index, choice.logprobs) == (alone.text, "stop", 0, None)
    assert found.object == "text_completion" and found.model == MODEL and found.id.startswith("cmpl-")
    usage = found.usage
    stats = alone.stats
    assert (usage.prompt_tokens, usage.completion_tokens) == (stats.prompt_tokens, stats.generated_tokens)
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.completion_tokens_details.accepted_prediction_tokens > 0 and usage.target_calls < len(alone.tokens)
    assert create(client, max_tokens=3).choices[0].finish_reason == "length"


def test_prompts_and_choices_keep_their_order(client: openai.OpenAI, session: Session) -> None:
    prompts = [GERMAN, GRAMMAR]
    assert [each.text for each in create(client, prompts).choices] == [session.generate(each).text for each in prompts]
    found = create(client, prompts, n=2, seed=5, **SAMPLED)
    seeds = [5, sample_seed(5, 1)]
    expected = [session.generate(prompt, seed=seed, **SAMPLED) for prompt in prompts for seed in seeds]
    assert [(each.index, each.text) for each in found.choices] == [(i, each.text) for i, each in enumerate(expected)]
    assert [each.seed for each in found.choices] == seeds * 2
    assert len({each.text for each in found.choices}) == 4  # each seed gives another text
    samples = [session.generate(each, seed=5, num_return_sequences=2, **SAMPLED).sequences for each in prompts]
    assert [each.text for row in samples for each in row] == [each.text for each in found.choices]
    assert found.usage.prompt_tokens == sum(each.stats.prompt_tokens for each in expected[::2])


def test_a_random_seed_is_returned_and_reproduces_the_text(client: openai.OpenAI, session: Session) -> None:
    (one,), (other,) = (create(client, **SAMPLED).choices for _ in range(2))
    assert one.seed != other.seed and session.generate(GERMAN, seed=one.seed, **SAMPLED).text == one.text


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
    """Without a store, the other client changes no draft. Rejected drafts from a store are not sent."""
    counts = []
    for sends_secret in (False, True):
        store = TextStore() if shares_texts else None
        own = bundled()
        ngram = NgramDrafter(search_input=False, store=store)
        session = Session(own.model, own.tokenizer, options=GenerationOptions(drafter="ngram"), ngram=ngram)
        with serving(session, LIMITS) as server:
            if sends_secret:
                server.post(prompt=SECRET, max_tokens=30)
            fields = {**FOLLOWER, "stream_options": {"include_usage": True}}
            with server.client() as client, client.stream("POST", "/v1/completions", json=fields) as response:
                *chunks, last = events(response)
        rejected = "".join(chunk["choices"][0]["round"]["rejected"] for chunk in chunks)
        assert "violet" not in rejected
        counts.append(last["usage"]["completion_tokens_details"]["rejected_prediction_tokens"])
    assert (counts[0] != counts[1]) == shares_texts


def test_stop_strings_are_not_part_of_the_text(client: openai.OpenAI, session: Session) -> None:
    for stop in ("gibt", ["xyz", " den"]):
        (choice,) = create(client, stop=stop).choices
        assert (
            choice.finish_reason == "stop"
            and choice.text == session.generate(GERMAN, stop=[*([stop] if isinstance(stop, str) else stop)]).text
        )


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


INVALID_FIELDS: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": ""}, "prompt", "prompt: is empty"),
    ({"prompt": []}, "prompt", "1 to 6 texts"),
    ({"prompt": ["a"] * 7}, "prompt", "1 to 6 texts, not 7"),
    ({"prompt": ["a"] * 2, "n": 4, "temperature": 1}, "prompt", "not 8"),
    ({"prompt": [1, 2]}, "prompt", "prompt: must be text"),
    ({"prompt": "ab cd " * 150}, "prompt", "at most 200"),
    ({"prompt": "a" * 13_000}, "prompt", "13000 characters"),
    ({"decoder_prefix": "ab cd " * 150}, "decoder_prefix", "at most 200"),
    ({"n": 2}, "n", "n: must be 1 at temperature 0"),
    ({"num_return_sequences": 2, "temperature": 1}, "num_return_sequences", "use n"),
    ({"num_beams": 2}, "num_beams", "is set when the server starts"),
    ({"n": True}, "n", "n: must be a whole number"),
    ({"max_tokens": 101}, "max_tokens", "1 to 100, not 101"),
    ({"max_tokens": 10**9}, "max_tokens", "1 to 100, not 1000000000"),
    ({"max_tokens": "9"}, "max_tokens", "whole number, 1 to 100, not '9'"),
    ({"temperature": -1}, "temperature", "temperature: must be"),
    ({"top_p": 0.5}, "top_p", "no effect at temperature 0"),
    ({"stop": ["a"] * 4}, "stop", "at most 3"),
    ({"stop": "a" * 257}, "stop", "256 characters"),
    ({"stop": 3}, "stop", "stop: must be"),
    ({"eos_token_ids": [1, 2, 3, 4]}, "eos_token_ids", "at most 3"),
    ({"eos_token_ids": [99_999]}, "eos_token_ids", "between 0 and"),
    ({"logprobs": 1}, "logprobs", "logprobs: must be 0"),
    ({"logprobs": "yes"}, "logprobs", "logprobs: must be"),
    ({"echo": True}, "echo", "echo: must be false"),
    ({"best_of": 2}, "best_of", "best_of: must be 1"),
    ({"suffix": "x"}, "suffix", 'suffix: must be ""'),
    ({"presence_penalty": 0.5}, "presence_penalty", "repetition_penalty"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "without stream"),
    ({"stream_options": {"x": 1}, "stream": True}, "stream_options", "include_usage"),
    ({"rounds": True}, "rounds", "without stream"),
    ({"stream": 1}, "stream", "stream: must be true or false"),
    ({"drafter": "none"}, "drafter", "when the server starts"),
    ({"promt": "a"}, "promt", "promt: unknown field; did you mean prompt?"),
    ({"num_drafts": 4}, "num_drafts", "num_drafts: unknown field; did you mean num_draft_tokens?"),
    ({"max_new_tokens": 4}, "max_new_tokens", "max_new_tokens: unknown option; did you mean max_tokens?"),
    ({"users": "me"}, "users", "users: unknown field; there are prompt, model"),
    ({"max_new_tokens": 9}, "max_new_tokens", "did you mean max_tokens"),
    ({"tgt_lang": "deu_Latn"}, "tgt_lang", "no languages"),
    ({"num_draft_tokens": {"a": 1}}, "num_draft_tokens", "0 to 64 or one of auto, not {'a': 1}"),
]


@pytest.mark.parametrize(("fields", "param", "words"), INVALID_FIELDS, ids=lambda value: str(value)[:40])
def test_invalid_fields_are_named_in_one_line(server: Serving, fields: dict[str, Any], param: str, words: str) -> None:
    response = server.post(**{"prompt": GRAMMAR} | fields)
    error = response.json()["error"]
    assert response.status_code == 400 and error["param"] == param and words in error["message"], error
    assert (
        error["type"] == "invalid_request_error"
        and "\n" not in error["message"]
        and str(BUNDLED) not in error["message"]
    )


def test_openai_fields_without_effect_here_are_ignored(client: openai.OpenAI) -> None:
    expected = create(client, GRAMMAR).choices[0].text
    named = {"metadata": {"a": "b"}, "store": True, "service_tier": "auto", "safety_identifier": "x", "user": "me"}
    cached = {"prompt_cache_key": "k", "prompt_cache_retention": "24h"}
    found = client.completions.create(model=MODEL, prompt=GRAMMAR, extra_body=named | cached)
    assert found.choices[0].text == expected


def test_openai_fields_with_neutral_values_are_accepted(client: openai.OpenAI) -> None:
    plain = {"echo": False, "best_of": 1, "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "n": 1}
    expected = create(client, GRAMMAR).choices[0].text
    assert create(client, GRAMMAR, top_p=1, suffix=None, stop=None, **plain).choices[0].text == expected


def test_former_field_names_get_a_suggestion(server: Serving) -> None:
    for former, meant in (("num_draft", "num_draft_tokens"), ("prefix", "decoder_prefix")):
        response = server.post(prompt=GERMAN, **{former: 3})
        error = response.json()["error"]
        assert response.status_code == 400 and error["param"] == former and f"did you mean {meant}?" in error["message"]


def test_every_name_of_the_model_is_served() -> None:
    with serving(model="org/tiny", aliases=["tiny"]) as server, server.client() as client:
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["org/tiny"]
        for name, status in (("org/tiny", 200), ("tiny", 200), ("org", 404), ("a" * 40, 404)):
            assert client.get(f"/v1/models/{name}").status_code == status
            response = client.post("/v1/completions", json={"model": name, "prompt": GERMAN, "max_tokens": 1})
            assert response.status_code == status
            assert response.json().get("model", "org/tiny") == "org/tiny"


def test_openai_client_raises_its_own_errors(client: openai.OpenAI, server: Serving) -> None:
    import openai

    with pytest.raises(openai.BadRequestError, match="max_tokens: must be a whole number, 1 to 100") as wrong:
        create(client, max_tokens=1000, stream=True)
    assert wrong.value.param == "max_tokens" and wrong.value.type == "invalid_request_error"
    for name in ("gpt-4", "../t5-web-docs", "/etc/passwd"):
        with pytest.raises(openai.NotFoundError, match="does not exist") as missing:
            client.completions.create(model=name, prompt=GRAMMAR)
        assert missing.value.code == "model_not_found"
    assert [each.id for each in client.models.list()] == [MODEL] and client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("../x")
    with pytest.raises(openai.NotFoundError, match="no such path; send a prompt to POST /v1/completions"):
        client.chat.completions.create(model=MODEL, messages=[])


MALFORMED_BODIES: list[tuple[bytes, str, int, str]] = [
    (b"", "application/json", 400, "prompt: is empty"),
    (b"{", "application/json", 400, "not JSON"),
    (b"[]", "application/json", 400, "must be a JSON object, not []"),
    (b'{"prompt": "\xff"}', "application/json", 400, "not UTF-8"),
    (b'{"prompt": "a", "prompt": "b"}', "application/json", 400, "given twice"),
    (b'{"prompt": "\\ud800"}', "application/json", 400, "lone surrogate"),
    (b'{"temperature": NaN}', "application/json", 400, "NaN"),
    (b"[" * 19_000, "application/json", 400, "unsupported JSON"),
    (b'{"a":' * 40 + b"1" + b"}" * 40, "application/json", 400, "levels"),
    (b'{"seed": ' + b"9" * 5000 + b"}", "application/json", 400, "unsupported JSON"),
    (b'{"prompt": "a"}', "text/plain", 415, "application/json"),
    (b"prompt=a", "application/x-www-form-urlencoded", 415, "must be application/json, not"),
    (b'{"prompt": "a\x01"}', "application/json", 400, "not JSON (Invalid control character, column 14)"),
    (b" " * 20_001, "application/json", 413, "at most 20000 bytes"),
]


@pytest.mark.parametrize(("body", "kind", "status", "words"), MALFORMED_BODIES, ids=lambda value: str(value)[:30])
def test_malformed_bodies_are_refused(server: Serving, body: bytes, kind: str, status: int, words: str) -> None:
    with server.client() as client:
        for content in (body, iter([body[:7], body[7:]])):  # with Content-Length, and chunked
            response = client.post("/v1/completions", content=content, headers={"Content-Type": kind})
            assert response.status_code == status and words in response.json()["error"]["message"], response.text


def test_an_endless_body_is_refused(server: Serving) -> None:
    given = 0

    def endless() -> Iterator[bytes]:
        nonlocal given
        while given < 1000:
            given += 1
            yield b" " * 65536

    with server.client() as client:
        try:
            response = client.post("/v1/completions", content=endless(), headers={"Content-Type": "application/json"})
            assert response.status_code == 413
        except httpx.WriteError:  # the server has closed the connection
            pass
    assert given < 1000


def test_sixteen_concurrent_clients_get_the_same_texts_as_one(server: Serving, session: Session) -> None:
    prompts = [*(BUNDLED.parent / "data" / "grammar.txt").read_text().split("\n")[:8], *([GERMAN] * 8)]
    options = [SAMPLED | {"seed": i} if i % 2 else {"max_tokens": 3 + i % 4} for i in range(16)]
    pairs = list(zip(prompts, options, strict=True))
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda pair: server.post(prompt=pair[0], **pair[1]).json(), pairs))
    for answer, (prompt, own) in zip(found, pairs, strict=True):
        alone = session.generate(prompt, **own)
        assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == (
            alone.text,
            alone.finish_reason,
        )


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_gets_a_response_and_a_stream(server: Serving, session: Session) -> None:
    def curl(body: str) -> str:
        url = f"{server.url}/v1/completions"
        command = ["curl", "-sN", url, "-H", "Content-Type: application/json", "-d", body]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE).stdout

    text = session.generate(GRAMMAR).text
    assert f'"text":"{text}"' in curl(f'{{"prompt": "{GRAMMAR}"}}')
    streamed = curl(f'{{"prompt": "{GRAMMAR}", "stream": true}}')
    assert streamed.startswith("data: {") and streamed.endswith("data: [DONE]\n\n")


def test_libretranslate_client_translates(server: Serving, session: Session) -> None:
    libre = LibreTranslateAPI(f"{server.url}/")
    expected = session.generate(GERMAN).text
    assert libre.translate("The method returns the value.", "en", "de") == expected
    assert libre.languages() == [{"code": "en", "name": "en", "targets": ["de"]}]
    fields = {"q": ["The method returns the value.", "The end."], "source": "en", "target": "de"}
    answer = server.post("/translate", **fields, format="", api_key="", alternatives="")
    assert answer.json()["translatedText"][0] == expected
    answer = server.post("/translate", **fields, format="text", api_key="", alternatives=0)
    assert answer.json()["translatedText"][0] == expected and len(answer.json()["translatedText"]) == 2


def test_the_type_of_a_form_is_not_case_sensitive(server: Serving) -> None:
    with server.client() as client:
        form = client.post(
            "/translate",
            content=b"q=The+end.&source=en&target=de&alternatives=0",
            headers={"Content-Type": "Application/X-WWW-Form-URLEncoded; charset=utf-8"},
        )
    assert form.json() == server.post("/translate", q="The end.", source="en", target="de").json()


@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r"])
def test_translations_keep_line_breaks_and_blank_texts(server: Serving, session: Session, line_break: str) -> None:
    def translate(q: Any) -> Any:
        answer = server.post("/translate", q=q, source="en", target="de")
        assert answer.status_code == 200, answer.text
        return answer.json()["translatedText"]

    lines = ["The method returns the value.", "The end.", "This class reads a file."]
    one, two, three = translated = [session.generate(f"{PAIRS['en', 'de']}{line}").text for line in lines]
    assert translate(lines) == translated
    given = line_break.join(["", lines[0], "  ", "", lines[1], lines[2], ""])
    assert translate(given) == line_break.join(["", one, "  ", "", two, three, ""])
    assert translate([given, "", " ", lines[1]]) == [line_break.join(["", one, "  ", "", two, three, ""]), "", " ", two]
    assert translate(" \n") == " \n" and translate([""]) == [""]
    assert translate(line_break.join(lines * 5)) == line_break.join(translated * 5)  # more lines than prompts at once


def test_an_error_about_a_text_to_translate_names_its_field(server: Serving) -> None:
    answer = server.post("/translate", q="a" * 15_000, source="en", target="de")
    assert answer.status_code == 400 and answer.json()["error"].startswith("q: ")
    answer = server.post("/translate", q="The end. " * 100, source="en", target="de")
    assert answer.status_code == 400 and answer.json()["error"].startswith("q: ")


def test_a_blank_text_in_a_list_gives_a_blank_choice(server: Serving, session: Session) -> None:
    prompts = [" ", GERMAN, "", "\n"]
    answer = server.post(prompt=prompts, logprobs=True).json()
    texts = ["", session.generate(GERMAN).text, "", ""]
    assert [(each["index"], each["text"]) for each in answer["choices"]] == [*enumerate(texts)]
    assert [each["finish_reason"] for each in answer["choices"]] == ["stop"] * 4
    assert [each["logprobs"]["tokens"] == [] for each in answer["choices"]] == [True, False, True, True]
    alone = server.post(prompt=GERMAN).json()["usage"]
    assert all(answer["usage"][name] == alone[name] for name in ("prompt_tokens", "completion_tokens"))
    assert server.post(prompt=[""]).json()["choices"][0]["text"] == ""
    with (
        server.client() as client,
        client.stream("POST", "/v1/completions", json={"prompt": prompts, "stream": True}) as streamed,
    ):
        found = ["", "", "", ""]
        ends = []
        for event in events(streamed):
            for each in event["choices"]:
                found[each["index"]] += each["text"]
                ends += [each["index"]] if each["finish_reason"] else []
    assert found == texts and sorted(ends) == [0, 1, 2, 3]


def test_a_byte_order_mark_before_json_is_skipped_and_empty_names_count_as_missing(
    server: Serving, session: Session
) -> None:
    body = json.dumps({"prompt": GERMAN, "model": "", "stop": ""}).encode("utf-8-sig")
    with server.client() as client:
        answer = client.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200 and answer.json()["choices"][0]["text"] == session.generate(GERMAN).text


def test_a_form_that_is_not_utf8_is_refused(server: Serving) -> None:
    with server.client() as client:
        for body in (b"q=The+end.%ff&source=en&target=de", b"q=The+end.\xff&source=en&target=de"):
            response = client.post("/translate", content=body, headers={"Content-Type": FORM})
            assert response.status_code == 400 and "not UTF-8" in response.json()["error"], response.text


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"format": "html"}, "format: must be text"),
        ({"source": "auto"}, "automatic detection is not supported"),
        ({"target": "fr"}, "must be a supported pair (en:de)"),
        ({"target": None}, "target: must be"),
        ({"q": ""}, "q: must be"),
        ({"q": ["a"] * 7}, "1 to 6 texts"),
        ({"alternatives": 3}, "alternatives: must be 0"),
        ({"detect": True}, "detect: unknown field"),
        ({"q": "word " * 400}, "at most 200"),
        ({"q": "The first value, the second value, the third value, the fourth value. " * 7}, "over 100 tokens"),
    ],
)
def test_unsupported_translation_fields_are_refused(server: Serving, fields: dict[str, Any], words: str) -> None:
    answer = server.post("/translate", **{"q": "The end.", "source": "en", "target": "de"} | fields)
    assert answer.status_code == 400 and words in answer.json()["error"], answer.text


def test_languages_of_models_with_and_without_language_tokens() -> None:
    """Models with language tokens list all pairs. Others take pairs from config.json and --translate."""
    tokens = MappingProxyType({"deu_Latn": 5, "eng_Latn": 6, "fra_Latn": 7})
    session: Any = SimpleNamespace(tokenizer=SimpleNamespace(languages=tokens))
    assert translation_languages(session, {})[0] == {
        "code": "deu_Latn",
        "name": "deu_Latn",
        "targets": ["eng_Latn", "fra_Latn"],
    }
    languages = {"src_lang": "eng_Latn", "tgt_lang": "deu_Latn"}
    assert translation_prompt(session, {}, "a", "eng_Latn", "deu_Latn") == ("a", languages)
    with pytest.raises(InputError, match="source: 'eng_latn' is an unknown language; did you mean .*eng_Latn"):
        translation_prompt(session, {}, "a", "eng_latn", "deu_Latn")
    tasks = {"translation_en_to_fr": {"prefix": "to French: "}, "summarization": {"prefix": "s: "}, "translation_x": 3}
    found = translation_prefixes({"task_specific_params": tasks}, ["en:de=German: ", "de:en="])
    assert found == {("en", "fr"): "to French: ", ("en", "de"): "German: ", ("de", "en"): ""}
    for wrong in ("ende=x", "en:de", "=x"):
        with pytest.raises(InputError, match="^translate: must be SOURCE:TARGET=PREFIX"):
            translation_prefixes({}, [wrong])
    assert translation_prompt(session, PAIRS, "a", "en", "de")[0].endswith("German: a")


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
        response = client.get("/metrics")
    names = {
        family.name.removeprefix("speculative_decoding_") for family in text_string_to_metric_families(response.text)
    }
    assert names >= {
        "responses",
        "prompts",
        "errors",
        "slots",
        "slots_busy",
        "queue_length",
        "prompt_tokens",
        "generated_tokens",
        "drafted_tokens",
        "accepted_tokens",
        "acceptance_rate",
        "tokens_per_target_call",
        "time_to_first_token_seconds",
    }
    assert server.metric("slots_busy") == server.metric("queue_length") == 0 and server.metric("slots") == 4
    assert server.metric("tokens_per_target_call") > 1 and 0 < server.metric("acceptance_rate") <= 1
