"""A model behind an OpenAI-compatible address: its name, and a client that retries, limits its rate and counts."""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import json
import os
import random
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from prism.errors import BadConfigError, BadFileError, PrismError
from prism.evaluate.run.connections import Connections
from prism.evaluate.run.models.model import Continuation
from prism.records.settings import Checked, number, one_of

ENDPOINT_FILE = "endpoint.json"
T = TypeVar("T")
_RETRIED = (408, 409, 425, 429, 500, 502, 503, 504, 529)
_MAX_WAIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint(Checked):
    """A served model, as a plan names it."""

    url: str  # as far as /v1
    model: str
    api: Literal["completions", "chat"] = field(default="completions", metadata=one_of(Literal["completions", "chat"]))
    tokenizer: str | None = None  # a folder; likelihoods need the model's own
    key_variable: str = "OPENAI_API_KEY"  # the environment variable that holds the key
    concurrency: int = number(8, 1, 1024)  # requests at once, per worker
    requests_per_minute: float | None = number(None, 0.001, 1e9)  # of all workers of a node together
    attempts: int = number(6, 1, 100)  # of one request
    timeout_s: float = number(300.0, 0.1, 86400)
    max_length: int = number(2048, 2, 10_000_000)
    price_in: float = number(0.0, 0, 1e6)  # per million tokens read, in whatever currency
    price_out: float = number(0.0, 0, 1e6)  # per million tokens written
    revision: str = ""  # change it when the server serves other weights under the same name

    @property
    def key(self) -> str:
        """What results depend on: the address, the model's name and its revision."""
        words = [self.url, self.model, self.api, self.tokenizer, self.revision]
        return hashlib.sha256(json.dumps(words).encode()).hexdigest()


@dataclass(slots=True)
class Usage:
    """What requests have taken so far."""

    requests: int = 0
    retries: int = 0
    tokens_in: int = 0
    tokens_out: int = 0

    def add(self, document: dict[str, Any]) -> None:
        """Count one answer by what the server says of it."""
        said = document.get("usage") or {}
        self.requests += 1
        self.tokens_in += int(said.get("prompt_tokens") or 0)
        self.tokens_out += int(said.get("completion_tokens") or 0)


