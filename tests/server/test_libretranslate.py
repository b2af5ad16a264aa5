"""Tests LibreTranslate's API with its Python client, and against its published description."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from libretranslatepy import LibreTranslateAPI

from speculative_decoding import GenerationOptions, Session, load
from speculative_decoding.server.limits import Limits
from tests.support.families import FAMILIES, GOLDENS, word_tokenizer
from tests.support.serving import PAIRS, Serving, bundled, serving
from tests.support.subpackages import needs_subpackage
from tests.support.tiny import tiny_model
from tests.support.together import Letters
from tests.support.waiting import eventually

pytestmark = needs_subpackage("documents")
LIMITS = Limits(slots=4, max_prompts=6, max_output_tokens=60, max_prompt_tokens=200, max_body=20_000)
TOKEN = "correct-horse-battery"
SENTENCES = ["The method returns the value.", "A test.", "The end."]
OWN = {"source": "en", "target": "de"}


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(limits=LIMITS) as made:
        yield made


@pytest.fixture(scope="module")
def german() -> list[str]:
    """Return the translation of each sentence, from a separate session."""
    session = bundled.__wrapped__()
    return [session.generate(PAIRS["en", "de"] + each).text for each in SENTENCES]


@pytest.fixture(scope="module")
def guarded() -> Iterator[Serving]:
    session = Session(tiny_model(), Letters(), options=GenerationOptions(drafter="none", max_tokens=2))
    limits = Limits(max_output_tokens=4, max_body=4000)
    with serving(session, limits, token=TOKEN, prefixes={("en", "de"): ""}) as made:
        yield made


def translated(server: Serving, q: Any, **fields: Any) -> dict[str, Any]:
    response = server.post("/translate", q=q, **OWN | fields)
    assert response.status_code == 200, response.text
    return response.json()


def send_file(server: Serving, name: str, content: bytes, **fields: Any) -> httpx.Response:
    with server.client() as client:
        return client.post("/translate_file", data=OWN | fields, files={"file": (name, content)})


def download(server: Serving, sent: httpx.Response, **headers: str) -> httpx.Response:
    assert sent.status_code == 200, sent.text
    with server.client() as client:
        return client.get(sent.json()["translatedFileUrl"], headers=headers)


def test_the_python_client_translates_detects_and_lists_languages(server: Serving, german: list[str]) -> None:
    libre = LibreTranslateAPI(server.url, api_key="not needed here")
    assert libre.translate(SENTENCES[0], "en", "de") == german[0]
    assert libre.detect("Der Igel schläft im Garten.")[0]["language"] == "de"
    german_only = {"code": "de", "name": "German", "targets": ["de"]}
    assert libre.languages() == [german_only, {"code": "en", "name": "English", "targets": ["de", "en"]}]


def test_as_many_sentences_come_out_as_go_in(server: Serving, german: list[str]) -> None:
    """Lists keep their order, and texts their line breaks and blank lines, even above max_prompts sentences."""
    one, two, three = SENTENCES
    given = [f"{one} {two}\r\n\r\n  {three}" * 3, " ", "", three]
    answer = translated(server, given)
    assert translated(server, [three]) == {"translatedText": [german[2]]} != translated(server, three)
    assert answer == {"translatedText": [f"{german[0]} {german[1]}\r\n\r\n  {german[2]}" * 3, " ", "", german[2]]}


def test_alternatives_are_an_empty_list(server: Serving) -> None:
    assert translated(server, SENTENCES[0], alternatives=2)["alternatives"] == []
    assert translated(server, SENTENCES[:2], alternatives=2)["alternatives"] == [[], []]
    assert "alternatives" not in translated(server, SENTENCES[0], alternatives=0)


def test_a_text_is_not_refused_for_its_length(server: Serving) -> None:
    answer = translated(server, " ".join(f"word{number}" for number in range(300)))
    assert "split" in [each["kind"] for each in answer["findings"]]


def test_tags_and_attributes_of_html_stay(server: Serving, german: list[str]) -> None:
    given = '<p class="a">{}</p>\n<script>var a = "The end.";</script>'
    answer = translated(server, given.format(SENTENCES[0]), format="html")
    assert answer["translatedText"] == given.format(german[0])


def test_the_language_of_each_text_is_detected(server: Serving, german: list[str]) -> None:
    """A text that is already in the target language is returned unchanged."""
    answer = translated(server, [SENTENCES[0], "Der Igel schläft im Garten.", "<b>"], source="auto")
    assert answer["translatedText"] == [german[0], "Der Igel schläft im Garten.", "<b>"]
    assert [each["language"] for each in answer["detectedLanguage"]] == ["en", "de", "en"]
    one = translated(
        server, "<div><blockquote>Igel schlafen im Garten.</blockquote></div>", source="auto", format="html"
    )
    assert one["detectedLanguage"]["language"] == "de" and 50 < one["detectedLanguage"]["confidence"] <= 100


def test_a_file_is_translated_and_downloaded(server: Serving, german: list[str]) -> None:
    content = "1\r\n00:00:01,000 --> 00:00:02,000\r\n{}\r\n\r\n"
    sent = send_file(server, "../Gespräch 1.srt", b"\xef\xbb\xbf" + content.format(SENTENCES[0]).encode())
    assert {*sent.json()} == {"translatedFileUrl"} and sent.json()["translatedFileUrl"].startswith(server.url)
    for _ in range(2):
        found = download(server, sent)
        assert found.content == b"\xef\xbb\xbf" + content.format(german[0]).encode()
    headers = found.headers
    assert headers["content-type"] == "application/octet-stream" and headers["cache-control"] == "no-store"
    assert headers.get_list("x-content-type-options") == ["nosniff"]
    assert headers["content-disposition"].startswith("attachment; ") and "Gespr%C3%A4ch%201_de.srt" in str(headers)


def test_the_format_of_a_file_may_be_named(server: Serving, german: list[str]) -> None:
    lines = json.dumps({"text": SENTENCES[2], "id": "The end."}) + "\n"
    found = download(server, send_file(server, "texts", lines.encode(), format="jsonl"))
    assert json.loads(found.text) == {"text": german[2], "id": "The end."}


def test_json_and_the_named_columns_of_tables_are_translated(server: Serving, german: list[str]) -> None:
    found = download(server, send_file(server, "de.json", json.dumps({"a": [SENTENCES[2]]}).encode()))
    assert json.loads(found.text) == {"a": [german[2]]}
    table = f'id,text\nThis is kept.,"{SENTENCES[2]}"\n'
    found = download(server, send_file(server, "a.csv", table.encode(), columns="text"))
    assert found.text == table.replace(SENTENCES[2], german[2])


@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_the_named_fields_of_json_are_translated(server: Serving, german: list[str], suffix: str) -> None:
    own = {"a": SENTENCES[2], "b": "This is kept.", "c": SENTENCES[2]}
    found = download(server, send_file(server, f"a.{suffix}", json.dumps(own).encode(), fields=["a", "c"]))
    assert json.loads(found.text) == own | {"a": german[2], "c": german[2]}


def test_links_behind_a_proxy_with_tls_are_encrypted(guarded: Serving) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}", "X-Forwarded-Proto": "https"}
    with guarded.client(headers=headers) as client:
        sent = client.post("/translate_file", data=OWN, files={"file": ("a.txt", b"1")}).json()
    assert sent["translatedFileUrl"].startswith(guarded.url.replace("http:", "https:") + "/download_file/")


REFUSED: list[tuple[str, bytes, dict[str, str], str]] = [
    ("a.docx", b"PK", {}, "file: a.docx: .docx is not supported; convert it to Markdown or HTML with pandoc"),
    ("app.resx", b"<root/>", {}, "file: app.resx: .resx is not supported; convert it to PO with the"),
    ("app.json5", b"{}", {}, "app.json5: .json5 is not supported; convert it to JSON with json5"),
    ("talk.ass", b"[Events]", {}, "talk.ass: .ass is not supported; convert it to SRT with FFmpeg"),
    ("a.xyz", b"a", {}, "a.xyz: the suffix .xyz is unknown; read it with format text"),
    ("README", b"a", {}, "README: has no suffix such as .txt; rename it, or name a format"),
    (
        "a.txt",
        b"a\xffb",
        {},
        "a.txt: line 1: not UTF-8 (invalid start byte); name its encoding, or convert it to UTF-8",
    ),
    ("a.txt", b"a", {"encoding": "utf-7"}, "encoding: utf-7 is not supported; name one of utf-8, "),
    ("a.csv", b'text\nOne\n"a" b\n', {"columns": "text"}, "line 3: text follows the quotation mark"),
    ("a.jsonl", b'{"text": 3', {}, "line 1"),
    ("a.json", b'{"a": "b",}', {}, "line 1: not JSON"),
    ("a.csv", b"id,text", {}, "columns: csv needs the columns to decode; name some of 'id', 'text'"),
    ("a.txt", b"a", {"columns": "text"}, "columns: has no effect with format text"),
    ("a.txt", b"a", {"fields": "text"}, "fields: has no effect with format text"),
    ("a.jsonl", b'{"a": "b"}', {}, "fields: line 1 has no text in the field 'text'; name a field"),
    ("a.txt", b"a", {"format": "exe"}, "format: must be one of"),
    (
        "a.po",
        b'msgid ""\nmsgstr "Language: fr"\n\nmsgid "A"\nmsgstr ""',
        {},
        "line 2: the document is for translations",
    ),
    ("a.txt", b"a", {"source": "", "sources": "en"}, "source: is missing or empty; send a language, or auto"),
    ("a.txt", b"a", {"target": "fr"}, "target: source and target must be a supported pair (en:de), not en:fr"),
    ("a.txt", b"a" * 30_000, {}, "at most 20000 bytes"),
]


@pytest.mark.parametrize(("name", "content", "fields", "words"), REFUSED, ids=lambda each: str(each)[:20])
def test_refused_files_are_named(
    server: Serving, name: str, content: bytes, fields: dict[str, str], words: str
) -> None:
    response = send_file(server, name, content, **fields)
    assert response.status_code in (400, 413) and words in response.json()["error"], response.text
    assert "\n" not in response.json()["error"] and server.service.admitted == 0


def test_a_file_whose_encoding_lacks_a_character_of_the_output_is_refused(server: Serving) -> None:
    header = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=us-ascii\\n"\n\n'
    response = send_file(server, "a.po", f'{header}msgid "{SENTENCES[0]}"\nmsgstr ""\n'.encode())
    assert (
        response.status_code == 400
        and "ascii cannot write 'ü' (U+00FC); convert it to UTF-8" in response.json()["error"]
    )


def test_a_file_keeps_the_encoding_that_the_request_names(server: Serving, german: list[str]) -> None:
    content = f"{SENTENCES[0]}\n1 \u20ac\n".encode("cp1252")
    found = download(server, send_file(server, "a.txt", content, encoding="windows-1252")).content.decode("cp1252")
    assert found == f"{german[0]}\n1 \u20ac\n" and "\xfc" in found


def test_suggestions_are_refused_as_disabled(server: Serving, guarded: Serving) -> None:
    """LibreTranslate refuses them before it checks the API key or the fields."""
    for each in (server, guarded):
        with each.client() as client:
            for sent in ({"data": {"q": "a", "s": "b"} | OWN}, {"json": {}}, {"files": {"q": (None, "a")}}, {}):
                refused = client.post("/suggest", **sent)
                assert refused.status_code == 403
                assert refused.json() == {"error": "suggestions are disabled on this server"}
            assert client.get("/suggest").status_code == 405
            assert client.get("/frontend/settings").json()["suggestions"] is False


@pytest.mark.parametrize("source", ["en", "EN", "de", "German", "deu_Latn", "auto"])
def test_a_text_in_the_target_language_stays(server: Serving, source: str) -> None:
    given = ["Der Igel schläft im  Garten.\n", ""] if source not in ("en", "EN") else SENTENCES
    target = "de" if source not in ("en", "EN") else "en"
    assert translated(server, given, source=source, target=target)["translatedText"] == given


@pytest.fixture(scope="module")
def chinese(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Serve a random model with the languages of NLLB."""
    folder = tmp_path_factory.mktemp("nllb")
    configs = {each: json.loads((GOLDENS / each / "config.json").read_text()) for each in FAMILIES}
    family, config = next(each for each in configs.items() if each[1]["model_type"] == "m2m_100")
    codes = ("zho_Hant", "zho_Hans", "por_Latn", "eng_Latn")
    shutil.copytree(GOLDENS / family, folder, dirs_exist_ok=True)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "NllbTokenizer"}))
    (folder / "tokenizer.json").write_text(json.dumps(word_tokenizer(config, config["vocab_size"], "{}", codes, 1)))
    with serving(load(folder, dtype="float32", drafter="none"), LIMITS, prefixes={}) as made:
        yield made


