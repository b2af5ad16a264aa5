"""The web page of a server that translates, in a headless Chromium."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any

import pytest

from speculative_decoding import GenerationOptions, Session
from speculative_decoding.server.limits import Limits
from tests.support.pages import (
    PHONE,
    choose_and_change,
    drop,
    is_gone,
    needs_chromium,
    opened,
    press,
    require_fit,
    require_labels,
    shown,
    started,
    wait,
)
from tests.support.paths import ROOT
from tests.support.serving import PAIRS, Serving, bundled, drain, held, serving
from tests.support.subpackages import needs_subpackage
from tests.support.tiny import tiny_model
from tests.support.together import Letters
from tests.support.waiting import eventually

TEXT = "# Prices\n\nThe method returns the value. The end.\nThe price of 12 items is 3 €.\n"
SUBTITLES = "1\n00:00:01,000 --> 00:00:02,000\nThe method returns\n\n2\n00:00:02,000 --> 00:00:03,000\nthe 3 € value.\n"
TOKEN = "correct-horse=battery"
LONG = "talk é" + "x" * 80  # a name that must be broken into lines to fit on a phone
PREFIX = PAIRS["en", "de"]
LIMITS = Limits(slots=1, max_prompts=1, max_output_tokens=60, max_body=3000)

pytestmark = [needs_chromium, needs_subpackage("documents")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started() as found:
        yield found


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    prefixes = {("en", "de"): PREFIX, ("en", "fr"): "grammar: ", ("de", "en"): ""}
    with serving(limits=LIMITS, prefixes=prefixes) as made:
        yield made


@cache
def decoded(text: str, prefix: str = PREFIX, **options: Any) -> Any:
    return bundled.__wrapped__().document(text, prefix=prefix, max_tokens=60, **options)


def opened_with_choices(browser: Any, server: Serving, **options: Any) -> tuple[Any, list[str]]:
    """Open the page, and wait until it shows the languages."""
    page, messages = opened(browser, server, **options)
    page.wait_for_selector("#source option", state="attached")
    return page, messages


def choices(page: Any, select: str) -> list[str]:
    return [str(each) for each in page.eval_on_selector_all(f"#{select} option", "all => all.map((each) => each.text)")]


def targets_by_name(server: Serving) -> dict[str, list[str]]:
    """Return the names of each source's targets, sorted, without the source itself."""
    with server.client() as client:
        listed = client.get("/languages").json()
    names = {each["code"]: each["name"] for each in listed}
    return {each["name"]: sorted({names[code] for code in each["targets"]} - {each["name"]}) for each in listed}


def findings(page: Any, mode: str) -> list[str]:
    return [str(each) for each in page.locator(f"#{mode}-findings li").all_text_contents()]


def expected_findings(found: Any) -> list[str]:
    meanings = {"lost": "missing from the output", "parts": "decoded in parts, may be less fluent"}
    return [f"Line {line}: {meanings[kind]}: {what}" for line, kind, what in found.findings]


def chosen_mode(page: Any) -> str:
    """Return the mode if the focus is on it."""
    return str(page.evaluate("document.activeElement.name === 'mode' && document.activeElement.value"))


def test_a_text_is_translated_by_keyboard_alone(browser: Any, server: Serving) -> None:
    expected = decoded(TEXT)
    page, messages = opened_with_choices(browser, server, permissions=["clipboard-read"], **PHONE)
    press(page, "Tab")
    assert chosen_mode(page) == "text"
    assert press(page, "Tab") == "source" and press(page, "Tab") == "target" and press(page, "Tab") == "text"
    page.keyboard.insert_text(TEXT)
    assert press(page, "Control+Enter") == "text"
    shown(page, "summary", "Finished in ")
    assert page.input_value("#translation") == expected.text
    assert findings(page, "text") == expected_findings(expected) and len(expected.findings) > 0
    assert f"; {len(expected.findings)} place" in page.text_content("#summary")
    assert page.get_attribute("#text", "lang") == "en" and page.get_attribute("#translation", "lang") == "de"
    assert press(page, "Tab") == "start" and press(page, "Tab") == "copy"
    page.keyboard.press("Enter")
    shown(page, "summary", "Copied.")
    assert page.evaluate("navigator.clipboard.readText()") == expected.text
    page.focus("#translation")
    press(page, "Tab", "Tab")  # the summary of the findings, then the first line
    assert press(page, "Enter") == "text"
    selected = page.evaluate("getSelection().toString()")
    assert selected == TEXT.splitlines()[expected.findings[0].line - 1]
    require_labels(page)
    require_fit(page)
    assert not messages


