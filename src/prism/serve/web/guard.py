"""Checks before every request: who may ask, how much and how often; and the headers of every answer."""

from __future__ import annotations

import asyncio
import hmac
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Literal
from urllib.parse import parse_qs, quote, urlencode

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prism.serve.tokens import Token, digest_of
from prism.serve.web.problems import answer_error

COOKIE = "prism_session"  # proof of a token, and not the token itself
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
    "Cross-Origin-Opener-Policy": "same-origin-allow-popups",  # so that Perfetto's tab can send messages back
    "Cache-Control": "no-store",
}
_RAW_HEADERS = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]

_WRITABLE = frozenset({"/api/annotations", "/api/incidents", "/api/alerts/test"})
WRITE_HEADER = "x-prism-write"  # pages of other sites need permission to send it (CORS), which is never given


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardConfig:
    """What is allowed."""

    token: str | None = None  # None: everybody who reaches the address
    hosts: frozenset[str] | None = LOOPBACK  # names in Host; None: any. Prevents DNS rebinding
    most_query_bytes: int = 8_192
    most_seconds: float = 30.0
    most_trace_seconds: float = 600.0  # traces are large, and networks slow
    prefix: str = ""  # of every path, such as /prism, where a reverse proxy passes it on
    most_wrong_tries: int = 10  # of tokens from one address within `wrong_tries_s`
    wrong_tries_s: float = 60.0
    tokens: tuple[Token, ...] = ()  # further ones, with scopes and an end
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()  # proxies that may name the user
    user_header: str = ""  # in which they name the user, such as X-Forwarded-User; "": none
    writable: bool = False  # whether people may write
    most_body_bytes: int = 8_192
    most_writes: int = 60  # from one address within a minute