HANS = "安全地注册和管理域名享受透明价格。"
HANT = "安全地註冊和管理網域名稱享受透明價格。"
STAYS = [
    *((HANS, code) for code in ("zh", "zh-Hans", "ZH-CN", "zho_Hans", "Chinese")),
    *((HANT, code) for code in ("zt", "zh-Hant", "zh-TW", "zh_HK", "zho_Hant")),
    *(("O preço é transparente.", code) for code in ("pt", "pb", "pt-BR", "por_Latn")),
]
IS_TRANSLATED = [(HANS, "zt"), (HANS, "zh-TW"), (HANT, "zh"), (HANT, "zh-Hans"), (HANS, "pb"), (HANT, "en")]


@pytest.mark.parametrize(("text", "target"), [*STAYS, *IS_TRANSLATED])
def test_a_text_stays_if_it_is_in_the_target_language_and_script(chinese: Serving, text: str, target: str) -> None:
    """The detected language is that of /detect, and one of the listed codes."""
    (said, *_) = chinese.post("/detect", q=text).json()
    with chinese.client() as client:
        listed = {each["code"]: each["targets"] for each in client.get("/languages").json()}
    assert [*listed] == ["en", "pt", "zh", "zh-Hant"] and listed[said["language"]] == [*listed]
    for format in ("text", "html"):
        found = translated(chinese, [text, ""], source="auto", target=target, format=format)
        assert found["detectedLanguage"][0] == said
        assert (found["translatedText"] == [text, ""]) is ((text, target) in STAYS)


