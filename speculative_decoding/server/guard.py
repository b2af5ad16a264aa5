"""Access control: checks Host, Origin and token before anything of a request is read, and adds security headers."""

from __future__ import annotations

import hmac
import ipaddress
import time
from collections.abc import Callable, Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import one_line
from .bodies import error_response
from .errors import ServerError

SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """ASGI middleware that refuses requests for other hosts, from other origins, or without the token.

    Requests may also name the server by IP address. Only names can be redirected to this machine by an attacker's DNS
    server, which is how a foreign web page would reach it (DNS rebinding).

    Args:
        app: The application.
        hosts: Names of this server. localhost is always allowed.
        token: The token that clients must send, or None.
        log: Called after each response with the scope, the HTTP status (0 if none was sent) and the seconds it took.
    """

    def __init__(
        self, app: ASGIApp, hosts: Collection[str], token: str | None, log: Callable[[Scope, int, float], None]
    ) -> None:
        self._app = app
        self._hosts = {"localhost", *hosts}
        self._token = token
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        status = 0
        started = time.monotonic()

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(SECURITY_HEADERS)
            await send(message)

        scope["token"] = self._token
        try:
            try:
                self._check(scope)
            except ServerError as error:
                return await error_response(scope["path"], error)(scope, receive, send_with_headers)
            await self._app(scope, receive, send_with_headers)
        except Exception:
            status = 500
            raise
        finally:
            self._log(scope, status, time.monotonic() - started)

    def _check(self, scope: Scope) -> None:
        """Raise `ServerError` for a request that is not allowed."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_allowed(hosts[0]):
            name = one_line(hosts[0])[:80] if hosts else ""
            raise ServerError(403, f"host {name!r} is not allowed; add --allow-host", code="wrong_host")
        for origin in headers.getlist("origin"):
            if urlsplit(origin).netloc.lower() != hosts[0].lower():
                raise ServerError(403, "pages of other origins may not use this server", code="wrong_origin")
        is_public = scope["path"] in ("/", "/page.js", "/page.css", "/health")
        # LibreTranslate's clients send the token in the body
        token_is_in_body = scope["path"] == "/translate" and "authorization" not in headers
        if not is_public and not token_is_in_body:
            require_token(scope)

    def _is_allowed(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
            return "@" not in host and (name in self._hosts or bool(ipaddress.ip_address(name)))
        except ValueError:
            return False


def require_token(scope: Scope, token: str = "") -> None:
    """Check the token in constant time. Raises `ServerError` if it is wrong.

    Args:
        scope: The request. Its Authorization header has precedence.
        token: A token from the body, for requests without that header.
    """
    expected = scope["token"]
    if expected is None:
        return
    scheme, _, bearer = Headers(scope=scope).get("authorization", f"bearer {token}").partition(" ")
    given = bearer.strip() if scheme.lower() == "bearer" else ""
    if not hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode()):
        raise ServerError(
            401,
            "missing or wrong token; send Authorization: Bearer TOKEN",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
