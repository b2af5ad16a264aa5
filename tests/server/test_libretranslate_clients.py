"""Tests that well-known clients of LibreTranslate work: their requests, and the fields that they read.

Each function replays the requests of a client as its published source builds them, and returns the translation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from speculative_decoding.server.limits import Limits
from tests.support.serving import PAIRS, Serving, bundled, serving
from tests.support.subpackages import needs_subpackage

pytestmark = needs_subpackage("documents")
TOKEN = "correct-horse-battery"
TEXT = "The method returns the value."


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(limits=Limits(slots=4, max_output_tokens=60)) as made:
        yield made


@pytest.fixture(scope="module")
def guarded() -> Iterator[Serving]:
    with serving(limits=Limits(slots=4, max_output_tokens=60), token=TOKEN) as made:
        yield made


@pytest.fixture(scope="module")
def german() -> str:
    return bundled().generate(PAIRS["en", "de"] + TEXT).text


def form_data(**fields: Any) -> Any:
    """Return a browser's FormData. Files are pairs of a name and the content."""
    return {name: value if isinstance(value, tuple) else (None, str(value)) for name, value in fields.items()}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


def web_app(client: httpx.Client, key: str) -> str:
    """LibreTranslate 1.9, libretranslate/templates/app.js.template."""
    settings = client.get("/frontend/settings").json()
    assert settings["charLimit"] > 0 and settings["suggestions"] is False and settings["filesTranslation"] is True
    assert settings["frontendTimeout"] == 500 and ".txt" in settings["supportedFilesFormat"]
    source, target = (settings["language"][each]["code"] for each in ("source", "target"))
    names = {each["code"]: each["name"] for each in client.get("/languages").json()}
    for each in client.get("/languages").json():  # the menu of targets shows the name of each target
        assert sorted(names[code] for code in each["targets"])
    sent = form_data(q=TEXT, source=source, target=target, format="text", alternatives=3, api_key=key, secret="A1B2C3D")
    answer = client.post("/translate", files=sent).json()
    assert answer["alternatives"] == []
    detected = client.post("/translate", files=sent | form_data(source="auto")).json()
    assert detected["translatedText"] == answer["translatedText"]
    assert names[detected["detectedLanguage"]["language"]] == "English"
    assert 0 < detected["detectedLanguage"]["confidence"] <= 100
    suggestion = form_data(q=TEXT, s="Die Methode.", source=source, target=target, api_key=key)
    refused = client.post("/suggest", files=suggestion).json()
    assert "success" not in refused and "disabled" in refused["error"]
    sent = form_data(file=("a.txt", TEXT), source=source, target=target, api_key=key, secret="A1B2C3D")
    link = client.post("/translate_file", files=sent).json()["translatedFileUrl"]
    assert client.get(link, headers=bearer(key)).text == answer["translatedText"]
    return answer["translatedText"]


def mastodon(client: httpx.Client, key: str) -> str:
    """Mastodon 4, app/lib/translation_service/libre_translate.rb."""
    headers = {"Content-Type": "application/json"}
    pairs = {each["code"]: {*each["targets"]} - {each["code"]} for each in client.get("/languages").json()}
    assert "de" in pairs["en"]
    html = f"<p>{TEXT}</p>"
    sent = {"q": [html, html], "source": "auto", "target": "de", "format": "html", "api_key": key or None}
    answer = client.post("/translate", json=sent, headers=headers).json()
    texts = [
        (text, answer["detectedLanguage"][index]["language"]) for index, text in enumerate(answer["translatedText"])
    ]
    assert texts[0] == texts[1] and texts[0][1] in pairs
    return texts[0][0].removeprefix("<p>").removesuffix("</p>")


def weblate(client: httpx.Client, key: str) -> str:
    """Weblate 5, weblate/machinery/libretranslate.py."""
    codes = [each["code"] for each in client.get("/languages").json()]
    assert {"en", "de"} <= {*codes}  # it compares the codes of both languages with this list
    answer = client.post("/translate", json={"api_key": key, "q": [TEXT, TEXT], "source": "en", "target": "de"}).json()
    first, second = answer["translatedText"]
    assert first == second
    return first


def discourse(client: httpx.Client, key: str) -> str:
    """discourse-translator, app/services/discourse_translator/libre_translate.rb. Ruby encodes nil as a bare name."""

    def post(path: str, **fields: str) -> Any:
        body = f"{httpx.QueryParams(fields)}&api_key" + (f"={key}" if key else "")
        return client.post(path, content=body, headers={"Content-Type": "application/x-www-form-urlencoded"}).json()

    detected = post("/detect", q=TEXT)[0]["language"]
    codes = [each["code"] for each in client.get("/languages").json()]
    assert detected in codes and "de" in codes  # otherwise, it offers no translation
    return post("/translate", q=TEXT, source=detected, target="de", format="html")["translatedText"]


def akkoma(client: httpx.Client, key: str) -> str:
    """Akkoma 3, lib/pleroma/akkoma/translators/libre_translate.ex."""
    assert all(each["code"] and each["name"] for each in client.get("/languages").json())
    sent = {"q": TEXT, "source": "auto", "target": "de", "format": "html", "api_key": key or None}
    answer = client.post("/translate", json=sent, headers={"Content-Type": "application/json"}).json()
    assert answer["detectedLanguage"]["language"] == "en"
    return answer["translatedText"]


def nextcloud(client: httpx.Client, key: str) -> str:
    """Nextcloud's integration_libretranslate, with jefs42/libretranslate: it detects with fields in the query string.

    With a token, the server must also get it in a header. This client sends it in the query string only.
    """
    client.post("/")  # to test the connection; the response is ignored
    assert client.request("GET", "/frontend/settings", headers={"Content-Type": "x"}).json()["keyRequired"] in (
        True,
        False,
    )
    codes = {each["code"]: each["name"] for each in client.get("/languages").json()}
    assert {"en", "de"} <= {*codes}  # it refuses other source and target languages
    query = {"q": TEXT, "api_key": key}
    for empty in ({}, {"content": b"", "headers": {"Content-Type": "application/x-www-form-urlencoded"}}):
        own: Any = empty | {"headers": {**empty.get("headers", {}), **bearer(key)}}
        assert client.post("/detect", params=query, **own).json()[0]["language"] == "en"
    sent = form_data(q=TEXT, format="html", source="en", target="de", api_key=key)
    return client.post("/translate", files=sent).json()["translatedText"]


def deep_translator(client: httpx.Client, key: str) -> str:
    """deep-translator 1.11, deep_translator/libre.py: all fields are in the query string.

    This includes the token, which the server does not read there. It must also be in a header.
    """
    query = {"q": TEXT, "source": "auto", "target": "de", "format": "text"} | ({"api_key": key} if key else {})
    return client.post("/translate", params=query, headers=bearer(key)).json()["translatedText"]


CLIENTS = [web_app, mastodon, weblate, discourse, akkoma, nextcloud, deep_translator]


@pytest.mark.parametrize("replay", CLIENTS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("has_token", [False, True], ids=["without a token", "with a token"])
def test_the_requests_of_known_clients_are_answered(
    server: Serving, guarded: Serving, german: str, replay: Callable[[httpx.Client, str], str], has_token: bool
) -> None:
    own = guarded if has_token else server
    with own.client() as client:
        assert replay(client, TOKEN if has_token else "") == german
    assert own.service.admitted == 0
