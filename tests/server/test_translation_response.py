"""Tests streamed translations, and translations with models that have no languages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from speculative_decoding import GenerationOptions, Session
from speculative_decoding.server.files import KeptFiles
from speculative_decoding.server.limits import Limits
from tests.support.serving import GRAMMAR, Serving, bundled, events, held, serving
from tests.support.subpackages import needs_subpackage
from tests.support.tiny import tiny_model
from tests.support.together import Letters
from tests.support.waiting import eventually

pytestmark = needs_subpackage("documents")
TEXT = "\r\n# A test.\n\n The price of 12 items is 3 €. The method returns the value. The end.\n"
GERMAN = "Der Igel schläft im Garten."
OWN = {"source": "en", "target": "de"}
LIMITS = Limits(slots=1, max_prompts=1, max_output_tokens=60)  # so that the sentences of a text finish one by one


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(limits=LIMITS) as made:
        yield made


def streamed(server: Serving, path: str, **given: Any) -> tuple[list[Any], Any]:
    """Return the events of a stream with progress, and its last event."""
    with server.client() as client, client.stream("POST", path, **given) as response:
        assert response.status_code == 200, response.read()
        *found, last = events(response)
    return found, last


def require_progress(found: list[Any]) -> None:
    shares = [event["progress"] for event in found]
    assert len(shares) > 1 and shares == sorted({*shares}) and shares[0] > 0 and shares[-1] == 1


def test_the_events_of_a_text_contain_its_translation(server: Serving) -> None:
    found, last = streamed(server, "/translate", json={"q": TEXT, **OWN, "stream": True})
    require_progress(found)
    assert "".join(event["delta"] for event in found) == last["translatedText"]
    assert last == server.post("/translate", q=TEXT, **OWN).json() and last["findings"]


def test_the_events_of_several_texts_contain_a_list(server: Serving) -> None:
    sent = {"q": [TEXT, GERMAN, "", TEXT[:20]], "source": "auto", "target": "de"}
    found, last = streamed(server, "/translate", json={**sent, "stream": True})
    require_progress(found)
    joined = ["".join(texts) for texts in zip(*(event["delta"] for event in found), strict=True)]
    assert last == server.post("/translate", **sent).json()
    assert last["translatedText"] == [joined[0], GERMAN, "", joined[3]] and joined[1] == joined[2] == ""


def test_the_events_of_a_file_contain_only_progress(server: Serving) -> None:
    found, last = streamed(
        server, "/translate_file", data={**OWN, "stream": "true"}, files={"file": ("a.md", TEXT.encode())}
    )
    require_progress(found)
    assert {*found[0]} == {"progress"} and {*last} == {"translatedFileUrl", "findings"}
    with server.client() as client:
        translated = client.get(last["translatedFileUrl"]).text
        sent = client.post("/translate_file", data=OWN, files={"file": ("a.md", TEXT.encode())}).json()
        assert translated == client.get(sent["translatedFileUrl"]).text and last["findings"] == sent["findings"]


@pytest.mark.parametrize("text", ["", " \n\n", "12"])
def test_a_text_without_words_is_copied(server: Serving, text: str) -> None:
    found, last = streamed(server, "/translate", json={"q": [text], **OWN, "stream": True})
    assert last == {"translatedText": [text]}
    assert found == ([{"progress": 1, "delta": [text]}] if text else [])


def test_an_error_before_the_stream_has_a_status(server: Serving) -> None:
    refused = server.post("/translate", q=TEXT, source="en", target="fr", stream=True)
    assert refused.status_code == 400 and refused.json()["error"].startswith("target: ")


def test_a_later_error_is_the_last_event(caplog: pytest.LogCaptureFixture) -> None:
    with held(bundled(), LIMITS) as (server, gated):
        gated.failures = 1
        fields = {"q": TEXT, **OWN, "stream": True}
        with server.client() as client, client.stream("POST", "/translate", json=fields) as response:
            gated.allow()
            assert [*events(response)] == [{"error": "the server failed while decoding this request; see its log"}]


def test_an_output_that_cannot_be_encoded_is_the_last_event(server: Serving) -> None:
    header = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=us-ascii\\n"\n\n'
    catalog = f'{header}msgid "The method returns the value."\nmsgstr ""\n'.encode()  # the output contains "ü"
    _, last = streamed(server, "/translate_file", data={**OWN, "stream": "true"}, files={"file": ("a.po", catalog)})
    assert "ascii cannot write 'ü'" in last["error"]


@pytest.mark.parametrize("path", ["/translate", "/translate_file"])
def test_a_client_that_disconnects_from_a_stream_releases_everything(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved = list[int]()  # the sizes of the files for which memory is reserved
    reserve = KeptFiles.reserve

    @contextmanager
    def recorded(self: KeptFiles, client: str, size: int) -> Iterator[None]:
        with reserve(self, client, size):
            reserved.append(size)
            try:
                yield
            finally:
                reserved.remove(size)

    monkeypatch.setattr(KeptFiles, "reserve", recorded)
    is_file = path == "/translate_file"
    content: dict[str, Any] = {"files": {"file": ("a.md", TEXT.encode())}} if is_file else {}
    fields = {**OWN, "stream": "true"} | ({} if is_file else {"q": TEXT})
    with held(bundled(), LIMITS) as (server, gated):
        with server.client() as client, client.stream("POST", path, data=fields, **content) as response:
            assert response.status_code == 200 and server.service.admitted == 1
            assert len(reserved) == is_file
        gated.allow()
        eventually(lambda: server.service.admitted == 0 and not server.service._uploads and not reserved)


def test_a_model_without_languages_decodes_each_sentence() -> None:
    """A grammar corrector whose prompts need no prefix, or a model for one pair, such as Marian."""
    own = bundled.__wrapped__()
    text = f"{GRAMMAR}\n\nThe method returns the value. The end.\n"
    with serving(limits=LIMITS, prefixes={}) as server, server.client() as client:
        assert client.get("/languages").json() == []
        assert client.get("/frontend/settings").json()["language"] == {}
        decoded = own.document(text, max_tokens=60)
        given: list[dict[str, Any]] = [{"json": {"q": text}}, {"data": {"q": text, "source": "", "target": ""}}]
        for each in given:
            answer = client.post("/translate", **each).json()
            assert answer["translatedText"] == decoded.text
            assert answer.get("findings", []) == [finding._asdict() for finding in decoded.findings]
        sent = client.post("/translate_file", files={"file": ("talk.txt", text.encode())}).json()
        download = client.get(sent["translatedFileUrl"])
        assert download.text == decoded.text and 'filename="talk.txt"' in download.headers["content-disposition"]
        for fields in ({"source": "en"}, {"target": "de"}, {"source": "auto", "target": "de"}):
            refused = client.post("/translate", json={"q": text, **fields})
            assert refused.status_code == 400 and "no language pairs; leave source and target out" in refused.text


def test_a_model_with_languages_needs_both() -> None:
    session = Session(tiny_model(), Letters(), options=GenerationOptions(drafter="none", max_tokens=2))
    with serving(session, prefixes={("en", "de"): ""}) as server:
        for fields, missing in (({"target": "de"}, "source"), ({"source": "en"}, "target")):
            refused = server.post("/translate", q="abc", **fields)
            assert refused.status_code == 400 and f"{missing}: is missing or empty" in refused.text


def test_the_languages_of_a_request_are_those_of_its_texts() -> None:
    """Prompts without a prefix, such as those of an Argos Translate package, do not name the languages."""
    catalog = 'msgid ""\nmsgstr ""\n"Language: \\n"\n\nmsgid "A page"\nmsgstr ""\n'
    text, own = "Am 3. Mai.", bundled.__wrapped__()
    one, two = own.generate(text, max_tokens=60).text, own.document(text, max_tokens=60).text  # the latter as English
    assert one != two
    with serving(limits=LIMITS, prefixes={("en", "de"): "", ("de", "en"): ""}) as server, server.client() as client:
        for source, target, expected in (("en", "de", two), ("German", "English", one)):
            pair = {"source": source, "target": target}
            sent = client.post("/translate_file", data=pair, files={"file": ("in.po", catalog.encode())}).json()
            written = client.get(sent["translatedFileUrl"]).text
            assert f'"Language: {"de" if target == "de" else "en"}\\n"' in written
            assert client.post("/translate", json={"q": text, **pair}).json()["translatedText"] == expected
