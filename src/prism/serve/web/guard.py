"""In front of every request: who may ask, how much and for how long, and the headers of every answer."""

from __future__ import annotations

import asyncio
import hmac
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prism.serve.web.problems import answer_error

COOKIE = "prism_session"
_MOST_CLIENTS = 10_000
_OPEN_FILES = frozenset({"/static/style.css", "/static/favicon.svg"})  # what the login page looks like
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_HEADERS = {
    # Charts set styles on elements, so styles may be inline; scripts may not, and nothing comes from elsewhere.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
        "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
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
    prefix: str = ""  # of every path, such as /prism, where a reverse proxy passes it on
    most_wrong_tries: int = 10  # of tokens from one address within `wrong_tries_s`
    wrong_tries_s: float = 60.0


class Guard:
    """Wraps the application. Only GET and HEAD pass, without a body."""

    def __init__(self, app: ASGIApp, config: GuardConfig) -> None:
        self.app = app
        self.config = config
        self.tries = WrongTries(config.most_wrong_tries, config.wrong_tries_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse or pass on one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if self.config.prefix:
            below = scope["path"].removeprefix(self.config.prefix)
            if scope["path"].startswith(f"{self.config.prefix}/"):
                scope = {**scope, "path": below, "raw_path": below.encode()}
            elif scope["path"] == self.config.prefix:
                await RedirectResponse(f"{self.config.prefix}/", status_code=303)(scope, receive, send)
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
        if token is None or scope["path"] == "/healthz" or scope["path"] in _OPEN_FILES:
            return None
        if is_same(make_session(token), read_cookie(headers.get("cookie", ""))):
            return None
        asked = parse_qs(scope["query_string"].decode("latin-1"))
        asked_for = asked.pop("token", [""])[0]
        given = asked_for or headers.get("authorization", "").removeprefix("Bearer ")
        client = scope["client"][0] if scope.get("client") else ""
        if given and self.tries.are_too_many(client):
            wait = {"Retry-After": str(math.ceil(self.config.wrong_tries_s))}
            return answer_error(429, "too many wrong tokens from this address; wait a minute", wait)
        if is_same(token, given):
            return self._let_in(scope, token, asked) if asked_for else None
        if given:
            self.tries.note(client)
        if "text/html" in headers.get("accept", "") and not scope["path"].startswith("/api/"):
            return HTMLResponse(_login_page(wrong=bool(given)), status_code=401)
        message = "a token is needed: open the printed address with ?token=..., or send Authorization: Bearer ..."
        return answer_error(401, message, {"WWW-Authenticate": "Bearer"})

    def _let_in(self, scope: Scope, token: str, asked: dict[str, list[str]]) -> ASGIApp:
        """Keep a session in a cookie; the token leaves the address at once, so that it is not shared with a link."""
        query = urlencode(asked, doseq=True)
        # Relative to the page asked for, so that a prefix that only the proxy knows stays; "./" keeps a name that
        # begins like an address from being one.
        place = "./" + quote(scope["path"].rpartition("/")[2])
        answer = RedirectResponse(place + (f"?{query}" if query else ""), status_code=303)
        # Lax: a user who follows a link from a chat or a ticket stays logged in.
        answer.set_cookie(
            COOKIE,
            make_session(token),
            httponly=True,
            samesite="lax",
            secure=scope.get("scheme") == "https",
            path=self.config.prefix or "/",
        )
        return answer


class WrongTries:
    """Moments of wrong tries by address; the oldest addresses are forgotten first."""

    def __init__(self, most: int, within_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.most, self.within_s, self.clock = most, within_s, clock
        self._moments: OrderedDict[str, deque[float]] = OrderedDict()

    def note(self, client: str) -> None:
        """One more wrong try."""
        self._moments.setdefault(client, deque(maxlen=self.most)).append(self.clock())
        self._moments.move_to_end(client)
        while len(self._moments) > _MOST_CLIENTS:
            self._moments.popitem(last=False)

    def are_too_many(self, client: str) -> bool:
        """Whether the address has to wait."""
        moments = self._moments.get(client)
        return moments is not None and len(moments) >= self.most and self.clock() - moments[0] < self.within_s


def make_session(token: str) -> str:
    """What the cookie holds: proof of the token, and not the token itself."""
    return hmac.new(token.encode(), b"prism serve session", "sha256").hexdigest()


def _login_page(*, wrong: bool) -> str:
    said = '<p class="alert">That token is not right.</p>' if wrong else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Log in · Prism</title><link rel="stylesheet" href="static/style.css"></head>
<body><main class="login"><form method="get" class="card"><h1>Prism</h1>{said}
<label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
<button>Log in</button>
<p class="note">The service printed the token with its address when it started.</p></form></main></body></html>
"""


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