def test_a_file_is_sent_and_downloaded_by_keyboard_alone(browser: Any, server: Serving, tmp_path: Path) -> None:
    expected = decoded(SUBTITLES, format="srt")
    file = tmp_path / f"{LONG}.srt"
    file.write_text(SUBTITLES)
    page, messages = opened_with_choices(browser, server, **PHONE)
    choosers = list[Any]()
    page.on("filechooser", lambda chooser: choosers.append(chooser))
    press(page, "Tab", "ArrowRight")
    assert chosen_mode(page) == "file"
    assert press(page, "Tab", "Tab", "Tab") == "file"
    page.keyboard.press("Enter")
    wait(page, lambda: len(choosers) == 1)
    choosers[0].set_files(file)
    assert press(page, "Tab", "Enter") == "stop"
    shown(page, "summary", "Finished in ")
    assert press(page) == "start" and press(page, "Tab") == "download"
    with page.expect_download() as downloading:
        page.keyboard.press("Enter")
    assert downloading.value.suggested_filename == f"{LONG}_de.srt"
    assert downloading.value.path().read_text() == expected.text
    assert findings(page, "file") == expected_findings(expected) and len(expected.findings) > 0
    assert page.get_attribute("#file", "accept").split(",")[:2] == [".txt", ".text"]
    require_labels(page)
    require_fit(page)
    assert not messages


def test_the_targets_are_those_of_the_source(browser: Any, server: Serving) -> None:
    targets = targets_by_name(server)
    assert {"French", "German"} <= {*targets["English"]} and "English" in targets["German"]
    page, _ = opened_with_choices(browser, server)
    assert choices(page, "source") == ["Detect language", "English", "German"]  # no pair has French as its source
    assert page.input_value("#source") == "en" and choices(page, "target") == targets["English"]
    assert page.input_value("#target") == "de"  # LibreTranslate's API names the first pair
    page.focus("#source")
    page.keyboard.type("G")
    assert page.input_value("#source") == "de" and choices(page, "target") == targets["German"]
    page.keyboard.press("Home")
    assert page.input_value("#source") == "auto" and choices(page, "target") == ["English", "French", "German"]
    page.select_option("#target", "fr")
    page.select_option("#source", "en")
    assert page.input_value("#target") == "fr"
    page.fill("#text", TEXT)
    page.click("#start")
    shown(page, "summary", "Finished in ")
    assert page.input_value("#translation") == decoded(TEXT, "grammar: ").text
    assert page.get_attribute("#translation", "lang") == "fr"


@pytest.mark.slow
def test_the_detected_language_is_shown(browser: Any, server: Serving) -> None:
    page, _ = opened_with_choices(browser, server)
    page.select_option("#source", "auto")
    page.select_option("#target", "de")
    for text, words, output in (
        ("The method returns the value.", "; detected English.", decoded("The method returns the value.").text),
        ("Der Igel schläft im Garten.", "; detected German, so the text is unchanged.", "Der Igel schläft im Garten."),
    ):
        page.fill("#text", text)
        page.click("#start")
        shown(page, "summary", words)
        assert page.input_value("#translation") == output


class ThreeLanguages(Letters):
    """A tokenizer like NLLB's: source and translation begin with their language token."""

    languages = MappingProxyType({"eng_Latn": 20, "deu_Latn": 21, "zho_Hant": 19})

    def encode(self, text: str, language: str | None = None) -> list[int]:
        return [self.languages[language or "eng_Latn"], *super().encode(text)]


def test_models_with_language_tokens_list_all_languages(browser: Any) -> None:
    session = Session(tiny_model(), ThreeLanguages(), options=GenerationOptions(drafter="none", max_tokens=4))
    with serving(session, LIMITS, prefixes={}) as server:
        page, _ = opened_with_choices(browser, server)
        assert choices(page, "source") == ["Detect language", "Chinese", "English", "German"]
        page.select_option("#source", label="German")
        assert choices(page, "target") == targets_by_name(server)["German"]
        page.select_option("#target", label="English")
        page.fill("#text", "beef\nabc")
        page.click("#start")
        shown(page, "summary", "Finished in ")
        pair = {"source": "deu_Latn", "target": "eng_Latn"}
        translated = server.post("/translate", q="beef\nabc", **pair).json()["translatedText"]
        assert page.input_value("#translation") == translated

        page.check("[value=prompt]")  # the server asks for a language, and the page then shows fields for it
        page.fill("#prompt", "beef")
        page.fill("#max-tokens", "20")
        page.click("#start")
        shown(page, "problem", "tgt_lang: is missing")
        assert press(page) == "tgt-lang"
        page.keyboard.type("deu_Latn")
        page.keyboard.press("Enter")
        shown(page, "summary", "tokens per target call")
        assert page.text_content("#output") == session.generate("beef", tgt_lang="deu_Latn", max_tokens=20).text
        require_labels(page)