UNKNOWN = {"secret": "a", "id": "7", "Q": "b", "source_lang": "fr", "": "c", "prefix": "x", "num_beams": "2"}


@pytest.mark.parametrize("encoding", ["json", "data", "files"])
def test_unknown_fields_are_ignored_on_libretranslates_paths_only(
    server: Serving, german: list[str], encoding: str
) -> None:
    def post(path: str, **fields: str) -> httpx.Response:
        sent: Any = {name: (None, value) for name, value in fields.items()} if encoding == "files" else fields
        with server.client() as client:
            return client.post(path, **{encoding: sent})

    assert post("/translate", q=SENTENCES[0], **OWN, **UNKNOWN).json() == {"translatedText": german[0]}
    assert post("/detect", q=SENTENCES[0], **UNKNOWN).json()[0]["language"] == "en"
    if encoding == "json":
        refused = post("/v1/completions", prompt="a", secret="a").json()["error"]
        assert refused["code"] == "unknown_field" and refused["param"] == "secret"


def test_unknown_fields_are_ignored_in_a_form_with_a_file(server: Serving, german: list[str]) -> None:
    assert download(server, send_file(server, "a.txt", SENTENCES[2].encode(), **UNKNOWN)).text == german[2]


def test_fields_may_be_in_the_query_string(server: Serving, german: list[str]) -> None:
    """As in LibreTranslate, the query string takes precedence over a form, and is ignored for a JSON object."""
    query = {"q": "The end. é&?", "source": "auto", "target": "de"}
    form = dict(query)
    with server.client() as client:
        expected = client.post("/translate", data=form).json()
        assert expected["translatedText"] and expected["detectedLanguage"]["language"] == "en"
        for headers in ({}, {"Content-Type": "application/json"}, {"Content-Type": "text/plain"}):
            assert client.post("/translate", params=query, headers=headers).json() == expected
        assert client.post("/translate", params={"q": query["q"]}, data=form | {"q": "a"}).json() == expected
        languages = {name: (None, value) for name, value in form.items() if name != "q"}
        assert client.post("/translate", params={"q": query["q"]}, files=languages).json() == expected
        assert client.post("/translate?x=1", json=form).json() == expected
        ignored = client.post("/translate", params=query, json={"q": "a"})
        assert ignored.status_code == 400 and ignored.json()["error"].startswith("source: is missing")
        assert client.post("/detect", params={"q": SENTENCES[0]}).json()[0]["language"] == "en"
        several = client.post("/translate", params={**OWN, "q": [SENTENCES[2], ""]}).json()["translatedText"]
        assert several == german[2]  # an empty text in a form counts as missing
        refused = client.post("/translate?q=%ff&source=en&target=de")
        assert refused.status_code == 400 and "not UTF-8" in refused.json()["error"]
        assert client.post("/translate", content=b"a", params=query).status_code == 415


