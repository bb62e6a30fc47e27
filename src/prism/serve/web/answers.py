"""Answers as bytes, made once for each version of the folder and given to all who ask the same."""

from __future__ import annotations

import gzip
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from os import cpu_count
from typing import Any

from anyio import CapacityLimiter, to_thread
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from prism.errors import BadFileError
from prism.serve.library import Library
from prism.serve.web.problems import answer_error

_LEAST_PACKED_BYTES = 1_024
_GZIP_LEVEL = 2  # windows of a timeline are packed for each zoom: level 6 takes three times as long for a tenth less


@dataclass(frozen=True, slots=True)
class Answer:
    """A body, its tag, and the body packed where that is worth it."""

    body: bytes
    tag: str
    packed: bytes | None


@dataclass(slots=True)
class Answers:
    """Keeps the newest answers; an answer is good until the folder changes."""

    library: Library
    most_bytes: int = 24 << 20
    _kept: OrderedDict[tuple[Any, ...], Answer] = field(default_factory=OrderedDict)
    _num_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _limiter: CapacityLimiter | None = None

    def _workers(self) -> CapacityLimiter:
        """No more threads than cores: more would only take turns with the one that answers everybody else."""
        if self._limiter is None:
            self._limiter = CapacityLimiter(max(2, cpu_count() or 2))
        return self._limiter

    async def give(
        self,
        request: Request,
        key: tuple[Any, ...],
        build: Callable[[], object | None],
        media_type: str = "application/json",
    ) -> Response:
        """Answer from what is kept, or build it in a thread; None from `build` is 404, bytes are sent as they are."""
        full = (self.library.snapshot.version, *key)
        answer = self._find(full)
        if answer is None:
            try:
                made = await to_thread.run_sync(lambda: _make(build()), limiter=self._workers())
            except BadFileError as error:
                return answer_error(404, str(error))
            if made is None:
                return answer_error(404, "nothing of that key is in the folder; the folder may have changed")
            answer = self._keep(full, made)
        headers = {"ETag": answer.tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if request.headers.get("if-none-match") == answer.tag:
            return Response(status_code=304, headers=headers)
        if answer.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
            return Response(answer.packed, media_type=media_type, headers={**headers, "Content-Encoding": "gzip"})
        return Response(answer.body, media_type=media_type, headers=headers)

    def _find(self, key: tuple[Any, ...]) -> Answer | None:
        with self._lock:
            answer = self._kept.get(key)
            if answer is not None:
                self._kept.move_to_end(key)
            return answer

    def _keep(self, key: tuple[Any, ...], answer: Answer) -> Answer:
        with self._lock:
            replaced = self._kept.pop(key, None)
            self._kept[key] = answer
            self._num_bytes += _size(answer) - (_size(replaced) if replaced else 0)
            while self._num_bytes > self.most_bytes and self._kept:
                _, old = self._kept.popitem(last=False)
                self._num_bytes -= _size(old)
        return answer


def _make(document: object | None) -> Answer | None:
    """A document as bytes, plain and packed. Its tag is of the bytes alone: another version may say the same."""
    if document is None:
        return None
    body = document if isinstance(document, bytes) else to_json(document, inf_nan_mode="null")
    packed = gzip.compress(body, _GZIP_LEVEL, mtime=0) if len(body) >= _LEAST_PACKED_BYTES else None
    return Answer(body, f'"{sha256(body).hexdigest()[:20]}"', packed)


def _size(answer: Answer) -> int:
    return len(answer.body) + len(answer.packed or b"")