class Guard:
    """Wraps the application. GET and HEAD pass, without a body; notes may be written where that is allowed."""

    def __init__(self, app: ASGIApp, config: GuardConfig) -> None:
        self.app = app
        self.config = config
        self.tries = WrongTries(config.most_wrong_tries, config.wrong_tries_s)
        self.writes = WrongTries(config.most_writes, 60.0)
        given = () if config.token is None else (Token(name="", digest=digest_of(config.token)),)
        self.tokens = (*given, *config.tokens)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse one request, or pass it on."""
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
                given = {name for name, _ in message["headers"]}
                own = [header for header in _RAW_HEADERS if header[0] not in given]
                message = {**message, "headers": [*message["headers"], *own]}
            await send(message)

        limit_s = self.config.most_trace_seconds if scope["path"] == "/api/trace" else self.config.most_seconds
        scope = {**scope, "prism_user": ""}
        refusal = self._refuse(scope)
        if is_head:
            scope = {**scope, "method": "GET"}  # A HEAD is a GET whose body is not sent.
        try:
            # The time limit holds for sending, too: a client that reads nothing is disconnected.
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
        writes = scope["method"] in ("POST", "DELETE") and scope["path"] in _WRITABLE and self.config.writable
        if scope["method"] not in ("GET", "HEAD") and not writes:
            return answer_error(405, "this service is read-only; use GET", {"Allow": "GET, HEAD"})
        if len(scope["query_string"]) > self.config.most_query_bytes:
            return answer_error(414, f"the query is longer than {self.config.most_query_bytes} bytes")
        if "transfer-encoding" in headers or not _is_small(headers, self.config.most_body_bytes if writes else 0):
            return answer_error(413, "requests carry no body here" if not writes else "the body is too large")
        if self.config.hosts is not None and name_of_host(headers.get("host", "")) not in self.config.hosts:
            return answer_error(
                403, "this name is not served; open the address that was printed, or name it with --allow-host"
            )
        return self._check_token(scope, headers) or (self._check_write(scope, headers) if writes else None)

    def _check_write(self, scope: Scope, headers: Headers) -> ASGIApp | None:
        """Only our own pages, and programs that send the header, may write, and only so much per minute."""
        origin = headers.get("origin")
        if headers.get(WRITE_HEADER) != "1" or (origin and origin.partition("://")[2] != headers.get("host", "")):
            return answer_error(403, "writing needs the header X-Prism-Write: 1, and comes from no other site")
        client = _client_of(scope)
        if self.writes.are_too_many(client):
            return answer_error(429, "too much is written from this address; wait a minute", {"Retry-After": "60"})
        self.writes.note(client)
        return None

    def _check_token(self, scope: Scope, headers: Headers) -> ASGIApp | None:
        if not self.tokens or scope["path"] == "/healthz" or scope["path"] in _OPEN_FILES:
            return None
        client = _client_of(scope)
        user = headers.get(self.config.user_header, "") if self.config.user_header else ""
        if user and is_within(client, self.config.trusted_proxies):
            scope["prism_user"] = user[:200]
            return None
        session = read_cookie(headers.get("cookie", ""))
        known = self._find(lambda token: is_same(token.session, session))
        if known is not None:
            return _check_scope(known, scope)
        asked = parse_qs(scope["query_string"].decode("latin-1"))
        asked_for = asked.pop("token", [""])[0]
        given = asked_for or headers.get("authorization", "").removeprefix("Bearer ")
        known = self._find(lambda token: is_same(token.digest, digest_of(given))) if given else None
        if known is not None:  # however many wrong ones came from this address, which may be a proxy's
            return _check_scope(known, scope) or (self._let_in(scope, known, asked) if asked_for else None)
        if given and self.tries.are_too_many(client):
            wait = {"Retry-After": str(math.ceil(self.config.wrong_tries_s))}
            return answer_error(429, "too many wrong tokens from this address; wait a minute", wait)
        if given:
            self.tries.note(client)
        if "text/html" in headers.get("accept", "") and not scope["path"].startswith("/api/"):
            return HTMLResponse(_login_page(wrong=bool(given)), status_code=401)
        message = "a token is needed: open the printed address with ?token=..., or send Authorization: Bearer ..."
        return answer_error(401, message, {"WWW-Authenticate": "Bearer"})

    def _find(self, matches: Callable[[Token], bool]) -> Token | None:
        """The token that matches and has not expired; all are compared, so that the time reveals nothing."""
        found = [token for token in self.tokens if matches(token)]
        return next((token for token in found if not token.has_ended(time.time())), None)

    def _let_in(self, scope: Scope, token: Token, asked: dict[str, list[str]]) -> ASGIApp:
        """Keep the session in a cookie and the token out of the address, so that shared links do not contain it."""
        query = urlencode(asked, doseq=True)
        # Relative to the requested page, which keeps a prefix that only the proxy knows; with "./" a name that
        # looks like an address is not one.
        place = "./" + quote(scope["path"].rpartition("/")[2])
        answer = RedirectResponse(place + (f"?{query}" if query else ""), status_code=303)
        # Lax: a user who follows a link from a chat or a ticket stays logged in.
        answer.set_cookie(
            COOKIE,
            token.session,
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
        """Count a wrong try."""
        self._moments.setdefault(client, deque(maxlen=self.most)).append(self.clock())
        self._moments.move_to_end(client)
        while len(self._moments) > _MOST_CLIENTS:
            self._moments.popitem(last=False)

    def are_too_many(self, client: str) -> bool:
        """Whether the address has to wait."""
        moments = self._moments.get(client)
        return moments is not None and len(moments) >= self.most and self.clock() - moments[0] < self.within_s


def _check_scope(token: Token, scope: Scope) -> ASGIApp | None:
    """Refuse what the token's scopes do not allow; note the token's name."""
    scope["prism_user"] = token.name
    needed: Literal["read", "write"] = "write" if scope["method"] in ("POST", "DELETE") else "read"
    if scope["path"] == "/metrics" and "metrics" in token.scopes:
        return None
    if needed not in token.scopes:
        return answer_error(403, f"this token may not {needed} here; ask for one with the scope {needed}")
    return None


def _client_of(scope: Scope) -> str:
    return scope["client"][0] if scope.get("client") else ""


def _is_small(headers: Headers, most: int) -> bool:
    length = headers.get("content-length", "0")
    return length.isdecimal() and int(length) <= most


def is_within(address: str, networks: tuple[IPv4Network | IPv6Network, ...]) -> bool:
    """Whether an address is in one of the networks."""
    try:
        found = ip_address(address)
    except ValueError:
        return False
    return any(found.version == network.version and found in network for network in networks)


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
    """Compare in a time that does not depend on how much matches."""
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