def read_endpoint(folder: Path) -> Endpoint:
    """The endpoint that a checkpoint's folder stands for."""
    try:
        return Endpoint(**json.loads((folder / ENDPOINT_FILE).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise BadFileError(f"{folder / ENDPOINT_FILE}: not readable ({error})") from None


class EndpointClient:
    """Posts requests, several at once, over connections that stay open."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.usage = Usage()
        self._where = urllib.parse.urlsplit(endpoint.url.rstrip("/"))
        if self._where.scheme not in ("http", "https") or not self._where.netloc:
            raise BadConfigError(f"'endpoint.url' is '{endpoint.url}', expected an address as http://host:8000/v1")
        self._connections = Connections(self._where, endpoint.timeout_s)
        self._lock = threading.Lock()
        self._pace = _Pace(endpoint)

    def post_all(self, bodies: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Answers in the order of the requests; the first that cannot be had ends them all."""
        return self.at_once(self.post, bodies)

    def at_once(self, ask: Callable[..., T], *given: Iterable[Any]) -> list[T]:
        """What `ask` returns for each, as many at once as the endpoint may have."""
        with ThreadPoolExecutor(self.endpoint.concurrency) as pool:
            try:
                return list(pool.map(ask, *given))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def post(self, body: dict[str, Any]) -> dict[str, Any]:
        """One answer; what may pass is tried again, as late as the server asks for."""
        said = ""
        for attempt in range(self.endpoint.attempts):
            if attempt:
                with self._lock:
                    self.usage.retries += 1
            self._pace.wait()
            try:
                status, headers, text = self._send(body)
            except (OSError, http.client.HTTPException) as error:
                said, wait_s = f"{type(error).__name__}: {error}", None
            else:
                if status == 200:
                    return self._read(text)
                said, wait_s = f"HTTP {status}: {_message(text)}", _retry_after_s(headers)
                if status not in _RETRIED:
                    raise PrismError(f"{self.endpoint.url}: {said}")
            if attempt + 1 < self.endpoint.attempts:
                # Doubling, with chance in it so that workers do not come back together.
                time.sleep(
                    min(_MAX_WAIT_S, wait_s if wait_s is not None else 0.5 * 2**attempt * (0.5 + random.random()))
                )
        raise PrismError(f"{self.endpoint.url}: no answer after {self.endpoint.attempts} attempts ({said})")

    def take_usage(self) -> dict[str, float]:
        """Requests, tokens and their price since this was last called."""
        with self._lock:
            used, self.usage = self.usage, Usage()
        cost = (used.tokens_in * self.endpoint.price_in + used.tokens_out * self.endpoint.price_out) / 1e6
        return {**asdict(used), "cost": cost}

    def _read(self, text: bytes) -> dict[str, Any]:
        try:
            document: dict[str, Any] = json.loads(text)
            with self._lock:
                self.usage.add(document)
            return document
        except (ValueError, AttributeError, TypeError):
            raise PrismError(f"{self.endpoint.url}: the answer is no JSON object: {text[:80]!r}") from None

    def _send(self, body: dict[str, Any]) -> tuple[int, Any, bytes]:
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(self.endpoint.key_variable):
            headers["Authorization"] = f"Bearer {key}"
        path = "chat/completions" if "messages" in body else "completions"
        with self._connections.take() as line:
            line.request("POST", f"{self._where.path}/{path}", json.dumps(body), headers)
            answer = line.getresponse()
            return answer.status, answer.headers, answer.read()


class _Pace:
    """At most so many requests a minute, over all processes of this machine that ask the same address."""

    def __init__(self, endpoint: Endpoint) -> None:
        rate = endpoint.requests_per_minute
        self._gap_s = 60.0 / rate if rate else 0.0
        name = hashlib.sha256(endpoint.url.encode()).hexdigest()[:16]
        self._path = Path(tempfile.gettempdir()) / f"prism-pace-{os.getuid()}-{name}"

    def wait(self) -> None:
        """Take the next free moment and sleep until it comes."""
        if not self._gap_s:
            return
        with self._path.open("a+") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            handle.seek(0)
            text = handle.read().strip()
            now = time.time()
            at = max(now, min(float(text or 0.0), now + _MAX_WAIT_S))
            handle.truncate(0)
            handle.write(repr(at + self._gap_s))
        time.sleep(max(0.0, at - time.time()))


class EndpointModel:
    """A served model for the built-in tasks: texts in, texts and likelihoods out."""

    def __init__(self, folder: Path) -> None:
        self.client = EndpointClient(read_endpoint(folder))

    def likelihoods(self, asked: Sequence[Continuation], batch: int) -> list[float]:
        """From the log probabilities of an echoed text; servers of chats alone do not give them."""
        if self.client.endpoint.api == "chat":
            raise BadConfigError(f"{self.client.endpoint.url}: a chat API gives no likelihoods; use api: completions")
        common = {"model": self.client.endpoint.model, "temperature": 0, "max_tokens": 1, "logprobs": 1, "echo": True}
        bodies = [{"prompt": one.context + one.continuation, **common} for one in asked]
        answers = self.client.post_all(bodies)
        return [_read_likelihood(one, answer) for one, answer in zip(asked, answers, strict=True)]

    def generate(self, prompts: Sequence[str], max_tokens: int, batch: int) -> list[str]:
        """Greedy continuations."""
        end = self.client.endpoint
        common = {"model": end.model, "temperature": 0, "max_tokens": max_tokens}
        if end.api == "chat":
            bodies = [{"messages": [{"role": "user", "content": prompt}], **common} for prompt in prompts]
            return [str(_choice(a)["message"]["content"] or "") for a in self.client.post_all(bodies)]
        return [str(_choice(a)["text"]) for a in self.client.post_all([{"prompt": p, **common} for p in prompts])]


def _read_likelihood(one: Continuation, answer: dict[str, Any]) -> float:
    """Sum over the tokens that begin inside the continuation; the one that was generated behind it is left out."""
    try:
        found = _choice(answer)["logprobs"]
        start, end = len(one.context), len(one.context) + len(one.continuation)
        values = zip(found["text_offset"], found["token_logprobs"], strict=True)
        return float(sum(value for offset, value in values if start <= offset < end and value is not None))
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise PrismError(
            f"the server gives no log probabilities of its prompt ({error!r}); it must echo them"
        ) from None


def _choice(answer: dict[str, Any]) -> dict[str, Any]:
    try:
        found: dict[str, Any] = answer["choices"][0]
        return found
    except (KeyError, IndexError, TypeError):
        raise PrismError(f"the server's answer has no choices: {str(answer)[:120]}") from None


def _message(text: bytes) -> str:
    try:
        found = json.loads(text)
        said = found.get("error", found)
        return str(said.get("message", said) if isinstance(said, dict) else said)[:300]
    except (ValueError, AttributeError):
        return text[:200].decode(errors="replace")


def _retry_after_s(headers: Any) -> float | None:
    try:
        return max(0.0, float(headers.get("Retry-After")))
    except (TypeError, ValueError):
        return None
