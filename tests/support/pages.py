"""Opens the web page of a server in a headless Chromium, and uses it."""

from __future__ import annotations

import base64
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.serving import Serving
from tests.support.waiting import PATIENCE, eventually

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PHONE: dict[str, Any] = {"viewport": {"width": 400, "height": 700}, "color_scheme": "dark"}

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt install chromium")


@contextmanager
def started(*arguments: str) -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    with playwright.sync_playwright() as driver:
        yield driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", *arguments])


def opened(browser: Any, server: Serving, url: str = "", **options: Any) -> tuple[Any, list[str]]:
    """Open the page, and close the previous one. Returns the page and its console messages."""
    for context in browser.contexts:
        context.close()
    page = browser.new_page(**{"viewport": {"width": 900, "height": 660}} | options)
    messages = list[str]()
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.set_default_timeout(1000 * PATIENCE)
    page.goto(url or server.url)
    return page, messages


def shown(page: Any, element: str, words: str) -> None:
    """Wait until an element contains a text."""
    page.locator(f"#{element}", has_text=words).wait_for()


def wait(page: Any, condition: Callable[[], bool]) -> None:
    """Wait until a condition on the page is true."""
    eventually(lambda: (page.wait_for_timeout(20), condition())[1])


def press(page: Any, *keys: str) -> str:
    """Press keys one after another. Returns the id of the element that has the focus afterwards."""
    for key in keys:
        page.keyboard.press(key)
    return str(page.evaluate("document.activeElement.id"))


def drop(page: Any, content: bytes, *names: str) -> None:
    """Drop files with the same content."""
    make = """([content, names]) => {
        const transfer = new DataTransfer();
        const bytes = Uint8Array.from(atob(content), (each) => each.charCodeAt(0));
        for (const name of names) transfer.items.add(new File([bytes], name));
        return transfer;
    }"""
    transfer = page.evaluate_handle(make, [base64.b64encode(content).decode(), names or ["talk.wav"]])
    for event in ("dragover", "drop"):
        page.dispatch_event("h1", event, {"dataTransfer": transfer})


def choose_and_change(page: Any, file: Path) -> None:
    """Choose a file, which then changes."""
    file.write_bytes(b"before")
    page.set_input_files("#file", file)
    file.write_bytes(b"the file after")
    os.utime(file, (0, 0))


def require_fit(page: Any) -> None:
    for width in (1200, 400):
        page.set_viewport_size({"width": width, "height": 700})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def require_labels(page: Any) -> None:
    for element in page.query_selector_all("textarea, input, select"):
        assert element.evaluate("each => each.labels.length === 1 || each.getAttribute('aria-labelledby') !== null")


def is_gone(server: Serving) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", int(server.url.rpartition(":")[2]))) != 0
