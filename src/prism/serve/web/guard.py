"""In front of every request: who may ask, how much and for how long, and the headers of every answer."""

from __future__ import annotations

import asyncio
import hmac
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prism.serve.web.problems import answer_error

COOKIE = "prism_token"
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_HEADERS = {
    # Charts set styles on elements, so styles may be inline; scripts may not, and nothing comes from elsewhere.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
        "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin-allow-popups",  # Perfetto's tab must be able to answer
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardConfig:
    """What is allowed."""

    token: str | None = None  # None: everybody who reaches the address
    hosts: frozenset[str] | None = LOOPBACK  # names in Host; None: any. Stops pages that rebind their name to us
    most_query_bytes: int = 8_192
    most_seconds: float = 30.0
    most_trace_seconds: float = 600.0  # traces are large, and networks slow


class Guard:
    """Wraps the application. Only GET and HEAD pass, without a body."""

    def __init__(self, app: ASGIApp, config: GuardConfig) -> None:
        self.app = app
        self.config = config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse or pass on one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, is_head = False, scope["method"] == "HEAD"

        async def send_safely(message: Message) -> None:
            nonlocal started
            if is_head and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    if name not in headers:
                        headers[name] = value
                if "cache-control" not in headers:
                    headers["Cache-Control"] = "no-store"
            await send(message)

        limit_s = self.config.most_trace_seconds if scope["path"] == "/api/trace" else self.config.most_seconds
        refusal = self._refuse(scope)
        scope = {**scope, "method": "GET"}  # A HEAD is a GET whose body is not sent.
        try:
            # The time limit holds for sending too: a reader that takes nothing is let go.
            async with asyncio.timeout(limit_s):
                await (refusal or self.app)(scope, receive, send_safely)
        except TimeoutError:
            if not started:
                late = answer_error(503, f"not ready within {limit_s:g} s; ask for less")
                await late(scope, receive, send_safely)
            else:
                raise

    def _refuse(self, scope: Scope) -> ASGIApp | None:
        headers = Headers(scope=scope)
        if scope["method"] not in ("GET", "HEAD"):
            return answer_error(405, "this service is read-only; use GET", {"Allow": "GET, HEAD"})
        if len(scope["query_string"]) > self.config.most_query_bytes:
            return answer_error(414, f"the query is longer than {self.config.most_query_bytes} bytes")
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            return answer_error(413, "requests carry no body here")
        if self.config.hosts is not None and name_of_host(headers.get("host", "")) not in self.config.hosts:
            return answer_error(
                403, "this name is not served; open the address that was printed, or name it with --allow-host"
            )
        return self._check_token(scope, headers)

    def _check_token(self, scope: Scope, headers: Headers) -> ASGIApp | None:
        token = self.config.token
        if token is None or scope["path"] == "/healthz":
            return None
        if is_same(token, headers.get("authorization", "").removeprefix("Bearer ")):
            return None
        if is_same(token, read_cookie(headers.get("cookie", ""))):
            return None
        asked = parse_qs(scope["query_string"].decode("latin-1"))
        if is_same(token, asked.pop("token", [""])[0]):
            # The token leaves the address at once, so that it is not shared with a link.
            query = urlencode(asked, doseq=True)
            path = "/" + scope["path"].lstrip("/")  # two slashes would name another host
            answer = RedirectResponse(path + (f"?{query}" if query else ""), status_code=303)
            secure = scope.get("scheme") == "https"
            answer.set_cookie(COOKIE, token, httponly=True, samesite="strict", secure=secure, path="/")
            return answer
        message = "a token is needed: open the printed address with ?token=..., or send Authorization: Bearer ..."
        return answer_error(401, message, {"WWW-Authenticate": "Bearer"})


def is_same(token: str, given: str) -> bool:
    """Compare in a time that does not tell how much was right."""
    return hmac.compare_digest(token.encode(), given.encode())


def name_of_host(text: str) -> str:
    """The name in a Host header, without port and brackets."""
    if text.startswith("["):
        return text[1:].partition("]")[0].lower()
    return text.partition(":")[0].lower()


def read_cookie(text: str) -> str:
    """The token in a Cookie header, "" where there is none."""
    try:
        cookie = SimpleCookie(text)
    except CookieError:
        return ""
    return cookie[COOKIE].value if COOKIE in cookie else ""