@pytest.mark.slow
def test_a_prefix_may_ask_for_a_correction_within_a_language(browser: Any) -> None:
    with serving(limits=LIMITS, prefixes={("en", "en"): "grammar: "}) as server:
        page, messages = opened_with_choices(browser, server)
        assert choices(page, "source") == ["Detect language", "English"] and choices(page, "target") == ["English"]
        assert page.input_value("#source") == "en"
        page.fill("#text", TEXT)
        page.click("#start")
        shown(page, "summary", "Finished in ")
        assert page.input_value("#translation") == decoded(TEXT, "grammar: ").text and not messages


def test_a_model_without_languages_shows_no_choices(browser: Any) -> None:
    with serving(limits=LIMITS, prefixes={}) as server:
        page, messages = opened(browser, server)
        page.locator("#start", has_text="Run").wait_for()
        assert not page.is_visible("#languages")
        page.fill("#text", TEXT)
        page.click("#start")
        shown(page, "summary", "Finished in ")
        assert page.input_value("#translation") == decoded(TEXT, "").text
        page.check("[value=file]")
        page.set_input_files("#file", {"name": "talk.srt", "mimeType": "text/plain", "buffer": SUBTITLES.encode()})
        page.click("#start")
        shown(page, "download", "Download talk.srt")
        assert not messages


def test_errors_are_shown_in_one_line(browser: Any) -> None:
    with serving(limits=LIMITS) as server:
        page, _ = opened_with_choices(browser, server)
        page.click("#start")  # the field is empty, so the browser asks for a text
        assert press(page) == "text" and page.text_content("#summary") == ""
        page.fill("#text", "a" * 4000)
        page.click("#start")
        shown(page, "problem", "the body must have at most 3000 bytes")
        page.check("[value=file]")
        assert page.text_content("#problem") == ""
        for name, content, words in (
            ("a.txt", b"a" * 4000, "the body must have at most 3000 bytes"),
            (f"{LONG}.unknown", b"a", "the suffix .unknown is unknown"),
            ("a.txt", b"\xff\xfe\xff", "a.txt: "),
        ):
            page.set_input_files("#file", {"name": name, "mimeType": "text/plain", "buffer": content})
            page.click("#start")
            shown(page, "problem", words)
            assert "\n" not in page.text_content("#problem") and page.get_attribute("#problem", "role") == "alert"
            assert not page.is_visible("#progress") and page.is_enabled("#start") and not page.is_visible("#download")
            require_fit(page)
        drain(server)
        eventually(lambda: is_gone(server))
        page.click("#start")
        shown(page, "problem", "server cannot be reached")


@pytest.mark.slow
def test_the_page_asks_for_a_token(browser: Any) -> None:
    with serving(limits=LIMITS, token=TOKEN) as server:
        page, _ = opened_with_choices(browser, server)
        page.check("[value=file]")
        page.set_input_files("#file", {"name": "talk.srt", "mimeType": "text/plain", "buffer": SUBTITLES.encode()})
        page.click("#start")
        shown(page, "problem", "token")
        assert press(page) == "token"
        page.keyboard.type("größe€")  # cannot be sent
        page.keyboard.press("Enter")
        shown(page, "problem", "The token has only ASCII characters.")
        press(page, "Control+A")
        page.keyboard.type(TOKEN)
        page.keyboard.press("Enter")
        shown(page, "download", "Download talk_de.srt")
        with page.expect_download() as downloading:
            page.click("#download")
        assert downloading.value.path().read_text() == decoded(SUBTITLES, format="srt").text
        page.check("[value=text]")
        page.fill("#text", TEXT)
        page.click("#start")
        shown(page, "summary", "Finished in ")


