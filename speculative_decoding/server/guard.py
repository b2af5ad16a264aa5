"""Who may ask at all: Host, Origin and token are looked at before anything is read. And headers of every answer."""

from __future__ import annotations

import hmac
import ipaddress
import time
from collections.abc import Callable, Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import one_line
from .bodies import refusal
from .errors import ServerError

OPEN_PATHS = ("/", "/page.js", "/page.css", "/health")  # nothing in them needs a token
KEY_PATH = "/translate"  # LibreTranslate's clients send their token within the body
LOCAL = "localhost"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """hosts: names by which the server is called. An address is accepted too: only names can be made to point to
    another machine, which is how a page from elsewhere would reach this one (DNS rebinding).
    """

    def __init__(
        self, app: ASGIApp, hosts: Collection[str], token: str | None, note: Callable[[Scope, int, float], None]
    ) -> None:
        self._app, self._hosts, self._token, self._note = app, {LOCAL, *hosts}, token, note

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        status, begun = 0, time.monotonic()

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        scope["token"] = self._token
        try:
            try:
                self._check(scope)
            except ServerError as error:
                return await refusal(scope["path"], error)(scope, receive, answer)
            await self._app(scope, receive, answer)
        except Exception:
            status = 500
            raise
        finally:
            self._note(scope, status, time.monotonic() - begun)

    def _check(self, scope: Scope) -> None:
        """Raises `ServerError`."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            name = one_line(hosts[0])[:80] if hosts else ""
            raise ServerError(403, f"Host {name!r} is none of this server's names (--allow-host)", code="wrong_host")
        for origin in headers.getlist("origin"):
            if urlsplit(origin).netloc.lower() != hosts[0].lower():
                raise ServerError(403, "pages from elsewhere may not use this server (Origin)", code="wrong_origin")
        has_key = scope["path"] == KEY_PATH and "authorization" not in headers
        if scope["path"] not in OPEN_PATHS and not has_key:
            require_token(scope)

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
            return "@" not in host and (name in self._hosts or bool(ipaddress.ip_address(name)))
        except ValueError:
            return False


def require_token(scope: Scope, key: str = "") -> None:
    """key: stands for the token where no header has it. Raises `ServerError`, after a time that says nothing of the
    token.
    """
    kind, _, bearer = Headers(scope=scope).get("authorization", f"bearer {key}").partition(" ")
    given, wanted = bearer.strip() if kind.lower() == "bearer" else "", scope["token"]
    if wanted is not None and not hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode()):
        headers = {"WWW-Authenticate": "Bearer"}
        raise ServerError(
            401, "a token is needed: Authorization: Bearer TOKEN", code="invalid_api_key", headers=headers
        )
