"""Access control: checks Host, Origin and token before a request's body is read or a WebSocket is accepted."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import re
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from urllib.parse import unquote, urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from ..errors import one_line
from .bodies import error_response
from .errors import ServerError

HOST = re.compile(r"([\w.-]+|\[[\da-f:.]+\])(:\d{0,5})?", re.ASCII | re.IGNORECASE)  # name or address, optional port

PAGE = {  # file of the web page -> media type
    "/page.css": "text/css",
    "/page.js": "text/javascript",
    "/page_text.js": "text/javascript",
    "/page_prompt.js": "text/javascript",
    "/page_translation.js": "text/javascript",
    "/page_speech.js": "text/javascript",
    "/page_capture.js": "text/javascript",
}
# LibreTranslate's clients request languages and settings without a token. The responses contain no texts
PUBLIC = ("/", *PAGE, "/health", "/languages", "/frontend/settings")
TOKEN_SUBPROTOCOL = "openai-insecure-api-key."  # as in OpenAI's client; browsers cannot set a WebSocket's headers
TOKEN_IN_BODY = ("/translate", "/translate_file", "/detect")  # where LibreTranslate's clients send the token


class Guard:
    """ASGI middleware that refuses requests for other hosts, from other origins, or without the token.

    The host check prevents DNS rebinding, in which an attacker's DNS server points a host name at this machine, so that
    a malicious web page can send requests to this server. IP addresses are allowed as hosts, because they need no DNS.

    Args:
        app: The application.
        hosts: The host names of this server. localhost is always allowed.
        token: The token that clients must send, or None.
        log: Called after each response or WebSocket with the scope, the HTTP status (0 if no response was sent) and
            the duration in seconds.
    """

    def __init__(
        self, app: ASGIApp, hosts: Collection[str], token: str | None, log: Callable[[Scope, int, float], None]
    ) -> None:
        self._app = app
        self._hosts = {"localhost", *map(str.lower, hosts)}
        self._token = token
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)
        status = 0
        started = time.monotonic()

        async def send_and_note_status(message: Message) -> None:
            nonlocal status
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                status = message["status"]
            elif message["type"] == "websocket.accept":
                status = 101
            elif message["type"] == "websocket.close":
                status = status or 403  # uvicorn's response
            await send(message)

        scope["token"] = self._token
        try:
            try:
                self._check(scope)
            except ServerError as error:
                return await error_response(scope["path"], error)(scope, receive, send_and_note_status)
            await self._app(scope, receive, send_and_note_status)
        except asyncio.CancelledError:
            # A few seconds after the grace period, uvicorn cancels unfinished requests, such as incomplete uploads
            if not status:
                stopping = ServerError(503, "the server is stopping", code="stopping", headers={"Connection": "close"})
                await error_response(scope["path"], stopping)(scope, receive, send_and_note_status)
        except WebSocketDisconnect:
            pass  # the client has disconnected
        except Exception:
            if status == 101:
                with suppress(OSError):
                    await send({"type": "websocket.close", "code": 1011})
            status = 500
            raise
        finally:
            self._log(scope, status, time.monotonic() - started)

    def _check(self, scope: Scope) -> None:
        """Raise `ServerError` for a request that is not allowed."""
        headers = Headers(scope=scope)
        if "content-length" in headers and "transfer-encoding" in headers:
            # A proxy may use the other length, and so find a different end of the request (RFC 9112, section 6.1)
            message = "a request must not have both Content-Length and Transfer-Encoding"
            raise ServerError(400, message, code="two_lengths", headers={"Connection": "close"})
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_allowed(hosts[0]):
            name = one_line(hosts[0])[:80] if hosts else ""
            raise ServerError(403, f"host {name!r} is not allowed; add --allow-host", code="wrong_host")
        for origin in headers.getlist("origin"):
            if host_of(origin) != hosts[0].lower():
                raise ServerError(403, "pages of other origins may not use this server", code="wrong_origin")
        is_token_in_body = scope["path"] in TOKEN_IN_BODY and "authorization" not in headers
        if scope["path"] not in PUBLIC and not (is_token_in_body and scope["type"] == "http"):
            require_token(scope, token_in_subprotocols(scope))

    def _is_allowed(self, host: str) -> bool:
        match = HOST.fullmatch(host)
        if match is None:
            return False
        name = match[1].strip("[]").lower()
        try:
            return name in self._hosts or bool(ipaddress.ip_address(name))
        except ValueError:
            return False


def host_of(origin: str) -> str:
    """Return the host of an origin and its port, if any, in lower case; "" if the origin is invalid."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:  # for example, brackets without an IPv6 address
        return ""


def token_in_subprotocols(scope: Scope) -> str:
    """Return the token among the subprotocols of a WebSocket, or "". Web pages percent-encode the token."""
    given = [name for name in scope.get("subprotocols", ()) if name.startswith(TOKEN_SUBPROTOCOL)]
    return unquote(given[0].removeprefix(TOKEN_SUBPROTOCOL)) if given else ""


def require_token(scope: Scope, token: str = "") -> None:
    """Check the token of a request in constant time. Raises `ServerError` if the token is missing or wrong.

    Args:
        scope: The request. Its Authorization header takes precedence over `token`.
        token: The token in the body or among the subprotocols, if any.
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
