"""Answers as bytes, built once for each version of the folder and sent to every equal request."""

from __future__ import annotations

import gzip
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from importlib.util import find_spec
from os import cpu_count
from typing import Any, Generic, Literal, NamedTuple, TypeVar
from urllib.parse import parse_qsl

from anyio import CapacityLimiter, to_thread
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from prism.errors import BadFileError
from prism.serve.library import Library
from prism.serve.web.problems import answer_error

_LEAST_PACKED_BYTES = 1_024
_GZIP_LEVEL = 2  # windows are compressed at every zoom: level 6 takes three times as long and saves a tenth
_ZSTD_LEVEL = 1  # a fifth of the time of gzip at level 2, and smaller
_KEPT_BYTES = 1_024  # memory of an answer besides its body
Encoding = Literal["", "gzip", "zstd"]
Key = tuple[Hashable, ...]
M = TypeVar("M", bound=BaseModel)
_has_zstd = find_spec("zstandard") is not None


@dataclass(frozen=True, slots=True)
class Answer:
    """A body with its tag, and its responses: plain, compressed, and empty for clients that have it already."""

    body: bytes
    media_type: str
    tag: str
    _made: dict[str, Response] = field(default_factory=dict)

    def respond(self, scope: Scope) -> Response:
        """The response to a request: compressed as its client accepts, empty if the client has it already."""
        accepted = known = b""
        for name, value in scope["headers"]:
            if name == b"accept-encoding":
                accepted = value
            elif name == b"if-none-match":
                known = value
        is_known = known.decode("latin-1").removeprefix("W/") == self.tag
        return self.make("known" if is_known else choose_encoding(accepted))

    def make(self, form: Literal["", "gzip", "zstd", "known"]) -> Response:
        """One of the responses, made when it is first asked for."""
        response = self._made.get(form)
        if response is None:
            headers = {"ETag": self.tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
            if form == "known":
                response = Response(status_code=304, headers=headers)
            elif form and len(self.body) >= _LEAST_PACKED_BYTES:
                headers["Content-Encoding"] = form
                response = Response(_pack(self.body, form), media_type=self.media_type, headers=headers)
            else:
                response = Response(self.body, media_type=self.media_type, headers=headers)
            self._made[form] = response
        return response

    @property
    def num_bytes(self) -> int:
        """Memory it holds."""
        return _KEPT_BYTES + len(self.body) + sum(len(response.body) for response in self._made.values())


class Kept(NamedTuple):
    """An answer, and the memory it held when it was first given."""

    answer: Answer
    num_bytes: int


@dataclass(slots=True)
class Answers:
    """Keeps the newest answers. Path and query identify an answer; it is valid until what it depends on changes."""

    library: Library
    depends: Mapping[str, Callable[[], Hashable]] = field(default_factory=dict)  # by path: on what besides the folder
    most_bytes: int = 24 << 20
    _kept: OrderedDict[Key, Kept] = field(default_factory=OrderedDict)
    _num_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _limiter: CapacityLimiter | None = None

    def find(self, scope: Scope) -> Response | None:
        """The response to a request if its answer is kept."""
        answer = self._find(self._key_of(scope))
        return None if answer is None else answer.respond(scope)

    async def give(
        self,
        request: Request,
        build: Callable[[], object | None],
        media_type: str = "application/json",
        *,
        at_once: bool = False,
    ) -> Response:
        """Send the kept answer or build it, in a thread unless that is quick; None from `build` is 404."""
        key = self._key_of(request.scope)
        answer = self._find(key)
        if answer is not None:
            return answer.respond(request.scope)

        def make() -> tuple[Answer, Response] | None:
            document = build()
            if document is None:
                return None
            made = make_answer(document, media_type)
            return made, made.respond(request.scope)

        try:
            found = make() if at_once else await to_thread.run_sync(make, limiter=self._workers())
        except BadFileError as error:
            return answer_error(404, str(error))
        if found is None:
            return answer_error(404, "nothing of that key is in the folder; the folder may have changed")
        self._keep(key, found[0])
        return found[1]

    def _workers(self) -> CapacityLimiter:
        """No more threads than cores: more would only slow down the thread that answers other requests."""
        if self._limiter is None:
            self._limiter = CapacityLimiter(max(2, cpu_count() or 2))
        return self._limiter

    def _key_of(self, scope: Scope) -> Key:
        """Everything that an answer depends on; not the user, whom the guard has checked before."""
        path = scope["path"]
        also = self.depends.get(path)
        return path, scope["query_string"], self.library.snapshot.version, also() if also is not None else None

    def _find(self, key: Key) -> Answer | None:
        with self._lock:
            kept = self._kept.get(key)
            if kept is None:
                return None
            self._kept.move_to_end(key)
            return kept.answer

    def _keep(self, key: Key, answer: Answer) -> None:
        kept = Kept(answer, answer.num_bytes)
        with self._lock:
            replaced = self._kept.pop(key, None)
            self._kept[key] = kept
            self._num_bytes += kept.num_bytes - (replaced.num_bytes if replaced else 0)
            while self._num_bytes > self.most_bytes and self._kept:
                _, old = self._kept.popitem(last=False)
                self._num_bytes -= old.num_bytes


@dataclass(frozen=True, slots=True)
class Direct(Generic[M]):
    """A route outside the framework, which takes longer to read the parameters than it takes to draw a window."""

    parameters: type[M]
    answer: Callable[[Request, M], Awaitable[Response]]

    async def ask(self, scope: Scope) -> Response | None:
        """The response; None if a parameter is wrong: then the framework answers with the error."""
        given = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        try:
            asked = self.parameters.model_validate(given)
        except ValidationError:
            return None
        return await self.answer(Request(scope), asked)


class Shortcut:
    """Answers most requests before the framework looks for a route: kept answers and windows of timelines."""

    def __init__(self, app: ASGIApp, answers: Answers, direct: Mapping[str, Direct[Any]]) -> None:
        self.app, self.answers, self.direct = app, answers, direct

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or pass it on."""
        response = None
        if scope["type"] == "http" and scope["method"] == "GET":
            response = self.answers.find(scope)
            if response is None and (direct := self.direct.get(scope["path"])):
                response = await direct.ask(scope)
        await (response or self.app)(scope, receive, send)


def make_answer(document: object, media_type: str) -> Answer:
    """A document as bytes. Its tag depends on the bytes alone: another version may have the same content."""
    body = document if isinstance(document, bytes) else to_json(document, inf_nan_mode="null")
    return Answer(body, media_type, f'"{sha256(body).hexdigest()[:20]}"')


@lru_cache(maxsize=64)
def choose_encoding(accepted: bytes) -> Encoding:
    """The compression for a client with this Accept-Encoding; "" for none."""
    taken = set()
    for part in accepted.decode("latin-1").lower().split(","):
        name, _, weight = part.partition(";")
        if weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000"):
            taken.add(name.strip())
    if _has_zstd and "zstd" in taken:
        return "zstd"
    return "gzip" if "gzip" in taken else ""


def _pack(body: bytes, encoding: Literal["gzip", "zstd"]) -> bytes:
    if encoding == "gzip":
        return gzip.compress(body, _GZIP_LEVEL, mtime=0)
    import zstandard

    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(body)