@pytest.mark.parametrize("path", ["/translate", "/detect", "/translate_file"])
def test_the_token_is_never_read_from_the_query_string(
    guarded: Serving, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Proxies log it. The field is ignored, because clients also send it to servers without a token."""
    caplog.set_level("INFO")
    query = {"q": "a", "source": "en", "target": "de", "api_key": TOKEN}
    with guarded.client() as client:
        assert client.post(path, params=query).status_code == 401
        if path in ("/translate", "/detect"):
            accepted = client.post(path, params=query | {"api_key": "x"}, headers={"Authorization": f"Bearer {TOKEN}"})
            assert accepted.status_code == 200
            assert client.post(path, params=query, data={"api_key": "x"}).status_code == 401
            assert client.post(path, params=query | {"api_key": "x"}, data={"api_key": TOKEN}).status_code == 200

    def logged() -> list[str]:
        return [each.getMessage() for each in caplog.records if each.name == "speculative_decoding.server"]

    eventually(lambda: any(f"POST {path} 401" in each for each in logged()))
    assert not any(TOKEN in each for each in logged())


def test_the_language_of_several_texts_is_detected_together(server: Serving) -> None:
    texts = ["Der Igel schläft.", "Er schläft im Garten."]
    assert server.post("/detect", q=texts).json() == server.post("/detect", q="\n".join(texts)).json()


def test_user_interfaces_get_their_settings(server: Serving, guarded: Serving) -> None:
    for each, needs_token in ((server, False), (guarded, True)):
        with each.client() as client:
            found = client.get("/frontend/settings").json()
        assert found["keyRequired"] is found["apiKeys"] is needs_token and found["suggestions"] is False
        assert found["charLimit"] == each.service.limits.max_body and found["frontendTimeout"] > 0
        assert found["language"]["target"] == {"code": "de", "name": "German"}
        assert found["filesTranslation"] is True and {".txt", ".srt", ".html"} <= {*found["supportedFilesFormat"]}


def test_the_listed_suffixes_are_exactly_those_that_files_may_have(server: Serving) -> None:
    from speculative_decoding.documents.formats import BY_SUFFIX, CONVERSION_OF

    with server.client() as client:
        listed = client.get("/frontend/settings").json()["supportedFilesFormat"]
    for suffix in [*listed, *[*CONVERSION_OF][::7], "", ".unknown"]:
        contents = {"jsonl": b'{"text": "1"}', "po": b"# 1", "xliff": b"<xliff version='1.2'/>"}
        format = BY_SUFFIX.get(suffix, "")
        columns = {"columns": "1"} if format in ("csv", "tsv") else {}
        sent = send_file(server, f"a{suffix.upper()}", contents.get(format, b"1"), **columns)
        assert (sent.status_code == 200) is (suffix in listed), sent.json()
        assert sent.status_code in (200, 400)


def test_settings_name_the_field_of_each_suffix_for_its_columns_or_keys(server: Serving) -> None:
    with server.client() as client:
        settings = client.get("/frontend/settings").json()
    for suffix in settings["supportedFilesFormat"]:
        for name in ("columns", "fields"):
            sent = send_file(server, f"a{suffix}", b"", **{name: "1"}).json()
            has_effect = f"{name}: has no effect" not in sent.get("error", "")
            assert has_effect is (settings["fileFields"].get(suffix) == name), sent


PATHS = [
    *(("POST", "/translate"), ("POST", "/translate_file"), ("POST", "/detect"), ("GET", "/download_file/x")),
    *(("GET", "/unknown"), ("POST", "/v1"), ("POST", "/v1/chat/completions"), ("GET", "/v12/translate")),
]


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_errors_have_the_form_of_the_api_of_their_path(guarded: Serving, method: str, path: str) -> None:
    """This includes unknown paths."""

    def message(response: httpx.Response) -> str:
        error = response.json()["error"]
        return error["message"] if path in ("/v1", "/v1/chat/completions") else error

    with guarded.client() as client:
        refused = client.request(method, path, json={"api_key": "x"} if method == "POST" else None)
        assert refused.status_code == 401 and message(refused).startswith("missing or wrong token")
        other = client.request("PUT", path, headers={"Authorization": f"Bearer {TOKEN}"})
        is_known = path in ("/translate", "/translate_file", "/detect", "/download_file/x")
        assert other.status_code == (405 if is_known else 404)
        assert is_known or ("POST /translate" in message(other) and "POST /v1/completions" in message(other))


@pytest.mark.parametrize("encoding", ["json", "data", "files"])
def test_the_token_may_be_a_field_of_requests_in_each_encoding(guarded: Serving, encoding: str) -> None:
    for token, status in ((TOKEN, 200), ("x", 401)):
        fields = {"q": "a", "api_key": token}
        sent: Any = {name: (None, value) for name, value in fields.items()} if encoding == "files" else fields
        with guarded.client() as client:
            assert client.post("/detect", **{encoding: sent}).status_code == status


def test_a_file_needs_the_token_that_made_it(guarded: Serving) -> None:
    sent = send_file(guarded, "a.txt", b"abc", api_key=TOKEN)
    assert download(guarded, sent).status_code == 401
    assert download(guarded, sent, Authorization=f"Bearer {TOKEN}x").status_code == 401
    found = download(guarded, sent, Authorization=f"Bearer {TOKEN}")
    assert found.status_code == 200 and found.content


@pytest.mark.parametrize("name", ["..%2f..%2fetc%2fpasswd", "%2e%2e", "a%00b", "C:%5ca", "a" * 5000])
def test_no_name_leads_to_another_file(guarded: Serving, name: str) -> None:
    with guarded.client(headers={"Authorization": f"Bearer {TOKEN}"}) as client:
        found = client.get(f"/download_file/{name}")
    assert found.status_code == 404 and isinstance(found.json()["error"], str)


def test_names_of_files_are_not_logged(guarded: Serving, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    sent = send_file(guarded, "a.txt", b"1", api_key=TOKEN)
    download(guarded, sent, Authorization=f"Bearer {TOKEN}")

    def logged() -> list[str]:
        return [each.getMessage() for each in caplog.records if each.name == "speculative_decoding.server"]

    eventually(lambda: any("GET /download_file/... 200" in each for each in logged()))  # logged after the download
    assert not any(sent.json()["translatedFileUrl"].rpartition("/")[2] in each for each in logged())


def test_kept_files_have_a_limit(guarded: Serving) -> None:
    answers = [send_file(guarded, "a.txt", b"1 " * 1500, api_key=TOKEN).status_code for _ in range(100)]
    assert {*answers} == {200, 429} and answers[-1] == 429
