"""The web page of the server in a headless Chromium. Run as a program with an argument FILE to save a screenshot."""

from __future__ import annotations

import re
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.serving import Serving, bundled, serving
from tests.support.waiting import PATIENCE, eventually

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PROMPT = "translate English to German: This function removes the last element of an array."
TOKEN = "correct-horse-battery"

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt install chromium")


@contextmanager
def started() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        yield driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started() as found:
        yield found


def opened(browser: Any, server: Serving, **options: Any) -> tuple[Any, list[str]]:
    """Open the page. Return it and the messages of its console."""
    page = browser.new_page(viewport={"width": 900, "height": 660}, **options)
    messages = list[str]()
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.set_default_timeout(1000 * PATIENCE)
    page.goto(server.url)
    return page, messages


def is_gone(server: Serving) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", int(server.url.rpartition(":")[2]))) != 0


def shown(page: Any, element: str, words: str) -> None:
    """Wait until an element contains some words."""
    page.locator(f"#{element}", has_text=words).wait_for()


def test_typing_streaming_highlights_keys_and_errors(browser: Any) -> None:
    alone = bundled.__wrapped__().generate(PROMPT).text
    with serving() as server:
        page, messages = opened(browser, server)
        page.fill("#prompt", PROMPT)
        page.keyboard.press("Control+Enter")
        shown(page, "summary", "tokens per target call")
        spans = page.eval_on_selector_all("#output > *", "all => all.map(each => [each.className, each.textContent])")
        assert "".join(text for kind, text in spans if kind != "rejected") == alone
        assert {"accepted", "target"} <= {kind for kind, _ in spans}
        page.check("#compare")
        page.click("#generate")
        shown(page, "comparison", "(medians of 3 repeats)")
        assert re.search(r"speedup \d+\.\d\dx", page.text_content("#comparison"))
        assert server.metric("prompts_total", finish_reason="stop") == 1 + 2 + 2 * 3  # once alone, and 4 pairs
        assert page.text_content("#baseline") == alone
        assert page.eval_on_selector_all("#baseline > :not(.target)", "all => all.length") == 0
        assert not messages  # no blocked resource and no failed script
        page.fill("#prompt", "   ")
        page.click("#generate")
        shown(page, "problem", "prompt: is empty")
        for label in page.query_selector_all("textarea, input"):
            assert label.evaluate("each => each.labels.length === 1")
        page.set_viewport_size({"width": 320, "height": 600})
        assert page.evaluate("document.documentElement.scrollWidth <= 320")
        page.focus("#prompt")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "max-tokens"
        page.fill("#prompt", PROMPT)
        server.server.should_exit = True
        eventually(lambda: is_gone(server))
        page.click("#generate")
        shown(page, "problem", "server cannot be reached")


def test_the_page_asks_for_a_token(browser: Any) -> None:
    with serving(token=TOKEN) as server:
        page, _ = opened(browser, server, color_scheme="dark")
        page.click("#generate")
        page.wait_for_selector("#token:visible")
        page.fill("#token", TOKEN)
        page.keyboard.press("Enter")
        shown(page, "summary", "tokens per target call")
        assert page.text_content("#problem") == ""


if __name__ == "__main__":
    with started() as browser, serving() as server:
        page, _ = opened(browser, server)
        page.fill("#prompt", PROMPT)
        page.check("#compare")
        for _ in range(3):  # the first runs learn which copies are right
            page.click("#generate")
            page.wait_for_selector("#generate:enabled")
        page.screenshot(path=sys.argv[1])