def test_the_output_appears_while_it_is_decoded_and_escape_stops_it(browser: Any) -> None:
    own = bundled()
    without_drafts = replace(own, options=own.options.with_values(drafter="none"))  # so that the rounds do not vary
    first, other = "The method returns the value.", "The end."
    with held(without_drafts, LIMITS) as (server, gated):
        gated.allow()
        calls = gated.calls
        translated = server.post("/translate", q=first, source="en", target="de").json()["translatedText"]
        rounds = gated.calls - calls
        gated.hold()
        page, _ = opened_with_choices(browser, server)
        page.fill("#text", f"{first} {other} {first}")
        page.click("#start")
        shown(page, "summary", "Waiting for the first output...")
        assert page.get_attribute("#progress", "value") is None and press(page) == "stop"
        gated.allow(rounds)
        shown(page, "summary", "Decoding...")
        assert page.input_value("#translation").rstrip() == translated and server.service.admitted == 1
        assert 0 < float(page.get_attribute("#progress", "value")) < 1
        assert page.locator("#modes input:enabled").count() == 0
        page.keyboard.press("Escape")
        shown(page, "summary", "Stopped.")
        gated.allow()
        eventually(lambda: server.service.admitted == 0)
        assert page.input_value("#translation").rstrip() == translated and not page.is_visible("#progress")
        assert page.is_enabled("#start") and page.is_disabled("#stop") and page.is_enabled("[value=file]")


@pytest.mark.slow
def test_a_dropped_file_is_chosen_but_not_sent(browser: Any, server: Serving) -> None:
    page, messages = opened_with_choices(browser, server)
    drop(page, SUBTITLES.encode(), "talk.srt")
    assert press(page) == "start" and page.is_visible("#file") and not page.is_visible("#text")
    assert page.evaluate("document.getElementById('file').files[0].name") == "talk.srt"
    page.keyboard.press("Enter")
    shown(page, "download", "Download talk_de.srt")
    assert not messages


@pytest.mark.slow
def test_several_dropped_files_are_refused(browser: Any, server: Serving) -> None:
    page, messages = opened_with_choices(browser, server)
    drop(page, SUBTITLES.encode(), "talk.srt", "other.srt")
    shown(page, "problem", "Drop one file at a time.")
    assert page.evaluate("document.getElementById('file').files.length") == 0 and not messages


@pytest.mark.slow
def test_a_file_that_has_changed_is_not_blamed_on_the_server(browser: Any, server: Serving, tmp_path: Path) -> None:
    file = tmp_path / "talk.txt"
    page, messages = opened_with_choices(browser, server)
    page.check("[value=file]")
    choose_and_change(page, file)
    page.click("#start")
    shown(page, "problem", "talk.txt cannot be read, or has changed. Choose a file again.")
    page.set_input_files("#file", file)
    page.click("#start")
    shown(page, "download", "Download talk_de.txt")
    assert page.text_content("#problem") == "" and not messages


TABLE = 'id,text,"a, b"\nThis is kept.,The method returns the value.,The end.\n'
LINES = json.dumps({"text": "This is kept.", "own": "The end."}) + "\n"


@pytest.mark.parametrize(
    ("name", "content", "field", "typed", "refusal"),
    [
        ("a.CSV", TABLE, "columns", "text, 3", "columns: csv needs the columns to decode; name some of 'id', 'text'"),
        ("a.jsonl", LINES.replace("text", "id"), "fields", "own", "fields: line 1 has no text in the field 'text'"),
        ("a.json", LINES, "fields", "own", ""),
    ],
)
def test_the_columns_and_keys_of_a_file_can_be_named(
    browser: Any, server: Serving, name: str, content: str, field: str, typed: str, refusal: str
) -> None:
    suffix = PurePath(name).suffix.lower()
    expected = decoded(content, format=suffix.removeprefix("."), **{field: tuple(typed.split(", "))}).text
    page, _ = opened_with_choices(browser, server, **PHONE)
    drop(page, content.encode(), name)
    assert page.locator("[data-field]:visible input").get_attribute("name") == field
    if refusal:  # the message lists the columns
        page.click("#start")
        shown(page, "problem", refusal)
    assert press(page, "Shift+Tab") == field
    page.keyboard.type(typed)
    require_labels(page)
    require_fit(page)
    page.keyboard.press("Enter")
    with page.expect_download() as downloading:
        page.click("#download")
    assert downloading.value.path().read_text() == expected != content
    assert "This is kept." in expected
    drop(page, SUBTITLES.encode(), "talk.srt")
    assert not page.is_visible("[data-field]")
    page.keyboard.press("Enter")
    shown(page, "download", "Download talk_de.srt")


