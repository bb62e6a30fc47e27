"""One request of HTTP: what it may send, where to, and how it went, without a word of its secrets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from prism.errors import BadConfigError

_MOST_ANSWER_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """Where messages go. The address and the headers may hold secrets: they are never written or shown."""

    name: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


class _NoRedirect(HTTPRedirectHandler):
    """A redirected POST would become a GET without its body, and take its secrets to another host."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow none."""


_OPENER = build_opener(_NoRedirect)


def check_url(url: str, where: str) -> str:
    """The address, if something can be sent to it."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadConfigError(f"{where}: expected http://HOST/... or https://HOST/...")
    return url


def ask_http(url: str, body: bytes | None, headers: Mapping[str, str], timeout_s: float) -> bytes:
    """POST a body, or GET where there is none; the answer. Raises OSError and ValueError as urllib does."""
    request = Request(url, body, dict(headers), method="GET" if body is None else "POST")
    with _OPENER.open(request, timeout=timeout_s) as answer:
        text: bytes = answer.read(_MOST_ANSWER_BYTES)
    return text


def post_once(receiver: Receiver, body: Any, timeout_s: float = 5.0) -> str:
    """Send one body now: "" if it was taken, else the reason, without the address."""
    return post(receiver, encode(body), timeout_s).why


class Outcome(NamedTuple):
    """How one request went: `why` is empty where the body was taken."""

    why: str
    code: int = 0
    retry_after_s: float = 0.0


def encode(body: Any) -> bytes:
    """A body as it is sent."""
    return json.dumps(body, allow_nan=False).encode()


def post(receiver: Receiver, body: bytes, timeout_s: float) -> Outcome:
    """Send one body; whatever a receiver does, nothing is raised."""
    try:
        ask_http(receiver.url, body, {"Content-Type": "application/json", **receiver.headers}, timeout_s)
        return Outcome("")
    except HTTPError as error:
        after = error.headers.get("Retry-After", "") if error.headers is not None else ""
        error.close()
        return Outcome(f"answered {error.code}", error.code, float(after) if after.isdecimal() else 0.0)
    except Exception as error:  # Whatever a receiver does must not end the one that tells it.
        return Outcome(f"not reached ({type(getattr(error, 'reason', None) or error).__name__})")