@pytest.mark.slow
def test_the_page_waits_for_a_server_that_loads_its_models(browser: Any, server: Serving) -> None:
    page, _ = opened(browser, server, url="about:blank")
    states = list[str]()
    page.route("**/health", lambda route: route.fulfill(json={"status": states[-1]}) if states else route.abort())
    page.goto(server.url)
    shown(page, "problem", "The server cannot be reached.")
    page.fill("#text", TEXT)
    states.append("loading")
    press(page, "Control+Enter")
    shown(page, "problem", "The server is loading.")
    press(page, "Control+Enter")  # the languages are not known yet
    assert page.text_content("#problem") == "The server is loading." and page.is_disabled("#stop")
    states.append("ok")
    shown(page, "summary", "Finished in ")
    assert page.input_value("#translation") == decoded(TEXT).text and page.text_content("#problem") == ""


@pytest.mark.slow
def test_without_documents_only_prompts_are_offered(browser: Any, server: Serving) -> None:
    page, _ = opened(browser, server, url="about:blank")
    with server.client() as client:
        settings = client.get("/frontend/settings").json() | {"filesTranslation": False, "supportedFilesFormat": []}
    page.route("**/frontend/settings", lambda route: route.fulfill(body=json.dumps(settings)))
    page.goto(server.url)
    page.wait_for_selector("#prompt:visible")
    assert not page.is_visible("#modes") and not page.is_visible("#text") and not page.is_visible("#languages")


# Returns the texts on the page with a contrast ratio below 4.5, and the borders of controls below 3 (WCAG 2.2, AA).
LOW_CONTRAST = """() => {
    const channels = (color) => color.match(/[\\d.]+/g).map(Number);
    const luminance = (color) => {
        const linear = channels(color).slice(0, 3).map((each) => each / 255)
            .map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4));
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
    };
    const ratio = (one, other) => {
        const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
        return (light + 0.05) / (dark + 0.05);
    };
    const background = (element) => {
        const color = getComputedStyle(element).backgroundColor;
        return channels(color)[3] === 0 ? background(element.parentElement) : color;
    };
    const found = [];
    let checked = 0;
    for (const element of document.body.querySelectorAll("*")) {
        if (!element.checkVisibility() || element.matches(":disabled, :disabled *, option, progress")) continue;
        const { color, borderBottomColor, borderBottomWidth } = getComputedStyle(element);
        const hasText = [...element.childNodes].some((each) => each.nodeType === 3 && each.data.trim())
            || element.matches("textarea, input, select");
        if (hasText && ++checked && ratio(color, background(element)) < 4.5) found.push(element.outerHTML);
        const hasBorder = borderBottomWidth !== "0px" && element.matches("textarea, select, button, input");
        if (hasBorder && ratio(borderBottomColor, background(element.parentElement)) < 3) {
            found.push(`border of ${element.outerHTML}`);
        }
    }
    return [found, checked];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_contrast_is_sufficient(browser: Any, server: Serving, scheme: str) -> None:
    page, _ = opened_with_choices(browser, server, color_scheme=scheme)
    page.fill("#text", TEXT)
    page.evaluate("document.getElementById('token-label').hidden = false")
    for mode, done in (("text", "Finished"), ("file", "Finished"), ("prompt", "tokens per target call")):
        page.check(f"[value={mode}]")
        if mode == "file":
            page.set_input_files("#file", {"name": "talk.srt", "mimeType": "text/plain", "buffer": SUBTITLES.encode()})
        if mode == "prompt":
            page.fill("#max-tokens", "20")
        page.click("#start")
        shown(page, "summary", done)
        page.evaluate("document.getElementById('problem').textContent = 'planted'")
        low, checked = page.evaluate(LOW_CONTRAST)
        assert not low and checked > 10


def test_the_page_explains_every_kind_of_finding() -> None:
    from speculative_decoding.documents import findings as module

    script = (ROOT / "speculative_decoding/server/page_translation.js").read_text()
    kinds = {value for name, value in vars(module).items() if name.isupper() and isinstance(value, str)}
    assert len(kinds) >= 9 and {kind for kind in kinds if f"\n  {kind}: " not in script} == set()
